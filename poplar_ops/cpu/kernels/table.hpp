// SPDX-License-Identifier: Apache-2.0
//
// The kernels of one instruction set, as a table of functions. Plain data in, plain data out: what
// runs them (threads, layout, validation) is attention.cpp.
//
// This header is included by translation units built for different instruction sets, so it defines
// no function: the linker would keep one copy of it, perhaps the one that the machine cannot run.
#pragma once

#include <cstddef>
#include <cstdint>

namespace sparq::cpu {

// Bits of an IEEE fp16 number.
using Half = std::uint16_t;

// Softmax before its division: scores (n,) -> weights in place; n a multiple of 64. It can be done
// in parts.
struct SoftmaxWeights {
  float *scores;
  std::size_t n;
  float maximum;
  float *blockSums;     // (n / 64,) out: the lane sum of each block
  std::int32_t *maxima; // (n / 64, 16) out, or null: of the bits of the weights. Entry j over
                        // positions j, j + 16, j + 32, j + 48 of the block
  // The state: blocks that are done, and the lanes of those whose sums are not yet written.
  std::size_t block = 0;
  float lanes[4][8] = {};
};

// Approximate scores of positions [begin, end), from `rank` columns of K.
struct ApproxScores {
  const Half *const *columns; // (rank,) the selected columns of one KV head, ascending
  unsigned rank;
  const float *query; // (groupSize, rank), the selected components
  unsigned groupSize;
  const float *invTau;    // (groupSize,)
  std::size_t begin, end; // multiples of 64
  std::size_t length;     // positions at or beyond get a score of -infinity
  float *scores;          // (groupSize, scoreStride)
  std::size_t scoreStride;
  float *maximum; // (groupSize,) out: of positions [begin, min(end, length)), -infinity if there
                  // are none
  SoftmaxWeights *softmax; // of another pair, to be done while the memory is waited for, or null
};

// The quantised key index of one pair (batch element, KV head); ../key_cells.hpp says where in it
// a number is.
struct KeyCells {
  unsigned char *start;
  unsigned bits, nComponents; // 8, 4 or 2; of a key
  std::size_t blocks;         // of 64 positions that there is room for
};

// Blocks [begin, end) of the components of a pair that are read.
struct CellRange {
  KeyCells cells;
  const std::uint32_t *components; // (rank,) ascending
  unsigned rank;
  std::size_t begin, end;
};

// Approximate scores of full blocks from a quantised index (contract E9).
struct IndexScores {
  CellRange range;
  bool fetched;          // the call before had this range as its `next`
  const CellRange *next; // that is scored after this one, whose beginning is fetched; or null
  const float *query;    // (groupSize, rank), the selected components
  unsigned groupSize;
  const float *invTau; // (groupSize,)
  float *scores;       // (groupSize, scoreStride), by position
  std::size_t scoreStride;
  float *maximum;          // (groupSize,) in and out: raised to that of these blocks
  SoftmaxWeights *softmax; // as in ApproxScores
  // Working memory.
  const unsigned char **rows;     // rank pointers, rounded up to a multiple of four
  const unsigned char **nextRows; // as many
  float *products;                // 64 for each of these
  std::int32_t *words;            // 32 for each of these
};

// One block of 64 keys into the quantised index.
struct QuantiseBlock {
  const Half *rows; // (64, headDim)
  unsigned headDim;
  KeyCells cells;
  std::size_t block;
};

// The merit by which positions are selected is the softmax summed over the group (contract E6.3).
struct Merit {
  const float *weights; // (groupSize, weightStride)
  std::size_t weightStride;
  const float *weightSum; // (groupSize,)
  unsigned groupSize;
};

// Merits, but with one rounding more for each head, as bit patterns: within Merit's error bound
// (key_topk.hpp) of what the contract defines, and zero only where that is.
struct RoughKeys {
  Merit merit;
  const float *inverseSum; // (groupSize,) 1 / weightSum
  std::size_t begin, end;  // multiples of 64
  std::int32_t *keys; // out, by position: the bits of a number >= +0, which order as the numbers do
  std::int32_t *maxima; // (, 16) out, as SoftmaxWeights gives them
};

// The nBest largest, equal ones by lower index, of keys[begin, end) or, where these are rough, of
// the merits that they stand for. For one head its weights are rough keys: the division by their
// sum keeps their order, but for rounding.
struct KeyTopK {
  const std::int32_t *keys;
  const std::int32_t *maxima; // of blocks, or null
  std::size_t begin, end;     // begin a multiple of 64 if there are maxima
  std::size_t nBest;          // at most end - begin
  std::int32_t *work;         // end - begin numbers
  std::uint32_t *workIndex;   // end - begin numbers, and 16 more
  std::uint32_t *positions;   // (nBest,) out, ascending
  const Merit *merit;         // null: the keys are exact
};

// Rows of K or V: number e is row index[e], or row first + e without an index.
struct Rows {
  const unsigned char *rows; // (capacity,) of fp16 numbers, or of 8 bits
  unsigned headDim;          // a multiple of 8
  const std::uint32_t *index;
  std::size_t first;
  std::size_t count;
  std::size_t ahead = 0; // without an index: bytes that a line is asked for before it is read, or 0
  float *factors = nullptr; // work of nFactors() numbers for rows of 8 bits; of fp16 rows null
};

// score = dot(q, row) * scale, in eight lanes (contract E3, E6.4).
struct RowScores {
  Rows key;
  const float *query; // (groupSize, headDim)
  unsigned groupSize;
  float scale;
  float *scores; // (groupSize, scoreStride), padded with -infinity to a multiple of 64
  std::size_t scoreStride;
  float *maximum; // (groupSize,) out, -infinity without rows
};

// Sum of weight * row by blocks of 64 (contract E3).
struct WeightedValues {
  Rows value;
  const float *weights; // (groupSize, weightStride)
  std::size_t weightStride;
  unsigned groupSize;
  float *sum; // (groupSize, headDim): with `fold`, the blocks are added to it; else one such array
              // for each block is written
  bool fold;
};

struct DecoderKernels; // decoder/kernels/table.hpp

// Attention of a prompt (contract E14). Rows that are multiplied together, a multiple of every
// instruction set's; the largest integers; weights below which a block adds nothing.
constexpr unsigned promptRowGroup = 12, promptHeadDim = 256, promptSummaries = 3;
constexpr unsigned promptLanes = 16; // of a sum of weights
constexpr float promptQueryLimit = 8191.0f, promptLimit = 4095.0f;
// Scores are logarithms to base 2: of weights that count as 0, and of the positions of a block.
constexpr float promptLeast = -100.0f, promptLogBlock = 6.0f;

// Queries to integers.
struct PromptQuery {
  const float *query; // (rows, headDim)
  std::size_t rows;
  unsigned headDim; // here and below a multiple of 16
  float scale;
  std::int16_t *integers; // (rows, headDim) out
  float *steps;           // (rows,) out, times the scale
};

// 64 keys and values, in the order of promptAttention of the same instruction set. A lane of 32
// bits has two integers or one float.
struct PromptBlock {
  bool integers;
  const float *key, *value; // (64, headDim)
  unsigned headDim;
  std::int16_t *work; // (64, headDim); this and the steps of integers only
  void *keys;         // (lanes of headDim, 64) out
  void *values;       // (lanes of 64, headDim) out
  float *keySteps;    // (64,) out
  // (64,) out: logarithms of the steps of values, and the inverses of these.
  float *valueLogs, *inverses;
  // Of the keys (contract E16), or null: a column of means (lanes of headDim, 64), and behind them
  // of variances and of keys that stand apart; their steps, 64 apart.
  std::int32_t *summary;
  float *summarySteps;
};

// Rows of one head, at positions from `position` on.
struct PromptAttention {
  bool integers;
  const void *query;       // (rows rounded up to promptRowGroup, lanes of headDim)
  const float *querySteps; // (rows,); of floats the scale
  unsigned rows, headDim;
  std::size_t position, window; // positions that a row sees, itself included; 0: all before it
  float share; // of the sum of weights, by position, below which a block is left out (contract E16)
  const void *keys, *values; // of each block, as PromptBlock writes them
  const float *keySteps, *valueLogs, *inverses;
  // With a share: of each 64 blocks as PromptBlock writes them; halves of squared, scaled queries.
  const void *summaries, *spreads;
  const float *summarySteps, *spreadSteps;
  float *sums; // (rows, headDim) out
  // Working memory: (rows,) and up to 16 more; (rows, promptLanes); with a share
  // (promptRowGroup, 2, blockStride) and (rows, blockStride), a multiple of 64.
  float *maxima, *weightSums, *estimates;
  bool *isRead;
  std::size_t blockStride;
};

struct Kernels {
  const char *name;
  void (*widen)(const Half *from, float *to, std::size_t n);
  // Clamps to [-65504, 65504], rounds to nearest even (contract E1).
  void (*narrow)(const float *from, Half *to, std::size_t n);
  // Adds rows (n, headDim) to `sum`, ascending (contract E3).
  void (*addRows)(const Half *rows, std::size_t n, unsigned headDim, float *sum);
  // Rows of 8 bits from rows (n, headDim), and back.
  void (*encodeRows)(const Half *rows, std::size_t n, unsigned headDim, unsigned char *to);
  void (*decodeRows)(const unsigned char *rows, std::size_t n, unsigned headDim, Half *to);
  void (*approxScores)(const ApproxScores &);
  void (*indexScores)(const IndexScores &);
  void (*quantiseBlock)(const QuantiseBlock &);
  void (*softmaxWeights)(SoftmaxWeights &); // what is left of it
  void (*roughKeys)(const RoughKeys &);
  void (*keyTopK)(const KeyTopK &);
  // Bits of the merit of each of n positions.
  void (*meritsAt)(const Merit &, const std::uint32_t *positions, std::size_t n,
                   std::int32_t *keys);
  void (*rowScores)(const RowScores &);
  void (*weightedValues)(const WeightedValues &);
  void (*promptQuery)(const PromptQuery &);
  void (*promptBlock)(const PromptBlock &);
  void (*promptAttention)(const PromptAttention &);
  // A plain vectorised sum, to measure the bandwidth of reading; n a multiple of 64.
  float (*streamSum)(const float *numbers, std::size_t n);
  const DecoderKernels *decoder;
};

extern const Kernels avx512vnniKernels, avx2Kernels, portableKernels;

} // namespace sparq::cpu
