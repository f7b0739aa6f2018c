// SPDX-License-Identifier: Apache-2.0
// Variables, constants, clones and what connects a graph to its host.
#include <poplar/Graph.hpp>

#include <cstring>

#include "core.hpp"
#include "regions.hpp"

namespace poplar {

using core::Access;
using core::GraphImpl;
using core::TensorImpl;
using core::VarId;

namespace core {

VarId GraphImpl::addVariable(const Type &type, std::size_t n, const std::string &name) {
  if (typeSize(type) == 0)
    throw errors::bad_values("addVariable: type must be valid, got " + type.toString().str());
  Variable v;
  v.type = type;
  v.numElements = n;
  v.name = name.empty() ? "var" + std::to_string(variables.size()) : name;
  variables.push_back(std::move(v));
  return static_cast<VarId>(variables.size() - 1);
}

Tensor GraphImpl::wholeTensor(VarId var, std::vector<std::size_t> shape) const {
  TensorImpl t;
  t.graph = this;
  t.type = variables[var].type;
  t.var = var;
  t.strides.resize(shape.size());
  std::int64_t n = 1;
  for (std::size_t i = shape.size(); i-- > 0;) {
    t.strides[i] = n;
    n *= static_cast<std::int64_t>(shape[i]);
  }
  t.shape = std::move(shape);
  return Access::makeTensor(std::move(t));
}

const StreamInfo &Access::info(const DataStream &s) {
  if (!s.info)
    throw errors::unknown_handle("stream must be valid, got a default-constructed DataStream");
  return *s.info;
}
const RemoteBufferInfo &Access::info(const RemoteBuffer &b) {
  if (!b.info)
    throw errors::unknown_handle(
        "remote buffer must be valid, got a default-constructed RemoteBuffer");
  return *b.info;
}
DataStream Access::makeStream(std::shared_ptr<const StreamInfo> i) {
  DataStream s;
  s.info = std::move(i);
  return s;
}
RemoteBuffer Access::makeRemote(std::shared_ptr<const RemoteBufferInfo> i) {
  RemoteBuffer b;
  b.info = std::move(i);
  return b;
}

} // namespace core

std::string versionString() { return "3.3.0"; }
std::string packageHash() { return "0000000000"; }

Graph::Graph() : Graph(Target()) {}
Graph::Graph(const Target &t, replication_factor r)
    : impl(std::make_shared<GraphImpl>()), target(t) {
  if (r == 0 || t.getNumIPUs() % r != 0)
    throw errors::replication_factor("Graph: replication factor must divide the " +
                                     std::to_string(t.getNumIPUs()) + " IPUs of the target, got " +
                                     std::to_string(unsigned(r)));
  if (r != 1)
    target = t.createVirtualTarget(t.getNumIPUs() / r, t.getTilesPerIPU());
  impl->target = target;
  impl->device = t;
  impl->replication = r;
  core::addRuntimeVertices(*impl);
}
Graph::Graph(const Device &device, replication_factor r) : Graph(device.getTarget(), r) {}
Graph::Graph(Graph &&) noexcept = default;
Graph &Graph::operator=(Graph &&) noexcept = default;
Graph::~Graph() = default;

const Target &Graph::getTarget() const { return target; }
unsigned Graph::getReplicationFactor() const { return impl->replication; }
unsigned Graph::getNumVertices() const { return static_cast<unsigned>(impl->vertices.size()); }

Tensor Graph::addVariable(const Type &type, ArrayRef<std::size_t> shape, const DebugContext &dc) {
  std::vector<std::size_t> s(shape.begin(), shape.end());
  const VarId v = impl->addVariable(type, core::numElements(s), dc.getPathName());
  return impl->wholeTensor(v, std::move(s));
}

Tensor Graph::addVariable(const Type &type, ArrayRef<std::size_t> shape,
                          VariableMappingMethod method, const DebugContext &dc) {
  Tensor t = addVariable(type, shape, dc);
  if (method == VariableMappingMethod::LINEAR) {
    const std::size_t n = t.numElements(), tiles = target.getNumTiles();
    const std::size_t per = (n + tiles - 1) / tiles;
    const Tensor flat = t.flatten();
    for (std::size_t tile = 0, at = 0; at < n; ++tile, at += per)
      setTileMapping(flat.slice(at, std::min(n, at + per)), static_cast<unsigned>(tile));
  }
  return t;
}

void Graph::checkConstantSize(ArrayRef<std::size_t> shape, std::size_t numValues) const {
  const std::vector<std::size_t> s(shape.begin(), shape.end());
  if (core::numElements(s) != numValues)
    throw errors::bad_values("addConstant: values must have the " +
                             std::to_string(core::numElements(s)) + " elements of shape " +
                             core::shapeString(s) + ", got " + std::to_string(numValues));
}

Tensor Graph::addConstant(const Type &type, ArrayRef<std::size_t> shape, const void *values,
                          const TypeTraits &traits, bool broadcast, const DebugContext &dc) {
  Tensor t = addVariable(type, shape, dc);
  core::Variable &v = impl->variables[Access::impl(t).var];
  v.constant = true;
  const std::size_t size = core::typeSize(type);
  v.data.resize(v.numElements * size);
  for (std::size_t i = 0; i < v.numElements; ++i)
    core::convertValue(static_cast<const char *>(values) + (broadcast ? 0 : i * traits.size),
                       traits, type, v.data.data() + i * size, "addConstant");
  return t;
}

Tensor Graph::addConstantHalf(const Type &type, ArrayRef<std::size_t> shape, uint16_t val,
                              const DebugContext &dc) {
  const std::size_t n = core::numElements(std::vector<std::size_t>(shape.begin(), shape.end()));
  const std::vector<uint16_t> values(n, val);
  return addConstantHalf(type, shape, values.data(), dc);
}

Tensor Graph::addConstantHalf(const Type &type, ArrayRef<std::size_t> shape, const uint16_t *val,
                              const DebugContext &dc) {
  if (type != HALF)
    throw errors::type_mismatch("addConstantHalf: type must be half, got " + type.toString().str());
  Tensor t = addVariable(type, shape, dc);
  core::Variable &v = impl->variables[Access::impl(t).var];
  v.constant = true;
  v.data.resize(v.numElements * 2);
  if (v.numElements)
    std::memcpy(v.data.data(), val, v.data.size());
  return t;
}

void Graph::setTensorInitialValue(const Tensor &t, const void *values, std::size_t n,
                                  const TypeTraits &traits, bool broadcast) {
  const TensorImpl &i = Access::impl(t);
  if (!broadcast && n != t.numElements())
    throw errors::bad_values("setInitialValue: values must have the tensor's " +
                             std::to_string(t.numElements()) + " elements, got " +
                             std::to_string(n));
  if (t.containsConstant())
    throw errors::host_access_to_constant("setInitialValue: tensor " + core::tensorName(t) +
                                          " must not be constant");
  const std::size_t size = core::typeSize(i.type);
  std::size_t at = 0;
  core::forEachRegion(i, [&](VarId var, std::size_t begin, std::size_t length) {
    const std::size_t different = broadcast ? 1 : length;
    core::InitialValues init{begin, std::vector<std::uint8_t>(different * size),
                             broadcast ? length : 1};
    for (std::size_t k = 0; k < different; ++k)
      core::convertValue(static_cast<const char *>(values) + (at + k) * traits.size, traits, i.type,
                         init.bytes.data() + k * size, "setInitialValue");
    at += broadcast ? 0 : length;
    impl->variables[var].initial.push_back(std::move(init));
  });
}

static void checkHalf(const Tensor &t) {
  if (t.elementType() != HALF)
    throw errors::type_mismatch("setInitialValueHalf: the tensor's type must be half, got " +
                                t.elementType().toString().str());
}

void Graph::setInitialValueHalf(const Tensor &t, uint16_t val) {
  checkHalf(t);
  float f; // exact, and so is the way back (NaNs become the quiet NaN)
  copyDeviceHalfToFloat(target, &val, &f, 1);
  setInitialValue(t, f);
}

void Graph::setInitialValueHalf(const Tensor &t, ArrayRef<uint16_t> values) {
  checkHalf(t);
  std::vector<float> f(values.size());
  copyDeviceHalfToFloat(target, values.data(), f.data(), f.size());
  setInitialValue(t, ArrayRef<float>(f));
}

// ---- host handles

template <class Map>
static void checkHandle(const Map &map, const std::string &handle, const char *op) {
  if (map.count(handle))
    throw errors::handle_used_twice(std::string(op) + ": handle must be new, got '" + handle +
                                    "' again");
}

// Each stream has a buffer on the host, and so has each tensor that the host writes or reads. The
// SDK documents a limit, but a public program with a larger stream has run on four IPUs.
static void checkStreamBytes(const GraphImpl &g, const std::string &what, const Type &type,
                             std::size_t n) {
  const std::uint64_t limit = Access::info(g.target).hostStreamBytes,
                      bytes = std::uint64_t(n) * core::typeSize(type);
  if (bytes > limit)
    core::warnOnce(what + " has " + std::to_string(bytes) + " bytes; the SDK documents at most " +
                   std::to_string(limit));
}

void Graph::createHostWrite(StringRef handle, const Tensor &t, bool) {
  checkHandle(impl->hostWrites, handle, "createHostWrite");
  checkStreamBytes(*impl, "createHostWrite: the tensor of handle '" + handle.str() + "'",
                   t.elementType(), t.numElements());
  if (t.containsConstant())
    throw errors::host_access_to_constant("createHostWrite: tensor " + core::tensorName(t) +
                                          " of handle '" + handle.str() + "' must not be constant");
  if (t.containsAliases())
    throw errors::host_access_to_constant("createHostWrite: tensor " + core::tensorName(t) +
                                          " of handle '" + handle.str() +
                                          "' must not repeat elements");
  impl->hostWrites.emplace(handle.str(), t);
}

void Graph::createHostRead(StringRef handle, const Tensor &t, bool) {
  checkHandle(impl->hostReads, handle, "createHostRead");
  checkStreamBytes(*impl, "createHostRead: the tensor of handle '" + handle.str() + "'",
                   t.elementType(), t.numElements());
  Access::impl(t);
  impl->hostReads.emplace(handle.str(), t);
}

static DataStream addStream(GraphImpl &g, const std::string &handle, const Type &type,
                            std::size_t n, DataStreamType direction, ReplicatedStreamMode mode,
                            const char *op) {
  checkHandle(g.streams, handle, op);
  checkHandle(g.remotes, handle, op);
  if (core::typeSize(type) == 0 || n == 0)
    throw errors::stream_size(std::string(op) + ": stream '" + handle +
                              "' must have elements of a valid type, got " + std::to_string(n) +
                              " of " + type.toString().str());
  checkStreamBytes(g, std::string(op) + ": stream '" + handle + "'", type, n);
  auto s = std::make_shared<core::StreamInfo>();
  s->handle = handle;
  s->type = type;
  s->numElements = n;
  s->direction = direction;
  s->mode = mode;
  s->replication = g.replication;
  s->index = static_cast<unsigned>(g.streamList.size());
  g.streams[handle] = s;
  g.streamList.push_back(s);
  return Access::makeStream(s);
}

DataStream Graph::addHostToDeviceFIFO(StringRef handle, const Type &elementType,
                                      std::size_t numElements, ReplicatedStreamMode replicatedMode,
                                      const OptionFlags &) {
  return addStream(*impl, handle, elementType, numElements, DataStreamType::HostToDeviceFIFO,
                   replicatedMode, "addHostToDeviceFIFO");
}

DataStream Graph::addDeviceToHostFIFO(StringRef handle, const Type &elementType,
                                      std::size_t numElements, const OptionFlags &) {
  return addStream(*impl, handle, elementType, numElements, DataStreamType::DeviceToHostFIFO,
                   ReplicatedStreamMode::REPLICATE, "addDeviceToHostFIFO");
}

RemoteBuffer Graph::addRemoteBuffer(StringRef handle, const Type &elementType,
                                    std::size_t numElements, std::size_t repeats,
                                    bool rearrangeOnHost, bool optimiseMemory) {
  checkHandle(impl->streams, handle, "addRemoteBuffer");
  checkHandle(impl->remotes, handle, "addRemoteBuffer");
  if (core::typeSize(elementType) == 0 || numElements == 0 || repeats == 0)
    throw errors::stream_size("addRemoteBuffer: buffer '" + handle.str() +
                              "' must have rows of elements of a valid type, got " +
                              std::to_string(repeats) + " rows of " + std::to_string(numElements) +
                              " " + elementType.toString().str());
  auto b = std::make_shared<core::RemoteBufferInfo>();
  b->handle = handle.str();
  b->type = elementType;
  b->numElements = numElements;
  b->repeats = repeats;
  b->rearrangeOnHost = rearrangeOnHost;
  b->optimiseMemory = optimiseMemory;
  b->index = static_cast<unsigned>(impl->remoteList.size());
  impl->remotes[b->handle] = b;
  impl->remoteList.push_back(b);
  return Access::makeRemote(b);
}

std::string DataStream::handle() const { return Access::info(*this).handle; }
std::size_t DataStream::numElements() const { return Access::info(*this).numElements; }
unsigned DataStream::replicationFactor() const { return Access::info(*this).replication; }
ReplicatedStreamMode DataStream::replicatedMode() const { return Access::info(*this).mode; }
DataStreamType DataStream::type() const { return Access::info(*this).direction; }
Type DataStream::elementType() const { return Access::info(*this).type; }
bool isDeviceToHost(DataStreamType t) {
  return t == DataStreamType::DeviceToHostFIFO || t == DataStreamType::DeviceToHostBuffer;
}
bool isHostToDevice(DataStreamType t) { return !isDeviceToHost(t); }
bool isRemoteBuffer(DataStreamType t) {
  return t == DataStreamType::HostToDeviceBuffer || t == DataStreamType::DeviceToHostBuffer;
}

std::string RemoteBuffer::handle() const { return Access::info(*this).handle; }
std::size_t RemoteBuffer::numElements() const { return Access::info(*this).numElements; }
std::size_t RemoteBuffer::getRepeats() const { return Access::info(*this).repeats; }
Type RemoteBuffer::elementType() const { return Access::info(*this).type; }
bool RemoteBuffer::isRearrangeOnHost() const { return Access::info(*this).rearrangeOnHost; }
bool RemoteBuffer::isOptimisedForMemory() const { return Access::info(*this).optimiseMemory; }

static DataStream sideOf(const core::RemoteBufferInfo &b, DataStreamType direction) {
  auto s = std::make_shared<core::StreamInfo>();
  s->handle = b.handle;
  s->type = b.type;
  s->numElements = b.numElements;
  s->direction = direction;
  return Access::makeStream(s);
}
DataStream RemoteBuffer::getIpuToHostStream() const {
  return sideOf(Access::info(*this), DataStreamType::DeviceToHostBuffer);
}
DataStream RemoteBuffer::getHostToIpuStream() const {
  return sideOf(Access::info(*this), DataStreamType::HostToDeviceBuffer);
}

// ---- virtual graphs and the rest

// `tiles` are of this graph; so many of each of the IPUs.
Graph Graph::withTiles(const std::vector<unsigned> &list, unsigned numIPUs) const {
  Graph g(target);
  g.impl = impl;
  for (unsigned t : list)
    g.tiles.push_back(toPhysicalTile(t, "createVirtualGraph"));
  g.target = target.createVirtualTarget(numIPUs, static_cast<unsigned>(list.size()) / numIPUs);
  return g;
}

// The same tiles of every IPU.
Graph Graph::createVirtualGraph(const std::vector<unsigned> &perIpuTiles) {
  const unsigned ipus = target.getNumIPUs(), perIpu = target.getTilesPerIPU();
  std::vector<unsigned> t;
  for (unsigned ipu = 0; ipu < ipus; ++ipu)
    for (unsigned tile : perIpuTiles) {
      if (tile >= perIpu)
        throw errors::bad_mapping("createVirtualGraph: tile of an IPU must be below " +
                                  std::to_string(perIpu) + ", got " + std::to_string(tile));
      t.push_back(ipu * perIpu + tile);
    }
  return withTiles(t, ipus);
}

// Tiles of this graph, IPU behind IPU: some of one of them, or all of several.
Graph Graph::createVirtualGraph(unsigned lowerTile, unsigned upperTile) {
  if (lowerTile >= upperTile)
    throw errors::bad_mapping("createVirtualGraph: lowerTile must be below upperTile, got " +
                              std::to_string(lowerTile) + " and " + std::to_string(upperTile));
  const unsigned perIpu = target.getTilesPerIPU();
  unsigned ipus = 1;
  if (lowerTile / perIpu != (upperTile - 1) / perIpu) {
    if (lowerTile % perIpu != 0 || upperTile % perIpu != 0)
      throw errors::bad_mapping("createVirtualGraph: tiles of several IPUs must be all of each (" +
                                std::to_string(perIpu) + "), got " + std::to_string(lowerTile) +
                                " to " + std::to_string(upperTile));
    ipus = (upperTile - lowerTile) / perIpu;
  }
  std::vector<unsigned> t;
  for (unsigned i = lowerTile; i < upperTile; ++i)
    t.push_back(i);
  return withTiles(t, ipus);
}

Graph Graph::createVirtualGraph(unsigned numTilesPerIPU) {
  std::vector<unsigned> t;
  for (unsigned i = 0; i < numTilesPerIPU; ++i)
    t.push_back(i);
  return createVirtualGraph(t);
}

Graph Graph::getTopLevelGraph() {
  Graph g(impl->target);
  g.impl = impl;
  return g;
}

Tensor Graph::addReplicationIndexConstant(const DebugContext &dc) {
  Tensor t = addConstant(UNSIGNED_INT, {}, 0u, dc);
  impl->variables[Access::impl(t).var].replicaIndex = true;
  return t;
}

Function Graph::addFunction(const program::Program &program) {
  impl->functions.push_back(program);
  Function function;
  function.id_ = static_cast<unsigned>(impl->functions.size() - 1);
  return function;
}

} // namespace poplar
