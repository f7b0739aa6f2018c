// SPDX-License-Identifier: Apache-2.0
//
// Window attention of one decode step (docs/exactness.md, E11): one set of positions for all heads
// of a batch element, chosen without the query.
#pragma once

#include "kv_cache.hpp"

namespace sparq::cpu {

// Arguments are checked by KVCache, which holds its lock. The query is of one token, `back`
// positions before the last one held, and sees the positions up to its own. With a history the step
// is added to it. output {batch, nHeads, headDim}.
void attendInWindow(const KVCache &cache, WindowHistory *history, const Query &query,
                    std::size_t nHeads, const WindowSettings &settings, std::size_t back,
                    Half *output);

} // namespace sparq::cpu
