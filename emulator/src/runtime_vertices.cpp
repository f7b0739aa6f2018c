// SPDX-License-Identifier: Apache-2.0
// Vertices that a graph knows without codelets: the transpositions of the SDK's own runtime, which
// PopLibs uses by name. What they do with their fields is what PopLibs connects to them. No source
// of theirs is public.
#include <poplar/Graph.hpp>
#include <poplar/VertexIntrospector.hpp>

#include "../popc/registration.hpp"
#include "core.hpp"

namespace poplar {
namespace {

using codelet_abi::Field;
constexpr VectorLayout onePtr = VectorLayout::ONE_PTR;

// Sides of matrices are counted in blocks: 8 elements of one byte, 4 of two bytes (and here of
// four).
template <class T> constexpr unsigned blockSide() { return sizeof(T) == 1 ? 8 : 4; }

// A part of a matrix of `rows` times `cols`. In `src`, rows are `srcStride` apart, in `dst` columns
// `dstStride`.
template <class T>
void transpose(const T *src, T *dst, unsigned rows, unsigned cols, unsigned srcStride,
               unsigned dstStride) {
  for (unsigned r = 0; r < rows; ++r)
    for (unsigned c = 0; c < cols; ++c)
      dst[c * dstStride + r] = src[r * srcStride + c];
}

// Matrices one behind the other, `first` up to `first + n`.
template <class T>
void transposeMany(const T *src, T *dst, unsigned rows, unsigned cols, unsigned first, unsigned n) {
  for (unsigned i = first; i < first + n; ++i)
    transpose(src + i * rows * cols, dst + i * rows * cols, rows, cols, cols, rows);
}

template <class T> struct Matrices {
  Input<Vector<T, onePtr, 8>> src;
  Output<Vector<T, onePtr, 8>> dst;
  unsigned short numSrcRowsD4Or8;
  unsigned short numSrcColumnsD4Or8;
  unsigned rows() const { return numSrcRowsD4Or8 * blockSide<T>(); }
  unsigned cols() const { return numSrcColumnsD4Or8 * blockSide<T>(); }
};

// The first workers take `numTranspositions` matrices each, the others one less.
template <class T> struct Transpose1D : MultiVertex, Matrices<T> {
  unsigned short numTranspositions;
  unsigned short workerCount;
  void compute(unsigned worker) {
    const unsigned less = worker >= workerCount;
    const unsigned first = worker * numTranspositions - (less ? worker - workerCount : 0);
    transposeMany(&this->src[0], &this->dst[0], this->rows(), this->cols(), first,
                  numTranspositions - less);
  }
};

template <class T> struct Transpose1DSingleWorker : Vertex, Matrices<T> {
  unsigned short numTranspositionsM1;
  void compute() {
    transposeMany(&this->src[0], &this->dst[0], this->rows(), this->cols(), 0,
                  numTranspositionsM1 + 1u);
  }
};

// Four numbers a worker: where its part begins in `src` and in `dst`, divided by a block's side,
// and its rows and columns in blocks. Workers without a part have none.
template <class T> struct SplitTranspose1D : MultiVertex, Matrices<T> {
  Input<Vector<unsigned short>> workList;
  void compute(unsigned worker) {
    if (4 * worker + 4 > workList.size())
      return;
    constexpr unsigned side = blockSide<T>();
    const unsigned short *part = &workList[4 * worker];
    transpose(&this->src[part[0] * side], &this->dst[part[1] * side], part[2] * side,
              part[3] * side, this->cols(), this->rows());
  }
};

template <class T> struct Transpose2D : Vertex {
  Vector<Input<Vector<T, onePtr, 8>>> src;
  Vector<Output<Vector<T, onePtr, 8>>, onePtr> dst;
  unsigned short numSrcRows;
  unsigned short numSrcColumns;
  void compute() {
    for (unsigned i = 0; i < src.size(); ++i)
      transpose(&src[i][0], &dst[i][0], numSrcRows, numSrcColumns, numSrcColumns, numSrcRows);
  }
};

// ---- what a codelet object says of its vertices (popc/registration.py)

template <class V> bool run(void *vertex, unsigned worker) {
  return codelet_registration::call(*static_cast<V *>(vertex), &V::compute, worker);
}
template <class V, class C, class T> Field field(const char *name, T C::*member) {
  Field f = codelet_registration::describe(name, member);
  f.offset = codelet_registration::offsetIn<V>(member);
  return f;
}

struct Known {
  std::string name;
  std::vector<Field> fields;
  codelet_abi::Vertex vertex;
  PerfEstimateFunc estimator;
};

// Tokens are those of the classes above. Cycles: each block is loaded and stored 8 bytes at a time,
// both in one instruction; element by element a load, a store and a step.
template <class V>
Known known(const std::string &name, std::vector<Field> fields, unsigned tokens,
            PerfEstimateFunc estimator) {
  return {name,
          std::move(fields),
          {nullptr, codelet_registration::kindOf<V>(), sizeof(V), alignof(V), nullptr, 0, &run<V>,
           tokens},
          std::move(estimator)};
}

constexpr unsigned overhead = 20; // cycles of a call
std::uint64_t valueOf(const VertexIntrospector &v, const Target &t, const char *name) {
  return v.getFieldInfo(name).getInitialValue<unsigned>(t);
}
template <class T>
std::uint64_t blockCycles(const VertexIntrospector &v, const Target &t, std::uint64_t matrices) {
  const std::uint64_t blocks =
      valueOf(v, t, "numSrcRowsD4Or8") * valueOf(v, t, "numSrcColumnsD4Or8");
  return overhead + matrices * blocks * blockSide<T>() * blockSide<T>() * sizeof(T) / 8;
}

template <class T> void addOf(const std::string &type, std::vector<Known> &all) {
  const auto matrices = [](auto *v) {
    using V = std::remove_pointer_t<decltype(v)>;
    return std::vector<Field>{field<V>("src", &V::src), field<V>("dst", &V::dst),
                              field<V>("numSrcRowsD4Or8", &V::numSrcRowsD4Or8),
                              field<V>("numSrcColumnsD4Or8", &V::numSrcColumnsD4Or8)};
  };
  const auto name = [&](const char *what) {
    return std::string("poplar_rt::") + what + "<" + type + ">";
  };
  using Many = Transpose1D<T>;
  std::vector<Field> fields = matrices(static_cast<Many *>(nullptr));
  fields.push_back(field<Many>("numTranspositions", &Many::numTranspositions));
  fields.push_back(field<Many>("workerCount", &Many::workerCount));
  all.push_back(known<Many>(name("Transpose1D"), std::move(fields), 160,
                            [](const VertexIntrospector &v, const Target &t) {
                              return 6 * blockCycles<T>(v, t, valueOf(v, t, "numTranspositions"));
                            }));
  using Single = Transpose1DSingleWorker<T>;
  fields = matrices(static_cast<Single *>(nullptr));
  fields.push_back(field<Single>("numTranspositionsM1", &Single::numTranspositionsM1));
  all.push_back(known<Single>(name("Transpose1DSingleWorker"), std::move(fields), 130,
                              [](const VertexIntrospector &v, const Target &t) {
                                const std::uint64_t n = valueOf(v, t, "numTranspositionsM1") + 1;
                                return blockCycles<T>(v, t, n);
                              }));
  using Split = SplitTranspose1D<T>;
  fields = matrices(static_cast<Split *>(nullptr));
  fields.push_back(field<Split>("workList", &Split::workList));
  all.push_back(known<Split>(
      name("SplitTranspose1D"), std::move(fields), 130,
      [](const VertexIntrospector &v, const Target &t) {
        const auto parts = v.getFieldInfo("workList").getInitialValues<unsigned>(t);
        std::uint64_t most = 0;
        for (std::size_t i = 0; i + 3 < parts.size(); i += 4)
          most = std::max<std::uint64_t>(most, std::uint64_t(parts[i + 2]) * parts[i + 3]);
        return 6 * (overhead + most * blockSide<T>() * blockSide<T>() * sizeof(T) / 8);
      }));
  using Lists = Transpose2D<T>;
  fields = {field<Lists>("src", &Lists::src), field<Lists>("dst", &Lists::dst),
            field<Lists>("numSrcRows", &Lists::numSrcRows),
            field<Lists>("numSrcColumns", &Lists::numSrcColumns)};
  all.push_back(known<Lists>(
      name("Transpose2D"), std::move(fields), 90, [](const VertexIntrospector &v, const Target &t) {
        const std::uint64_t elements = valueOf(v, t, "numSrcRows") * valueOf(v, t, "numSrcColumns");
        return overhead + v.getFieldInfo("src").size() * 3 * elements;
      }));
}

std::vector<Known> makeAll() {
  std::vector<Known> all;
  addOf<unsigned char>("unsigned char", all);
  addOf<half>("half", all);
  addOf<short>("short", all);
  addOf<unsigned short>("unsigned short", all);
  addOf<float>("float", all);
  addOf<int>("int", all);
  addOf<unsigned>("unsigned int", all);
  for (Known &k : all) {
    k.vertex.name = k.name.c_str();
    k.vertex.fields = k.fields.data();
    k.vertex.numFields = static_cast<unsigned>(k.fields.size());
  }
  return all;
}

} // namespace

void core::addRuntimeVertices(GraphImpl &graph) {
  static const std::vector<Known> all = makeAll();
  for (const Known &k : all) {
    graph.codelets[k.name] = &k.vertex;
    graph.estimators[k.name] = k.estimator;
  }
}

} // namespace poplar
