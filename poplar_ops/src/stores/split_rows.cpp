// SPDX-License-Identifier: Apache-2.0
#include "rows.hpp"
#include <algorithm>
#include <cstring>

namespace sparq {

namespace {

constexpr unsigned packet = 1024; // bytes that streaming memory moves at a time

class HostSplitRows final : public HostStore {
public:
  HostSplitRows(RemoteRows rows, const CacheLayout &layout)
      : rows_(std::move(rows)), layout_(layout) {}

  void write(Engine &engine, HostTokens &tokens) override {
    const OldRows old = readOld(engine, tokens);
    const std::size_t d = layout_.headDim;
    const unsigned perRow = layout_.positionsPerRow;
    RemoteRows::Writer writer(rows_, engine);
    std::vector<std::uint16_t> row(layout_.rowElements);
    for (unsigned task = 0; task != layout_.nTasks; ++task) {
      const unsigned held = tokens.heldBy(task), end = held + tokens.countOf(task);
      for (unsigned position = held, n; position < end; position += n) {
        const unsigned inRow = position % perRow;
        n = std::min(perRow - inRow, end - position);
        const std::size_t index =
            tokens.layer * layout_.layerRows() + layout_.keyRow(task, position);
        for (const bool ofValues : {false, true}) {
          std::fill(row.begin(), row.end(), 0);
          std::copy_n((ofValues ? old.values : old.keys).begin() + task * row.size(), inRow * d,
                      row.begin());
          std::copy_n((ofValues ? tokens.values : tokens.keys) + tokens.at(task, position - held),
                      n * d, row.begin() + inRow * d);
          writer.add(index + (ofValues ? layout_.valueRow() : 0), row.data());
        }
      }
    }
    writer.finish();
  }

  void read(Engine &engine, unsigned layer, const std::vector<HostRange> &ranges) const override {
    struct Piece {
      std::uint16_t *to;
      std::size_t n;
    };
    const std::size_t d = layout_.headDim, base = layer * layout_.layerRows();
    const unsigned perRow = layout_.positionsPerRow;
    std::vector<std::size_t> rows;
    std::vector<Piece> pieces;
    for (const bool ofValues : {false, true})
      for (const HostRange &range : ranges) {
        std::uint16_t *const to = ofValues ? range.value : range.key;
        for (unsigned position = range.begin; to != nullptr && position < range.end;
             position += perRow) {
          rows.push_back(base + layout_.keyRow(range.task, position) +
                         (ofValues ? layout_.valueRow() : 0));
          pieces.push_back(
              {to + (position - range.begin) * d, std::min(perRow, range.end - position) * d});
        }
      }
    rows_.read(engine, rows, [&](std::size_t i, const void *data) {
      std::memcpy(pieces[i].to, data, pieces[i].n * sizeof(std::uint16_t));
    });
  }

private:
  // Of every task the row that is not full.
  struct OldRows {
    std::vector<std::uint16_t> keys, values; // {nTasks, row}
  };
  OldRows readOld(Engine &engine, const HostTokens &tokens) const {
    const std::size_t n = layout_.rowElements;
    OldRows old{std::vector<std::uint16_t>(layout_.nTasks * n),
                std::vector<std::uint16_t>(layout_.nTasks * n)};
    std::vector<HostRange> ranges;
    for (unsigned task = 0; task != layout_.nTasks; ++task) {
      const unsigned held = tokens.heldBy(task);
      ranges.push_back({task, held - held % layout_.positionsPerRow, held, &old.keys[task * n],
                        &old.values[task * n]});
    }
    read(engine, tokens.layer, ranges);
    return old;
  }

  RemoteRows rows_;
  CacheLayout layout_;
};

} // namespace

void SplitRows::layOut(const Request &request, CacheLayout &layout) {
  const auto &attention = request.programs.attention;
  const bool selects = std::any_of(attention.begin(), attention.end(), [](const Attention &a) {
    return a.kernel->takes != Takes::nothing;
  });
  layout.rowsPerPosition = 2;
  layout.positionsPerRow =
      request.programs.append || selects ? 1 : std::max(1u, packet / (layout.headDim * 2));
  while (block % layout.positionsPerRow != 0)
    --layout.positionsPerRow;
  layout.rowElements = std::size_t(layout.positionsPerRow) * layout.headDim;
}

void SplitRows::append(Append &step) const {
  const Tensor rows = addAppendOffsets(step);
  step.cache.lockstep->write(buffer(), concat(step.keys, step.values, 0),
                             rows.dimShuffle({1, 0}).flatten(), step.program,
                             {step.dc, "write_rows"});
}

// Every row goes to its place, those beyond the length too: nobody reads a row there before append
// has written it.
void SplitRows::fill(FillStep &step) const {
  const CacheLayout &layout = step.layout();
  const Tensor ofKeys = fillRows(step, "fill_key_rows"),
               ofValues = fillRows(step, "fill_value_rows");
  std::vector<Tensor> keyRows, valueRows;
  for (unsigned i = 0; i != step.nTasks; ++i) {
    const unsigned slot = step.slot(i), layerRows = step.cache.layerRows();
    const std::size_t first = layout.keyRow(step.firstTask + i, step.begin);
    keyRows.push_back(ofKeys[slot].slice(0, step.n()));
    valueRows.push_back(ofValues[slot].slice(0, step.n()));
    step.addOffsets(slot, keyRows.back(), first, 1, layerRows);
    step.addOffsets(slot, valueRows.back(), first + layout.valueRow(), 1, layerRows);
  }
  step.cache.lockstep->write(buffer(), concat(concat(step.keys), concat(step.values), 0),
                             concat(concat(keyRows), concat(valueRows), 0), step.program,
                             {step.dc, "fill_rows"});
}

std::shared_ptr<HostStore> SplitRows::host(const HostSite &site) const {
  return std::make_shared<HostSplitRows>(hostRows(site), site.cache.layout());
}

ListEntries SplitRows::entries(const Cache &cache, unsigned task) const {
  const CacheLayout &layout = cache.layout();
  return {static_cast<unsigned>(layout.keyRow(task, 0)), static_cast<unsigned>(layout.valueRow()),
          cache.layerRows()};
}

Gathered SplitRows::attend(const Context &context, const Waves &waves, const QueryComponents &q,
                           const Selected &selected) const {
  return gatheredAttention(context, waves, q, selected);
}

} // namespace sparq
