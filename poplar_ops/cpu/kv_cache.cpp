// SPDX-License-Identifier: Apache-2.0
#include "kv_cache.hpp"

#include "arith/arith.hpp"
#include "arith/row_codes.hpp"
#include "dispatch.hpp"
#include "key_index.hpp"
#include "thread_pool.hpp"

#include <atomic>
#include <cstring>
#include <mutex>
#include <numeric>

namespace sparq::cpu {
namespace {

// Changes smaller than this (numbers copied) are done by the calling thread: waking others takes
// longer.
constexpr std::size_t parallelWork = std::size_t(1) << 19;

[[noreturn]] void fail(const std::string &message) { throw Error(message); }

CacheSpec checked(const CacheSpec &spec) {
  check("KVCache", spec);
  return spec;
}

std::vector<std::size_t> everyOne(std::size_t n) {
  std::vector<std::size_t> result(n);
  std::iota(result.begin(), result.end(), std::size_t(0));
  return result;
}

void copyRow(Half *to, const char *from, std::ptrdiff_t stride, std::size_t n) {
  if (stride == sizeof(Half)) {
    std::memcpy(to, from, n * sizeof(Half));
    return;
  }
  for (std::size_t c = 0; c < n; ++c)
    std::memcpy(to + c, from + static_cast<std::ptrdiff_t>(c) * stride, sizeof(Half));
}

} // namespace

KVCache::Shared::Shared(const CacheSpec &spec, std::size_t rowBytes, const Kernels &kernels)
    : keyRows(product({spec.batch, spec.nKvHeads, spec.capacity, rowBytes}) + 64), // see row_codes
      valueRows(product({spec.batch, spec.nKvHeads, spec.capacity, rowBytes}) + 64),
      keyIndex(spec, kernels), nBlocks(spec.capacity / blockSize + 1),
      valueSums(product({spec.batch, spec.nKvHeads, spec.headDim, sizeof(float)})),
      blockSums(product({spec.batch, spec.nKvHeads, nBlocks, spec.headDim, sizeof(float)})),
      bank(everyOne(spec.batch)), nHeld(spec.batch, 0) {}

KVCache::KVCache(const CacheSpec &specIn, std::int64_t threads, const std::string &isa)
    : spec(checked(specIn)), batch(spec.batch), nKvHeads(spec.nKvHeads), headDim(spec.headDim),
      capacity(spec.capacity),
      rowBytes(spec.rowBits == 8 ? codedRow(spec.headDim) : headDim * sizeof(Half)),
      nThreads(checkedThreads("KVCache", threads)), kernels(kernelsNamed("KVCache", isa)),
      shared(std::make_shared<Shared>(spec, rowBytes, kernels)), rows(everyOne(batch)),
      keyIndex(shared->keyIndex) {}

KVCache::KVCache(const KVCache &whole, std::vector<std::size_t> rowsIn)
    : spec(withBatch(whole.spec, rowsIn.size())), batch(spec.batch), nKvHeads(spec.nKvHeads),
      headDim(spec.headDim), capacity(spec.capacity), rowBytes(whole.rowBytes),
      nThreads(whole.nThreads), kernels(whole.kernels), shared(whole.shared),
      rows(std::move(rowsIn)), keyIndex(shared->keyIndex) {}

CacheSpec KVCache::withBatch(CacheSpec spec, std::size_t batch) {
  spec.batch = static_cast<unsigned>(batch);
  return spec;
}

std::unique_ptr<KVCache> KVCache::rowsOf(const std::vector<std::int64_t> &index) const {
  std::vector<std::size_t> chosen;
  std::vector<bool> taken(batch, false);
  for (const std::int64_t b : index) {
    if (b < 0 || b >= static_cast<std::int64_t>(batch) || taken[static_cast<std::size_t>(b)])
      fail("rows: index must have different integers in [0, batch=" + std::to_string(batch) +
           "), got " + std::to_string(b));
    taken[static_cast<std::size_t>(b)] = true;
    chosen.push_back(rows[static_cast<std::size_t>(b)]);
  }
  if (chosen.empty())
    fail("rows: index must have at least one element, got none");
  return std::unique_ptr<KVCache>(new KVCache(*this, std::move(chosen)));
}

KVCache::Pair KVCache::pair(std::size_t index) const {
  const std::size_t b = index / nKvHeads, at = bankOf(b) * nKvHeads + index % nKvHeads;
  return {shared->keyRows.as<unsigned char>() + at * capacity * rowBytes,
          shared->valueRows.as<unsigned char>() + at * capacity * rowBytes,
          keyIndex.columns(at),
          keyIndex.cells(at),
          shared->valueSums.as<float>() + at * headDim,
          shared->blockSums.as<float>() + at * shared->nBlocks * headDim,
          at,
          nHeld(b)};
}

std::vector<std::int64_t> KVCache::lengths() const {
  std::shared_lock<std::shared_mutex> lock(shared->access);
  std::vector<std::int64_t> result;
  for (std::size_t b = 0; b < batch; ++b)
    result.push_back(static_cast<std::int64_t>(nHeld(b)));
  return result;
}

// Rows [begin, end) of one block of 64: the fp16 rows of this block, the others of which are
// undefined where rows have 8 bits. `work` (64, headDim) is for these.
const Half *KVCache::halfRows(const unsigned char *rows, std::size_t begin, std::size_t end,
                              Half *work) const {
  const std::size_t start = begin / blockSize * blockSize;
  if (spec.rowBits == 16)
    return reinterpret_cast<const Half *>(rows) + start * headDim;
  kernels.decodeRows(rows + begin * rowBytes, end - begin, spec.headDim,
                     work + (begin - start) * headDim);
  return work;
}

void KVCache::appendTo(const Pair &pair, const char *key, const char *value,
                       const Tokens &keyTokens, const Tokens &valueTokens, std::size_t count,
                       Half *work) const {
  const std::size_t begin = pair.length, end = begin + count;
  const std::size_t piece = keyIndex.quantised ? blockSize : linePositions;
  for (std::size_t done = begin; done < end;) {
    // In pieces, so that what one step writes the next finds in the cache.
    const std::size_t stop = std::min(end, (done / piece + 1) * piece);
    if (done % blockSize == 0)
      std::memcpy(pair.blockSums + done / blockSize * headDim, pair.valueSum,
                  headDim * sizeof(float));
    const std::size_t start = done / blockSize * blockSize;
    const auto put = [&](const char *from, const Tokens &tokens, unsigned char *rows) {
      unsigned char *const to = rows + done * rowBytes;
      Half *const half = spec.rowBits == 8 ? work : reinterpret_cast<Half *>(to);
      for (std::size_t p = done; p < stop; ++p)
        copyRow(half + (p - done) * headDim,
                from + static_cast<std::ptrdiff_t>(p - begin) * tokens.stride[2], tokens.stride[3],
                headDim);
      if (spec.rowBits == 8)
        kernels.encodeRows(half, stop - done, spec.headDim, to);
    };
    put(key, keyTokens, pair.keyRows);
    put(value, valueTokens, pair.valueRows);
    const bool fills = keyIndex.quantised && stop == start + blockSize;
    keyIndex.append(pair.at, halfRows(pair.keyRows, fills ? start : done, stop, work), done, stop);
    kernels.addRows(halfRows(pair.valueRows, done, stop, work) + (done - start) * headDim,
                    stop - done, spec.headDim, pair.valueSum);
    done = stop;
  }
}

void KVCache::append(const Tokens &key, const Tokens &value, std::int64_t nTokens,
                     const std::int64_t *counts) {
  std::unique_lock<std::shared_mutex> lock(shared->access);
  std::size_t total = 0;
  for (std::size_t b = 0; b < batch; ++b) {
    const std::size_t held = nHeld(b);
    if (counts[b] < 0 || counts[b] > nTokens)
      fail("append: lengths must be in [0, n_tokens=" + std::to_string(nTokens) + "], got " +
           std::to_string(counts[b]));
    const std::size_t count = static_cast<std::size_t>(counts[b]);
    if (count > capacity - held)
      fail("append: length must be at most capacity=" + std::to_string(capacity) + " (element " +
           std::to_string(b) + " holds " + std::to_string(held) + ", " + std::to_string(count) +
           " more), got " + std::to_string(held + count));
    total += count;
  }
  const bool alone = total * nKvHeads * headDim < parallelWork;
  PoolLease pool(alone ? 1 : nThreads);
  const std::size_t halfBlock = spec.rowBits == 8 ? blockSize * headDim : 0;
  auto *const half =
      reinterpret_cast<Half *>(pool->scratch(pool->nThreads() * halfBlock * sizeof(Half)));
  std::atomic<std::size_t> next{0};
  pool->run([&](unsigned thread) {
    for (std::size_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < nPairs();) {
      const auto b = static_cast<std::ptrdiff_t>(i / nKvHeads);
      const auto kv = static_cast<std::ptrdiff_t>(i % nKvHeads);
      appendTo(pair(i), key.data + b * key.stride[0] + kv * key.stride[1],
               value.data + b * value.stride[0] + kv * value.stride[1], key, value,
               static_cast<std::size_t>(counts[b]), half + thread * halfBlock);
    }
  });
  for (std::size_t b = 0; b < batch; ++b)
    nHeld(b) += static_cast<std::size_t>(counts[b]);
}

void KVCache::read(Half *key, Half *value, std::int64_t start, std::int64_t nTokens) const {
  std::shared_lock<std::shared_mutex> lock(shared->access);
  const std::size_t first = static_cast<std::size_t>(start), n = static_cast<std::size_t>(nTokens);
  std::atomic<std::size_t> next{0};
  const auto work = [&](unsigned) {
    for (std::size_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < nPairs();) {
      const Pair from = pair(i);
      const std::size_t held = from.length > first ? std::min(from.length - first, n) : 0;
      for (const auto &part : {std::make_pair(key, from.keyRows), {value, from.valueRows}}) {
        Half *const to = part.first + i * n * headDim;
        const unsigned char *const rows = part.second + first * rowBytes;
        if (spec.rowBits == 8)
          kernels.decodeRows(rows, held, spec.headDim, to);
        else
          std::memcpy(to, rows, held * rowBytes);
        std::memset(to + held * headDim, 0, (n - held) * headDim * sizeof(Half));
      }
    }
  };
  PoolLease pool(nPairs() * n * headDim < parallelWork ? 1 : nThreads);
  pool->run(work);
}

void KVCache::truncate(const std::int64_t *lengths) {
  std::unique_lock<std::shared_mutex> lock(shared->access);
  for (std::size_t b = 0; b < batch; ++b) {
    const std::size_t held = nHeld(b);
    if (lengths[b] < 0 || static_cast<std::size_t>(lengths[b]) > held)
      fail("truncate: lengths must be in [0, " + std::to_string(held) + "] (element " +
           std::to_string(b) + " holds " + std::to_string(held) + "), got " +
           std::to_string(lengths[b]));
  }
  std::vector<Half> work(spec.rowBits == 8 ? blockSize * headDim : 0);
  for (std::size_t i = 0; i < nPairs(); ++i) {
    const Pair at = pair(i);
    const auto length = static_cast<std::size_t>(lengths[i / nKvHeads]);
    if (length == at.length)
      continue;
    const std::size_t block = length / blockSize, begin = block * blockSize;
    std::memcpy(at.valueSum, at.blockSums + block * headDim, headDim * sizeof(float));
    kernels.addRows(halfRows(at.valueRows, begin, length, work.data()), length - begin,
                    spec.headDim, at.valueSum);
    if (keyIndex.quantised && begin < length && at.length / blockSize != block) // open again
      keyIndex.append(at.at, halfRows(at.keyRows, begin, length, work.data()), begin, length);
  }
  for (std::size_t b = 0; b < batch; ++b) {
    nHeld(b) = static_cast<std::size_t>(lengths[b]);
    if (shared->history)
      shared->history->truncate(bankOf(b), nHeld(b));
  }
}

void KVCache::reset() {
  std::unique_lock<std::shared_mutex> lock(shared->access);
  for (std::size_t b = 0; b < batch; ++b) {
    std::memset(pair(b * nKvHeads).valueSum, 0, nKvHeads * headDim * sizeof(float));
    nHeld(b) = 0;
    if (shared->history)
      shared->history->truncate(bankOf(b), 0);
  }
  if (batch == shared->bank.size())
    shared->history = nullptr;
}

void KVCache::reorder(const std::int64_t *index) {
  std::unique_lock<std::shared_mutex> lock(shared->access);
  for (std::size_t b = 0; b < batch; ++b)
    if (index[b] < 0 || index[b] >= static_cast<std::int64_t>(batch))
      fail("reorder: index must be in [0, batch=" + std::to_string(batch) + "), got " +
           std::to_string(index[b]));

  // Of the whole cache: elements that this one has not stay as they are.
  auto &bank = shared->bank;
  auto &history = shared->history;
  std::vector<std::size_t> source = everyOne(bank.size());
  for (std::size_t b = 0; b < batch; ++b)
    source[rows[b]] = rows[static_cast<std::size_t>(index[b])];

  // The first to take a source gets its bank; others get a bank that nobody took, and a copy.
  constexpr std::size_t none = ~std::size_t(0);
  struct Copy {
    std::size_t from, to;
  };
  std::vector<std::size_t> newBank(bank.size(), none);
  std::vector<bool> taken(bank.size(), false);
  std::vector<Copy> copies;
  for (std::size_t b = 0; b < bank.size(); ++b) {
    const std::size_t from = bank[source[b]];
    if (!taken[from]) {
      taken[from] = true;
      newBank[b] = from;
    }
  }
  std::size_t free = 0;
  for (std::size_t b = 0; b < bank.size(); ++b) {
    if (newBank[b] != none)
      continue;
    while (taken[free])
      ++free;
    newBank[b] = free;
    copies.push_back({bank[source[b]], free++});
  }

  std::size_t total = 0;
  for (const Copy &copy : copies)
    total += shared->nHeld[copy.from];
  std::atomic<std::size_t> next{0};
  const auto work = [&](unsigned) {
    for (std::size_t i;
         (i = next.fetch_add(1, std::memory_order_relaxed)) < copies.size() * nKvHeads;) {
      const Copy &copy = copies[i / nKvHeads];
      const std::size_t from = copy.from * nKvHeads + i % nKvHeads;
      const std::size_t to = copy.to * nKvHeads + i % nKvHeads, n = shared->nHeld[copy.from];
      for (const Buffer *held : {&shared->keyRows, &shared->valueRows})
        std::memcpy(held->as<unsigned char>() + to * capacity * rowBytes,
                    held->as<unsigned char>() + from * capacity * rowBytes, n * rowBytes);
      keyIndex.copy(from, to, n);
      std::memcpy(shared->valueSums.as<float>() + to * headDim,
                  shared->valueSums.as<float>() + from * headDim, headDim * sizeof(float));
      std::memcpy(shared->blockSums.as<float>() + to * shared->nBlocks * headDim,
                  shared->blockSums.as<float>() + from * shared->nBlocks * headDim,
                  (n / blockSize + 1) * headDim * sizeof(float));
    }
  };
  PoolLease pool(total * nKvHeads * headDim < parallelWork ? 1 : nThreads);
  pool->run(work);
  for (const Copy &copy : copies) {
    shared->nHeld[copy.to] = shared->nHeld[copy.from];
    if (history)
      history->copy(copy.from, copy.to);
  }
  bank = newBank;
}

// The next two are, to the word, the reference's `check_not_empty` and `check_tokens`.
void KVCache::checkNotEmpty(const char *op) const {
  for (std::size_t b = 0; b < batch; ++b)
    if (nHeld(b) == 0)
      fail(std::string(op) +
           ": cache must hold at least one position of every batch element, got none of element " +
           std::to_string(b));
}

void KVCache::checkTokens(const char *op, std::size_t nTokens) const {
  std::size_t shortest = 0;
  for (std::size_t b = 1; b < batch; ++b)
    if (nHeld(b) < nHeld(shortest))
      shortest = b;
  const std::size_t held = nHeld(shortest);
  if (held < nTokens)
    fail(std::string(op) + ": cache must hold the " + std::to_string(nTokens) +
         " tokens of the query, got " + std::to_string(held) + " positions of element " +
         std::to_string(shortest));
}

void KVCache::attention(const Query &query, std::int64_t nHeads, const SparqSettings *settings,
                        Half *output, std::size_t window) const {
  const char *const op = settings ? "sparq_attention" : "dense_attention";
  checkHeads(op, spec, nHeads);
  if (query.nTokens == 0 || (settings && query.nTokens > 1))
    fail(std::string(op) + ": n_tokens must be " + (settings ? "1" : "at least 1") + ", got " +
         std::to_string(query.nTokens));
  std::shared_lock<std::shared_mutex> lock(shared->access);
  if (query.nTokens == 1)
    checkNotEmpty(op);
  else
    checkTokens(op, query.nTokens);
  if (settings)
    check(op, *settings, spec);
  attend(*this, query, static_cast<std::size_t>(nHeads), settings, window, output);
}

void KVCache::attendPrompt(Prompt prompt, std::vector<PromptText> texts) const {
  checkHeads("prompt_attention", spec, static_cast<std::int64_t>(prompt.nHeads));
  if (texts.size() != batch)
    fail("prompt_attention: rows must have batch=" + std::to_string(batch) + " entries, got " +
         std::to_string(texts.size()));
  std::shared_lock<std::shared_mutex> lock(shared->access);
  const auto row = static_cast<std::ptrdiff_t>(rowBytes);
  const std::ptrdiff_t head = row * static_cast<std::ptrdiff_t>(capacity);
  for (std::size_t b = 0; b < batch; ++b) {
    const Pair first = pair(b * nKvHeads);
    texts[b].key = {reinterpret_cast<const char *>(first.keyRows), head, row};
    texts[b].value = {reinterpret_cast<const char *>(first.valueRows), head, row};
    texts[b].nKeys = nHeld(b);
  }
  prompt.keyType = Float::float16;
  prompt.keysCoded = spec.rowBits == 8;
  prompt.nKvHeads = nKvHeads;
  prompt.headDim = headDim;
  sparq::cpu::attendPrompt(prompt, texts, kernels, nThreads);
}

void KVCache::checkWindow(const char *op, std::int64_t nHeads,
                          const WindowSettings &settings) const {
  const auto &history = shared->history;
  check(op, settings, nHeads);
  if (history && settings.remembers() && settings.nRecent != history->nRecent)
    fail(std::string(op) + ": n_recent must be the n_recent=" + std::to_string(history->nRecent) +
         " of the steps so far, got " + std::to_string(settings.nRecent));
}

void KVCache::checkElement(const char *op, std::size_t b) const {
  if (b >= batch)
    fail(std::string(op) + ": element must be in [0, batch=" + std::to_string(batch) + "), got " +
         std::to_string(b));
}

// Where a step with such settings is remembered; null if it is not.
WindowHistory *KVCache::historyFor(const WindowSettings &settings) {
  if (!settings.remembers())
    return nullptr;
  auto &history = shared->history;
  if (!history)
    history = std::make_unique<WindowHistory>(shared->bank.size(), capacity, settings.nRecent);
  return history.get();
}

void KVCache::windowAttention(const Query &query, std::int64_t nHeads,
                              const WindowSettings &settings, Half *output) {
  std::unique_lock<std::shared_mutex> lock(shared->access);
  checkHeads("window_attention", spec, nHeads);
  checkNotEmpty("window_attention");
  checkWindow("window_attention", nHeads, settings);
  const auto heads = static_cast<std::size_t>(nHeads);
  if (settings.nLocal == settings.topK) // nothing is selected: rows are read in sequence
    attend(*this, query, heads, nullptr, settings.topK, output);
  else
    attendInWindow(*this, historyFor(settings), query, heads, settings, 0, output);
}

void KVCache::observe(const Query &query, std::int64_t nHeads, const WindowSettings &settings) {
  std::unique_lock<std::shared_mutex> lock(shared->access);
  checkHeads("observe", spec, nHeads);
  checkTokens("observe", query.nTokens);
  checkWindow("observe", nHeads, settings);
  WindowHistory *const steps = historyFor(settings);
  if (!steps)
    return;
  const auto heads = static_cast<std::size_t>(nHeads);
  std::vector<Half> output(product({batch, heads, headDim}));
  WindowSettings everything;
  everything.topK = everything.nLocal = spec.capacity;
  // Steps that would leave the history again need not be computed.
  const std::size_t skipped = query.nTokens - std::min<std::size_t>(query.nTokens, steps->nRecent);
  for (std::size_t token = skipped; token < query.nTokens; ++token) {
    Query one{query.data + static_cast<std::ptrdiff_t>(token) * query.tokenStride,
              {query.stride[0], query.stride[1], query.stride[2]}};
    attendInWindow(*this, steps, one, heads, everything, query.nTokens - 1 - token, output.data());
  }
}

std::vector<std::vector<std::uint32_t>> KVCache::historyOf(std::size_t b) const {
  std::shared_lock<std::shared_mutex> lock(shared->access);
  const auto &history = shared->history;
  checkElement("history", b);
  std::vector<std::vector<std::uint32_t>> result;
  for (std::size_t i = 0; history && i < history->nSteps(bankOf(b)); ++i)
    result.push_back(history->step(bankOf(b), i));
  return result;
}

unsigned KVCache::nRecent() const {
  std::shared_lock<std::shared_mutex> lock(shared->access);
  return shared->history ? shared->history->nRecent : 0;
}

void KVCache::beginHistory(unsigned recent) {
  if (recent == 0)
    fail("begin_history: n_recent must be at least 1, got 0");
  std::unique_lock<std::shared_mutex> lock(shared->access);
  shared->history = std::make_unique<WindowHistory>(shared->bank.size(), capacity, recent);
}

void KVCache::addStep(std::size_t b, const std::uint32_t *shares, std::size_t length) {
  std::unique_lock<std::shared_mutex> lock(shared->access);
  auto &history = shared->history;
  if (!history)
    fail("add_step: cache must have a history, got none");
  checkElement("add_step", b);
  if (length > capacity)
    fail("add_step: a step must have at most capacity=" + std::to_string(capacity) +
         " positions, got " + std::to_string(length));
  history->begin(bankOf(b), length);
  for (std::size_t p = 0; p < length; ++p)
    history->give(bankOf(b), static_cast<std::uint32_t>(p), shares[p]);
}

} // namespace sparq::cpu
