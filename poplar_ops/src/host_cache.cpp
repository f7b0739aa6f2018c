// SPDX-License-Identifier: Apache-2.0
#include "sparq/host_cache.hpp"
#include "stores/history.hpp"
#include "stores/store.hpp"
#include <algorithm>
#include <poplar/Target.hpp>

namespace sparq {

namespace {

// Of one batch on each tile: little beside its 624 KiB, and few runs for a cache of gigabytes.
constexpr std::size_t bytesPerTile = 3072;

// {n, width}, rows spread evenly over all tiles.
Tensor addSpread(Graph &graph, const Type &type, std::size_t n, std::size_t width,
                 const std::string &name) {
  const Tensor tensor = graph.addVariable(type, {n, width}, name);
  const std::size_t nTiles = graph.getTarget().getNumTiles(), each = (n + nTiles - 1) / nTiles;
  Graph::TileToTensorMapping mapping(nTiles);
  for (std::size_t first = 0, tile = 0; first < n; first += each, ++tile)
    mapping[tile].emplace_back(first * width, std::min(first + each, n) * width);
  graph.setTileMapping(tensor, mapping);
  return tensor;
}

} // namespace

// Calls create(handle, piece of the tensor).
template <class Create>
HostTensor HostTensor::inPieces(const Graph &graph, const Tensor &tensor, const std::string &name,
                                const Create &create) {
  constexpr std::size_t maxPieceBytes = std::size_t(64) << 20;
  HostTensor host;
  host.elementBytes_ = graph.getTarget().getTypeSize(tensor.elementType());
  const std::size_t n = tensor.numElements(), most = maxPieceBytes / host.elementBytes_;
  for (std::size_t begin = 0; begin < n; begin += most) {
    host.pieces_.push_back(
        {name + "/" + std::to_string(host.pieces_.size()), begin, std::min(begin + most, n)});
    create(host.pieces_.back().handle, tensor.flatten().slice(begin, host.pieces_.back().end));
  }
  return host;
}

HostTensor HostTensor::writable(Graph &graph, const Tensor &tensor, const std::string &name) {
  return inPieces(graph, tensor, name + "/write", [&](const auto &handle, const Tensor &piece) {
    graph.createHostWrite(handle, piece);
  });
}

HostTensor HostTensor::readable(Graph &graph, const Tensor &tensor, const std::string &name) {
  return inPieces(graph, tensor, name + "/read", [&](const auto &handle, const Tensor &piece) {
    graph.createHostRead(handle, piece);
  });
}

void HostTensor::write(Engine &engine, const void *data) const {
  const char *const bytes = static_cast<const char *>(data);
  for (const Piece &piece : pieces_)
    engine.writeTensor(piece.handle, bytes + piece.begin * elementBytes_,
                       bytes + piece.end * elementBytes_);
}

void HostTensor::read(Engine &engine, void *data) const {
  char *const bytes = static_cast<char *>(data);
  for (const Piece &piece : pieces_)
    engine.readTensor(piece.handle, bytes + piece.begin * elementBytes_,
                      bytes + piece.end * elementBytes_);
}

std::size_t RemoteRows::batchSize(std::size_t nRows, std::size_t rowBytes, unsigned nTiles) {
  return std::min(nRows, std::max<std::size_t>(1, bytesPerTile * nTiles / rowBytes));
}

RemoteRows::RemoteRows(Graph &graph, const RemoteBuffer &buffer, std::size_t nRows,
                       const std::string &name, const std::shared_ptr<HostPrograms> &programs)
    : nRows_(nRows),
      rowBytes_(buffer.numElements() * graph.getTarget().getTypeSize(buffer.elementType())),
      batch_(batchSize(nRows, rowBytes_, graph.getTarget().getNumTiles())) {
  const std::size_t width = buffer.numElements();
  const Type type = buffer.elementType();
  const Tensor data = addSpread(graph, type, batch_, width, name + "/staging"),
               rows = addSpread(graph, UNSIGNED_INT, batch_, 1, name + "/staging_rows").flatten();
  rows_ = HostTensor::writable(graph, rows, name + "/staging_rows");
  writeData_ = HostTensor::writable(graph, data, name + "/staging");
  readData_ = HostTensor::readable(graph, data, name + "/staging");
  Lockstep alone;
  Sequence write, read;
  alone.write(buffer, data, rows, write, {name + "/write_rows"});
  alone.read(buffer, data, rows, read, {name + "/read_rows"});
  write_ = {programs, write};
  read_ = {programs, read};
}

RemoteRows::Writer::Writer(const RemoteRows &rows, Engine &engine) : rows_(rows), engine_(engine) {
  index_.reserve(rows.batch_);
  data_.reserve(rows.batch_ * rows.rowBytes_);
}

void RemoteRows::Writer::add(std::size_t row, const void *data) {
  index_.push_back(static_cast<std::uint32_t>(row));
  const char *const from = static_cast<const char *>(data);
  data_.insert(data_.end(), from, from + rows_.rowBytes_);
  if (index_.size() == rows_.batch_)
    finish();
}

void RemoteRows::Writer::finish() {
  if (index_.empty())
    return;
  for (std::size_t spare = rows_.nRows_; index_.size() != rows_.batch_; ++spare)
    index_.push_back(static_cast<std::uint32_t>(spare));
  data_.resize(rows_.batch_ * rows_.rowBytes_);
  rows_.rows_.write(engine_, index_.data());
  rows_.writeData_.write(engine_, data_.data());
  rows_.write_.run(engine_);
  index_.clear();
  data_.clear();
}

void RemoteRows::read(Engine &engine, const std::vector<std::size_t> &rows,
                      const std::function<void(std::size_t, const void *)> &use) const {
  std::vector<std::uint32_t> index(batch_);
  std::vector<char> data(batch_ * rowBytes_);
  for (std::size_t begin = 0; begin < rows.size(); begin += batch_) {
    const std::size_t n = std::min(batch_, rows.size() - begin);
    for (std::size_t i = 0; i != batch_; ++i) // the last row once more fills up the batch
      index[i] = static_cast<std::uint32_t>(rows[begin + std::min(i, n - 1)]);
    rows_.write(engine, index.data());
    read_.run(engine);
    readData_.read(engine, data.data());
    for (std::size_t i = 0; i != n; ++i)
      use(begin + i, data.data() + i * rowBytes_);
  }
}

HostHistory::HostHistory(Graph &graph, const Cache &cache) {
  const History &history = cache.plan.history;
  if (history.nRecent == 0)
    return;
  nRecent_ = history.nRecent;
  length_ = history.length;
  nPieces_ = history.nPieces;
  batch_ = cache.plan.shape.batch;
  capacity_ = cache.plan.shape.capacity;
  const auto &shares = storeOf<RecentShares>(cache);
  for (unsigned layer = 0; layer != cache.layout().nLayers; ++layer) {
    const std::string name = cache.name + "/" + std::to_string(layer) + "/history_";
    const auto of = [&](const Tensor &t) { return t.slice(layer, layer + 1, 2); };
    layers_.push_back({HostTensor::readable(graph, of(shares.rows), name + "rows"),
                       HostTensor::writable(graph, of(shares.rows), name + "rows"),
                       HostTensor::writable(graph, of(shares.sums), name + "sums"),
                       HostTensor::writable(graph, of(shares.step), name + "step"),
                       std::vector<std::deque<std::uint32_t>>(batch_),
                       std::vector<std::uint32_t>(batch_, 0)});
  }
}

void HostHistory::advance(unsigned layer, const std::vector<std::uint32_t> &lengths) {
  Layer &own = layers_[layer];
  for (unsigned b = 0; b != batch_; ++b) {
    own.lengths[b].push_back(lengths[b]);
    if (own.lengths[b].size() > nRecent_)
      own.lengths[b].pop_front();
    own.newest[b] = (own.newest[b] + 1) % nRecent_;
  }
}

bool HostHistory::any(unsigned layer) const {
  if (nRecent_ != 0)
    for (const std::deque<std::uint32_t> &of : layers_[layer].lengths)
      if (!of.empty())
        return true;
  return false;
}

std::vector<HostHistory::Steps> HostHistory::read(Engine &engine, unsigned layer) const {
  std::vector<Steps> all(batch_);
  if (!any(layer))
    return all;
  const Layer &own = layers_[layer];
  std::vector<std::uint32_t> rows(own.readRows.size());
  own.readRows.read(engine, rows.data());
  for (unsigned b = 0; b != batch_; ++b) {
    const std::deque<std::uint32_t> &lengths = own.lengths[b];
    for (std::size_t i = 0; i != lengths.size(); ++i) {
      const std::size_t back = lengths.size() - 1 - i,
                        row = (own.newest[b] + nRecent_ - back) % nRecent_;
      std::vector<std::uint32_t> shares(lengths[i]);
      for (std::size_t p = 0; p != shares.size(); ++p)
        shares[p] = rows[at(b, row, p)];
      all[b].push_back(std::move(shares));
    }
  }
  return all;
}

void HostHistory::check(const std::vector<Steps> &steps) const {
  const auto refuse = [](const char *what, std::size_t most, std::size_t got) {
    throw Error(std::string("set_history: ") + what + std::to_string(most) + ", got " +
                std::to_string(got));
  };
  for (const Steps &of : steps) {
    if (of.size() > nRecent_)
      refuse("steps must be at most n_recent=", nRecent_, of.size());
    for (const std::vector<std::uint32_t> &shares : of)
      if (shares.size() > capacity_)
        refuse("a step must have at most capacity=", capacity_, shares.size());
  }
}

void HostHistory::write(Engine &engine, unsigned layer, const std::vector<Steps> &steps) {
  if (nRecent_ == 0)
    return;
  Layer &own = layers_[layer];
  std::vector<std::uint32_t> rows(own.writeRows.size()), sums(own.writeSums.size()),
      newest(own.writeStep.size());
  for (unsigned b = 0; b != batch_; ++b) {
    own.lengths[b].clear();
    for (const std::vector<std::uint32_t> &shares : steps[b]) {
      for (std::size_t p = 0; p != shares.size(); ++p) {
        rows[at(b, own.lengths[b].size(), p)] = shares[p];
        sums[piece(b, p) * length_ + p % length_] += shares[p];
      }
      own.lengths[b].push_back(static_cast<std::uint32_t>(shares.size()));
    }
    own.newest[b] = static_cast<std::uint32_t>((steps[b].size() + nRecent_ - 1) % nRecent_);
    std::fill_n(newest.begin() + b * nPieces_, nPieces_, own.newest[b]);
  }
  own.writeRows.write(engine, rows.data());
  own.writeSums.write(engine, sums.data());
  own.writeStep.write(engine, newest.data());
}

HostCache::HostCache(Graph &graph, const Cache &cache)
    : shape_(cache.plan.shape),
      lengths_(cache.layout().nLayers, std::vector<std::uint32_t>(shape_.batch, 0)) {
  filled_ = HostTensor::writable(graph, cache.filled, cache.name + "/filled");
  for (const auto &store : cache.stores)
    if (const auto host = store->host({graph, cache, programs_}); host != nullptr)
      stores_.push_back(host);
  history_ = HostHistory(graph, cache);
  if (lengths_.size() == 1)
    return;
  layerNumber_ = HostTensor::writable(graph, cache.layerNumber, cache.name + "/layer_number");
  Sequence load, store;
  loadLayer(cache, load, {cache.name});
  storeLayer(cache, store, {cache.name});
  load_ = {programs_, load};
  store_ = {programs_, store};
}

void HostCache::selectLayer(Engine &engine, unsigned layer) const {
  layerNumber_.write(engine, &layer); // does nothing with one layer
}

void HostCache::load(Engine &engine, unsigned layer) const {
  selectLayer(engine, layer);
  if (lengths_.size() != 1)
    load_.run(engine);
}

void HostCache::store(Engine &engine) const {
  if (lengths_.size() != 1)
    store_.run(engine);
}

void HostCache::reset(Engine &engine, unsigned layer) {
  load(engine, layer);
  for (const auto &store : stores_)
    store->reset(engine);
  lengths_[layer].assign(shape_.batch, 0);
  writeLengths(engine, layer);
  store(engine);
  for (const auto &store : stores_)
    store->wasReset(engine);
  if (history_.any(layer))
    history_.write(engine, layer, std::vector<HostHistory::Steps>(shape_.batch));
}

void HostCache::setLengths(Engine &engine, unsigned layer,
                           const std::vector<std::uint32_t> &lengths) {
  load(engine, layer);
  lengths_[layer] = lengths;
  writeLengths(engine, layer);
  store(engine);
}

void HostCache::writeLengths(Engine &engine, unsigned layer) const {
  std::vector<std::uint32_t> filled(shape_.nTasks());
  for (unsigned task = 0; task != shape_.nTasks(); ++task)
    filled[task] = lengths_[layer][task / shape_.nKvHeads];
  filled_.write(engine, filled.data());
}

void HostCache::checkRoom(unsigned layer, unsigned nTokens,
                          const std::vector<std::uint32_t> &counts, unsigned firstElement) const {
  for (unsigned b = 0; b != shape_.batch; ++b) {
    const unsigned held = lengths_[layer][b], n = counts[b];
    if (n > nTokens)
      throw Error("append: lengths must be in [0, n_tokens=" + std::to_string(nTokens) + "], got " +
                  std::to_string(n));
    if (n > shape_.capacity - held)
      throw Error("append: length must be at most capacity=" + std::to_string(shape_.capacity) +
                  " (element " + std::to_string(firstElement + b) + " holds " +
                  std::to_string(held) + ", " + std::to_string(n) + " more), got " +
                  std::to_string(held + n));
  }
}

void HostCache::advance(unsigned layer, const std::vector<std::uint32_t> &counts) {
  for (unsigned b = 0; b != shape_.batch; ++b)
    lengths_[layer][b] += counts[b];
}

void HostCache::write(Engine &engine, unsigned layer, const std::uint16_t *key,
                      const std::uint16_t *value, unsigned nTokens,
                      const std::vector<std::uint32_t> &counts) {
  load(engine, layer);
  HostTokens tokens{shape_, *stores_.front(), layer, nTokens, lengths_[layer], counts, key, value,
                    {}};
  for (const auto &store : stores_)
    store->write(engine, tokens);
  advance(layer, counts);
  writeLengths(engine, layer);
  store(engine);
  for (const auto &store : stores_)
    store->written(engine);
}

void HostCache::read(Engine &engine, unsigned layer, std::uint16_t *key, std::uint16_t *value,
                     unsigned nTokens) const {
  const std::size_t d = shape_.headDim;
  std::vector<HostRange> ranges;
  for (unsigned task = 0; task != shape_.nTasks(); ++task) {
    const unsigned length = std::min(lengths_[layer][task / shape_.nKvHeads], nTokens);
    const std::size_t first = std::size_t(task) * nTokens;
    ranges.push_back({task, 0, length, key + first * d, value + first * d});
    for (std::uint16_t *const to : {key, value})
      std::fill(to + (first + length) * d, to + (first + nTokens) * d, 0);
  }
  stores_.front()->read(engine, layer, ranges);
}

std::optional<std::vector<std::uint32_t>> HostCache::misses(Engine &engine) const {
  for (const auto &store : stores_)
    if (const auto found = store->misses(engine))
      return found;
  return std::nullopt;
}

bool HostCache::forgetHot(Engine &engine) const {
  return std::any_of(stores_.begin(), stores_.end(),
                     [&](const auto &store) { return store->forgetHot(engine); });
}

} // namespace sparq
