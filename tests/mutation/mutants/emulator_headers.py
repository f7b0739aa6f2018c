# SPDX-License-Identifier: Apache-2.0
"""Mutants of the emulator's headers: what a program or a codelet gets of them without the library."""

from __future__ import annotations

from typing import Sequence

from . import Change, Mutant, of

_TESTS = "emulator/tests/test_headers.py"


def _header(name: str, changes: Sequence[Change]) -> list[Mutant]:
    return of(f"emulator/include/{name}", _TESTS, changes)


def _poplar(name: str, *changes: Change) -> list[Mutant]:
    return _header(f"poplar/{name}", changes)


MUTANTS = [
    *_header(
        "ipu_builtins.h",
        [
            ("i < 12;", "i < 6;", "normal numbers deviate too little"),
            ("(*)(float, float)>(std::fmin)", "(*)(float, float)>(std::fmax)", "the least is the greatest"),
            ("__attribute__((always_inline)) inline V", "inline V", "scalars and vectors are one symbol"),
        ],
    ),
    *_header(
        "ipudef.h",
        [
            ("r[i] = a[i] OP b[i] ? -1 : 0;", "r[i] = a[i] OP b[i] ? 1 : 0;", "true is 1 in vectors"),
            (
                "return poplar::vector_types::splat<V>(a) OP b;",
                "return b OP poplar::vector_types::splat<V>(a);",
                "a scalar on the left is taken for one on the right",
            ),
            (
                "  SPARQ_VECTOR(NAME##4, struct TRUTH##4, T, 4, x, y, z, w)",
                "  SPARQ_VECTOR(NAME##4, struct TRUTH##4, T, 4, x, y, w, z)",
                "z and w change places",
            ),
        ],
    ),
    *_poplar(
        "ArrayRef.hpp",
        ("return data_[size_ - 1];", "return data_[0];", "the last element is the first"),
        ("size_(N) {}\n  template", "size_(N - 1) {}\n  template", "an array loses its last element"),
    ),
    *_poplar(
        "AvailableVTypes.h",
        (
            "#define VECTOR_AVAIL_SCALED_PTR32 0",
            "#define VECTOR_AVAIL_SCALED_PTR32 1",
            "codelets take compressed pointers for available",
        ),
    ),
    *_poplar(
        "CSRFunctions.hpp", ("bool div0 = true;", "bool div0 = false;", "divisions by 0 pass by default")
    ),
    *_poplar(
        "DataStream.hpp",
        (
            "operator!=(const DataStream &a, const DataStream &b) { return !(a == b); }",
            "operator!=(const DataStream &a, const DataStream &b) { return (a == b); }",
            "a stream differs from itself",
        ),
    ),
    *_poplar(
        "DebugContext.hpp",
        (
            'return parent.empty() || name.empty() ? parent + name : parent + "/" + name;',
            'return parent.empty() ? parent + name : parent + "/" + name;',
            "a path ends with a slash where there is no name",
        ),
        (
            "bool isValid() const { return line_ != 0; }",
            "bool isValid() const { return true; }",
            "no place is one",
        ),
    ),
    *_poplar(
        "Device.hpp", ("const { return {}; }", 'const { return {{"a", "b"}}; }', "a device has attributes")
    ),
    *_poplar(
        "Engine.hpp",
        (
            "checkRemoteRow(handle, w.size() * sizeof(T));\n    copyFromRemoteBuffer",
            "checkRemoteRow(handle, w.size());\n    copyFromRemoteBuffer",
            "a row that is read counts elements for bytes",
        ),
        (
            "checkRemoteRow(handle, w.size() * sizeof(T));\n    copyToRemoteBuffer",
            "copyToRemoteBuffer",
            "a row of another size is written",
        ),
    ),
    *_poplar(
        "FieldTypes.hpp",
        (
            "return l == VectorLayout::SPAN || l == VectorLayout::SHORT_SPAN;",
            "return l == VectorLayout::SPAN;",
            "a short span has no size",
        ),
        (
            "return this->ptr + this->count;",
            "return this->ptr + this->count - 1;",
            "loops leave out the last",
        ),
    ),
    *_poplar(
        "GlobalExchangeConstraints.hpp",
        ("src(src), dst(dst)", "src(dst), dst(src)", "data flows the other way"),
    ),
    *_poplar(
        "Graph.hpp",
        (
            "return addConstant(type, shape, static_cast<const void *>(&val), TypeTraits::make<T>(), true,",
            "return addConstant(type, shape, static_cast<const void *>(&val), TypeTraits::make<T>(), false,",
            "one value is taken for as many as the shape has",
        ),
        (
            "    checkConstantSize(shape, values.size());\n",
            "",
            "a constant of too few values is taken",
        ),
        (
            "vals.size(),\n                         TypeTraits::make<T>(), true);",
            "1,\n                         TypeTraits::make<T>(), true);",
            "of the values of a state one alone is set",
        ),
    ),
    *_poplar(
        "GraphElements.hpp",
        (
            "explicit ComputeSet(unsigned id) : id_(id) {}",
            "explicit ComputeSet(unsigned) {}",
            "compute sets lose their numbers",
        ),
        ("vertex_id id_ = ~0u;", "vertex_id id_ = 0;", "no vertex is the first"),
    ),
    *_poplar(
        "HalfFloat.hpp",
        ("0xfffu + ((clamped >> 13) & 1u)", "0x1000u", "ties are rounded up"),
        ("half::fromBits(0xfbff)", "half::fromBits(0x0400)", "the lowest half is the least positive one"),
        (
            "half(static_cast<float>(*this) - f)",
            "half(f - static_cast<float>(*this))",
            "-= subtracts from the other",
        ),
    ),
    *_poplar(
        "HostFunctionCallback.hpp",
        (
            "callback_(std::move(p))",
            "callback_((p.release(), nullptr))",
            "a host function is never destroyed",
        ),
    ),
    *_poplar(
        "IPUModel.hpp",
        ("unsigned tilesPerIPU = 1472;", "unsigned tilesPerIPU = 1216;", "a model of the first generation"),
    ),
    *_poplar(
        "InOutTypes.hpp",
        ("  const unsigned *ptr;", "  const unsigned long *ptr;", "an Input of a size_t has 64 bits"),
        (
            "public field::VectorView<const Output<Vector<T>>, true> {",
            "public field::VectorView<const Output<Vector<T>>, false> {",
            "a list of outputs has no size",
        ),
    ),
    *_poplar(
        "Interval.hpp",
        (
            "T size() const { return end_ - begin_; }",
            "T size() const { return end_ - begin_ + 1; }",
            "the end belongs to an interval",
        ),
        (
            "a.begin_ == b.begin_ && a.end_ < b.end_",
            "a.end_ < b.end_",
            "an interval is before what begins before it",
        ),
    ),
    *_poplar(
        "OptionFlags.hpp",
        (
            "flags_[f.first] = f.second;",
            "flags_.insert({f.first, f.second});",
            "the first of two values stays",
        ),
        (
            "return flags_.at(option.str());",
            "return flags_.find(option.str())->second;",
            "an option that is not set can be read",
        ),
    ),
    *_poplar("PerfEstimateFunc.hpp", ("flops(flops)", "flops(cycles)", "cycles are taken for operations")),
    *_poplar(
        "PrintTensor.hpp",
        (
            "{~0u, 3, ~0u, 9, FloatFormat::None}",
            "{1000, 3, ~0u, 9, FloatFormat::None}",
            "long tensors are shortened though nothing is to be formatted",
        ),
        (
            "openBracket(openBracket),\n        closeBracket(closeBracket)",
            "openBracket(closeBracket),\n        closeBracket(openBracket)",
            "brackets change places",
        ),
    ),
    *_poplar(
        "ProfileValue.hpp",
        ("ProfileValue(static_cast<Number>(init))", "ProfileValue(init != 0)", "whole numbers are booleans"),
        ("Type type = Type::MAP;", "Type type = Type::VECTOR;", "an empty value is a list"),
    ),
    *_poplar(
        "Quarter.hpp",
        (
            "return a.format_ == b.format_ && a.scale_ == b.scale_;",
            "return a.format_ == b.format_ && a.scale_ != b.scale_;",
            "metadata differ from themselves",
        ),
    ),
    *_poplar(
        "QuarterFloat.hpp",
        ("((m & 0x20) << 1)", "((m & 0x20) << 0)", "negative scales are wrong"),
        ("(rest == 0.5 && code % 2 == 1)", "(rest == 0.5)", "ties are rounded away from zero"),
    ),
    *_poplar(
        "StackSizeDefs.hpp",
        (
            "DEF_STACK_USAGE(size, function)",
            "DEF_STACK_USAGE(size)",
            "a stack's size is declared without its function",
        ),
    ),
    *_poplar(
        "StreamCallback.hpp",
        (
            "return Result::NotAvailable; }",
            "return Result::Success; }",
            "a plain function has always given what it had not",
        ),
    ),
    *_poplar(
        "StringRef.hpp",
        ("size_(s ? std::strlen(s) : 0)", "size_(std::strlen(s))", "no string stops the program"),
        ("return a.size() == b.size() && (", "return (", "a longer string with the same beginning is equal"),
    ),
    *_poplar(
        "Target.hpp",
        (
            "operator!=(const Target &a, const Target &b) { return !(a == b); }",
            "operator!=(const Target &a, const Target &b) { return &a != &b; }",
            "copies of a target differ",
        ),
        (
            "return static_cast<T>(getTypeLimitsLowest(type));",
            "return -static_cast<T>(getTypeLimitsMax(type));",
            "the lowest number is the largest with its sign changed",
        ),
    ),
    *_poplar(
        "Tensor.hpp",
        (
            "return slice(region.begin(), region.end(), dimension);",
            "return slice(region.begin(), region.end());",
            "an interval is always of the first dimension",
        ),
        (
            "if (!constantAsDouble(value))\n      return false;",
            "constantAsDouble(value);",
            "what is not constant has a constant value",
        ),
    ),
    *_poplar(
        "TensorRearranger.hpp", ("return !order_.empty();", "return true;", "an order of nothing is one")
    ),
    *_poplar(
        "TileConstants.hpp",
        ("#define CTXT_WORKERS 6", "#define CTXT_WORKERS 7", "the supervisor is a worker"),
    ),
    *_poplar(
        "Type.hpp",
        (
            "operator<(const Type &a, const Type &b) { return a.id_ < b.id_; }",
            "operator<(const Type &a, const Type &b) { return b.id_ < a.id_; }",
            "types are in the reverse order",
        ),
        (
            "operator!=(const Type &a, const Type &b) { return a.id_ != b.id_; }",
            "operator!=(const Type &a, const Type &b) { return a.id_ == b.id_; }",
            "a type differs from itself",
        ),
    ),
    *_poplar(
        "TypeConversion.hpp",
        (
            "ArrayRef<T>(src.data(), src.size()), dst, nanOnOverflow);",
            "ArrayRef<T>(src.data(), src.size()), dst);",
            "overflow always saturates",
        ),
    ),
    *_poplar(
        "TypeTraits.hpp",
        ("std::is_signed<T>::value", "!std::is_floating_point<T>::value", "every whole number has a sign"),
        ("return std::is_arithmetic<T>::value;", "return true;", "every class is a number"),
    ),
    *_poplar(
        "VariableRef.hpp",
        (
            "return a.var == b.var && a.interval == b.interval;",
            "return a.interval == b.interval;",
            "intervals of two variables are equal",
        ),
    ),
    *_poplar(
        "Vertex.hpp",
        (
            "template <> struct SupervisorVertexIf<true> : SupervisorVertex {};",
            "template <> struct SupervisorVertexIf<true> : Vertex {};",
            "no vertex is a supervisor's on a condition",
        ),
        ("return 6;", "return 5;", "five workers"),
    ),
    *_poplar(
        "VertexIntrospector.hpp",
        (
            "r.push_back(Values<T>::of(field, i));",
            "r.push_back(Values<T>::of(field));",
            "each vector of a list has the values of the first",
        ),
        ("SizeT(getSizeAtIndex(i))", "SizeT(i)", "an index is taken for a size"),
    ),
    *_poplar(
        "exceptions.hpp",
        (
            '"vertex " + vertexName + " has no field \'" + fieldName + "\'"',
            '"vertex " + fieldName + " has no field \'" + vertexName + "\'"',
            "an error names the field as the vertex",
        ),
        (
            "POPLAR_ERROR(application_runtime_error, runtime_error);",
            "POPLAR_ERROR(application_runtime_error, poplar_error);",
            "who catches runtime errors misses the application's",
        ),
    ),
    *_poplar(
        "replication_factor.hpp",
        ("return val; }", "return val == 0 ? 0 : 1; }", "a graph is never replicated"),
    ),
    *of(
        "emulator/popc/builtins.hpp",
        _TESTS,
        [
            ("cycles() >> 32", "cycles() >> 31", "the upper word of the counter is doubled"),
            ("0x1p-32 - 0.5", "0x1p-32", "random numbers are from 0 to 1"),
            (
                "inline float __builtin_ipu_exp2(float a) { return std::exp2(a); }",
                "inline float __builtin_ipu_exp2(float a) { return std::exp(a); }",
                "powers of two are of e",
            ),
        ],
    ),
    *of(
        "emulator/popc/registration.hpp",
        _TESTS,
        [
            (
                "return {D, Nesting::Vector, elementOf<T>(), layoutOf(L), Layout::Span, A, 0};",
                "return {D, Nesting::Vector, elementOf<T>(), layoutOf(L), Layout::Span, 0, 0};",
                "alignment of edges is forgotten",
            ),
            (
                "return std::is_base_of<poplar::MultiVertex, V>::value ?",
                "return false ?",
                "workers of a MultiVertex are one",
            ),
            (
                "(V &v, void (C::*f)(unsigned), unsigned w) {\n  return (v.*f)(w), true;",
                "(V &v, void (C::*f)(unsigned), unsigned w) {\n  return (v.*f)(w), false;",
                "a compute() without a result says false",
            ),
        ],
    ),
    *of(
        "emulator/popc/codelet_abi.hpp",
        _TESTS,
        [("  Half,\n  Float\n};", "  Float,\n  Half\n};", "halves are taken for floats")],
    ),
]
