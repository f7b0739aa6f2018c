// SPDX-License-Identifier: Apache-2.0
//
// Softmax over positions spread over the parts.
#pragma once

#include "context.hpp"

namespace sparq {

struct Scores {
  Tensor weights;   // {slots, parts, groupSize, partPositions} FLOAT: scores, then weights
  Tensor maxima;    // {slots, parts, n * groupSize} FLOAT: of n pieces of the part's
  Tensor maximum;   // {slots, parts, 6 * groupSize} FLOAT: of six workers
  Tensor blockSums; // {slots, parts, groupSize, partPositions / 64} FLOAT
  Tensor sums;      // {slots, parts, groupSize} FLOAT, Z
};
Scores createScores(const Context &context, const Waves &waves);
// inGroups: a maximum of many parts is taken in two steps, if that saves time.
void softmaxWeights(const Context &context, const Waves &waves, const Scores &scores,
                    bool inGroups);
void softmax(const Context &context, const Waves &waves, const Scores &scores); // and their sums
// Whether what is added up over all parts is brought together head by head, each on a part of its
// own, and not where it is used: less to receive, for one more exchange. Then {slots, groupSize}
// FLOAT of these parts, of which there may be several: the heads of one begin at firstHead.
bool headsApart(const Context &context);
unsigned partOfHead(const Context &context, unsigned head);
Tensor perHead(const Context &context, unsigned firstHead, const char *name);
// Fields that say which positions a part holds (codelets/segments.hpp).
Fields positionSettings(const Waves &waves, unsigned part);
// Numbers that each part of a slot has for every `unit` of its positions, ascending by position: by
// wave, then part that waves reach; then the tail, by part that has one.
//   {parts, rows, partPositions / unit} -> {rows, all of them}
Tensor ascending(const Tensor &perPart, const Waves &waves, unsigned unit);
// What the parts have that can hold positions: {parts, ...} -> {those parts, ...}.
Tensor holding(const Tensor &perPart, const Waves &waves);
// Adds the vertices that reduce each slot's partial results {n, groupSize} to `maximum` on all
// parts.
void reduceMax(const Context &context, const std::vector<Tensor> &maxima, const Tensor &maximum);

} // namespace sparq
