// SPDX-License-Identifier: Apache-2.0
// What functions that the headers define pass on to the library. In its place are stand-ins, which
// print what they are given. So it is built without the library.
#include <poplar/Engine.hpp>
#include <poplar/Graph.hpp>
#include <poplar/IPUModel.hpp>
#include <poplar/ProfileValue.hpp>
#include <poplar/TypeConversion.hpp>

#include "line.hpp"

using namespace poplar;

// The library's side.
namespace poplar {
const Type UNSIGNED_INT(1, nullptr), FLOAT(2, nullptr);
Target::Target() = default;
std::size_t Target::hash() const { return 7; }
long double Target::getTypeLimitsMax(const Type &) const { return 65504.5L; }
long double Target::getTypeLimitsLowest(const Type &) const { return -3.5L; }
Device::Device() = default;
IPUModel::IPUModel(char const *ipuVersion) : IPUVersion(ipuVersion) {}

Tensor::Tensor() = default;
Tensor::~Tensor() = default;
Tensor Tensor::slice(std::size_t begin, std::size_t end, unsigned dimension) const {
  line("slice", begin, end, dimension);
  return *this;
}
static bool isConstant = true;
bool Tensor::constantAsDouble(double &value) const { return value = 2.5, isConstant; }
bool Tensor::operator==(const Tensor &) const { return isConstant; }

Graph::Graph() = default;
Graph::~Graph() = default;
void Graph::checkMetadata(const Type &type, const Tensor &, const char *op) const {
  line("checkMetadata", type.hash(), op);
}
void Graph::checkConstantSize(ArrayRef<std::size_t> shape, std::size_t n) const {
  line("checkConstantSize", shape[0], n);
}
Tensor Graph::addConstant(const Type &type, ArrayRef<std::size_t> shape, const void *values,
                          const TypeTraits &traits, bool broadcast, const DebugContext &dc) {
  line("addConstant", type.hash(), shape.size(), *static_cast<const float *>(values), traits.size,
       broadcast, dc);
  return Tensor();
}
void Graph::connectConstant(FieldRef, const void *value, const TypeTraits &traits) {
  line("connectConstant", *static_cast<const float *>(value), traits.isFloat);
}
void Graph::setFieldInitialValue(FieldRef, const void *values, std::size_t n,
                                 const TypeTraits &traits, bool isArray) {
  line("setFieldInitialValue", *static_cast<const float *>(values), n, traits.size, isArray);
}
void Graph::setTensorInitialValue(const Tensor &, const void *values, std::size_t n,
                                  const TypeTraits &traits, bool broadcast) {
  line("setTensorInitialValue", *static_cast<const float *>(values), n, traits.size, broadcast);
}
double Graph::getMaxVertexFieldValue(StringRef vertex, StringRef field) const {
  line("getMaxVertexFieldValue", vertex, field);
  return 2.5;
}

namespace core {
struct EngineImpl {};
std::vector<double> fieldInitialValues(const FieldRecord &, std::size_t edge) {
  return {1.5 + static_cast<double>(edge), 4};
}
std::size_t fieldEdgeCount(const FieldRecord &) { return 2; }
} // namespace core
Engine::Engine(Executable &&, const OptionFlags &) {}
Engine::~Engine() = default;
Executable::Executable() = default;
Executable::~Executable() = default;
using Bytes = const char *;
static std::ptrdiff_t between(const void *begin, const void *end) {
  return static_cast<Bytes>(end) - static_cast<Bytes>(begin);
}
void Engine::readTensor(StringRef handle, void *begin, void *end) {
  line("readTensor", handle, between(begin, end));
}
void Engine::writeTensor(StringRef handle, const void *begin, const void *end) {
  line("writeTensor", handle, between(begin, end));
}
void Engine::connectStream(StringRef handle, void *begin, void *end) {
  line("connectStream", handle, between(begin, end));
}
void Engine::checkRemoteRow(StringRef handle, std::size_t bytes) const {
  line("checkRemoteRow", handle, bytes);
}
void Engine::copyFromRemoteBuffer(StringRef handle, void *, uint64_t row, unsigned replica) {
  line("copyFromRemoteBuffer", handle, row, replica);
}
void Engine::copyToRemoteBuffer(void *, StringRef handle, uint64_t row, unsigned replica) {
  line("copyToRemoteBuffer", handle, row, replica);
}

std::size_t FieldData::getSizeAtIndex(std::size_t i) const { return 10 + i; }
FieldData VertexIntrospector::getFieldInfo(const std::string &) const { return FieldData(); }

void convertFromDeviceType(const Type &, const void *, float *, std::size_t n) {
  line("convertFromDeviceType", n);
}
void convertFromDeviceType(const Type &, const QuarterMetadata &, const void *, float *,
                           std::size_t n) {
  line("convertFromDeviceType of quarter", n);
}
void convertFromDeviceType(const Type &, const QuarterMetadata &, const void *, double *,
                           std::size_t n) {
  line("convertFromDeviceType of quarter to double", n);
}
void convertToDeviceType(const Type &, const QuarterMetadata &, ArrayRef<float> src, void *,
                         bool nanOnOverflow) {
  line("convertToDeviceType of quarter", src.size(), src[0], nanOnOverflow);
}

ProfileValue::ProfileValue() = default;
ProfileValue::ProfileValue(Number n) { line("Number", n); }
ProfileValue::ProfileValue(Boolean b) { line("Boolean", b); }
ProfileValue::ProfileValue(String s) { line("String", s); }
const ProfileValue &ProfileValue::operator[](StringRef key) const {
  return line("key", key), *this;
}
const ProfileValue &ProfileValue::operator[](std::size_t i) const {
  return line("element", i), *this;
}
bool operator==(const ProfileValue &, const ProfileValue &) { return true; }
} // namespace poplar

