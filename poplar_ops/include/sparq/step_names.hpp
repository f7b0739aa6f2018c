// SPDX-License-Identifier: Apache-2.0
//
// Names of steps that plans and pages compute with. Programs and the Python bindings take them from
// here, so a name that changes does so in both.
#pragma once

#include <vector>

namespace sparq::steps {

// clang-format off
constexpr const char
    // read from streaming memory
    *readKeyColumns = "read_key_columns", *readRows = "read_rows", *readKeyRows = "read_key_rows",
    *readValueRows = "read_value_rows",
    // approximate scores
    *columnOffsets = "column_offsets", *spreadColumns = "spread_columns",
    *blockCoefficients = "block_coefficients", *approxScores = "approx_scores",
    *openScores = "open_scores", *tailCoefficients = "tail_coefficients",
    *tailScores = "tail_scores", *nextWave = "next_wave",
    // softmax
    *partialMax = "partial_max", *reduceMax = "reduce_max", *softmaxWeights = "softmax_weights",
    *lentWeights = "lent_weights", *blockSums = "block_sums", *foldSums = "fold_sums",
    // selection
    *groupKeys = "group_keys", *keyHistogram = "key_histogram", *sumRows = "sum_rows",
    *sumCounts = "sum_counts", *markKeys = "mark_keys", *rankKeys = "rank_keys",
    *takeKeys = "take_keys", *expandMarks = "expand_marks", *selectAgain = "select_again",
    // misses
    *planWaves = "plan_waves", *fetch = "fetch", *readSome = "read_some",
    *fewMisses = "few_misses",
    // what several IPUs agree on
    *agreed = "agreed", *switchOfAll = "switch";
// clang-format on

// Steps of one kind, for pages that add up their times.
struct Stage {
  const char *label;
  std::vector<const char *> names;
};

inline std::vector<Stage> stages() {
  return {
      {"key columns streamed", {readKeyColumns}},
      {"rows of keys and values streamed", {readRows, readKeyRows, readValueRows}},
      {"approximate scores",
       {columnOffsets, spreadColumns, blockCoefficients, approxScores, openScores, tailCoefficients,
        tailScores, nextWave}},
      {"softmax", {partialMax, reduceMax, softmaxWeights, lentWeights, blockSums, foldSums}},
      {"top-k",
       {groupKeys, keyHistogram, sumRows, sumCounts, markKeys, rankKeys, takeKeys, expandMarks,
        selectAgain}},
  };
}

// What several IPUs would agree on in a program for one IPU: branches by a number, and the step
// after which they agree on a number.
inline std::vector<const char *> branchesByNumber() { return {fetch, readSome, fewMisses}; }

} // namespace sparq::steps
