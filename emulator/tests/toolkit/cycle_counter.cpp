// SPDX-License-Identifier: Apache-2.0
// A vertex that reads its tile's cycle counter before and after some work: cycle_counter N
#ifdef __POPC__
#include <poplar/Vertex.hpp>

class Timed : public poplar::Vertex {
public:
  poplar::Output<poplar::Vector<unsigned>> cycles;
  poplar::Output<float> sum;
  unsigned n;
  bool compute() {
    const unsigned start = __builtin_ipu_get_scount_l(), high = __builtin_ipu_get_scount_u();
    float s = 0;
    for (unsigned i = 0; i < n; ++i)
      s += 1 / (1 + float(i) * i);
    *sum = s;
    cycles[0] = __builtin_ipu_get_scount_l() - start;
    cycles[1] = __builtin_ipu_get_scount_u() - high;
    return true;
  }
};
#else
#include <cstdlib>
#include <iostream>

#include <poplar/Engine.hpp>
#include <poplar/Graph.hpp>
#include <poplar/IPUModel.hpp>

using namespace poplar;
using namespace poplar::program;

int main(int, char **argv) {
  Device device = IPUModel().createDevice();
  Graph graph(device.getTarget());
  graph.addCodelets(__FILE__);
  Tensor cycles = graph.addVariable(UNSIGNED_INT, {2}), sum = graph.addVariable(FLOAT, {});
  ComputeSet cs = graph.addComputeSet("timed");
  VertexRef v = graph.addVertex(cs, "Timed", {{"cycles", cycles}, {"sum", sum}});
  graph.setInitialValue(v["n"], static_cast<unsigned>(std::atoi(argv[1])));
  for (const Tensor &t : {cycles, sum})
    graph.setTileMapping(t, 1);
  graph.setTileMapping(v, 1);
  graph.createHostRead("cycles", cycles);
  graph.createHostRead("sum", sum);
  Engine engine(graph, Execute(cs));
  engine.load(device);
  engine.run();
  unsigned counted[2];
  float result;
  engine.readTensor("cycles", counted, counted + 2);
  engine.readTensor("sum", &result, &result + 1);
  std::cout << counted[0] << " " << counted[1] << " " << result << "\n";
}
#endif
