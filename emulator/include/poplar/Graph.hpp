// SPDX-License-Identifier: Apache-2.0
#pragma once

// More of the standard library than this file needs: programs written for the SDK find it with its
// headers.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <fstream>
#include <iostream>
#include <map>
#include <memory>
#include <numeric>
#include <set>
#include <sstream>
#include <string>
#include <type_traits>
#include <unordered_map>
#include <unordered_set>
#include <vector>
#if __cplusplus >= 201703L
#include <optional>
#endif

#include "ArrayRef.hpp"
#include "CodeletFileType.hpp"
#include "DataStream.hpp"
#include "DebugContext.hpp"
#include "Device.hpp"
#include "FunctionBufferMappingType.hpp"
#include "GraphElements.hpp"
#include "HostFunctionCallback.hpp"
#include "Interval.hpp"
#include "OptionFlags.hpp"
#include "PerfEstimateFunc.hpp"
#include "Program.hpp"
#include "ReplicatedStreamMode.hpp"
#include "SerializationFormat.hpp"
#include "Target.hpp"
#include "Tensor.hpp"
#include "TensorCloneMethod.hpp"
#include "TensorRearranger.hpp"
#include "Type.hpp"
#include "TypeTraits.hpp"
#include "VariableMappingMethod.hpp"
#include "VertexIntrospector.hpp"
#include "exceptions.hpp"
#include "replication_factor.hpp"

namespace poplar {

namespace core {
struct GraphImpl;
struct Access;
} // namespace core

std::string versionString();
std::string packageHash();

/// Variables, vertices and their wiring. Move-only.
class Graph {
public:
  using TileToTensorMapping = std::vector<std::vector<Interval>>;

  /// A field's name and what to connect to it.
  class ConnectionDesc {
  public:
    ConnectionDesc(StringRef field, Tensor t) : field(field), tensors({t}), isArray(false) {}
    ConnectionDesc(StringRef field, ArrayRef<Tensor> ts)
        : field(field), tensors(ts.begin(), ts.end()), isArray(true) {}
    /// A constant on the vertex's tile.
    template <typename T>
    ConnectionDesc(StringRef field, T v,
                   typename std::enable_if<TypeTraits::isSimpleType<T>()>::type * = nullptr)
        : field(field), isArray(false), traits(TypeTraits::make<T>()),
          value(reinterpret_cast<const char *>(&v), sizeof v) {}

  private:
    friend class Graph;
    std::string field;
    std::vector<Tensor> tensors;
    bool isArray;
    TypeTraits traits;
    std::string value; // the constant's bytes
  };

  Graph();
  Graph(const Target &target, replication_factor r = replication_factor(1));
  Graph(const Device &device, replication_factor r = replication_factor(1));
  Graph(Graph &&) noexcept;
  Graph &operator=(Graph &&) noexcept;
  Graph(const Graph &) = delete;
  Graph &operator=(const Graph &) = delete;
  ~Graph();

  const Target &getTarget() const;

  /// Loads codelets from a source file or a .gp object. Returns false if the file was added before.
  bool addCodelets(StringRef src, CodeletFileType type = CodeletFileType::Auto,
                   StringRef compileFlags = "", StringRef targetName = "");
  bool addCodelets(StringRef src, CodeletFileType type, StringRef compileFlags,
                   std::ostream &compileOutput, StringRef targetName = "");
  bool addCodelets(ArrayRef<std::string> xs, StringRef compileFlags = "",
                   StringRef targetName = "");
  void addCodelets(std::stringstream &stream, StringRef compileFlags = "",
                   CodeletFileType type = CodeletFileType::CppSource, StringRef targetName = "");
  bool hasCodelet(StringRef codeletName);

  VertexRef addVertex(ComputeSet cs, StringRef vertexType);
  VertexRef addVertex(ComputeSet cs, StringRef vertexType, ArrayRef<ConnectionDesc> connections);
  /// Not implemented in the emulator: throws.
  VertexRef addExternalExchangeVertex(ComputeSet cs, StringRef vertexType,
                                      unsigned incomingDownCount, bool usesEastEdge,
                                      bool sendsXReq);
  ComputeSet addComputeSet(const DebugContext &debugContext = {});

  Tensor addVariable(const Type &type, ArrayRef<std::size_t> shape,
                     const DebugContext &debugContext = {});
  Tensor addVariable(const Type &type, ArrayRef<std::size_t> shape,
                     VariableMappingMethod mappingMethod, const DebugContext &debugContext = {});

