// SPDX-License-Identifier: Apache-2.0
#include <ipudef.h>
#include <poplar/Vertex.hpp>
#include <print.h>

class Relax : public poplar::Vertex {
public:
  poplar::Input<poplar::Vector<float>> in; // with one neighbour on each side
  poplar::Output<poplar::Vector<float, poplar::VectorLayout::SPAN, 8>> out;
  poplar::InOut<float> seen; // how often it ran: counts from what nobody has written
  poplar::Input<float> rate;
  bool first, last;

  bool compute() {
    const std::size_t n = out.size();
    float2 *pairs = reinterpret_cast<float2 *>(&out[0]);
    for (std::size_t i = 0; i + 1 < n; i += 2) {
      const float2 left = {in[i], in[i + 1]}, here = {in[i + 1], in[i + 2]},
                   right = {in[i + 2], in[i + 3]};
      pairs[i / 2] = here + (left + right - here * 2.0f) * *rate;
    }
    if (first)
      pairs[0].x = in[1];
    if (last)
      pairs[n / 2 - 1].y = in[n];
    *seen += 1;
    return true;
  }
};

class Increment : public poplar::Vertex {
public:
  poplar::Input<poplar::Vector<float>> x;
  poplar::Output<poplar::Vector<float>> y;
  poplar::Input<float> by;

  bool compute() {
    for (unsigned i = 0; i < x.size(); ++i)
      y[i] = x[i] + by;
    return true;
  }
};
