// SPDX-License-Identifier: Apache-2.0
// How tensors are printed: nested brackets, one line per row, long dimensions cut in the middle.
#include <cmath>
#include <cstdio>

#include "engine_impl.hpp"

namespace poplar {
namespace core {

namespace {

class Printer {
public:
  Printer(const std::uint8_t *data, const Type &type, const std::vector<std::size_t> &shape,
          const PrintTensorFmt &f)
      : data_(data), type_(type), shape_(shape), f_(f),
        cut_(numElements(shape) > f.summariseThreshold) {}

  std::string text() {
    if (shape_.empty())
      return element(0);
    std::string s;
    dimension(s, 0, 0);
    return s;
  }

private:
  std::string element(std::size_t i) const {
    const double v = valueAsDouble(data_ + i * typeSize(type_), type_);
    if (!type_.isFloatingPoint()) {
      return std::to_string(static_cast<long long>(v));
    }
    const int digits = static_cast<int>(f_.digits);
    char b[64];
    switch (f_.floatFormat) {
    case PrintTensorFmt::FloatFormat::Fixed:
      std::snprintf(b, sizeof b, "%.*f", digits, v);
      break;
    case PrintTensorFmt::FloatFormat::Scientific:
      std::snprintf(b, sizeof b, "%.*e", digits, v);
      break;
    case PrintTensorFmt::FloatFormat::None:
      std::snprintf(b, sizeof b, "%.9g", v);
      break;
    case PrintTensorFmt::FloatFormat::Auto:
      if (v != 0 && (std::fabs(v) >= 1e8 || std::fabs(v) < 1e-4))
        std::snprintf(b, sizeof b, "%.*e", digits, v);
      else
        std::snprintf(b, sizeof b, "%.*f", digits, v);
    }
    return b;
  }

  void dimension(std::string &s, std::size_t dim, std::size_t at) const {
    std::size_t below = 1;
    for (std::size_t d = dim + 1; d < shape_.size(); ++d)
      below *= shape_[d];
    const bool last = dim + 1 == shape_.size();
    const std::size_t n = shape_[dim];
    const bool skip = cut_ && n > 2 * f_.edgeItems;
    s += f_.openBracket;
    for (std::size_t i = 0; i < n; ++i) {
      if (i) {
        s += f_.separator;
        s += last ? std::string(" ") : "\n" + std::string(dim + 1, ' ');
      }
      if (skip && i == f_.edgeItems) {
        s += "...";
        i = n - f_.edgeItems - 1;
        continue;
      }
      if (last)
        s += element(at + i);
      else
        dimension(s, dim + 1, at + i * below);
    }
    s += f_.closeBracket;
  }

  const std::uint8_t *data_;
  Type type_;
  std::vector<std::size_t> shape_;
  PrintTensorFmt f_;
  bool cut_;
};

} // namespace

std::string formatTensor(const std::uint8_t *data, const Type &type,
                         const std::vector<std::size_t> &shape, const PrintTensorFmt &format) {
  return Printer(data, type, shape, format).text();
}

} // namespace core
} // namespace poplar