  // With the metadata of FP8 types, which are not implemented in the emulator: for these it throws.
  // With other types the metadata must not be valid(), as Tensor::getMetadata of their tensors is.
  Tensor addVariable(const Type &type, const Tensor &metadata, ArrayRef<std::size_t> shape,
                     const DebugContext &debugContext = {});
  Tensor addVariable(const Type &type, const Tensor &metadata, ArrayRef<std::size_t> shape,
                     VariableMappingMethod mappingMethod, const DebugContext &debugContext = {});
  template <typename T>
  Tensor addConstant(const Type &type, const Tensor &metadata, ArrayRef<std::size_t> shape,
                     ArrayRef<T> values, const DebugContext &debugContext = {"<const>"}) {
    checkMetadata(type, metadata, "addConstant");
    return addConstant(type, shape, values, debugContext);
  }
  template <typename T>
  Tensor addConstant(const Type &type, const Tensor &metadata, ArrayRef<std::size_t> shape, T val,
                     const DebugContext &debugContext = {"<const>"},
                     typename std::enable_if<TypeTraits::isSimpleType<T>()>::type * = nullptr) {
    checkMetadata(type, metadata, "addConstant");
    return addConstant(type, shape, val, debugContext);
  }
  Tensor addConstant(const Type &type, const Tensor &metadata, ArrayRef<std::size_t> shape,
                     const void *values, const TypeTraits &traits, bool broadcast,
                     const DebugContext &debugContext = {"<const>"});
  /// Not implemented in the emulator: throws.
  Tensor addExternalVariable(const Type &type, ArrayRef<std::size_t> shape, StringRef name,
                             const DebugContext &debugContext = {});

  template <typename T>
  Tensor addConstant(const Type &type, ArrayRef<std::size_t> shape, ArrayRef<T> values,
                     const DebugContext &debugContext = {"<const>"}) {
    checkConstantSize(shape, values.size());
    return addConstant(type, shape, static_cast<const void *>(values.data()), TypeTraits::make<T>(),
                       false, debugContext);
  }
  template <typename T>
  Tensor addConstant(const Type &type, ArrayRef<std::size_t> shape, const T *values,
                     const DebugContext &debugContext = {"<const>"}) {
    return addConstant(type, shape, static_cast<const void *>(values), TypeTraits::make<T>(), false,
                       debugContext);
  }
  /// Every element is `val`.
  template <typename T>
  Tensor addConstant(const Type &type, ArrayRef<std::size_t> shape, T val,
                     const DebugContext &debugContext = {"<const>"},
                     typename std::enable_if<TypeTraits::isSimpleType<T>()>::type * = nullptr) {
    return addConstant(type, shape, static_cast<const void *>(&val), TypeTraits::make<T>(), true,
                       debugContext);
  }
  Tensor addConstant(const Type &type, ArrayRef<std::size_t> shape, const void *values,
                     const TypeTraits &traits, bool broadcast,
                     const DebugContext &debugContext = {"<const>"});
  Tensor addConstantHalf(const Type &type, ArrayRef<std::size_t> shape, uint16_t val,
                         const DebugContext &debugContext = {"<const>"});
  Tensor addConstantHalf(const Type &type, ArrayRef<std::size_t> shape, const uint16_t *val,
                         const DebugContext &debugContext = {"<const>"});

  Tensor clone(const Type &type, const Tensor &t, const DebugContext &debugContext = {},
               TensorCloneMethod method = TensorCloneMethod::PRESERVE_ORDER_UNLESS_ALIASES);
  Tensor clone(const Tensor &t, const DebugContext &debugContext = {},
               TensorCloneMethod method = TensorCloneMethod::PRESERVE_ORDER_UNLESS_ALIASES);
  Tensor clone(const Type &type, const Tensor &metadata, const Tensor &t,
               const DebugContext &debugContext = {},
               TensorCloneMethod method = TensorCloneMethod::PRESERVE_ORDER_UNLESS_ALIASES);
  Tensor clone(const Tensor &metadata, const Tensor &t, const DebugContext &debugContext = {},
               TensorCloneMethod method = TensorCloneMethod::PRESERVE_ORDER_UNLESS_ALIASES);
  Tensor cloneN(const Type &type, const Tensor &metadata, const Tensor &t, std::size_t N,
                const DebugContext &debugContext = {},
                TensorCloneMethod method = TensorCloneMethod::PRESERVE_ORDER_UNLESS_ALIASES,
                TensorCloneDuplicationMethod duplicationMethod =
                    TensorCloneDuplicationMethod::DUPLICATE_BY_OUTER_DIMENSION);
  Tensor cloneN(const Tensor &metadata, const Tensor &t, std::size_t N,
                const DebugContext &debugContext = {},
                TensorCloneMethod method = TensorCloneMethod::PRESERVE_ORDER_UNLESS_ALIASES,
                TensorCloneDuplicationMethod duplicationMethod =
                    TensorCloneDuplicationMethod::DUPLICATE_BY_OUTER_DIMENSION);
  Tensor cloneN(const Type &type, const Tensor &t, std::size_t N,
                const DebugContext &debugContext = {},
                TensorCloneMethod method = TensorCloneMethod::PRESERVE_ORDER_UNLESS_ALIASES,
                TensorCloneDuplicationMethod duplicationMethod =
                    TensorCloneDuplicationMethod::DUPLICATE_BY_OUTER_DIMENSION);
  Tensor cloneN(const Tensor &t, std::size_t N, const DebugContext &debugContext = {},
                TensorCloneMethod method = TensorCloneMethod::PRESERVE_ORDER_UNLESS_ALIASES,
                TensorCloneDuplicationMethod duplicationMethod =
                    TensorCloneDuplicationMethod::DUPLICATE_BY_OUTER_DIMENSION);

