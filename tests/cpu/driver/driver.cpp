// SPDX-License-Identifier: Apache-2.0
//
// The CPU kernels without Python: for sanitizers, and for machines that run only under emulation.
// Prints what it checked; exits with 1 at the first difference.
//
//   levels       every instruction set and thread count gives the bits of portable code on one
//                thread; prints a digest of them, the same on every architecture
//   prompts      the same for attention of prompts
//   products     the same for linear layers with weights of 4 and 8 bits
//   threads      callers on several threads, one cache and many; appends in between
//   conversions  fp16 to fp32 and back, every bit pattern; with denormals flushed by the processor
//                too, where that can be set
//   weights      softmax weights, of a number in 257 of those that scores less their maximum can be
//   allocations  a call that repeats another allocates nothing
//   race         a data race, on purpose: ThreadSanitizer must report it
//   overflow     a read past the end of a buffer, on purpose: AddressSanitizer must report it
#include "arith/arith.hpp"
#include "decoder/few_bits_product.hpp"
#include "dispatch.hpp"
#include "kv_cache.hpp"
#include "prompt_attention.hpp"
#include "stream_sum.hpp"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <limits>
#include <new>
#include <stdexcept>
#include <thread>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

using namespace sparq::cpu;
using sparq::CacheSpec;
using sparq::SparqSettings;

// Counts what is allocated with `new`.
static std::atomic<unsigned long> nAllocations{0};
void *operator new(std::size_t n) {
  ++nAllocations;
  if (void *memory = std::malloc(n))
    return memory;
  throw std::bad_alloc();
}
void operator delete(void *memory) noexcept { std::free(memory); }
void operator delete(void *memory, std::size_t) noexcept { std::free(memory); }

namespace {

[[noreturn]] void fail(const std::string &what) {
  std::fprintf(stderr, "FAILED: %s\n", what.c_str());
  std::exit(1);
}
void check(bool right, const std::string &what) {
  if (!right)
    fail(what);
}

// A generator that is the same everywhere.
class Random {
public:
  explicit Random(std::uint64_t seed) : state(seed * 2654435761u + 1) {}
  std::uint32_t next() {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return static_cast<std::uint32_t>(state >> 33);
  }
  std::size_t below(std::size_t n) { return next() % n; }
  // A finite fp16 number: moderate ones, few values, or any magnitude.
  Half half(unsigned kind) {
    const std::uint32_t x = next();
    if (kind == 0)
      return static_cast<Half>((x & 0x83FF) | (12 + (x >> 16) % 4) << 10);
    if (kind == 1)
      return static_cast<Half>((x & 0x8000) | (x % 3 == 0 ? 0 : 0x3C00));
    return static_cast<Half>((x & 0x83FF) | (x >> 16) % 31 << 10);
  }

private:
  std::uint64_t state;
};

struct Case {
  std::int64_t batch, nKvHeads, groupSize, headDim, capacity;
  std::vector<std::int64_t> counts;
  std::size_t longest; // batch element that is as long as the capacity
  unsigned indexBits;
  SparqSettings settings;
  std::vector<Half> key, value, query;

