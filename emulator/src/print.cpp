// SPDX-License-Identifier: Apache-2.0
// How tensors are printed: nested brackets, one line per row, long dimensions cut in the middle.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>

#include "engine_impl.hpp"

namespace poplar {
namespace core {

namespace {

using FloatFormat = PrintTensorFmt::FloatFormat;

// Digits before the point.
int wholeDigits(double magnitude) {
  return magnitude < 10 ? 1 : static_cast<int>(std::floor(std::log10(magnitude))) + 1;
}

class Printer {
public:
  Printer(const std::uint8_t *data, const Type &type, const std::vector<std::size_t> &shape,
          const PrintTensorFmt &f)
      : data_(data), type_(type), shape_(shape), f_(f),
        cut_(f.summariseThreshold != 0 && numElements(shape) > f.summariseThreshold) {
    if (f_.digits == 0)
      f_.floatFormat = FloatFormat::None;
    else if (f_.floatFormat != FloatFormat::None)
      analyse();
  }

  std::string text() const {
    if (shape_.empty())
      return element(0);
    std::string s;
    dimension(s, 0, 0);
    return s;
  }

private:
  double value(std::size_t i) const { return valueAsDouble(data_ + i * typeSize(type_), type_); }

  // One format and one width for all elements.
  void analyse() {
    const std::size_t n = numElements(shape_);
    double largest = 0, smallest = 0;
    // The widest is the largest in magnitude, of positive or of negative ones, or no number at all.
    std::array<std::size_t, 2> widest = {n, n};
    for (std::size_t i = 0; i != n; ++i) {
      const double v = value(i), magnitude = std::fabs(v);
      if (!std::isfinite(magnitude)) {
        width_ = std::max(width_, number(i).size());
        continue;
      }
      std::size_t &same = widest[std::signbit(v)];
      if (same == n || magnitude > std::fabs(value(same)))
        same = i;
      if (magnitude == 0)
        continue;
      largest = std::max(largest, magnitude);
      smallest = smallest == 0 ? magnitude : std::min(smallest, magnitude);
    }
    const int digits = static_cast<int>(f_.digits);
    if (f_.floatFormat == FloatFormat::Auto) {
      const bool fits = largest < std::pow(10.0, digits) &&
                        (smallest == 0 || smallest >= std::pow(10.0, 1 - digits));
      f_.floatFormat = fits ? FloatFormat::Fixed : FloatFormat::Scientific;
    }
    decimals_ = f_.floatFormat == FloatFormat::Fixed ? std::max(digits - wholeDigits(largest), 0)
                                                     : digits - 1;
    for (const std::size_t i : widest)
      if (i != n)
        width_ = std::max(width_, number(i).size());
  }

  std::string number(std::size_t i) const {
    const double v = value(i);
    if (!type_.isFloatingPoint())
      return std::to_string(static_cast<long long>(v));
    char b[400];
    if (f_.floatFormat == FloatFormat::Fixed)
      std::snprintf(b, sizeof b, "%.*f", decimals_, v);
    else if (f_.floatFormat == FloatFormat::Scientific)
      std::snprintf(b, sizeof b, "%.*e", decimals_, v);
    else
      std::snprintf(b, sizeof b, "%.9g", v);
    return b;
  }

  std::string element(std::size_t i) const {
    const std::string s = number(i);
    return std::string(width_ > s.size() ? width_ - s.size() : 0, ' ') + s;
  }

  // Rows of the last dimension on lines of their own, each level two further in.
  void dimension(std::string &s, std::size_t dim, std::size_t at) const {
    std::size_t below = 1;
    for (std::size_t d = dim + 1; d < shape_.size(); ++d)
      below *= shape_[d];
    const bool last = dim + 1 == shape_.size();
    const std::size_t n = shape_[dim], indent = 2 * (dim + 1);
    const bool skip = cut_ && n > 2 * f_.edgeItems;
    s += f_.openBracket;
    std::size_t lineStart = s.size();
    for (std::size_t i = 0; i < n; ++i) {
      const bool dots = skip && i == f_.edgeItems;
      const std::string item = dots ? "..." : last ? element(at + i) : "";
      if (dots)
        i = n - f_.edgeItems - 1;
      if (last) {
        const bool wraps = i != 0 && f_.maxLineWidth != 0 &&
                           s.size() - lineStart + 1 + item.size() + indent > f_.maxLineWidth;
        if (i != 0 && !(wraps && f_.separator == ' '))
          s += f_.separator;
        if (wraps) {
          s += '\n' + std::string(indent - 1, ' ');
          lineStart = s.size();
        }
        s += item;
        continue;
      }
      s += '\n' + std::string(indent, ' ');
      if (dots)
        s += item;
      else
        dimension(s, dim + 1, at + i * below);
    }
    if (!last)
      s += '\n' + std::string(indent - 2, ' ');
    s += f_.closeBracket;
  }

  const std::uint8_t *data_;
  Type type_;
  std::vector<std::size_t> shape_;
  PrintTensorFmt f_;
  bool cut_;
  int decimals_ = 0;
  std::size_t width_ = 0;
};

} // namespace

std::string formatTensor(const std::uint8_t *data, const Type &type,
                         const std::vector<std::size_t> &shape, const PrintTensorFmt &format) {
  return Printer(data, type, shape, format).text();
}

} // namespace core
} // namespace poplar
