// SPDX-License-Identifier: Apache-2.0
#include "sparq/session.hpp"
#include "half_bits.hpp"
#include "sparq/cache_fill.hpp"
#include <algorithm>
#include <cstring>

namespace sparq {

using namespace poplar;
using namespace poplar::program;

namespace {

constexpr unsigned appendProgram = 0, denseProgram = 1, sparqProgram = 2;
const char *const cacheName = "cache";

std::string handle(const char *what) { return std::string(cacheName) + "/" + what; }

// dst[c][p] = src[p][c]; src {n, d} at stride d.
void transposeRow(const std::uint16_t *src, unsigned d, std::uint16_t *dst, std::size_t stride,
                  std::size_t position) {
  for (unsigned c = 0; c != d; ++c)
    dst[c * stride + position] = src[c];
}

} // namespace

Session::Session(const Shape &shape, const Programs &programs, const DeviceOptions &options,
                 unsigned repeats)
    : shape_(shape), device_(openDevice(options)), lengths_(shape.batch, 0),
      hasDense_(programs.denseSram || programs.denseStreaming), nSparq_(programs.sparq.size()),
      repeats_(repeats), fillTokens_(programs.fillTokens) {
  Graph graph(device_.getTarget());
  addCodelets(graph);
  const Plan plan = makePlan(graph.getTarget(), shape, programs);
  const Cache cache = createCache(graph, plan, cacheName, programs.denseSram);
  held_.plan = plan;
  held_.resident = cache.resident;
  held_.rowsPerTask = cache.rowsPerTask();
  held_.valueRow = cache.valueRow();
  if (cache.resident) {
    held_.nKeys = cache.keys.numElements();
  } else {
    held_.rows = cache.rows.handle();
  }
  if (plan.layout.chunk != 0) {
    held_.keyColumns = cache.keyColumns.handle();
    held_.nSums = cache.valueSum.numElements();
    held_.nTail = cache.tail.numElements();
  }
  const Placement &p = plan.placement;
  const std::vector<std::size_t> queryShape{shape.batch, shape.nHeads, shape.headDim};
  const auto onHomes = [&](const Type &type, std::size_t each, const char *name) {
    const Tensor t = graph.addVariable(type, {shape.nTasks(), each}, name);
    for (unsigned task = 0; task != shape.nTasks(); ++task)
      graph.setTileMapping(t[task], p.home(task % p.slots));
    return t;
  };
  const Tensor query =
      onHomes(HALF, std::size_t(shape.groupSize()) * shape.headDim, "query").reshape(queryShape);
  graph.createHostWrite("query", query);
  graph.createHostWrite(handle("filled"), cache.filled);
  if (cache.resident) {
    for (const auto &part : {std::make_pair("keys", cache.keys), {"values", cache.values}}) {
      graph.createHostWrite(handle(part.first), part.second);
      graph.createHostRead(handle(part.first), part.second);
    }
  }
  if (plan.layout.chunk != 0) {
    graph.createHostWrite(handle("value_sum"), cache.valueSum);
    graph.createHostRead(handle("value_sum"), cache.valueSum);
    graph.createHostWrite(handle("tail"), cache.tail);
  }

  std::vector<Program> all(2);
  Sequence appendBody({}, {"append"}), denseBody({}, {"dense"});
  if (programs.append && !cache.resident) {
    const std::vector<std::size_t> tokenShape{shape.batch, shape.nKvHeads, shape.headDim};
    const Tensor key = onHomes(HALF, shape.headDim, "append/key").reshape(tokenShape);
    const Tensor value = onHomes(HALF, shape.headDim, "append/value").reshape(tokenShape);
    const Tensor active = graph.addVariable(UNSIGNED_INT, {shape.batch}, "append/active");
    graph.setTileMapping(active, 0);
    graph.createHostWrite("append/key", key);
    graph.createHostWrite("append/value", value);
    graph.createHostWrite("append/active", active);
    sparq::append(graph, cache, key, value, active, appendBody, {"append"});
  }
  if (hasDense_)
    graph.createHostRead("dense/output", denseAttention(graph, cache, query, denseBody, {"dense"}));
  all[appendProgram] = appendBody;
  all[denseProgram] = denseBody;
  for (std::size_t i = 0; i != nSparq_; ++i) {
    const std::string name = "sparq" + std::to_string(i);
    Sequence body({}, {name});
    graph.createHostRead(name + "/output",
                         sparqAttention(graph, cache, query, programs.sparq[i], i, body, {name}));
    all.push_back(body);
  }
  if (repeats_ != 0) {
    const std::size_t n = all.size();
    for (std::size_t i = denseProgram; i != n; ++i)
      all.push_back(Repeat(repeats_, all[i], {"repeated"}));
  }
  if (fillTokens_ != 0) {
    const std::vector<std::size_t> promptShape{shape.batch, shape.nKvHeads, fillTokens_,
                                               shape.headDim};
    const std::size_t each = std::size_t(fillTokens_) * shape.headDim;
    const Tensor key = onHomes(HALF, each, "fill/key").reshape(promptShape);
    const Tensor value = onHomes(HALF, each, "fill/value").reshape(promptShape);
    const Tensor lengths = graph.addVariable(INT, {shape.batch}, "fill/lengths");
    graph.setTileMapping(lengths, 0);
    graph.createHostWrite("fill/key", key);
    graph.createHostWrite("fill/value", value);
    graph.createHostWrite("fill/lengths", lengths);
    Sequence body({}, {"fill"});
    fillCache(graph, cache, key, value, lengths, body, {"fill"});
    fillProgram_ = static_cast<unsigned>(all.size());
    all.push_back(body);
  }
  engine_ = std::make_unique<Engine>(graph, all, OptionFlags{{"target.hostSyncTimeout", "1800"}});
  engine_->load(device_);
  reset();
}

std::size_t Session::rowElements() const {
  return std::size_t(held_.plan.layout.positionsPerRow) * shape_.headDim;
}

void Session::reset() {
  std::fill(lengths_.begin(), lengths_.end(), 0);
  if (held_.plan.layout.chunk != 0) {
    const std::vector<float> sum(held_.nSums, 0.0f);
    const std::vector<std::uint16_t> tail(held_.nTail, 0);
    engine_->writeTensor(handle("value_sum"), sum.data(), sum.data() + sum.size());
    engine_->writeTensor(handle("tail"), tail.data(), tail.data() + tail.size());
  }
  storeState();
}

// The lengths to the device.
void Session::storeState() {
  std::vector<std::uint32_t> filled(shape_.nTasks());
  for (unsigned task = 0; task != shape_.nTasks(); ++task)
    filled[task] = lengths_[task / shape_.nKvHeads];
  engine_->writeTensor(handle("filled"), filled.data(), filled.data() + filled.size());
}

// Element b has no room for n more.
void Session::throwFull(unsigned b, unsigned n) const {
  throw Error("append: length must be at most capacity=" + std::to_string(shape_.capacity) +
              " (element " + std::to_string(b) + " holds " + std::to_string(lengths_[b]) + ", " +
              std::to_string(n) + " more), got " + std::to_string(lengths_[b] + n));
}

void Session::write(const std::uint16_t *key, const std::uint16_t *value, unsigned nTokens,
                    const std::vector<std::uint32_t> &counts) {
  const unsigned d = shape_.headDim;
  const CacheLayout &layout = held_.plan.layout;
  if (counts.size() != shape_.batch)
    throw Error("append: lengths must have shape (batch=" + std::to_string(shape_.batch) +
                ",), got (" + std::to_string(counts.size()) + ",)");
  for (unsigned b = 0; b != shape_.batch; ++b) {
    if (counts[b] > nTokens)
      throw Error("append: lengths must be in [0, n_tokens=" + std::to_string(nTokens) + "], got " +
                  std::to_string(counts[b]));
    if (counts[b] > shape_.capacity - lengths_[b])
      throwFull(b, counts[b]);
  }
  if (held_.resident) {
    // The host writes whole tensors, so the cache in SRAM is filled at once.
    for (const std::uint32_t length : lengths_)
      if (length != 0)
        throw Error("append: a cache in SRAM must be empty, got length " + std::to_string(length));
    std::vector<std::uint16_t> rows(held_.nKeys);
    for (const auto &part : {std::make_pair("keys", key), std::make_pair("values", value)}) {
      for (unsigned task = 0; task != shape_.nTasks(); ++task)
        std::copy_n(part.second + std::size_t(task) * nTokens * d,
                    std::size_t(counts[task / shape_.nKvHeads]) * d,
                    rows.begin() + std::size_t(task) * layout.capacity * d);
      engine_->writeTensor(handle(part.first), rows.data(), rows.data() + rows.size());
    }
  } else {
    std::vector<float> sum(layout.chunk ? held_.nSums : 0);
    std::vector<std::uint16_t> tail(layout.chunk ? held_.nTail : 0);
    if (layout.chunk != 0)
      engine_->readTensor(handle("value_sum"), sum.data(), sum.data() + sum.size());
    std::vector<std::uint16_t> row(rowElements()), chunk(std::size_t(layout.chunk) * d), old(d);
    for (unsigned task = 0; task != shape_.nTasks(); ++task) {
      const unsigned b = task / shape_.nKvHeads, held = lengths_[b], end = held + counts[b];
      const std::uint16_t *keys = key + std::size_t(task) * nTokens * d,
                          *values = value + std::size_t(task) * nTokens * d;
      const std::size_t firstRow = task * held_.rowsPerTask;
      for (unsigned position = held; position < end;) {
        const unsigned inRow = position % layout.positionsPerRow;
        const unsigned n = std::min(layout.positionsPerRow - inRow, end - position);
        const std::size_t index = firstRow + position / layout.positionsPerRow;
        for (const auto &part :
             {std::make_pair(index, keys), std::make_pair(index + held_.valueRow, values)}) {
          std::fill(row.begin(), row.end(), 0);
          if (inRow != 0)
            engine_->copyFromRemoteBuffer(held_.rows, row.data(), part.first);
          std::copy_n(part.second + std::size_t(position - held) * d, std::size_t(n) * d,
                      row.begin() + inRow * d);
          engine_->copyToRemoteBuffer(row.data(), held_.rows, part.first);
        }
        position += n;
      }
      if (layout.chunk == 0)
        continue;
      for (unsigned position = held; position != end;
           ++position) // v_sum: ascending, one addition a position
        for (unsigned c = 0; c != d; ++c)
          sum[std::size_t(task) * d + c] += widen(values[std::size_t(position - held) * d + c]);
      // A key by position: new ones from the caller, older ones from the rows.
      const auto keyAt = [&](unsigned position) {
        if (position >= held)
          return keys + std::size_t(position - held) * d;
        engine_->copyFromRemoteBuffer(held_.rows, old.data(), firstRow + position);
        return static_cast<const std::uint16_t *>(old.data());
      };
      for (unsigned c = held / layout.chunk; c != end / layout.chunk; ++c) {
        for (unsigned i = 0; i != layout.chunk; ++i)
          transposeRow(keyAt(c * layout.chunk + i), d, chunk.data(), layout.chunk, i);
        for (unsigned component = 0; component != d; ++component)
          engine_->copyToRemoteBuffer(chunk.data() + std::size_t(component) * layout.chunk,
                                      held_.keyColumns,
                                      (std::size_t(task) * d + component) * layout.nChunks() + c);
      }
      for (unsigned position = end / layout.chunk * layout.chunk; position != end; ++position) {
        const unsigned i = position % layout.chunk, part = i / layout.tailLength;
        std::uint16_t *own =
            tail.data() + (std::size_t(task) * layout.nTailParts() + part) * d * layout.tailLength;
        transposeRow(keyAt(position), d, own, layout.tailLength, i % layout.tailLength);
      }
    }
    if (layout.chunk != 0) {
      engine_->writeTensor(handle("value_sum"), sum.data(), sum.data() + sum.size());
      engine_->writeTensor(handle("tail"), tail.data(), tail.data() + tail.size());
    }
  }
  for (unsigned b = 0; b != shape_.batch; ++b)
    lengths_[b] += counts[b];
  storeState();
}

void Session::append(const std::uint16_t *key, const std::uint16_t *value,
                     const std::vector<std::uint32_t> &active) {
  if (active.size() != shape_.batch)
    throw Error("append: lengths must have shape (batch=" + std::to_string(shape_.batch) +
                ",), got (" + std::to_string(active.size()) + ",)");
  for (unsigned b = 0; b != shape_.batch; ++b) {
    if (active[b] > 1)
      throw Error("append: lengths must be in [0, n_tokens=1], got " + std::to_string(active[b]));
    if (active[b] > shape_.capacity - lengths_[b])
      throwFull(b, active[b]);
  }
  const std::size_t n = std::size_t(shape_.nTasks()) * shape_.headDim;
  engine_->writeTensor("append/key", key, key + n);
  engine_->writeTensor("append/value", value, value + n);
  engine_->writeTensor("append/active", active.data(), active.data() + active.size());
  engine_->run(appendProgram);
  for (unsigned b = 0; b != shape_.batch; ++b)
    lengths_[b] += active[b];
}

void Session::fill(const std::uint16_t *key, const std::uint16_t *value,
                   const std::vector<std::int32_t> &lengths) {
  if (fillTokens_ == 0)
    throw Error("fill: the session must have been made with fill_tokens, got 0");
  if (lengths.size() != shape_.batch)
    throw Error("fill: lengths.shape must be (" + std::to_string(shape_.batch) + ",), got (" +
                std::to_string(lengths.size()) + ",)");
  for (const std::int32_t length : lengths)
    if (length < -1 || length > static_cast<std::int64_t>(fillTokens_))
      throw Error("fill: lengths must be in [-1, n_tokens=" + std::to_string(fillTokens_) +
                  "], got " + std::to_string(length));
  const std::size_t n = std::size_t(shape_.nTasks()) * fillTokens_ * shape_.headDim;
  engine_->writeTensor("fill/key", key, key + n);
  engine_->writeTensor("fill/value", value, value + n);
  engine_->writeTensor("fill/lengths", lengths.data(), lengths.data() + lengths.size());
  engine_->run(fillProgram_);
  for (unsigned b = 0; b != shape_.batch; ++b)
    if (lengths[b] >= 0)
      lengths_[b] = static_cast<std::uint32_t>(lengths[b]);
}

void Session::read(std::uint16_t *key, std::uint16_t *value, unsigned nTokens) {
  const CacheLayout &layout = held_.plan.layout;
  const unsigned d = shape_.headDim;
  if (held_.resident) { // whole tensors, as for `write`
    std::vector<std::uint16_t> rows(held_.nKeys);
    for (const auto &part : {std::make_pair("keys", key), std::make_pair("values", value)}) {
      engine_->readTensor(handle(part.first), rows.data(), rows.data() + rows.size());
      for (unsigned task = 0; task != shape_.nTasks(); ++task) {
        const unsigned length = std::min(lengths_[task / shape_.nKvHeads], nTokens);
        std::uint16_t *to = part.second + std::size_t(task) * nTokens * d;
        std::copy_n(rows.begin() + std::size_t(task) * layout.capacity * d, std::size_t(length) * d,
                    to);
        std::fill(to + std::size_t(length) * d, to + std::size_t(nTokens) * d, 0);
      }
    }
    return;
  }
  std::vector<std::uint16_t> row(rowElements());
  for (const auto &part :
       {std::make_pair(std::size_t(0), key), std::make_pair(held_.valueRow, value)})
    for (unsigned task = 0; task != shape_.nTasks(); ++task) {
      const unsigned length = std::min(lengths_[task / shape_.nKvHeads], nTokens);
      std::uint16_t *to = part.second + std::size_t(task) * nTokens * d;
      for (unsigned position = 0; position < length; position += layout.positionsPerRow) {
        engine_->copyFromRemoteBuffer(held_.rows, row.data(),
                                      part.first + task * held_.rowsPerTask +
                                          position / layout.positionsPerRow);
        std::copy_n(row.begin(),
                    std::size_t(std::min(layout.positionsPerRow, length - position)) * d,
                    to + std::size_t(position) * d);
      }
      std::fill(to + std::size_t(length) * d, to + std::size_t(nTokens) * d, 0);
    }
}

void Session::run(unsigned program, const std::string &name, const std::uint16_t *query,
                  std::uint16_t *output) {
  const std::size_t n = std::size_t(shape_.batch) * shape_.nHeads * shape_.headDim;
  engine_->writeTensor("query", query, query + n);
  engine_->run(program);
  engine_->readTensor(name + "/output", output, output + n);
}

void Session::dense(const std::uint16_t *query, std::uint16_t *output, bool repeated) {
  if (!hasDense_)
    throw Error(
        "dense_attention: the session must have been made with a dense program, got one without");
  run(denseProgram + (repeated && repeats_ ? 1 + static_cast<unsigned>(nSparq_) : 0), "dense",
      query, output);
}

void Session::sparq(std::size_t index, const std::uint16_t *query, std::uint16_t *output,
                    bool repeated) {
  if (index >= nSparq_)
    throw Error("sparq_attention: index must be in [0, " + std::to_string(nSparq_) + "), got " +
                std::to_string(index));
  const unsigned program = sparqProgram + static_cast<unsigned>(index);
  run(program + (repeated && repeats_ ? 1 + static_cast<unsigned>(nSparq_) : 0),
      "sparq" + std::to_string(index), query, output);
}

} // namespace sparq
