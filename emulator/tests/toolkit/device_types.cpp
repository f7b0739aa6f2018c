// SPDX-License-Identifier: Apache-2.0
// Runs the codelets of device_types_codelets.cpp and no_header_codelets.cpp, and saves what it
// compiled.
#include <fstream>
#include <iostream>
#include <vector>

#include <poplar/DeviceManager.hpp>
#include <poplar/Engine.hpp>
#include <poplar/Graph.hpp>

using namespace poplar;
using namespace poplar::program;

int main(int, char **argv) {
  auto devices = DeviceManager().getDevices(TargetType::IPU, 1);
  if (devices.empty() || !devices[0].attach())
    return 3;
  Graph graph(devices[0].getTarget());
  graph.addCodelets({argv[1], argv[2]});
  Tensor x = graph.addVariable(HALF, {4}, "x"), out = graph.addVariable(HALF, {12}, "out"),
         sums = graph.addVariable(FLOAT, {2}, "sums");
  ComputeSet cs = graph.addComputeSet("cs");
  // a size_t of 64 bits would be of both
  Tensor widths = graph.addConstant<unsigned>(UNSIGNED_INT, {2}, {3, 1}, "widths");
  VertexRef between = graph.addVertex(
      cs, "Between", {{"x", x}, {"out", out}, {"fill", 0.1f}, {"width", widths[0]}});
  VertexRef pairs = graph.addVertex(cs, "Pairs", {{"x", x}, {"sums", sums}});
  for (const Tensor &t : {x, out, sums, widths})
    graph.setTileMapping(t, 0);
  graph.setTileMapping(between, 0);
  graph.setTileMapping(pairs, 0);
  graph.createHostRead("out", out);
  graph.createHostRead("sums", sums);
  graph.setInitialValue<float>(x, {-2.0f, 0.75f, 0.125f, 3.0f});
  Engine engine(graph, Execute(cs));
  std::ofstream file(argv[3], std::ios::binary);
  engine.serializeExecutable(file);
  file.close();
  std::ifstream saved(argv[3], std::ios::binary);
  Engine loaded(Executable::deserialize(saved));
  for (Engine *e : {&engine, &loaded}) {
    e->load(devices[0]);
    e->run();
    std::vector<unsigned short> halves(12);
    std::vector<float> floats(2);
    e->readTensor("out", halves.data(), halves.data() + halves.size());
    e->readTensor("sums", floats.data(), floats.data() + floats.size());
    for (unsigned short h : halves)
      std::cout << h << " ";
    for (float f : floats)
      std::cout << f << " ";
    std::cout << std::endl;
  }
}
