// SPDX-License-Identifier: Apache-2.0
//
// What IPUs that go in step have to agree on.
#include "lanes.hpp"

namespace sparq {

class AnyIpu : public poplar::Vertex {
public:
  poplar::Input<poplar::Vector<bool, poplar::VectorLayout::SPAN>> ofIpus; // [nIpus]
  poplar::Output<bool> any;
  unsigned nIpus;

  bool compute() {
    bool found = false;
    for (unsigned ipu = 0; ipu != nIpus; ++ipu)
      found |= ofIpus[ipu];
    *any = found;
    return true;
  }
};

} // namespace sparq
