// SPDX-License-Identifier: Apache-2.0
// What a graph is made of, behind the public classes.
#pragma once

#include <poplar/Engine.hpp>

#include <deque>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "../popc/codelet_abi.hpp"
#include "errors.hpp"

namespace poplar {
namespace core {

using VarId = unsigned;
constexpr unsigned noTile = ~0u;

// "The maximum buffer size for each stream is 128 MBytes" (the SDK's documentation of DataStream).
constexpr std::uint64_t hostStreamLimit = std::uint64_t(128) << 20;

struct TargetInfo {
  TargetType type = TargetType::IPU_MODEL;
  std::string system = "ipu2";
  std::string arch = "ipu2";
  unsigned numIPUs = 1;
  unsigned tilesPerIPU = 1472;
  unsigned numWorkerContexts = 6;
  unsigned bytesPerTile = 638976;
  double clock = 1.85e9;
  unsigned exchangeBytesPerCycle = 4;
  unsigned memcpyBytesPerCycle = 8;
  unsigned minIPUSyncDelay = 15;
  unsigned globalSyncCycles = 500;
  OptionFlags options;                             // that the target was made with
  std::uint64_t hostStreamBytes = hostStreamLimit; // at most, of one stream or host handle
};

struct DeviceInfo {
  Target target;
  unsigned id = 0;
  bool attached = true;
  bool listed = false; // by a DeviceManager: an IPU has one owner at a time
  unsigned firstIPU = 0;
};
bool attachIPUs(DeviceInfo &device); // false where another has one of them
void detachIPUs(DeviceInfo &device);

/// For the end of a switch over an enumeration: no enumerator is left, so the value is none.
// A line on stderr, the first time.
void warnOnce(const std::string &text);

template <class Enumeration> [[noreturn]] void throwUnknown(const char *what, Enumeration value) {
  throw errors::bad_argument(std::string(what) +
                             " must be one that the emulator knows, got number " +
                             std::to_string(static_cast<int>(value)));
}

std::size_t typeSize(const Type &t);
inline codelet_abi::Element elementOf(const Type &t) {
  return static_cast<codelet_abi::Element>(t.hash());
}
inline Type typeOf(codelet_abi::Element e) { return Type(static_cast<unsigned char>(e), nullptr); }
/// Converts one host value to the device representation; throws type_error when it does not fit.
void convertValue(const void *src, const TypeTraits &traits, const Type &type, void *dst,
                  const std::string &what);
/// The device value as a double.
double valueAsDouble(const void *src, const Type &type);

// A run of elements of a variable. step 1: contiguous; any other: `length` single elements.
struct Region {
  VarId var;
  std::int64_t begin;
  std::size_t length;
  std::int64_t step;
};

// A flat sequence of regions that strided views can index.
struct RegionList {
  std::vector<Region> regions;
  std::vector<std::size_t> starts; // flat index of each region's first element
};

// A strided view of a variable, or of a region list (after concat or an incompatible reshape).
struct TensorImpl {
  const GraphImpl *graph = nullptr;
  Type type;
  std::vector<std::size_t> shape;
  std::vector<std::int64_t> strides;
  std::int64_t offset = 0;
  VarId var = ~0u;
  std::shared_ptr<const RegionList> list; // when set, `var` is not used
};

// Tiles of a variable's elements: disjoint intervals, sorted, neighbours on one tile merged.
class TileMap {
public:
  struct Part {
    std::size_t end;
    unsigned tile;
  };
  void set(std::size_t begin, std::size_t end, unsigned tile);
  const std::map<std::size_t, Part> &parts() const { return parts_; }
  /// Calls f(begin, end, tile) over [begin, end); tile is noTile for gaps.
  template <class F> void forEach(std::size_t begin, std::size_t end, F f) const {
    auto it = parts_.upper_bound(begin);
    if (it != parts_.begin() && std::prev(it)->second.end > begin)
      --it;
    while (begin < end) {
      if (it == parts_.end() || it->first >= end) {
        f(begin, end, noTile);
        return;
      }
      if (it->first > begin) {
        f(begin, it->first, noTile);
        begin = it->first;
      }
      const std::size_t stop = std::min(end, it->second.end);
      f(begin, stop, it->second.tile);
      begin = stop;
      ++it;
    }
  }

private:
  std::map<std::size_t, Part> parts_;
};

struct InitialValues {
  std::size_t begin; // element
  std::vector<std::uint8_t> bytes;
  std::uint64_t times; // so often, one after another
};

struct Variable {
  Type type;
  std::size_t numElements = 0;
  std::string name;
  bool constant = false;
  bool replicaIndex = false;      // the constant that differs by replica
  std::vector<std::uint8_t> data; // of a constant
  std::vector<InitialValues> initial;
  TileMap tiles;
};

struct FieldRecord {
  const codelet_abi::Field *info = nullptr;
  std::vector<Tensor> edges; // one, or one per element of a list field
  bool sized = false;        // list or state vector: its number of elements is known
  bool constantEdge = false; // connected to a value: its constant follows the vertex's tile
  bool initialised = false;
  std::size_t size = 0;
  std::vector<std::uint8_t> initial; // state, in the field's element type
};

struct VertexRecord {
  const codelet_abi::Vertex *type = nullptr;
  unsigned computeSet = 0;
  unsigned tile = noTile;
  bool hasEstimate = false;
  VertexPerfEstimate estimate;
  std::vector<FieldRecord> fields;
};

struct ComputeSetRecord {
  std::string name;
  std::vector<vertex_id> vertices;
};

struct StreamInfo {
  std::string handle;
  Type type;
  std::size_t numElements = 0;
  DataStreamType direction = DataStreamType::HostToDeviceFIFO;
  ReplicatedStreamMode mode = ReplicatedStreamMode::REPLICATE;
  unsigned replication = 1;
  unsigned index = 0;
};

struct RemoteBufferInfo {
  std::string handle;
  Type type;
  std::size_t numElements = 0;
  std::size_t repeats = 0;
  bool rearrangeOnHost = false;
  bool optimiseMemory = false;
  unsigned index = 0;
};

// A loaded codelet object: stays open while a graph or an engine may call into it.
struct CodeletLibrary {
  void *handle = nullptr;
  std::string path;
  std::string object; // its bytes, where the target is an IPU
  CodeletLibrary(void *h, std::string p) : handle(h), path(std::move(p)) {}
  CodeletLibrary(const CodeletLibrary &) = delete;
  ~CodeletLibrary();
};

struct GraphImpl {
  Target target; // of one replica
  Target device; // of all
  unsigned replication = 1;
  std::deque<Variable> variables;
  std::vector<VertexRecord> vertices;
  std::vector<ComputeSetRecord> computeSets;
  std::unordered_map<std::string, const codelet_abi::Vertex *> codelets;
  std::set<const codelet_abi::Vertex *> askWorker; // of codelets whose builtins ask for it
  std::set<const codelet_abi::Vertex *>
      hideEvents; // of codelets not made to show floating-point ones
  std::vector<std::shared_ptr<CodeletLibrary>> libraries;
  std::set<std::string> codeletFiles;
  std::unordered_map<std::string, PerfEstimateFunc> estimators;
  std::vector<program::Program> functions;
  std::map<std::string, Tensor> hostWrites;
  std::map<std::string, Tensor> hostReads;
  std::map<std::string, std::shared_ptr<const StreamInfo>> streams;
  std::map<std::string, std::shared_ptr<const RemoteBufferInfo>> remotes;
  std::vector<std::shared_ptr<const StreamInfo>> streamList;
  std::vector<std::shared_ptr<const RemoteBufferInfo>> remoteList;

