// SPDX-License-Identifier: Apache-2.0
#include "prompt_attention.hpp"

#include "arith/arith.hpp"
#include "call.hpp"

#include <atomic>
#include <cmath>
#include <cstring>
#include <deque>

namespace sparq {
namespace cpu {
namespace {

// Rows that go over the blocks together: their sums and one block stay in the second cache.
constexpr unsigned rowsTogether = 96;
static_assert(rowsTogether % promptRowGroup == 0, "no group of rows is cut");
static_assert(rowsTogether >= blockSize, "memory of queries takes a block of keys too");
constexpr unsigned vectorRows = rowsTogether + 16; // the vectors of the last group end behind it
// Packed keys and values that threads share between two barriers, in bytes; or those of one head.
constexpr std::size_t packedTogether = std::size_t(8) << 20;

// Rows of `width` floats, the last ones zero, from `count` rows of headDim numbers.
void widenRows(const Kernels &kernels, Float type, const char *from, std::ptrdiff_t stride,
               std::size_t headDim, std::size_t count, std::size_t width, float *to) {
  if (width == headDim && stride == static_cast<std::ptrdiff_t>(headDim * bytesOf(type))) {
    widenNumbers(kernels, type, from, count * headDim, to);
    return;
  }
  for (std::size_t i = 0; i < count; ++i, from += stride, to += width) {
    widenNumbers(kernels, type, from, headDim, to);
    std::fill(to + headDim, to + width, 0.0f);
  }
}

const char *at(const PromptRows &rows, std::size_t head, std::size_t token) {
  return rows.start + static_cast<std::ptrdiff_t>(head) * rows.head +
         static_cast<std::ptrdiff_t>(token) * rows.token;
}

void writeRow(const Kernels &kernels, Float type, std::size_t n, const float *from, char *to) {
  if (type == Float::float32) {
    std::memcpy(to, from, n * sizeof(float));
    return;
  }
  auto *const bits = reinterpret_cast<std::uint16_t *>(to);
  if (type == Float::float16)
    kernels.narrow(from, bits, n);
  else
    for (std::size_t c = 0; c < n; ++c)
      bits[c] = narrowed(from[c]);
}

template <typename Number>
void check(bool right, const char *argument, const char *rule, Number got) {
  if (!right)
    throw Error(std::string("prompt_attention: ") + argument + " must " + rule + ", got " +
                std::to_string(got));
}

void check(const Prompt &p, const std::vector<PromptText> &texts) {
  check(p.nKvHeads > 0 && p.nHeads % p.nKvHeads == 0, "n_heads", "be a multiple of n_kv_heads",
        p.nHeads);
  check(p.headDim > 0 && p.headDim % 8 == 0 && p.headDim <= promptHeadDim, "head_dim",
        "be a multiple of 8 of at most 256", p.headDim);
  check(std::isfinite(p.scale) && p.scale > 0.0f, "scale", "be positive and finite", p.scale);
  check(p.blocks >= 0.0f && p.blocks <= 0.5f, "blocks", "be in [0, 0.5]", p.blocks);
  check(p.blocks == 0.0f || !p.window, "window", "be 0 with blocks", p.window);
  for (const PromptText &text : texts)
    check(text.nQueries <= text.nKeys, "query", "have at most as many tokens as key",
          text.nQueries);
}

// Keys and values by lanes of 32 bits.
struct Packed {
  std::int32_t *keys, *values, *summaries;
  float *keySteps, *valueLogs, *inverses, *summarySteps;
  Packed(Carver &carve, std::size_t blocks, std::size_t lanes, std::size_t nSummaries)
      : keys(carve.take<std::int32_t>(blocks * blockSize * lanes)),
        values(carve.take<std::int32_t>(blocks * blockSize * lanes)),
        summaries(carve.take<std::int32_t>(nSummaries * promptSummaries * blockSize * lanes)),
        keySteps(carve.take<float>(blocks * blockSize)),
        valueLogs(carve.take<float>(blocks * blockSize)),
        inverses(carve.take<float>(blocks * blockSize)),
        summarySteps(carve.take<float>(nSummaries * promptSummaries * blockSize)) {}
};

// One thread's.
struct Own {
  float *rows, *sums, *maxima, *weightSums, *estimates, *steps;
  bool *isRead;
  std::int16_t *integers;
  Own(Carver &carve, std::size_t width, std::size_t nSummarised)
      : rows(carve.take<float>(2 * rowsTogether * width)),
        sums(carve.take<float>(rowsTogether * width)), maxima(carve.take<float>(vectorRows)),
        weightSums(carve.take<float>(rowsTogether * promptLanes)),
        estimates(carve.take<float>(2 * promptRowGroup * nSummarised)),
        steps(carve.take<float>(2 * rowsTogether)),
        isRead(carve.take<bool>(rowsTogether * nSummarised)),
        integers(carve.take<std::int16_t>(2 * rowsTogether * width)) {}
};

// One text and KV head. Positions of a unit begin at the first block that its rows see.
struct Unit {
  const PromptText *text;
  std::size_t kvHead, begin; // its position 0 in the text
  std::size_t wholeRows;     // the first ones, which read all blocks: E14's order, not E16's
  std::size_t blocks, parts; // parts: rowsTogether rows of one head
  std::size_t firstBlock, firstPart, firstSummary; // among those of its group
  bool leavesOut() const { return wholeRows < text->nQueries; }
};

std::size_t partsOf(std::size_t rows) { return roundUp(rows, rowsTogether) / rowsTogether; }

// Units whose keys and values are packed at one time.
struct Group {
  std::size_t firstUnit, blocks = 0, parts = 0, summaries = 0;
  std::atomic<std::size_t> nextBlock{0}, nextPart{0};
  explicit Group(std::size_t first) : firstUnit(first) {}
};

struct Work {
  std::vector<Unit> units;
  std::deque<Group> groups;
  std::size_t mostBlocks = 0, mostSummaries = 0; // of a group

