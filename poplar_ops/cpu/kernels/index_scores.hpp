// SPDX-License-Identifier: Apache-2.0
//
// Approximate scores from a quantised key index (contract E9): cell by cell, the coefficients of
// its sixteen blocks as vectors over blocks, then the integer dot products (dot_codes_*.hpp).

// Heads that share the unpacking of codes.
constexpr unsigned headsTogether = width == 16 ? 4 : width == 8 ? 2 : 1;
constexpr unsigned cellVectors = cellBlocks / width;

// Products of two codes and coefficients that are added as 32 bits: coefficients of so many
// components are one word.
constexpr unsigned componentsOfWord(unsigned bits) { return bits == 4 ? 4 : 2; }

// What one head needs to score a cell.
struct CellOfHead {
  std::int32_t *words; // (words, 16): coefficients of some components, by block
  float unit[cellBlocks], offset[cellBlocks];
  float invTau;
  float *scores; // of the first position of the cell
  Vec peak;      // largest scores
};

inline Vec magnitude(Vec x) { return bitcast<Vec>(bitcast<BitsVec>(x) & 0x7FFFFFFFu); }

#ifdef SPARQ_CODES_X86
#include "dot_codes_x86.hpp"
#else
#include "dot_codes_portable.hpp"
#endif

// Coefficients, units and offsets of a cell's blocks.
template <unsigned bits>
inline void prepareCell(const IndexScores &a, const float *query, std::size_t stepsAt, float limit,
                        CellOfHead &head) {
  constexpr unsigned each = componentsOfWord(bits);
  Vec most[cellVectors] = {}, offset[cellVectors] = {}, inverse[cellVectors];
  for (unsigned j = 0; j < a.range.rank; ++j) {
    const Half *const steps = reinterpret_cast<const Half *>(a.rows[j] + stepsAt);
    const Vec q = broadcast(query[j]);
    for (unsigned v = 0; v < cellVectors; ++v) {
      const Vec product = q * loadHalf(steps + v * width);
      store(a.products + j * cellBlocks + v * width, product);
      most[v] = maximum(magnitude(product), most[v]);
      offset[v] = addExactProduct(q, loadHalf(steps + cellBlocks + v * width), offset[v]);
    }
  }
  for (unsigned v = 0; v < cellVectors; ++v) {
    inverse[v] = broadcast(limit) / (most[v] > 0.0f ? most[v] : broadcast(1.0f));
    store(head.unit + v * width, most[v] * (1.0f / limit));
    store(head.offset + v * width, offset[v]);
  }
  for (unsigned j = 0; j < a.range.rank; j += each)
    for (unsigned v = 0; v < cellVectors; ++v) {
      BitsVec word{};
      for (unsigned i = 0; i < each; ++i) { // the low bits of the sum are the rounded number
        const Vec x = load(a.products + (j + i) * cellBlocks + v * width) * inverse[v];
        const BitsVec rounded = bitcast<BitsVec>(x + roundInLowBits);
        word |= (rounded & (bits == 4 ? 0xFFu : 0xFFFFu)) << (32 / each * i);
      }
      __builtin_memcpy(head.words + j / each * cellBlocks + v * width, &word, sizeof(word));
    }
}

// Blocks of a range that are read in one go: cells of a group, as many as are worth fetching ahead.
struct Run {
  // Memory fetched ahead: L2 has room for it and for what is worked on.
  static constexpr std::size_t mostBytes = 320 << 10;

  Run() = default;
  Run(const CellRange &rangeIn, std::size_t beginIn) : range(&rangeIn), begin(beginIn) {
    const KeyCells &cells = range->cells;
    layout = {cells.bits, cells.headDim, cells.blocks};
    first = begin / cellBlocks;
    const std::size_t most = mostBytes / (range->rank * layout.wholeCellBytes()),
                      some = first + (most ? most : 1),
                      group = (first / cellsTogether + 1) * cellsTogether,
                      stop = (some < group ? some : group) * cellBlocks;
    end = stop < range->end ? stop : range->end;
    last = (end - 1) / cellBlocks;
    bytes = layout.cellAt(0, last) + layout.cellBytes(last) - layout.cellAt(0, first);
  }
  const unsigned char *row(unsigned j) const {
    return range->cells.start + layout.cellAt(range->components[j], first);
  }

  const CellRange *range = nullptr;
  CellLayout layout{};
  std::size_t begin = 0, end = 0;  // blocks
  std::size_t first = 0, last = 0; // cells
  std::size_t bytes = 0;           // of a component
};

// Asks for the memory of a run, component after component, a few lines at a time. In this order,
// not in that of the computation: long runs keep the hardware's prefetchers going.
class FetchAhead {
public:
  void start(const Run &of) {
    run = of;
    left = run.range->rank;
    nextRow();
  }
  void lines(std::size_t n) {
    for (; n && left; --n) {
      __builtin_prefetch(at);
      at += 64;
      if (at >= end && --left)
        nextRow();
    }
  }
  std::size_t allLines() const { return run.range->rank * ((run.bytes + 63) / 64); }

private:
  void nextRow() {
    at = run.row(run.range->rank - left);
    end = at + run.bytes;
  }
  Run run;
  unsigned left = 0; // components
  const unsigned char *at = nullptr, *end = nullptr;
};

