// SPDX-License-Identifier: Apache-2.0
#include "sparq/host_cache.hpp"
#include "arith/half_bits.hpp"
#include "arith/row_groups.hpp"
#include "sparq/layers.hpp"
#include "sparq/tiers.hpp"
#include <algorithm>
#include <array>
#include <cstring>

namespace sparq {

using namespace poplar;

namespace {

// columns[c][position] = row[c], columns at `stride`.
void transposeRow(const std::uint16_t *row, unsigned headDim, std::uint16_t *columns,
                  std::size_t stride, std::size_t position) {
  for (unsigned c = 0; c != headDim; ++c)
    columns[c * stride + position] = row[c];
}

// The record of one component of a block, from its 64 keys: codelets/quantise.cpp for the host.
void quantiseBlock(const std::uint16_t *keys, unsigned indexBits, std::uint32_t *record) {
  float x[blockSize];
  for (unsigned i = 0; i != blockSize; ++i)
    x[i] = widen(keys[i]);
  const auto range = std::minmax_element(x, x + blockSize);
  const float low = *range.first;
  const std::uint16_t step = narrow(unroundedStep(low, *range.second, indexBits));
  const float inverse = inverseStep(widen(step));
  packCodes(record, indexBits, [&](unsigned i) { return codeOf(x[i], low, inverse, indexBits); });
  record[codeWords(indexBits)] = step | std::uint32_t(narrow(low)) << 16;
}

// One key or value into its codes and scales.
void encodeNumbers(const std::uint16_t *from, unsigned headDim, std::uint16_t *codes,
                   std::uint16_t *scales) {
  std::fill_n(scales, nRowScales(headDim), 0);
  eachRowGroup(
      from, headDim, [&](std::size_t first, std::size_t n, float scale, const float *code) {
        scales[first / rowGroup] = static_cast<std::uint16_t>(bitcast<unsigned>(scale) >> 16);
        for (std::size_t c = 0; c != n; c += 4) {
          std::uint32_t word = 0;
          for (unsigned i = 0; i != 4; ++i)
            word |= static_cast<std::uint32_t>(code[c + i] + codeOffset) << codeShift(i);
          std::memcpy(codes + (first + c) / 2, &word, sizeof(word));
        }
      });
}
void decodeNumbers(const std::uint16_t *codes, const std::uint16_t *scales, unsigned headDim,
                   std::uint16_t *to) {
  for (unsigned c = 0; c != headDim; ++c) {
    std::uint32_t word;
    std::memcpy(&word, codes + c / 4 * 2, sizeof(word));
    const int code = static_cast<int>((word >> codeShift(c % 4)) & 0xffu) - int(codeOffset);
    to[c] = narrow(static_cast<float>(code) *
                   bitcast<float>(std::uint32_t(scales[c / rowGroup]) << 16));
  }
}

} // namespace

HostCache::HostCache(Graph &graph, const Cache &cache)
    : shape_(cache.plan.shape), layout_(cache.layout()), resident_(cache.plan.resident),
      nSlots_(cache.plan.placement.slots),
      lengths_(layout_.nLayers, std::vector<std::uint32_t>(shape_.batch, 0)) {
  const auto handle = [&](const char *what) { return cache.name + "/" + what; };
  if (layout_.nLayers != 1) {
    layerNumber_ = HostTensor::writable(graph, cache.layerNumber, handle("layer_number"));
    loadLayer(cache, load_, {cache.name});
    storeLayer(cache, store_, {cache.name});
  }
  filled_ = HostTensor::writable(graph, cache.filled, handle("filled"));
  if (resident_) {
    const std::array<Tensor, 2> tensors{cache.keys, cache.values};
    const std::array<const char *, 2> names{"keys", "values"};
    for (std::size_t i = 0; i != tensors.size(); ++i) {
      writeRows_[i] = HostTensor::writable(graph, tensors[i], handle(names[i]));
      readRows_[i] = HostTensor::readable(graph, tensors[i], handle(names[i]));
    }
    return;
  }
  rows_ = RemoteRows(graph, cache.rows, layout_.nLayers * layout_.layerRows(), handle("rows"));
  if (layout_.chunk == 0)
    return;
  if (layout_.tiered)
    buildTierPrograms(graph, cache);
  else
    keyColumns_ =
        RemoteRows(graph, cache.keyColumns, layout_.nLayers * layout_.layerColumns(nSlots_),
                   handle("key_columns"));
  writeSum_ = HostTensor::writable(graph, cache.valueSum, handle("value_sum"));
  readSum_ = HostTensor::readable(graph, cache.valueSum, handle("value_sum"));
  writeTail_ = HostTensor::writable(graph, cache.tail, handle("tail"));
  if (layout_.quantised())
    writeTailIndex_ = HostTensor::writable(graph, cache.tailIndex, handle("tail_index"));
}

// With several layers, of the one that was selected.
void HostCache::buildTierPrograms(Graph &graph, const Cache &cache) {
  loadLayer(cache, index_, {cache.name});
  indexRows(graph, cache, index_, {cache.name});
  storeLayer(cache, index_, {cache.name});
  loadLayer(cache, forget_, {cache.name});
  forgetHot(graph, cache, forget_, {cache.name});
}

std::vector<program::Program> HostCache::programs() const {
  std::vector<program::Program> all;
  if (resident_)
    return all;
  all = rows_.programs();
  if (layout_.tiered)
    for (const program::Program &program : {index_, forget_})
      all.push_back(program);
  else if (layout_.chunk != 0)
    for (const program::Program &program : keyColumns_.programs())
      all.push_back(program);
  if (layout_.nLayers != 1)
    for (const program::Program &program : {load_, store_})
      all.push_back(program);
  return all;
}

void HostCache::setFirstProgram(unsigned first) {
  rows_.setFirstProgram(first);
  first += static_cast<unsigned>(rows_.programs().size());
  keyColumns_.setFirstProgram(first);
  firstTierProgram_ = first;
  firstLayerProgram_ =
      first + (layout_.tiered       ? 2
               : layout_.chunk != 0 ? static_cast<unsigned>(keyColumns_.programs().size())
                                    : 0);
}

void HostCache::selectLayer(Engine &engine, unsigned layer) const {
  layerNumber_.write(engine, &layer); // does nothing with one layer
}

void HostCache::load(Engine &engine, unsigned layer) const {
  selectLayer(engine, layer);
  if (layout_.nLayers != 1)
    engine.run(firstLayerProgram_);
}

void HostCache::store(Engine &engine) const {
  if (layout_.nLayers != 1)
    engine.run(firstLayerProgram_ + 1);
}

std::size_t HostCache::rowElements() const { return layout_.rowElements(); }

void HostCache::reset(Engine &engine, unsigned layer) {
  load(engine, layer);
  if (layout_.chunk != 0) {
    writeSum_.write(engine, std::vector<float>(writeSum_.size(), 0.0f).data());
    writeTail_.write(engine, std::vector<std::uint16_t>(writeTail_.size(), 0).data());
    writeTailIndex_.write(engine, std::vector<std::uint32_t>(writeTailIndex_.size(), 0).data());
  }
  lengths_[layer].assign(shape_.batch, 0);
  writeLengths(engine, layer);
  store(engine);
  if (layout_.tiered)
    engine.run(firstTierProgram_ + 1);
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
                          const std::vector<std::uint32_t> &counts) const {
  if (counts.size() != shape_.batch)
    throw Error("append: lengths must have shape (batch=" + std::to_string(shape_.batch) +
                ",), got (" + std::to_string(counts.size()) + ",)");
  for (unsigned b = 0; b != shape_.batch; ++b) {
    const unsigned held = lengths_[layer][b], n = counts[b];
    if (n > nTokens)
      throw Error("append: lengths must be in [0, n_tokens=" + std::to_string(nTokens) + "], got " +
                  std::to_string(n));
    if (n > shape_.capacity - held)
      throw Error("append: length must be at most capacity=" + std::to_string(shape_.capacity) +
                  " (element " + std::to_string(b) + " holds " + std::to_string(held) + ", " +
                  std::to_string(n) + " more), got " + std::to_string(held + n));
  }
}

void HostCache::advance(unsigned layer, const std::vector<std::uint32_t> &counts) {
  for (unsigned b = 0; b != shape_.batch; ++b)
    lengths_[layer][b] += counts[b];
}

// Of every task the rows since its last full chunk, of which the whole tail is made anew, or the row
// that is not full: keys, and where several positions share a row, values.
struct HostCache::OldRows {
  unsigned perRow; // positions
  std::size_t rowSize;
  std::vector<unsigned> first; // position of each task's first row
  std::vector<std::size_t> at; // where that is in keys and values
  std::vector<std::uint16_t> keys, values;

