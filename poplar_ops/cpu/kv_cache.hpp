// SPDX-License-Identifier: Apache-2.0
//
// The KV cache in host memory, and decode attention over it. Threads may share a cache: attention
// calls run at the same time, a change waits until it is alone.
//
// For each batch element and KV head: rows of K, rows of V, the key index (K once more, by
// component, for the score step), and the running sum of V in fp32. Batch elements live in banks,
// so that a reordering copies only what is taken more than once.
#pragma once

#include "buffer.hpp"
#include "kernels/table.hpp"
#include "key_index.hpp"
#include "prompt_attention.hpp"
#include "sparq/settings.hpp"
#include "window_history.hpp"

#include <cstdint>
#include <memory>
#include <shared_mutex>
#include <string>
#include <vector>

namespace sparq::cpu {

// fp16 tensors of the caller, with strides in bytes (any sign, any alignment).
struct Tokens { // (batch, n_kv_heads, n_tokens, head_dim)
  const char *data;
  std::ptrdiff_t stride[4];
};
struct Query { // (batch, n_heads, head_dim) of each token
  const char *data;
  std::ptrdiff_t stride[3];
  std::ptrdiff_t tokenStride = 0;
  std::size_t nTokens = 1;
};

class KVCache {
public:
  // Throws Error: a size out of range, nThreads not in [0, 1024] (0: `defaultThreads`), an
  // instruction set that this machine lacks. Throws std::bad_alloc.
  KVCache(const CacheSpec &spec, std::int64_t nThreads, const std::string &isa);

  // The batch elements `index` of this cache, in that order, as a cache that shares them with this
  // one: what happens to one happens to the other. Throws Error: none, one out of range or twice.
  std::unique_ptr<KVCache> rowsOf(const std::vector<std::int64_t> &index) const;

  // Appends the first counts[b] of nTokens tokens to batch element b. Throws Error
  // past the capacity; the cache is then unchanged.
  void append(const Tokens &key, const Tokens &value, std::int64_t nTokens,
              const std::int64_t *counts);
  // Forgets the last positions: batch element b keeps the first lengths[b]. What is left is, to the
  // bit, the cache to which no others were appended. Throws Error for more than it holds.
  void truncate(const std::int64_t *lengths);
  void reset();
  // Batch element b becomes a copy of what element index[b] was. Throws Error for
  // an index out of range; the cache is then unchanged.
  void reorder(const std::int64_t *index);

  // SparQ attention, or dense attention where settings is null. nHeads a multiple of nKvHeads;
  // output (batch, nKvHeads, nTokens, nHeads / nKvHeads, headDim), contiguous. Throws Error, also
  // for an empty batch element. Several tokens (dense attention only) are the last ones held: each
  // attends to the positions up to its own. Dense attention sees the last `window` of them; 0: all.
  void attention(const Query &query, std::int64_t nHeads, const SparqSettings *settings,
                 Half *output, std::size_t window = 0) const;

  // Attention of the last tokens held, those of a prompt (contract E14): of each batch element a
  // text, of which the queries and the output are given. Throws Error.
  void attendPrompt(Prompt prompt, std::vector<PromptText> texts) const;

  // Window attention of one token; output {batch, nHeads, headDim}. Settings that remember add the
  // step to the history. Throws Error, also for another nRecent than that of the steps so far.
  void windowAttention(const Query &query, std::int64_t nHeads, const WindowSettings &settings,
                       Half *output);
  // Puts the dense attention of the last tokens held, those of the query, into the history.
  void observe(const Query &query, std::int64_t nHeads, const WindowSettings &settings);
  // The history of a batch element: the shares of each step by position, the oldest step first.
  // Throws Error where there is no such element.
  std::vector<std::vector<std::uint32_t>> historyOf(std::size_t b) const;
  // Steps that the history remembers; 0 while there is none.
  unsigned nRecent() const;
  // A history of so many steps, in place of what there was. It remembers none yet. Throws Error
  // for 0.
  void beginHistory(unsigned recent);
  // Adds a step to a batch element's history: shares of `length` positions. Throws Error for more
  // than the capacity, for no such element, and where no history has begun.
  void addStep(std::size_t b, const std::uint32_t *shares, std::size_t length);

  // (batch,) positions held.
  std::vector<std::int64_t> lengths() const;
  // Keys and values of positions [start, start + nTokens), {batch, nKvHeads, nTokens, headDim};
  // zero at or beyond a length.
  void read(Half *key, Half *value, std::int64_t start, std::int64_t nTokens) const;

  const CacheSpec spec;
  const std::size_t batch, nKvHeads, headDim, capacity; // of `spec`, as sizes
  const std::size_t rowBytes;                           // of a key or a value
  const unsigned nThreads;
  const Kernels &kernels;

  // One batch element and KV head; pairs count b * nKvHeads + kv.
  struct Pair {
    unsigned char *keyRows, *valueRows; // (capacity, rowBytes): see Rows
    Half *keyColumns;                   // (headDim, keyIndex.columnStride), see KeyIndex
    KeyCells cells;                     // of a quantised index
    float *valueSum;                    // (headDim,)
    float *blockSums; // (blocks, headDim): that sum before each block of 64 positions
    std::size_t at;   // number of the pair in memory
    std::size_t length;
  };
  Pair pair(std::size_t index) const;
  std::size_t nPairs() const { return batch * nKvHeads; }
  std::size_t bytesOfRows() const { return 2 * nPairs() * capacity * rowBytes; }
  std::size_t bankOf(std::size_t b) const { return shared->bank[rows[b]]; } // where its memory is

private:
  void appendTo(const Pair &pair, const char *key, const char *value, const Tokens &keyTokens,
                const Tokens &valueTokens, std::size_t count, Half *work) const;
  const Half *halfRows(const unsigned char *rows, std::size_t begin, std::size_t end,
                       Half *work) const;
  void checkNotEmpty(const char *op) const;
  void checkTokens(const char *op, std::size_t nTokens) const;
  void checkElement(const char *op, std::size_t b) const;
  void checkWindow(const char *op, std::int64_t nHeads, const WindowSettings &settings) const;
  WindowHistory *historyFor(const WindowSettings &settings);
  std::size_t &nHeld(std::size_t b) const { return shared->nHeld[bankOf(b)]; }

  // What a cache and those of its rows have in common.
  struct Shared {
    Shared(const CacheSpec &spec, std::size_t rowBytes, const Kernels &kernels);
    Buffer keyRows, valueRows;
    const KeyIndex keyIndex;
    const std::size_t nBlocks; // begun ones that the capacity has room for
    Buffer valueSums, blockSums;
    std::vector<std::size_t> bank;          // of each batch element of the whole cache
    std::vector<std::size_t> nHeld;         // by bank
    std::unique_ptr<WindowHistory> history; // null before the first step that is remembered
    std::shared_mutex access;               // shared: attention; exclusive: changes
  };
  KVCache(const KVCache &whole, std::vector<std::size_t> rows);
  static CacheSpec withBatch(CacheSpec spec, std::size_t batch);

  const std::shared_ptr<Shared> shared;
  const std::vector<std::size_t> rows; // elements of the whole cache that this one has

public:
  const KeyIndex &keyIndex;
};

// One decode step of attention (docs/exactness.md, E6), spread over threads. Arguments are checked
// by KVCache, which holds its lock.

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
