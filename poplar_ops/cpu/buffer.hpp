// SPDX-License-Identifier: Apache-2.0
//
// Zeroed memory for the cache and for scratch, in huge pages where the system has them: a cache is
// read in hundreds of streams at once, and with pages of 4 KiB the address translation would cost
// more than the data.
#pragma once

#include <cstddef>
#include <initializer_list>
#include <memory>

namespace sparq::cpu {

class Buffer {
public:
  Buffer() = default;
  // `bytes` zeros, aligned to 64 bytes and more. Pages cost memory when they are first written.
  // Throws std::bad_alloc.
  explicit Buffer(std::size_t bytes);
  Buffer(Buffer &&) = default;
  Buffer &operator=(Buffer &&) = default;

  template <class T> T *as() const { return static_cast<T *>(data.get()); }
  std::size_t size() const { return nBytes; }

private:
  std::shared_ptr<void> data;
  std::size_t nBytes = 0;
};

// a * b * ... for sizes. Throws std::bad_alloc where it overflows.
std::size_t product(std::initializer_list<std::size_t> factors);

inline std::size_t roundUp(std::size_t n, std::size_t multiple) {
  return (n + multiple - 1) / multiple * multiple;
}

} // namespace sparq::cpu
