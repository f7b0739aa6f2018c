// SPDX-License-Identifier: Apache-2.0
//
// Descriptions and errors between Python and C++, for every module: sparq_reference.settings is
// read by attribute name, so a field that is added there and here reaches every call.
#pragma once

#include "sparq/settings.hpp"
#include <pybind11/pybind11.h>
#include <string>

namespace pybind11::detail {

// Reads the attributes of a Python object into a description. An object that lacks one, or has
// another kind of value there, is of another type; a number that no field can hold is refused by
// name.
class AttributeReader {
public:
  AttributeReader(handle object, const char *type) : object_(object), type_(type) {}

  void read(const char *name, unsigned &field) {
    std::int64_t number = 0;
    if (get(name, number))
      field = sparq::toUnsigned(type_, name, number);
  }
  void read(const char *name, bool &field) { get(name, field); }
  void read(const char *name, std::string &field) { get(name, field); }
  bool complete() const { return complete_; }

private:
  template <class T> bool get(const char *name, T &value) {
    constexpr bool convert = false; // 1 is no flag, 1.5 no integer
    make_caster<T> caster{};        // GCC does not see that it is set before it is read
    complete_ = complete_ && hasattr(object_, name) && caster.load(object_.attr(name), convert);
    if (complete_)
      value = cast_op<T>(caster);
    return complete_;
  }

  handle object_;
  const char *type_;
  bool complete_ = true;
};

template <> struct type_caster<sparq::CacheSpec> {
  PYBIND11_TYPE_CASTER(sparq::CacheSpec, const_name("sparq_reference.settings.CacheSpec"));
  bool load(handle source, bool) {
    AttributeReader from(source, "CacheSpec");
    from.read("batch", value.batch);
    from.read("n_kv_heads", value.nKvHeads);
    from.read("head_dim", value.headDim);
    from.read("capacity", value.capacity);
    from.read("index_bits", value.indexBits);
    from.read("row_bits", value.rowBits);
    from.read("index_components", value.indexComponents);
    return from.complete();
  }
};

template <> struct type_caster<sparq::SparqSettings> {
  PYBIND11_TYPE_CASTER(sparq::SparqSettings, const_name("sparq_reference.settings.SparqSettings"));
  bool load(handle source, bool) {
    AttributeReader from(source, "SparqSettings");
    from.read("rank", value.rank);
    from.read("top_k", value.topK);
    from.read("n_local", value.nLocal);
    from.read("mean_value", value.meanValue);
    return from.complete();
  }
};

template <> struct type_caster<sparq::WindowSettings> {
  PYBIND11_TYPE_CASTER(sparq::WindowSettings,
                       const_name("sparq_reference.settings.WindowSettings"));
  bool load(handle source, bool) {
    AttributeReader from(source, "WindowSettings");
    from.read("top_k", value.topK);
    from.read("n_local", value.nLocal);
    from.read("n_recent", value.nRecent);
    return from.complete();
  }
};

} // namespace pybind11::detail

namespace sparq {

// What C++ throws becomes what Python raises: Error a ValueError (std::invalid_argument does by
// itself), DoesNotFit sparq_reference.errors.DoesNotFit.
inline void translateErrors() {
  pybind11::register_local_exception_translator([](std::exception_ptr thrown) {
    try {
      if (thrown)
        std::rethrow_exception(thrown);
    } catch (const DoesNotFit &error) {
      const auto type = pybind11::module_::import("sparq_reference.errors").attr("DoesNotFit");
      PyErr_SetObject(type.ptr(), type(error.what(), error.resource, error.need, error.room).ptr());
    }
  });
}

} // namespace sparq
