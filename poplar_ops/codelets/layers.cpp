// SPDX-License-Identifier: Apache-2.0
//
// The state of one layer out of those of all, and back. A tile has every layer of what it works on:
// nothing is exchanged, and the number of the layer is data.
#include "lanes.hpp"

namespace sparq {

// How many bytes a worker copies at a time.
template <class T> constexpr unsigned copiedBytes() { return sizeof(T) == 2 ? 8 : sizeof(T); }

// One of nWorkers' share of a run of `width` numbers, whole copies.
template <class T>
static inline void copyRun(T *to, const T *from, unsigned width, unsigned worker,
                           unsigned nWorkers) {
  constexpr unsigned n = copiedBytes<T>(), step = n / sizeof(T);
  for (unsigned i = worker * step; i < width; i += nWorkers * step)
    __builtin_memcpy(aligned<n>(to + i), aligned<n>(from + i), n);
}

// Rows of one layer, {nRows, width}, from or to those of all, {nRows, nLayers, width}.
template <class T>
static inline void loadRows(T *state, const T *stored, unsigned nRows, unsigned width,
                            unsigned layer, unsigned nLayers, unsigned worker, unsigned nWorkers) {
  for (unsigned i = 0; i != nRows; ++i)
    copyRun(state + i * width, stored + (i * nLayers + layer) * width, width, worker, nWorkers);
}
template <class T>
static inline void storeRows(T *stored, const T *state, unsigned nRows, unsigned width,
                             unsigned layer, unsigned nLayers, unsigned worker, unsigned nWorkers) {
  for (unsigned i = 0; i != nRows; ++i)
    copyRun(stored + (i * nLayers + layer) * width, state + i * width, width, worker, nWorkers);
}

template <class T> class LoadLayer : public poplar::MultiVertex {
public:
  poplar::Input<unsigned> layer;
  poplar::Input<poplar::Vector<T, ONE_PTR, 8>> stored; // [nRows][nLayers][width]
  poplar::Output<poplar::Vector<T, ONE_PTR, 8>> state; // [nRows][width]
  unsigned nLayers, nRows, width;

  bool compute(unsigned worker) {
    loadRows(&state[0], &stored[0], nRows, width, *layer, nLayers, worker, this->numWorkers());
    return true;
  }
};

template <class T> class StoreLayer : public poplar::MultiVertex {
public:
  poplar::Input<unsigned> layer;
  poplar::InOut<poplar::Vector<T, ONE_PTR, 8>> stored; // [nRows][nLayers][width]
  poplar::Input<poplar::Vector<T, ONE_PTR, 8>> state;  // [nRows][width]
  unsigned nLayers, nRows, width;

  bool compute(unsigned worker) {
    storeRows(&stored[0], &state[0], nRows, width, *layer, nLayers, worker, this->numWorkers());
    return true;
  }
};

template class LoadLayer<half>;
template class LoadLayer<unsigned>;
template class StoreLayer<half>;
template class StoreLayer<unsigned>;

} // namespace sparq
