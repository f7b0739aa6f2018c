// SPDX-License-Identifier: Apache-2.0
//
// What a device does to a cache without a host at hand: begin empty, take a whole prompt (prefill),
// and see to it that no row gets more than it has room for. The PopART operators stand on this.
#pragma once

#include "sparq/cache.hpp"

namespace sparq {

// Makes the cache, every layer of it, empty whenever the program is loaded.
void initialiseCache(poplar::Graph &graph, const Cache &cache);

// Prefill: where lengths[b] is not negative, batch element b then holds the first lengths[b] (at
// most n) of these tokens and no others; elsewhere it stays as it is. What comes out is, bit for
// bit, what appending the tokens one by one to an empty element leaves.
//   key, value  {batch, nKvHeads, n, headDim} HALF, n in [1, capacity];  lengths {batch} INT
// Throws Error where a type or shape is wrong, or the cache does not hold one position a row. The
// program has a part for each batch element, so that a few can be replaced at the cost of a few;
// one part moves a chunk of positions of every KV head at a time.
void fillCache(poplar::Graph &graph, const Cache &cache, const poplar::Tensor &key,
               const poplar::Tensor &value, const poplar::Tensor &lengths,
               poplar::program::Sequence &program, const poplar::DebugContext &dc = {});

// {batch} UNSIGNED_INT for append: 1 where requested {batch} INT is not 0 and the element holds
// less than the capacity of its shape, else 0.
poplar::Tensor activeTokens(poplar::Graph &graph, const Cache &cache,
                            const poplar::Tensor &requested, poplar::program::Sequence &program,
                            const poplar::DebugContext &dc = {});

// {batch} INT: positions that each element holds at this point of the program.
poplar::Tensor heldPositions(poplar::Graph &graph, const Cache &cache,
                             poplar::program::Sequence &program,
                             const poplar::DebugContext &dc = {});

} // namespace sparq
