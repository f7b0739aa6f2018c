// SPDX-License-Identifier: Apache-2.0
#include "sparq/host_tensor.hpp"
#include "sparq/lockstep.hpp"
#include <algorithm>
#include <poplar/Target.hpp>

namespace sparq {

using namespace poplar;

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
                       const std::string &name)
    : nRows_(nRows) {
  const std::size_t width = buffer.numElements();
  const Type type = buffer.elementType();
  rowBytes_ = width * graph.getTarget().getTypeSize(type);
  batch_ = batchSize(nRows, rowBytes_, graph.getTarget().getNumTiles());
  const Tensor data = addSpread(graph, type, batch_, width, name + "/staging"),
               rows = addSpread(graph, UNSIGNED_INT, batch_, 1, name + "/staging_rows").flatten();
  rows_ = HostTensor::writable(graph, rows, name + "/staging_rows");
  writeData_ = HostTensor::writable(graph, data, name + "/staging");
  readData_ = HostTensor::readable(graph, data, name + "/staging");
  Lockstep alone;
  alone.write(buffer, data, rows, write_, {name + "/write_rows"});
  alone.read(buffer, data, rows, read_, {name + "/read_rows"});
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
  engine_.run(rows_.firstProgram_);
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
    engine.run(firstProgram_ + 1);
    readData_.read(engine, data.data());
    for (std::size_t i = 0; i != n; ++i)
      use(begin + i, data.data() + i * rowBytes_);
  }
}

} // namespace sparq
