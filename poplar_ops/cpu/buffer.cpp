// SPDX-License-Identifier: Apache-2.0
#include "buffer.hpp"

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <new>

#ifdef __linux__
#include <sys/mman.h>
#endif

namespace sparq::cpu {
namespace {

#ifdef __linux__
constexpr std::size_t hugePage = std::size_t(2) << 20;
// Bytes of the huge pages that smaller buffers share, and of the smallest such buffer.
constexpr std::size_t sharedBytes = 4 * hugePage, leastShared = std::size_t(1) << 17;

// Whole huge pages, aligned to one: more is mapped and the ends are given back.
struct Pages {
  explicit Pages(std::size_t n) : bytes(n) {
    void *const mapped = mmap(nullptr, bytes + hugePage, PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (mapped == MAP_FAILED)
      throw std::bad_alloc();
    start = static_cast<char *>(mapped);
    const std::size_t before =
        (hugePage - reinterpret_cast<std::size_t>(start) % hugePage) % hugePage;
    if (before)
      munmap(start, before);
    start += before;
    munmap(start + bytes, hugePage - before);
    madvise(start, bytes, MADV_HUGEPAGE); // may be refused: small pages serve too
  }
  ~Pages() { munmap(start, bytes); }
  Pages(const Pages &) = delete;
  char *start;
  std::size_t bytes;
};

// Buffers that do not fill a huge page share some, one behind the other. These pages are given back
// with the last of them; until then no part is used again, for it would not be zero.
std::shared_ptr<void> inSharedPages(std::size_t bytes) {
  static std::mutex mutex;
  static std::weak_ptr<Pages> current;
  static std::size_t used;
  const std::lock_guard<std::mutex> lock(mutex);
  std::shared_ptr<Pages> pages = current.lock();
  if (!pages || used + bytes > sharedBytes) {
    current = pages = std::make_shared<Pages>(sharedBytes);
    used = 0;
  }
  void *const start = pages->start + used;
  used += roundUp(bytes, 64);
  return {pages, start};
}
#endif

} // namespace

Buffer::Buffer(std::size_t bytes) : nBytes(bytes) {
  if (bytes == 0)
    return;
#ifdef __linux__
  if (bytes >= hugePage) {
    if (bytes > SIZE_MAX - 2 * hugePage)
      throw std::bad_alloc();
    nBytes = roundUp(bytes, hugePage);
    const auto pages = std::make_shared<Pages>(nBytes);
    data = {pages, pages->start};
    return;
  }
  if (bytes >= leastShared) {
    data = inSharedPages(bytes);
    return;
  }
#endif
  void *start = nullptr;
  if (posix_memalign(&start, 64, bytes) != 0)
    throw std::bad_alloc();
  data = {start, std::free};
  std::memset(start, 0, bytes);
}

std::size_t product(std::initializer_list<std::size_t> factors) {
  std::size_t result = 1;
  for (std::size_t factor : factors)
    if (__builtin_mul_overflow(result, factor, &result))
      throw std::bad_alloc();
  return result;
}

} // namespace sparq::cpu
