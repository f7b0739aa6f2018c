// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cassert>
#include <cstring>
#include <ostream>
#include <string>

namespace poplar {

/// A view of a string that the callee does not keep.
class StringRef {
public:
  StringRef() = default;
  StringRef(const char *s) : data_(s), size_(s ? std::strlen(s) : 0) {}
  StringRef(const char *s, std::size_t n) : data_(s), size_(n) {}
  StringRef(const std::string &s) : data_(s.data()), size_(s.size()) {}

  const char *data() const { return data_; }
  std::size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  const char *begin() const { return data_; }
  const char *end() const { return data_ + size_; }
  char operator[](std::size_t i) const { return data_[i]; }
  std::string str() const { return size_ ? std::string(data_, size_) : std::string(); }
  std::string cloneAsString() const { return str(); }
  operator std::string() const { return str(); }

private:
  const char *data_ = "";
  std::size_t size_ = 0;
};

inline bool operator==(const StringRef &a, const StringRef &b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size()) == 0);
}
inline bool operator<(const StringRef &a, const StringRef &b) { return a.str() < b.str(); }
inline std::string operator+(const StringRef &a, const StringRef &b) { return a.str() + b.str(); }
inline bool operator!=(const StringRef &a, const StringRef &b) { return !(a == b); }
inline std::ostream &operator<<(std::ostream &os, const StringRef &s) { return os << s.str(); }

} // namespace poplar