  VarId addVariable(const Type &type, std::size_t n, const std::string &name);
  Tensor wholeTensor(VarId var, std::vector<std::size_t> shape) const;
  VertexRecord &vertex(const VertexRef &v);
  FieldRecord &field(const FieldRef &f);
  std::string describe(const FieldRef &f) const;
};

// runtime_vertices.cpp: those that need no codelets.
void addRuntimeVertices(GraphImpl &graph);
// codelets.cpp: as addCodelets of a file with these bytes, for an executable.
void loadObjectOfBytes(GraphImpl &graph, const std::string &bytes, const std::string &shownPath);

// The only way from public objects to what they hold.
struct Access {
  static const TensorImpl &impl(const Tensor &t); // throws for a default-constructed tensor
  static Tensor makeTensor(TensorImpl impl);
  static GraphImpl &impl(const Graph &g) { return *g.impl; }
  static const std::shared_ptr<GraphImpl> &shared(const Graph &g) { return g.impl; }
  static const std::shared_ptr<ProgramImpl> &impl(const program::Program &p) { return p.impl; }
  static void setImpl(program::Program &p, std::shared_ptr<ProgramImpl> i) {
    p.impl = std::move(i);
  }
  static const StreamInfo &info(const DataStream &s);
  static const RemoteBufferInfo &info(const RemoteBuffer &b);
  static DataStream makeStream(std::shared_ptr<const StreamInfo> i);
  static RemoteBuffer makeRemote(std::shared_ptr<const RemoteBufferInfo> i);
  static Target makeTarget(TargetInfo i);
  static const TargetInfo &info(const Target &t) { return *t.info; }
  static Device makeDevice(DeviceInfo i);
  static const std::shared_ptr<DeviceInfo> &info(const Device &d) { return d.info; }
  static VertexRef makeVertex(vertex_id id);
  static VertexRef vertexOf(const FieldRef &f) { return f.vertex_; }
  static const std::string &nameOf(const FieldRef &f) { return f.name_; }
  static VertexIntrospector introspect(const VertexRecord &v);
  static Executable makeExecutable(std::shared_ptr<ExecutableImpl> e);
  static const std::shared_ptr<ExecutableImpl> &impl(const Executable &e) { return e.impl; }
  static EngineImpl &impl(const Engine &e) { return *e.impl; }
};

std::string shapeString(const std::vector<std::size_t> &shape);
std::size_t numElements(const std::vector<std::size_t> &shape);
std::string tensorName(const Tensor &t);
/// Throws index_error unless `dim` is a dimension of the tensor.
void checkDim(const char *op, const TensorImpl &t, unsigned dim);
/// The mapping's first gap, if any: sets var and element.
bool findUnmapped(const Tensor &t, VarId &var, std::size_t &element);
Tensor flattenTensor(const Tensor &t);

} // namespace core
} // namespace poplar
