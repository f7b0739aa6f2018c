// SPDX-License-Identifier: Apache-2.0
//
// One decode step of attention over a cache (docs/exactness.md, E6), spread over threads.
#pragma once

#include "kv_cache.hpp"

namespace sparq::cpu {

// Arguments are checked by KVCache, which holds its lock.

// Dense attention where `settings` is null, else SparQ. `window` as of KVCache::attention.
void attend(const KVCache &cache, const Query &query, std::size_t nHeads,
            const SparqSettings *settings, std::size_t window, Half *output);

// Window attention (E11): one set of positions for all heads of a batch element, chosen without the
// query. The query is of one token, `back` positions before the last one held, and sees the
// positions up to its own. With a history the step is added to it. output {batch, nHeads, headDim}.
void attendInWindow(const KVCache &cache, WindowHistory *history, const Query &query,
                    std::size_t nHeads, const WindowSettings &settings, std::size_t back,
                    Half *output);

} // namespace sparq::cpu