  Work(const Prompt &p, const std::vector<PromptText> &texts, std::size_t blockBytes) {
    for (const PromptText &text : texts)
      for (std::size_t kvHead = 0; text.nQueries && kvHead < p.nKvHeads; ++kvHead)
        add(p, text, kvHead, blockBytes);
  }

private:
  void add(const Prompt &p, const PromptText &text, std::size_t kvHead, std::size_t blockBytes) {
    const std::size_t first = text.nKeys - text.nQueries; // position of the first row
    const std::size_t hidden = p.window && first >= p.window ? first + 1 - p.window : 0;
    const std::size_t begin = hidden / blockSize * blockSize;
    const std::size_t blocks = roundUp(text.nKeys - begin, blockSize) / blockSize;
    if (groups.empty() || (groups.back().blocks + blocks) * blockBytes > packedTogether)
      groups.emplace_back(units.size());
    Group &group = groups.back();
    const std::size_t from = p.blocks > 0.0f ? std::max(p.blocksFrom, first) : text.nKeys;
    const std::size_t wholeRows = std::min(from - first, text.nQueries);
    // No part has rows of both orders.
    const std::size_t parts =
        (partsOf(wholeRows) + partsOf(text.nQueries - wholeRows)) * (p.nHeads / p.nKvHeads);
    units.push_back({&text, kvHead, begin, wholeRows, blocks, parts, group.blocks, group.parts,
                     group.summaries});
    group.blocks += blocks;
    group.parts += parts;
    if (units.back().leavesOut())
      group.summaries += roundUp(blocks, blockSize) / blockSize;
    mostBlocks = std::max(mostBlocks, group.blocks);
    mostSummaries = std::max(mostSummaries, group.summaries);
  }
};

} // namespace

void attendPrompt(const Prompt &p, const std::vector<PromptText> &texts, const Kernels &kernels,
                  unsigned nThreads) {
  check(p, texts);
  const std::size_t width = roundUp(p.headDim, 16), lanes = p.integers ? width / 2 : width;
  const std::size_t groupSize = p.nHeads / p.nKvHeads;
  const std::size_t blockBytes = blockSize * (2 * lanes * sizeof(std::int32_t) + 3 * sizeof(float));
  Work work(p, texts, blockBytes);

  PoolLease pool(nThreads);
  Carver measureShared(nullptr), measureOwn(nullptr);
  Packed(measureShared, work.mostBlocks, lanes, work.mostSummaries);
  const std::size_t nSummarised = work.mostSummaries * blockSize;
  Own(measureOwn, width, nSummarised);
  char *const memory = pool->scratch(measureShared.used + pool->nThreads() * measureOwn.used);
  Carver shared(memory);
  const Packed packed(shared, work.mostBlocks, lanes, work.mostSummaries);

  const auto pack = [&](const Own &own, const Unit &unit, std::size_t block) {
    const PromptText &text = *unit.text;
    const std::size_t begin = unit.begin + block * blockSize;
    const std::size_t count = std::min<std::size_t>(blockSize, text.nKeys - begin);
    float *const keys = own.rows, *const values = own.rows + blockSize * width;
    for (const auto &[rows, to] : {std::pair(&text.key, keys), std::pair(&text.value, values)}) {
      const char *from = at(*rows, unit.kvHead, begin);
      std::ptrdiff_t stride = rows->token;
      if (p.keysCoded) {
        auto *const half = reinterpret_cast<Half *>(own.integers);
        kernels.decodeRows(reinterpret_cast<const unsigned char *>(from), count,
                           static_cast<unsigned>(p.headDim), half);
        from = reinterpret_cast<const char *>(half);
        stride = static_cast<std::ptrdiff_t>(p.headDim * sizeof(Half));
      }
      widenRows(kernels, p.keyType, from, stride, p.headDim, count, width, to);
      std::fill(to + count * width, to + blockSize * width, 0.0f);
    }
    const std::size_t first = (unit.firstBlock + block) * blockSize;
    const std::size_t summary =
        (unit.firstSummary + block / blockSize) * promptSummaries * blockSize;
    const std::size_t column = block % blockSize;
    kernels.promptBlock({p.integers, keys, values, static_cast<unsigned>(width), own.integers,
                         packed.keys + first * lanes, packed.values + first * lanes,
                         packed.keySteps + first, packed.valueLogs + first, packed.inverses + first,
                         unit.leavesOut() ? packed.summaries + summary * lanes + column : nullptr,
                         packed.summarySteps + summary + column});
  };
  const auto attend = [&](const Own &own, const Unit &unit, std::size_t part) {
    const PromptText &text = *unit.text;
    const std::size_t head = unit.kvHead * groupSize + part % groupSize;
    // The last rows see most positions: they come first, so that no thread is left with them.
    const std::size_t place = unit.parts / groupSize - 1 - part / groupSize;
    const std::size_t wholeParts = partsOf(unit.wholeRows);
    const bool isWhole = place < wholeParts;
    const std::size_t begin =
        isWhole ? place * rowsTogether : unit.wholeRows + (place - wholeParts) * rowsTogether;
    const std::size_t rows =
        std::min<std::size_t>(rowsTogether, (isWhole ? unit.wholeRows : text.nQueries) - begin);
    widenRows(kernels, p.type, at(text.query, head, begin), text.query.token, p.headDim, rows,
              width, own.rows);
    // Queries; behind them, for E16, their scaled squares times ln(2) / 2. Scores are logarithms to
    // base 2.
    const float toScores = p.scale * 0x1.715476p+0f;
    const std::size_t apart = rowsTogether * width;
    for (unsigned kind = 0; kind < (isWhole ? 1 : 2); ++kind) {
      float *const numbers = own.rows + kind * apart, *const steps =
                                                          own.steps + kind * rowsTogether;
      for (std::size_t i = 0; kind && i < rows * width; ++i) {
        const float scaled = own.rows[i] * toScores;
        numbers[i] = scaled * scaled * 0x1.62e43p-2f;
      }
      const float scale = kind ? 1.0f : toScores;
      if (p.integers) {
        std::int16_t *const to = own.integers + kind * apart;
        std::memset(to, 0, rowsTogether * width * sizeof(*to));
        kernels.promptQuery({numbers, rows, static_cast<unsigned>(width), scale, to, steps});
      } else {
        std::fill(numbers + rows * width, numbers + rowsTogether * width, 0.0f);
        std::fill_n(steps, rows, scale);
      }
    }
    const void *query = own.rows, *spreads = own.rows + apart;
    if (p.integers) {
      query = own.integers;
      spreads = own.integers + apart;
    }
    const std::size_t first = unit.firstBlock * blockSize;
    const std::size_t summary = unit.firstSummary * promptSummaries * blockSize;
    kernels.promptAttention({p.integers,
                             query,
                             own.steps,
                             static_cast<unsigned>(rows),
                             static_cast<unsigned>(width),
                             text.nKeys - text.nQueries + begin - unit.begin,
                             p.window,
                             isWhole ? 0.0f : p.blocks / blockSize,
                             packed.keys + first * lanes,
                             packed.values + first * lanes,
                             packed.keySteps + first,
                             packed.valueLogs + first,
                             packed.inverses + first,
                             packed.summaries + summary * lanes,
                             spreads,
                             packed.summarySteps + summary,
                             own.steps + rowsTogether,
                             own.sums,
                             own.maxima,
                             own.weightSums,
                             own.estimates,
                             own.isRead,
                             nSummarised});
    const std::size_t bytes = p.headDim * bytesOf(p.type);
    for (std::size_t row = 0; row < rows; ++row)
      writeRow(kernels, p.type, p.headDim, own.sums + row * width,
               text.output + ((begin + row) * p.nHeads + head) * bytes);
  };

  pool->run([&](unsigned thread) {
    Carver carve(memory + measureShared.used + thread * measureOwn.used);
    const Own own(carve, width, nSummarised);
    for (Group &group : work.groups) {
      const Unit *unit = &work.units[group.firstUnit];
      for (std::size_t i; (i = group.nextBlock.fetch_add(1)) < group.blocks;) {
        while (i >= unit->firstBlock + unit->blocks)
          ++unit;
        pack(own, *unit, i - unit->firstBlock);
      }
      pool->barrier();
      unit = &work.units[group.firstUnit];
      for (std::size_t i; (i = group.nextPart.fetch_add(1)) < group.parts;) {
        while (i >= unit->firstPart + unit->parts)
          ++unit;
        attend(own, *unit, i - unit->firstPart);
      }
      pool->barrier();
    }
  });
}

} // namespace cpu
} // namespace sparq