  void connect(FieldRef field, const Tensor &tensor);
  /// Connects a constant that lives on the vertex's tile.
  template <typename T>
  void connect(FieldRef field, T v,
               typename std::enable_if<TypeTraits::isSimpleType<T>()>::type * = nullptr) {
    connectConstant(field, static_cast<const void *>(&v), TypeTraits::make<T>());
  }
  void connect(FieldRef field, ArrayRef<Tensor> tensors);

  void setPerfEstimate(const VertexRef &v, std::uint64_t cycles, std::uint64_t flops = 0);
  void setPerfEstimate(const VertexRef &v, const VertexPerfEstimate &estimate);
  VertexPerfEstimate getPerfEstimate(const VertexRef &v) const;
  void registerPerfEstimator(StringRef vertexTypeName, PerfEstimateFunc f);
  unsigned getNumVertices() const;

  void setFieldSize(FieldRef field, std::size_t size);
  std::size_t getFieldSize(FieldRef field) const;
  std::size_t getMaxFieldDim(StringRef vertexName, StringRef fieldName, unsigned dimIndex) const;
  double getMaxVertexFieldValue(StringRef vertexName, StringRef fieldName) const;
  template <typename T>
  T getMaxVertexFieldValueAs(StringRef vertexName, StringRef fieldName) const {
    return static_cast<T>(getMaxVertexFieldValue(vertexName, fieldName));
  }

  template <typename T>
  void setInitialValue(FieldRef field, T val,
                       typename std::enable_if<TypeTraits::isSimpleType<T>()>::type * = nullptr) {
    setFieldInitialValue(field, static_cast<const void *>(&val), 1, TypeTraits::make<T>(), false);
  }
  template <typename T> void setInitialValue(FieldRef field, ArrayRef<T> vals) {
    setFieldInitialValue(field, static_cast<const void *>(vals.data()), vals.size(),
                         TypeTraits::make<T>(), true);
  }
  template <typename T> void setInitialValue(FieldRef field, const std::vector<T> &vals) {
    setInitialValue(field, ArrayRef<T>(vals));
  }
  void setInitialValueHalf(FieldRef field, uint16_t val);
  void setInitialValueHalf(FieldRef field, ArrayRef<uint16_t> vals);
  template <typename T>
  void setInitialValue(const Tensor &t, T val,
                       typename std::enable_if<TypeTraits::isSimpleType<T>()>::type * = nullptr) {
    setTensorInitialValue(t, static_cast<const void *>(&val), 1, TypeTraits::make<T>(), true);
  }
  template <typename T> void setInitialValue(const Tensor &t, ArrayRef<T> values) {
    setTensorInitialValue(t, static_cast<const void *>(values.data()), values.size(),
                          TypeTraits::make<T>(), false);
  }
  /// Element `key` is `value`.
  void setInitialValue(const Tensor &t, const std::map<unsigned, unsigned> &values);
  void setInitialValueHalf(const Tensor &t, uint16_t val);
  void setInitialValueHalf(const Tensor &t, ArrayRef<uint16_t> values);

  void createHostWrite(StringRef handle, const Tensor &t, bool rearrangeOnHost = false);
  void createHostRead(StringRef handle, const Tensor &t, bool rearrangeOnHost = false);
  DataStream
  addHostToDeviceFIFO(StringRef handle, const Type &elementType, std::size_t numElements,
                      ReplicatedStreamMode replicatedMode = ReplicatedStreamMode::REPLICATE,
                      const OptionFlags &options = {});
  DataStream addDeviceToHostFIFO(StringRef handle, const Type &elementType, std::size_t numElements,
                                 const OptionFlags &options = {});
  /// `repeats` rows of `numElements` elements each.
  RemoteBuffer addRemoteBuffer(StringRef handle, const Type &elementType, std::size_t numElements,
                               std::size_t repeats = 1, bool rearrangeOnHost = false,
                               bool optimiseMemory = false);

