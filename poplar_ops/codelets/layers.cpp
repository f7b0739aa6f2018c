// SPDX-License-Identifier: Apache-2.0
//
// The state of one layer out of those of all, and back. A tile has every layer of what it works on:
// nothing is exchanged, and the number of the layer is data.
#include "lanes.hpp"

namespace sparq {

// How many bytes a worker copies at a time.
template <class T> constexpr unsigned copiedBytes() { return sizeof(T) == 2 ? 8 : sizeof(T); }

// One of nWorkers' share of rows of `width` numbers, so far apart: of each row whole copies.
template <class T>
static inline void copyRows(T *to, unsigned toStep, const T *from, unsigned fromStep,
                            unsigned nRows, unsigned width, unsigned worker, unsigned nWorkers) {
  constexpr unsigned n = copiedBytes<T>(), step = n / sizeof(T);
  for (unsigned row = 0; row != nRows; ++row, to += toStep, from += fromStep)
    for (unsigned i = worker * step; i < width; i += nWorkers * step)
      __builtin_memcpy(aligned<n>(to + i), aligned<n>(from + i), n);
}

template <class T> struct LoadLayer : poplar::MultiVertex {
  poplar::Input<unsigned> layer;
  poplar::Input<poplar::Vector<T, ONE_PTR, 8>> stored; // [nRows][nLayers][width]
  poplar::Output<poplar::Vector<T, ONE_PTR, 8>> state; // [nRows][width]
  unsigned nLayers, nRows, width;

  void compute(unsigned worker) {
    copyRows(&state[0], width, &stored[*layer * width], nLayers * width, nRows, width, worker,
             this->numWorkers());
  }
};

template <class T> struct StoreLayer : poplar::MultiVertex {
  poplar::Input<unsigned> layer;
  poplar::InOut<poplar::Vector<T, ONE_PTR, 8>> stored; // [nRows][nLayers][width]
  poplar::Input<poplar::Vector<T, ONE_PTR, 8>> state;  // [nRows][width]
  unsigned nLayers, nRows, width;

  void compute(unsigned worker) {
    copyRows(&stored[*layer * width], nLayers * width, &state[0], width, nRows, width, worker,
             this->numWorkers());
  }
};

template struct LoadLayer<half>;
template struct LoadLayer<unsigned>;
template struct StoreLayer<half>;
template struct StoreLayer<unsigned>;

} // namespace sparq