  explicit Case(std::uint64_t seed) {
    Random random(seed);
    const std::int64_t dims[] = {8, 16, 24, 64, 80, 128, 136};
    batch = 1 + static_cast<std::int64_t>(random.below(3));
    nKvHeads = 1 + static_cast<std::int64_t>(random.below(3));
    groupSize = 1 + static_cast<std::int64_t>(random.below(9));
    headDim = dims[random.below(7)];
    // Some long enough to be split between threads.
    capacity = seed % 4 == 0 ? 5000 : 1 + static_cast<std::int64_t>(random.below(400));
    for (std::int64_t b = 0; b < batch; ++b)
      counts.push_back(1 +
                       static_cast<std::int64_t>(random.below(static_cast<std::size_t>(capacity))));
    longest = seed % static_cast<std::uint64_t>(batch);
    counts[longest] = capacity;
    const auto upTo = [&](std::int64_t most) {
      return 1 + static_cast<unsigned>(random.below(static_cast<std::size_t>(most)));
    };
    settings.rank = upTo(headDim);
    settings.topK = upTo(capacity);
    settings.nLocal = upTo(settings.topK + 1) - 1;
    settings.meanValue = random.below(2) == 0;
    indexBits = 16u >> (seed + seed / 4) % 4; // of long ones and short ones
    const unsigned kind = static_cast<unsigned>(random.below(3));
    fill(random, key, batch * nKvHeads * capacity * headDim, kind);
    fill(random, value, batch * nKvHeads * capacity * headDim, kind);
    fill(random, query, batch * nKvHeads * groupSize * headDim, kind);
  }
  // A cache for it, with room for so many more positions.
  CacheSpec spec(unsigned more = 0) const {
    return {static_cast<unsigned>(batch), static_cast<unsigned>(nKvHeads),
            static_cast<unsigned>(headDim), static_cast<unsigned>(capacity) + more, indexBits};
  }
  Tokens tokens(const std::vector<Half> &from, std::int64_t first) const {
    const auto d = static_cast<std::ptrdiff_t>(headDim * 2),
               row = static_cast<std::ptrdiff_t>(capacity) * d;
    return {reinterpret_cast<const char *>(from.data()) + first * d,
            {row * static_cast<std::ptrdiff_t>(nKvHeads), row, d, 2}};
  }
  // Everything at once, or in pieces of growing size.
  void fillCache(KVCache &cache, bool pieces) const {
    if (!pieces)
      return cache.append(tokens(key, 0), tokens(value, 0), capacity, counts.data());
    for (std::int64_t first = 0, n = 1; first < capacity; first += n, n = n * 2 + 1) {
      n = std::min(n, capacity - first);
      std::vector<std::int64_t> now;
      for (std::int64_t count : counts)
        now.push_back(std::max<std::int64_t>(0, std::min(n, count - first)));
      cache.append(tokens(key, first), tokens(value, first), n, now.data());
    }
  }
  // Output of SparQ, then of dense attention.
  std::vector<Half> attend(const KVCache &cache) const {
    const auto d = static_cast<std::ptrdiff_t>(headDim * 2);
    const Query view{reinterpret_cast<const char *>(query.data()),
                     {static_cast<std::ptrdiff_t>(nKvHeads * groupSize) * d, d, 2}};
    std::vector<Half> output(2 * query.size());
    cache.attention(view, nKvHeads * groupSize, &settings, output.data());
    cache.attention(view, nKvHeads * groupSize, nullptr, output.data() + query.size());
    return output;
  }

private:
  static void fill(Random &random, std::vector<Half> &to, std::int64_t n, unsigned kind) {
    to.resize(static_cast<std::size_t>(n));
    for (Half &x : to)
      x = random.half(kind);
  }
};

std::uint64_t digest(const std::vector<Half> &numbers, std::uint64_t hash) { // FNV-1a
  for (Half x : numbers)
    for (unsigned byte = 0; byte < 2; ++byte)
      hash = (hash ^ ((x >> (8 * byte)) & 0xFF)) * 1099511628211u;
  return hash;
}

// Compares the results of some cases with those of portable code on one thread. `caseOf(seed)`
// returns a function of threads and instruction set.
template <class CaseOf> void compare(const char *what, unsigned nCases, const CaseOf &caseOf) {
  std::uint64_t hash = 14695981039346656037u;
  for (unsigned seed = 0; seed < nCases; ++seed) {
    const auto result = caseOf(seed);
    const std::vector<Half> expected = result(1u, "portable");
    hash = digest(expected, hash);
    for (const Kernels *kernels : availableKernels())
      for (const unsigned nThreads : {1u, 2u, 3u, 8u})
        check(result(nThreads, kernels->name) == expected,
              std::string(what) + ": case " + std::to_string(seed) + ", " + kernels->name + ", " +
                  std::to_string(nThreads) + " threads");
  }
  std::printf("%s: %u cases, %zu instruction sets, 1, 2, 3 and 8 threads\ndigest %016llx\n", what,
              nCases, availableKernels().size(), static_cast<unsigned long long>(hash));
}

auto levels(unsigned seed) {
  return [c = Case(seed)](unsigned nThreads, const char *isa) {
    KVCache cache(c.spec(), nThreads, isa);
    c.fillCache(cache, nThreads != 1);
    return c.attend(cache);
  };
}

// Arrays have no number more than are read or written, so that a sanitizer sees a step beyond.
auto prompts(unsigned seed) {
  Random random(seed);
  const std::size_t dims[] = {8, 24, 64, 80, 96, 128, 256};
  const std::size_t d = dims[seed % 7], batch = 1 + random.below(2), kvHeads = 1 + random.below(2);
  const std::size_t heads = kvHeads * (1 + random.below(3)),
                    keys = 1 + random.below(seed % 2 ? 500 : 150);
  const std::size_t queries = 1 + random.below(keys);
  const auto numbers = [&](std::size_t nHeads, std::size_t n) {
    std::vector<Half> all(batch * nHeads * n * d);
    for (Half &x : all)
      x = random.half(seed % 3);
    return all;
  };
  const std::vector<Half> query = numbers(heads, queries), key = numbers(kvHeads, keys),
                          value = numbers(kvHeads, keys);
  // The rows of an element from one token on.
  const auto rows = [d](const std::vector<Half> &x, std::size_t nHeads, std::size_t n,
                        std::size_t element, std::size_t token) {
    const auto row = static_cast<std::ptrdiff_t>(d * sizeof(Half));
    const Half *const at = x.data() + (element * nHeads * n + token) * d;
    return PromptRows{reinterpret_cast<const char *>(at), row * static_cast<std::ptrdiff_t>(n),
                      row};
  };
  const std::size_t window = random.below(2) ? random.below(100) : 0;
  const Prompt prompt{Float::float16,
                      Float::float16,
                      heads,
                      kvHeads,
                      d,
                      random.below(2) == 0,
                      0.125f,
                      window,
                      window ? 0.0f : 0.03f,
                      random.below(400)};
  std::vector<std::size_t> starts; // of each text, whose queries are its last tokens
  for (std::size_t element = 0; element < batch; ++element)
    starts.push_back(random.below(2) ? random.below(keys + 1) : 0);
  return [=](unsigned nThreads, const char *isa) {
    std::vector<Half> output(query.size());
    std::vector<PromptText> texts;
    for (std::size_t element = 0; element < batch; ++element) {
      const std::size_t start = starts[element], n = std::min(queries, keys - start);
      Half *const to = output.data() + (element * queries + queries - n) * heads * d;
      texts.push_back({rows(query, heads, queries, element, queries - n),
                       rows(key, kvHeads, keys, element, start),
                       rows(value, kvHeads, keys, element, start), n, keys - start,
                       reinterpret_cast<char *>(to)});
    }
    attendPrompt(prompt, texts, kernelsNamed("prompts", isa), nThreads);
    return output;
  };
}

auto products(unsigned seed) {
  Random random(seed);
  const unsigned bits = 4 + 2 * (seed % 3);
  const std::size_t inputs = 32 * (1 + random.below(20)), outputs = 16 * (1 + random.below(5));
  const std::size_t nRows = seed % 5 ? 1 + random.below(30) : 230 + random.below(30);
  const std::size_t codes = bits == 4 ? 256 : 512, group = codes + 64;
  std::vector<unsigned char> weights(outputs / 16 * (inputs / 32) * group);
  for (unsigned char &byte : weights)
    byte = static_cast<unsigned char>(random.next());
  for (std::size_t at = 0; at < weights.size(); at += 2) {
    if (at % group < codes)
      continue;
    // Of magnitudes from 2^-14 to 2^10, as fp16.
    const std::uint32_t x = random.next();
    auto scale = static_cast<std::uint16_t>((x & 0x83ff) | (1 + (x >> 16) % 25) << 10);
    if (seed % 2 && at % group >= codes + 32)
      scale = 0; // as a zero that is one
    std::memcpy(&weights[at], &scale, sizeof(scale));
  }
  std::vector<std::uint16_t> rows(nRows * inputs);
  for (std::uint16_t &x : rows) { // of magnitudes from 2^-16 to 2^15, as bfloat16
    const std::uint32_t bitsOf = random.next();
    x = static_cast<std::uint16_t>((bitsOf & 0x807f) | (112 + (bitsOf >> 16) % 31) << 7);
  }
  return [=](unsigned nThreads, const char *isa) {
    std::vector<std::uint16_t> output(nRows * outputs);
    multiplyFewBits(
        {rows.data(), weights.data(), bits, output.data(), nRows, inputs, outputs, outputs},
        nThreads, isa);
    return output;
  };
}

void threads(unsigned nCallers) {
  // One cache that all read, while each also fills and reads one of its own.
  const Case c(4);
  KVCache shared(c.spec(), 2, "auto");
  c.fillCache(shared, false);
  const std::vector<Half> expected = c.attend(shared);
  std::vector<std::thread> callers;
  for (unsigned caller = 0; caller < nCallers; ++caller)
    callers.emplace_back([&, caller] {
      for (unsigned round = 0; round < 3; ++round) {
        check(c.attend(shared) == expected, "threads: shared cache");
        KVCache own(c.spec(), 1 + caller % 3, "auto");
        c.fillCache(own, true);
        check(c.attend(own) == expected, "threads: own cache");
      }
    });
  // And one that is changed under its readers: they see one state or another, never a mixture.
  KVCache changing(c.spec(), 2, "auto");
  std::vector<std::int64_t> one(static_cast<std::size_t>(c.batch), 1);
  changing.append(c.tokens(c.key, 0), c.tokens(c.value, 0), 1, one.data());
  const auto readFirst = [&] {
    std::vector<Half> rows(static_cast<std::size_t>(2 * c.batch * c.nKvHeads * c.headDim));
    changing.read(rows.data(), rows.data() + rows.size() / 2, 0, 1);
    return rows;
  };
  const std::vector<Half> first = readFirst();
  std::thread writer([&] {
    std::vector<std::int64_t> identity;
    for (std::int64_t b = 0; b < c.batch; ++b)
      identity.push_back(b);
    for (std::int64_t i = 1; i < 200; ++i) {
      changing.append(c.tokens(c.key, i), c.tokens(c.value, i), 1, one.data());
      changing.reorder(identity.data());
    }
  });
  for (unsigned i = 0; i < 20; ++i) {
    c.attend(changing);
    check(changing.lengths()[0] >= 1, "threads: lengths");
    check(readFirst() == first, "threads: read");
  }
  writer.join();
  for (std::thread &caller : callers)
    caller.join();
  std::printf("threads: %u callers\n", nCallers);
}

void allocations() {
  unsigned nCases = 0;
  for (std::uint64_t seed : {1, 3, 4, 7, 8}) {
    const Case c(seed);
    for (std::int64_t nThreads : {1, 3}) {
      KVCache cache(c.spec(2), nThreads, "auto");
      c.fillCache(cache, false);
      c.attend(cache);
      std::vector<Half> output(c.query.size());
      const auto d = static_cast<std::ptrdiff_t>(c.headDim * 2);
      const std::int64_t nHeads = c.nKvHeads * c.groupSize;
      const Query view{reinterpret_cast<const char *>(c.query.data()),
                       {static_cast<std::ptrdiff_t>(nHeads) * d, d, 2}};
      const std::vector<std::int64_t> one(static_cast<std::size_t>(c.batch), 1);
      cache.append(c.tokens(c.key, 0), c.tokens(c.value, 0), 1, one.data());
      const unsigned long before = nAllocations;
      for (unsigned i = 0; i < 5; ++i) {
        if (i == 4)
          cache.append(c.tokens(c.key, 0), c.tokens(c.value, 0), 1, one.data());
        cache.attention(view, nHeads, &c.settings, output.data());
        cache.attention(view, nHeads, nullptr, output.data());
      }
      const unsigned long made = nAllocations - before;
      check(made == 0, "allocations: " + std::to_string(made) + " in five calls");
      ++nCases;
    }
  }
  check(nAllocations != 0, "allocations: nothing was counted");
  std::printf("allocations: none in %u caches\n", nCases);
}

double valueOf(Half x) {
  const int exponent = x >> 10 & 31, fraction = x & 1023;
  const double magnitude =
      exponent ? std::ldexp(1024 + fraction, exponent - 25) : std::ldexp(fraction, -24);
  return x & 0x8000 ? -magnitude : magnitude;
}

void conversionsOf(const Kernels &kernels) {
  std::vector<Half> all, back;
  for (unsigned x = 0; x < 0x10000; ++x)
    if ((x & 0x7C00) != 0x7C00)
      all.push_back(static_cast<Half>(x));
  all.pop_back(); // an odd number of them: the end of a vector is cut
  std::vector<float> wide(all.size());
  back.resize(all.size());
  kernels.widen(all.data(), wide.data(), all.size());
  kernels.narrow(wide.data(), back.data(), back.size());
  for (std::size_t i = 0; i < all.size(); ++i) {
    check(static_cast<double>(wide[i]) == valueOf(all[i]) &&
              std::signbit(wide[i]) == (all[i] >> 15 != 0),
          std::string("conversions: widen, ") + kernels.name);
    check(back[i] == all[i],
          std::string("conversions: narrow of a number of fp16, ") + kernels.name);
  }
  // Between neighbours: the middle goes to the even one, just off the middle to the nearer one.
  // Beyond the largest: saturates.
  for (Half x = 0; x < 0x7BFF; ++x) {
    const double low = valueOf(x), high = valueOf(static_cast<Half>(x + 1));
    const float middle = static_cast<float>((low + high) / 2);
    const float probes[] = {middle, std::nextafter(middle, 0.0f), std::nextafter(middle, 1e9f),
                            -middle};
    const Half even = x % 2 == 0 ? x : static_cast<Half>(x + 1);
    const Half expected[] = {even, x, static_cast<Half>(x + 1), static_cast<Half>(0x8000 | even)};
    Half got[4];
    kernels.narrow(probes, got, 4);
    check(std::memcmp(got, expected, sizeof(got)) == 0,
          std::string("conversions: rounding, ") + kernels.name);
  }
  const float large[] = {65504.0f, 65519.0f, 65520.0f, 1e30f, -1e30f};
  const Half largest[] = {0x7BFF, 0x7BFF, 0x7BFF, 0x7BFF, 0xFBFF};
  Half got[5];
  kernels.narrow(large, got, 5);
  check(std::memcmp(got, largest, sizeof(got)) == 0,
        std::string("conversions: saturation, ") + kernels.name);
}

void conversions() {
  for (const Kernels *kernels : availableKernels())
    conversionsOf(*kernels);
#if defined(__x86_64__)
  // Some libraries set these two for a whole thread: flush results, and operands, that are fp32
  // denormals.
  const unsigned before = _mm_getcsr();
  const Case c(6);
  std::vector<Half> results[2];
  for (unsigned flushing = 0; flushing < 2; ++flushing) {
    _mm_setcsr(flushing ? before | 0x8040 : before);
    for (const Kernels *kernels : availableKernels()) {
      std::vector<float> wide(c.key.size());
      kernels->widen(c.key.data(), wide.data(), wide.size());
      for (std::size_t i = 0; i < wide.size(); ++i)
        check(static_cast<double>(wide[i]) == valueOf(c.key[i]),
              std::string("conversions: widen, flushing, ") + kernels->name);
      KVCache cache(c.spec(), 1, kernels->name);
      c.fillCache(cache, false);
      const std::vector<Half> result = c.attend(cache);
      if (results[0].empty())
        results[0] = result;
      check(result == results[0],
            std::string("conversions: attention, flushing, ") + kernels->name);
    }
  }
  _mm_setcsr(before);
#endif
  std::printf("conversions: all finite fp16 numbers, and between them\n");
}

// The kernels have the exponential of arith.hpp in a form of their own.
void weights() {
  std::vector<float> arguments;
  const auto bits = [](float x) { return sparq::bitcast<std::uint32_t>(x); };
  for (std::uint32_t x = bits(-0.0f); x < bits(-100.0f); x += 257)
    arguments.push_back(sparq::bitcast<float>(x));
  for (float edge : {0x1p-25f, 0x1p-63f, 54.0f, 87.0f})
    for (std::uint32_t x = bits(-edge) - 64; x < bits(-edge) + 64; ++x)
      arguments.push_back(sparq::bitcast<float>(x));
  arguments.resize((arguments.size() + 63) / 64 * 64, -std::numeric_limits<float>::infinity());
  std::vector<float> sums(arguments.size() / 64);
  for (const Kernels *kernels : availableKernels()) {
    std::vector<float> got = arguments;
    sparq::cpu::SoftmaxWeights step{got.data(), got.size(), 0.0f, sums.data(), nullptr};
    kernels->softmaxWeights(step);
    for (std::size_t i = 0; i < got.size(); ++i)
      check(bits(got[i]) == bits(sparq::softmaxWeight(arguments[i])),
            std::string("weights: ") + kernels->name);
  }
  std::printf("weights: %zu arguments\n", arguments.size());
}

void race() {
  const Case c(3);
  KVCache cache(c.spec(), 1, "auto");
  c.fillCache(cache, false);
  // Around the lock of the cache.
  std::thread other([&] { cache.pair(0).valueSum[0] = 1; });
  cache.pair(0).valueSum[0] = 2;
  other.join();
}

void overflow() {
  const std::size_t n = 64;
  const Buffer memory(n * sizeof(Half));
  std::vector<float> wide(2 * n);
  volatile std::size_t past = n + 16;
  availableKernels().back()->widen(memory.as<Half>(), wide.data(), past);
}

} // namespace

int main(int argc, char **argv) {
  const std::string what = argc > 1 ? argv[1] : "";
  const unsigned n = argc > 2 ? static_cast<unsigned>(std::atoi(argv[2])) : 0;
  if (what == "levels")
    compare("levels", n ? n : 24, levels);
  else if (what == "prompts")
    compare("prompts", n ? n : 21, prompts);
  else if (what == "products")
    compare("products", n ? n : 20, products);
  else if (what == "threads")
    threads(n ? n : 4);
  else if (what == "conversions")
    conversions();
  else if (what == "weights")
    weights();
  else if (what == "allocations")
    allocations();
  else if (what == "race")
    race();
  else if (what == "overflow")
    overflow();
  else {
    std::fprintf(stderr,
                 "usage: %s levels|prompts|products|threads|conversions|weights|allocations|"
                 "race|overflow [count]\n",
                 argv[0]);
    return 2;
  }
  return 0;
}