static void tensors() {
  const Tensor t;
  t.slice(2, 5);
  t.slice(Interval(3, 4));
  t.slice(Interval(3, 6), 1);
  int value = 0;
  const bool first = t.getConstantValue(&value);
  isConstant = false;
  int other = 7;
  line("getConstantValue", first, value, t.getConstantValue(&other), other, t != t);
}

static void graphs() {
  Graph g;
  const std::vector<float> values = {1.5f, 2, 3};
  const ArrayRef<float> several(values);
  g.addConstant(FLOAT, {3}, several);
  g.addConstant(FLOAT, {3, 1}, values.data(), "named");
  g.addConstant(FLOAT, {3}, 2.5f);
  g.addConstant(UNSIGNED_INT, Tensor(), {3}, several, "a");
  g.addConstant(UNSIGNED_INT, Tensor(), {3}, 3.5f);
  g.connect(FieldRef(), 4.5f);
  g.setInitialValue(FieldRef(), 5.5f);
  g.setInitialValue(FieldRef(), values);
  g.setInitialValue(Tensor(), 6.5f);
  g.setInitialValue(Tensor(), several);
  line("as", g.getMaxVertexFieldValueAs<int>("V", "f"));
}

static void engines() {
  Engine e{Executable()};
  const std::vector<double> v(3);
  std::vector<float> w(2);
  e.readTensor("r", gccs::ArrayRef<float>(w));
  e.writeTensor("w", ArrayRef<double>(v));
  e.connectStream("s", gccs::ArrayRef<double>(v));
  e.copyFromRemoteBuffer("from", gccs::ArrayRef<float>(w), 4, 1);
  e.copyToRemoteBuffer(ArrayRef<double>(v), "to", 5);
}

static void targets() {
  const Target a, b;
  line("target", a == b, a != b, a < b, a.getTypeLimitsMaxAs<int>(FLOAT),
       a.getTypeLimitsLowestAs<float>(FLOAT), Device().getAttributes().size());
  const IPUModel m;
  line("model", m.IPUVersion, m.numIPUs, m.tilesPerIPU, m.numWorkerContexts, m.memoryBytesPerTile,
       m.tileClockFrequency, m.exchangeBytesPerCycle, m.memcpyBytesPerCycle, m.minIPUSyncDelay,
       m.compileIPUCode);
}

static void estimators() {
  const FieldData f = VertexIntrospector().getFieldInfo("f");
  line("field", f[3].size(), f.getInitialValue<int>(Target()),
       f.getInitialValues<float>(Target())[0],
       f.getInitialValues<std::vector<float>>(Target())[1][0]);
}

static void conversions() {
  float x[3] = {1.5f, 2, 3};
  double d[2];
  const char bytes[16] = {};
  char out[3];
  const QuarterMetadata m;
  convertFromDeviceType(FLOAT, bytes, ArrayRef<float>(x));
  convertFromDeviceType(FLOAT, m, bytes, ArrayRef<float>(x));
  convertFromDeviceType(FLOAT, m, bytes, ArrayRef<double>(d));
  convertToDeviceType(FLOAT, m, ArrayRef<const float>(x, 2), out, true);
  convertToDeviceType(FLOAT, m, ArrayRef<const float>(x, 3), out);
}

static void profiles() {
  const ProfileValue n(3), b(true), c("c"), s{StringRef("s")}, empty;
  line("other", n != b, int(empty.type()) == int(ProfileValue::Type::MAP));
  n["k"];
  n[2];
}

int main() {
  std::cout << std::boolalpha;
  tensors();
  graphs();
  engines();
  targets();
  estimators();
  conversions();
  profiles();
}
