// SPDX-License-Identifier: Apache-2.0
//
// Stand-in for a part of PopART's interface, written from its documentation: just enough for the
// operators of this project to be compiled and lowered without PopART. Here: tensors' types.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

namespace popart {

using Shape = std::vector<std::int64_t>;
using TensorId = std::string;
using InIndex = int;
using OutIndex = int;
using OpId = int;
using VGraphId = std::int64_t;
using OpDomain = std::string;
using OpType = std::string;
using OpVersion = unsigned;

struct error : std::runtime_error {
  using std::runtime_error::runtime_error;
};

enum class DataType { INT32, FLOAT, FLOAT16 };

class TensorInfo {
public:
  TensorInfo() = default;
  TensorInfo(DataType type, const Shape &shape) : type_(type), shape_(shape) {}
  DataType dataType() const { return type_; }
  const Shape &shape() const { return shape_; }
  const std::string &data_type_lcase() const {
    static const std::string names[] = {"int32", "float32", "float16"};
    return names[static_cast<int>(type_)];
  }

private:
  DataType type_ = DataType::FLOAT;
  Shape shape_;
};

} // namespace popart
