// SPDX-License-Identifier: Apache-2.0
#include "buffer.hpp"

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <new>
#include <utility>

#ifdef __linux__
#include <sys/mman.h>
#endif

namespace sparq::cpu {
namespace {

constexpr std::size_t hugePage = std::size_t(2) << 20;

#ifdef __linux__
// Whole huge pages, aligned to one: more is mapped and the ends are given back.
void *mapHuge(std::size_t bytes) {
  void *mapped = mmap(nullptr, bytes + hugePage, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapped == MAP_FAILED)
    throw std::bad_alloc();
  char *const start = static_cast<char *>(mapped);
  const std::size_t before =
      (hugePage - reinterpret_cast<std::size_t>(start) % hugePage) % hugePage;
  if (before)
    munmap(start, before);
  munmap(start + before + bytes, hugePage - before);
  madvise(start + before, bytes, MADV_HUGEPAGE); // may be refused: small pages serve too
  return start + before;
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
    data = mapHuge(nBytes);
    return;
  }
#endif
  if (posix_memalign(&data, 64, bytes) != 0)
    throw std::bad_alloc();
  std::memset(data, 0, bytes);
}

Buffer::~Buffer() {
#ifdef __linux__
  if (nBytes >= hugePage) {
    munmap(data, nBytes);
    return;
  }
#endif
  std::free(data);
}

void Buffer::swap(Buffer &other) noexcept {
  std::swap(data, other.data);
  std::swap(nBytes, other.nBytes);
}

std::size_t product(std::initializer_list<std::size_t> factors) {
  std::size_t result = 1;
  for (std::size_t factor : factors)
    if (__builtin_mul_overflow(result, factor, &result))
      throw std::bad_alloc();
  return result;
}

} // namespace sparq::cpu
