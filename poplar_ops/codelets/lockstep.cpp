// SPDX-License-Identifier: Apache-2.0
//
// What IPUs that go in step have to agree on.
#include "lanes.hpp"

namespace sparq {

// Of bool: whether it is true of any.
template <class T> struct GreatestOfIpus : poplar::Vertex {
  poplar::Input<poplar::Vector<T, ONE_PTR>> ofIpus; // [nIpus]
  poplar::Output<T> greatest;
  unsigned nIpus;

  void compute() {
    T most = ofIpus[0];
    for (unsigned ipu = 1; ipu < nIpus; ++ipu)
      most = ofIpus[ipu] > most ? ofIpus[ipu] : most;
    *greatest = most;
  }
};

template struct GreatestOfIpus<bool>;
template struct GreatestOfIpus<int>;

} // namespace sparq