  const std::uint16_t *key(unsigned task, unsigned position) const {
    return keys.data() + at[task] + (position - first[task]) / perRow * rowSize;
  }
  const std::uint16_t *value(unsigned task, unsigned position) const {
    return values.data() + at[task] + (position - first[task]) / perRow * rowSize;
  }
};

HostCache::OldRows HostCache::readOldRows(Engine &engine, unsigned layer) const {
  const unsigned perRow = layout_.positionsPerRow, unit = std::max(layout_.chunk, perRow);
  OldRows old{perRow, rowElements(), {}, {}, {}, {}};
  std::vector<std::size_t> rows;
  for (unsigned task = 0; task != shape_.nTasks(); ++task) {
    const unsigned held = lengths_[layer][task / shape_.nKvHeads], first = held - held % unit;
    old.first.push_back(first);
    old.at.push_back(rows.size() * old.rowSize);
    for (unsigned position = first; position < held; position += perRow)
      rows.push_back(layer * layout_.layerRows() + layout_.keyRow(task, position));
  }
  const auto fetch = [&](std::vector<std::uint16_t> &to) {
    to.resize(rows.size() * old.rowSize);
    rows_.read(engine, rows, [&](std::size_t i, const void *data) {
      std::memcpy(&to[i * old.rowSize], data, old.rowSize * sizeof(to[0]));
    });
  };
  fetch(old.keys);
  if (perRow == 1)
    return old;
  for (std::size_t &row : rows)
    row += layout_.valueRow();
  fetch(old.values);
  return old;
}

void HostCache::writeRows(RemoteRows::Writer &writer, const NewTokens &tokens,
                          const OldRows &old) const {
  const unsigned d = shape_.headDim, end = tokens.held + tokens.n;
  std::vector<std::uint16_t> row(rowElements());
  for (unsigned position = tokens.held; position < end;) {
    const unsigned inRow = position % layout_.positionsPerRow;
    const unsigned n = std::min(layout_.positionsPerRow - inRow, end - position);
    const std::size_t index =
        tokens.layer * layout_.layerRows() + layout_.keyRow(tokens.task, position);
    if (layout_.tiered) {
      const std::size_t at = std::size_t(position - tokens.held) * d;
      writeTieredRow(tokens.keys + at, tokens.values + at, row.data());
      writer.add(index, row.data());
      ++position;
      continue;
    }
    for (const bool ofValues : {false, true}) {
      std::fill(row.begin(), row.end(), 0);
      if (inRow != 0)
        std::copy_n(ofValues ? old.value(tokens.task, position) : old.key(tokens.task, position),
                    row.size(), row.begin());
      std::copy_n((ofValues ? tokens.values : tokens.keys) +
                      std::size_t(position - tokens.held) * d,
                  std::size_t(n) * d, row.begin() + inRow * d);
      writer.add(index + (ofValues ? layout_.valueRow() : 0), row.data());
    }
    position += n;
  }
}

// A row is the key and the value of a position.
void HostCache::writeTieredRow(const std::uint16_t *key, const std::uint16_t *value,
                               std::uint16_t *row) const {
  const unsigned d = shape_.headDim;
  if (layout_.rowBits == 16) {
    std::copy_n(key, d, row);
    std::copy_n(value, d, row + d);
    return;
  }
  std::uint16_t *const scales = row + d;
  encodeNumbers(key, d, row, scales);
  encodeNumbers(value, d, row + d / 2, scales + nRowScales(d));
}
void HostCache::readTieredRow(const std::uint16_t *row, std::uint16_t *key,
                              std::uint16_t *value) const {
  const unsigned d = shape_.headDim;
  if (layout_.rowBits == 16) {
    std::copy_n(row, d, key);
    std::copy_n(row + d, d, value);
    return;
  }
  const std::uint16_t *const scales = row + d;
  decodeNumbers(row, scales, d, key);
  decodeNumbers(row + d / 2, scales + nRowScales(d), d, value);
}

void HostCache::write(Engine &engine, unsigned layer, const std::uint16_t *key,
                      const std::uint16_t *value, unsigned nTokens,
                      const std::vector<std::uint32_t> &counts) {
  checkRoom(layer, nTokens, counts);
  load(engine, layer);
  if (resident_) {
    writeResident(engine, key, value, nTokens, counts);
  } else {
    std::vector<float> sum(readSum_.size());
    Tail tail{std::vector<std::uint16_t>(writeTail_.size()),
              std::vector<std::uint32_t>(writeTailIndex_.size())};
    readSum_.read(engine, sum.data());
    const OldRows old = layout_.tiered ? OldRows{} : readOldRows(engine, layer);
    RemoteRows::Writer rows(rows_, engine), columns(keyColumns_, engine);
    const unsigned d = shape_.headDim;
    std::vector<std::uint16_t> rounded(layout_.rowBits == 8 ? d : 0);
    for (unsigned task = 0; task != shape_.nTasks(); ++task) {
      const unsigned b = task / shape_.nKvHeads;
      const std::size_t first = std::size_t(task) * nTokens * d;
      const NewTokens tokens{layer,       task,          lengths_[layer][b],
                             key + first, value + first, counts[b]};
      writeRows(rows, tokens, old);
      if (layout_.chunk == 0)
        continue;
      for (unsigned i = 0; i != tokens.n; ++i) { // ascending, one addition a position
        const std::uint16_t *held = tokens.values + std::size_t(i) * d;
        if (layout_.rowBits == 8) { // as the row has it
          roundRow(held, d, rounded.data());
          held = rounded.data();
        }
        for (unsigned c = 0; c != d; ++c)
          sum[std::size_t(task) * d + c] += widen(held[c]);
      }
      if (!layout_.tiered)
        writeColumns(columns, tokens, old, tail);
    }
    rows.finish();
    writeSum_.write(engine, sum.data());
    if (!layout_.tiered && layout_.chunk != 0) {
      columns.finish();
      writeTail_.write(engine, tail.columns.data());
      writeTailIndex_.write(engine, tail.index.data());
    }
  }
  advance(layer, counts);
  writeLengths(engine, layer);
  store(engine);
  if (layout_.tiered) // the device makes the index, from the rows
    engine.run(firstTierProgram_);
}

// The host writes whole tensors, so a cache in SRAM is filled at once.
void HostCache::writeResident(Engine &engine, const std::uint16_t *key, const std::uint16_t *value,
                              unsigned nTokens, const std::vector<std::uint32_t> &counts) const {
  for (const std::uint32_t length : lengths_.front())
    if (length != 0)
      throw Error("append: a cache in SRAM must be empty, got length " + std::to_string(length));
  const std::size_t d = shape_.headDim, room = std::size_t(layout_.capacity) * d;
  std::vector<std::uint16_t> rows(shape_.nTasks() * room);
  const std::array<const std::uint16_t *, 2> from{key, value};
  for (std::size_t i = 0; i != from.size(); ++i) {
    for (unsigned task = 0; task != shape_.nTasks(); ++task)
      std::copy_n(from[i] + task * nTokens * d, counts[task / shape_.nKvHeads] * d,
                  rows.begin() + task * room);
    writeRows_[i].write(engine, rows.data());
  }
}

// The chunks that these tokens complete go to streaming memory, the rest of them to the tail.
void HostCache::writeColumns(RemoteRows::Writer &writer, const NewTokens &tokens,
                             const OldRows &old, Tail &tail) const {
  const unsigned d = shape_.headDim, held = tokens.held, end = held + tokens.n,
                 chunk = layout_.chunk;
  const std::size_t rowWords = layout_.columnElements(chunk);
  std::vector<std::uint16_t> columns(std::size_t(chunk) * d);
  std::vector<std::uint32_t> index(layout_.quantised() ? rowWords * d : 0);
  // A key by position: new ones from the caller, older ones from the rows.
  const auto keyAt = [&](unsigned position) {
    return position >= held ? tokens.keys + std::size_t(position - held) * d
                            : old.key(tokens.task, position);
  };
  // The first n positions of a chunk, by component, and their full blocks as records.
  const auto gather = [&](unsigned first, unsigned n) {
    for (unsigned i = 0; i != n; ++i)
      transposeRow(keyAt(first + i), d, columns.data(), chunk, i);
    if (!layout_.quantised())
      return;
    for (unsigned c = 0; c != d; ++c)
      for (unsigned block = 0; block != n / blockSize; ++block)
        quantiseBlock(&columns[std::size_t(c) * chunk + block * blockSize], layout_.indexBits,
                      &index[c * rowWords + block * recordWords(layout_.indexBits)]);
  };
  for (unsigned i = held / chunk; i != end / chunk; ++i) {
    gather(i * chunk, chunk);
    for (unsigned c = 0; c != d; ++c) {
      const std::size_t row =
          tokens.layer * layout_.layerColumns(nSlots_) + layout_.columnRow(tokens.task, c, i);
      if (layout_.quantised())
        writer.add(row, &index[c * rowWords]);
      else
        writer.add(row, &columns[std::size_t(c) * chunk]);
    }
  }
  const unsigned nTail = end % chunk;
  gather(end - nTail, nTail);
  // Of an index the positions behind its last full block.
  const unsigned nComplete = layout_.quantised() ? nTail / blockSize : 0,
                 first = nComplete * blockSize;
  for (unsigned c = 0; c != d; ++c) {
    const std::size_t at = std::size_t(tokens.task) * d + c;
    std::copy_n(columns.begin() + std::size_t(c) * chunk + first, nTail - first,
                tail.columns.begin() + at * layout_.tailWidth());
    if (nComplete != 0)
      std::copy_n(&index[c * rowWords], nComplete * recordWords(layout_.indexBits),
                  &tail.index[at * rowWords]);
  }
}

void HostCache::read(Engine &engine, unsigned layer, std::uint16_t *key, std::uint16_t *value,
                     unsigned nTokens) const {
  if (resident_)
    return readResident(engine, key, value, nTokens);
  const unsigned d = shape_.headDim;
  const std::size_t all = std::size_t(nTokens) * d;
  struct Piece {
    std::uint16_t *to;
    std::size_t n;
  };
  std::vector<std::size_t> rows;
  const std::size_t base = layer * layout_.layerRows();
  if (layout_.tiered)
    return readTiered(engine, layer, key, value, nTokens);
  std::vector<Piece> pieces;
  for (const auto &part :
       {std::make_pair(base, key), std::make_pair(base + layout_.valueRow(), value)})
    for (unsigned task = 0; task != shape_.nTasks(); ++task) {
      const unsigned length = std::min(lengths_[layer][task / shape_.nKvHeads], nTokens);
      std::uint16_t *to = part.second + task * all;
      for (unsigned position = 0; position < length; position += layout_.positionsPerRow) {
        rows.push_back(part.first + layout_.keyRow(task, position));
        pieces.push_back({to + std::size_t(position) * d,
                          std::size_t(std::min(layout_.positionsPerRow, length - position)) * d});
      }
      std::fill(to + std::size_t(length) * d, to + all, 0);
    }
  rows_.read(engine, rows, [&](std::size_t i, const void *data) {
    std::memcpy(pieces[i].to, data, pieces[i].n * sizeof(std::uint16_t));
  });
}

void HostCache::readTiered(Engine &engine, unsigned layer, std::uint16_t *key, std::uint16_t *value,
                           unsigned nTokens) const {
  const std::size_t d = shape_.headDim;
  std::vector<std::size_t> rows, at;
  for (unsigned task = 0; task != shape_.nTasks(); ++task) {
    const unsigned length = std::min(lengths_[layer][task / shape_.nKvHeads], nTokens);
    const std::size_t first = std::size_t(task) * nTokens;
    for (unsigned position = 0; position != length; ++position) {
      rows.push_back(layer * layout_.layerRows() + layout_.keyRow(task, position));
      at.push_back((first + position) * d);
    }
    for (std::uint16_t *const to : {key, value})
      std::fill(to + (first + length) * d, to + (first + nTokens) * d, 0);
  }
  rows_.read(engine, rows, [&](std::size_t i, const void *data) {
    readTieredRow(static_cast<const std::uint16_t *>(data), key + at[i], value + at[i]);
  });
}

void HostCache::readResident(Engine &engine, std::uint16_t *key, std::uint16_t *value,
                             unsigned nTokens) const {
  const std::size_t d = shape_.headDim, room = std::size_t(layout_.capacity) * d;
  std::vector<std::uint16_t> rows(shape_.nTasks() * room);
  const std::array<std::uint16_t *, 2> parts{key, value};
  for (std::size_t i = 0; i != parts.size(); ++i) {
    readRows_[i].read(engine, rows.data());
    for (unsigned task = 0; task != shape_.nTasks(); ++task) {
      const std::size_t length = std::min(lengths_.front()[task / shape_.nKvHeads], nTokens);
      std::uint16_t *to = parts[i] + task * nTokens * d;
      std::copy_n(rows.begin() + task * room, length * d, to);
      std::fill(to + length * d, to + nTokens * d, 0);
    }
  }
}

} // namespace sparq