// Asks for rows of K and V, a few lines at a time.
class FetchRows {
public:
  explicit FetchRows(const RowsAhead &of) : rows(of) {}
  void lines(std::size_t n) {
    const std::size_t bytes = rows.headDim * sizeof(Half);
    for (std::size_t done = 0; done < n && next < 2 * rows.n; ++next) {
      const std::size_t row = rows.positions[next < rows.n ? next : next - rows.n];
      const auto *const at = reinterpret_cast<const unsigned char *>(
          (next < rows.n ? rows.keys : rows.values) + row * rows.headDim);
      for (std::size_t byte = 0; byte < bytes; byte += 64, ++done)
        __builtin_prefetch(at + byte);
    }
  }
  std::size_t allLines() const { return 2 * rows.n * ((rows.headDim * sizeof(Half) + 63) / 64); }

private:
  const RowsAhead rows;
  std::size_t next = 0;
};

// Reads a run that nothing fetched.
inline void touch(const Run &run) {
  for (unsigned j = 0; j < run.range->rank; ++j) {
    const volatile unsigned char *const row = run.row(j);
    for (std::size_t at = 0; at < run.bytes; at += 64)
      static_cast<void>(row[at]);
  }
}

// H heads, blocks [begin, end) of a cell; after each step, `beside` with the blocks it took.
template <unsigned bits, unsigned H, class Beside>
inline void scoreCell(const IndexScores &a, unsigned head, std::size_t stepsAt, float limit,
                      std::size_t cell, unsigned begin, unsigned end, const Beside &beside) {
  constexpr unsigned each = componentsOfWord(bits), step = stepBlocks(bits);
  const unsigned padded = (a.range.rank + 3) / 4 * 4, nWords = (a.range.rank + each - 1) / each;
  CellOfHead heads[H];
  for (unsigned h = 0; h < H; ++h) {
    heads[h].words = a.words + h * (padded / each) * cellBlocks;
    heads[h].invTau = a.invTau[head + h];
    heads[h].scores = a.scores + (head + h) * a.scoreStride + cell * cellBlocks * blockSize;
    heads[h].peak = broadcast(a.maximum[head + h]);
    prepareCell<bits>(a, a.query + (head + h) * std::size_t(a.range.rank), stepsAt, limit,
                      heads[h]);
  }
  for (unsigned block = begin; block < end; block += step) {
    const unsigned n = end - block < step ? end - block : step;
    scoreBlocks<bits, H>(a.rows, nWords, heads, block, n);
    beside(n);
  }
  for (unsigned h = 0; h < H; ++h) {
    float peak = a.maximum[head + h];
    for (unsigned j = 0; j < width; ++j)
      peak = heads[h].peak[j] > peak ? heads[h].peak[j] : peak;
    a.maximum[head + h] = peak;
  }
}

template <unsigned bits> inline void indexScoresOf(const IndexScores &a) {
  constexpr unsigned two = headsTogether < 2 ? headsTogether : 2;
  constexpr unsigned maxCode = (1u << bits) - 1, mostCoefficient = bits == 4 ? 127 : 2047;
  const unsigned rank = a.range.rank, room = ((1u << 24) - 1) / (maxCode * rank);
  const float limit = static_cast<float>(room < mostCoefficient ? room : mostCoefficient);
  // Words are made of whole groups of components: those beyond the rank count 0 times anything.
  const unsigned padded = (rank + 3) / 4 * 4;
  for (unsigned i = rank * cellBlocks; i < padded * cellBlocks; ++i)
    a.products[i] = 0.0f;

  FetchAhead ahead;
  FetchRows rows(a.rowsAhead);
  const std::size_t rowLines = rows.allLines() / (a.range.end - a.range.begin) + 1;
  std::size_t lines = 0, done = 0;
  const std::size_t all =
      (a.range.end - a.range.begin) * ((a.groupSize + headsTogether - 1) / headsTogether);
  const auto beside = [&](unsigned blocks) {
    ahead.lines(lines * blocks);
    rows.lines(rowLines * blocks);
    done += blocks;
    if (a.softmax) // at equal pace
      softmaxUntil(*a.softmax, a.softmax->n / blockSize * done / all);
  };
  for (std::size_t begin = a.range.begin, end; begin < a.range.end; begin = end) {
    const Run run(a.range, begin);
    end = run.end;
    if (begin == a.range.begin && !a.fetched)
      touch(run);
    if (end < a.range.end || a.next) {
      ahead.start(end < a.range.end ? Run(a.range, end) : Run(*a.next, a.next->begin));
      lines = ahead.allLines() / (end - begin) + 1;
    }
    for (unsigned j = 0; j < padded; ++j)
      a.rows[j] = run.row(j < rank ? j : 0);
    for (std::size_t cell = run.first; cell <= run.last; ++cell) {
      const std::size_t from = cell * cellBlocks, stepsAt = run.layout.stepsAt(cell);
      const unsigned first = static_cast<unsigned>(from < begin ? begin - from : 0);
      const unsigned last =
          static_cast<unsigned>(end - from < cellBlocks ? end - from : cellBlocks);
      unsigned head = 0;
      for (; head + headsTogether <= a.groupSize; head += headsTogether)
        scoreCell<bits, headsTogether>(a, head, stepsAt, limit, cell, first, last, beside);
      for (; head + two <= a.groupSize; head += two)
        scoreCell<bits, two>(a, head, stepsAt, limit, cell, first, last, beside);
      for (; head < a.groupSize; ++head)
        scoreCell<bits, 1>(a, head, stepsAt, limit, cell, first, last, beside);
      for (unsigned j = 0; j < padded; ++j)
        a.rows[j] += run.layout.wholeCellBytes();
    }
    ahead.lines(~std::size_t(0));
  }
}

inline void indexScores(const IndexScores &a) {
  if (a.range.cells.bits == 8)
    indexScoresOf<8>(a);
  else
    indexScoresOf<4>(a);
}