  void setTileMapping(VertexRef v, unsigned tileNum);
  void setTileMapping(const Tensor &t, unsigned tileNum);
  void setTileMapping(const Tensor &t, const TileToTensorMapping &mapping);
  /// Intervals of the flattened view per tile.
  /// With `requireComplete`, throws invalid_tile_mapping for elements on no tile.
  TileToTensorMapping getTileMapping(const Tensor &t, bool requireComplete = true,
                                     bool allowExternal = false) const;
  TileToTensorMapping getTileMapping(const Tensor &t, bool *isComplete,
                                     bool allowExternal = false) const;
  TileToTensorMapping getVariableTileMapping(const Tensor &t) const;
  Tensor getVariable(VariableRef v) const;
  bool isConstant(VariableRef v) const;
  /// The given parts of the flattened view, sorted by address and merged, as lists of intervals
  /// that are contiguous in memory. `aliases` gets for each interval where in the flattened view
  /// its elements come first by this order: the interval's own begin, unless others have them
  /// already.
  std::vector<std::vector<Interval>>
  getSortedContiguousRegions(const Tensor &t, ArrayRef<Interval> regions,
                             bool removeAliasedIntervals = false,
                             std::vector<std::size_t> *aliases = nullptr) const;
  /// An order in which the tensor's elements lie in few contiguous regions.
  TensorRearranger getSimplifyingRearranger(const Tensor &t) const;
  /// Keeps only the first index of each dimension along which all elements are the same.
  Tensor findUnbroadcastTensor(const Tensor &t) const;
  void reorderToSimplify(Tensor *t, ArrayRef<Tensor *> ts, bool requireSimilarMapping = true) const;

  Graph createVirtualGraph(unsigned numTilesPerIPU);
  Graph createVirtualGraph(unsigned lowerTile, unsigned upperTile);
  Graph createVirtualGraph(const std::vector<unsigned> &perIpuTiles);
  Graph getTopLevelGraph();
  unsigned getReplicationFactor() const;
  Tensor addReplicationIndexConstant(const DebugContext &debugContext = {});
  unsigned convertTileToTopLevelGraphTile(unsigned tile) const;
  unsigned convertTopLevelGraphTileToTile(unsigned tile) const;
  unsigned convertVirtualTileToPhysicalTile(unsigned virtualTileId) const;
  unsigned convertPhysicalTileToVirtualTile(unsigned physicalTileId) const;
  unsigned convertPhysicalTileToVirtualTile(unsigned ipuId, unsigned physicalTileId) const;

  Function addFunction(const program::Program &program);
  // Not implemented in the emulator: these throw.
  FunctionBuffer addFunctionBuffer(const Function &f, FunctionBufferMappingType mapping);
  HostFunction addHostFunction(StringRef name, ArrayRef<HostFunctionArgument> inputs,
                               ArrayRef<HostFunctionArgument> outputs);

  /// Variables and vertices as JSON in a form of the emulator's own, whatever the format.
  void serialize(std::ostream &out, SerializationFormat format) const;
  /// Types, shapes and tiles of tensors, without what they hold. Only Binary can be read back: as
  /// variables of this graph.
  void serializeTensors(std::ostream &out, ArrayRef<Tensor> tensors,
                        SerializationFormat format) const;
  std::vector<Tensor> deserializeTensors(std::istream &in, SerializationFormat format);
  void serialize(std::ostream &out, ArrayRef<program::Program> progs,
                 SerializationFormat format) const;
  /// The vertices and their edges in the language of Graphviz.
  void outputVertexGraph(std::ostream &out, ArrayRef<program::Program> progs = {}) const;
  /// The compute sets in the language of Graphviz.
  void outputComputeGraph(std::ostream &out, ArrayRef<program::Program> progs = {}) const;

private:
  friend struct core::Access;
  void checkMetadata(const Type &type, const Tensor &metadata, const char *op) const;
  void checkConstantSize(ArrayRef<std::size_t> shape, std::size_t numValues) const;
  void connectConstant(FieldRef field, const void *value, const TypeTraits &traits);
  void setFieldInitialValue(FieldRef field, const void *values, std::size_t n,
                            const TypeTraits &traits, bool isArray);
  void setTensorInitialValue(const Tensor &t, const void *values, std::size_t n,
                             const TypeTraits &traits, bool broadcast);
  unsigned toPhysicalTile(unsigned tile, const char *what) const;
  Graph withTiles(const std::vector<unsigned> &list, unsigned numIPUs) const;

  std::shared_ptr<core::GraphImpl> impl;
  std::vector<unsigned> tiles; // of a virtual graph: physical tile of each of its tiles
  Target target;
};

} // namespace poplar
