// SPDX-License-Identifier: Apache-2.0
//
// One decode step of attention over a cache (docs/exactness.md, E6), spread over threads.
#pragma once

#include "kv_cache.hpp"

namespace sparq::cpu {

// Dense attention where `settings` is null, else SparQ. `window` as of KVCache::attention.
// Arguments are checked by KVCache, which holds its lock.
void attend(const KVCache &cache, const Query &query, std::size_t nHeads,
            const SparqSettings *settings, std::size_t window, Half *output);

} // namespace sparq::cpu
