// SPDX-License-Identifier: Apache-2.0
// Where edges lie: alignment CODELETS.gp VERTEX, of type test::Address<...> (prints where its
// fields are) or of aligned_codelets.cpp (prints the sum of its 8 floats). The edge begins at an
// element of a variable that is aligned as well as any.
#include "util.hpp"

using namespace poplar;
using namespace poplar::program;

int main(int argc, char **argv) {
  if (argc != 3)
    return 2;
  const std::string type = argv[2];
  const bool sums = type.find("Address") == std::string::npos;
  Device device = emulatedDevice(1);
  Graph graph(device);
  graph.addCodelets(argv[1]);
  auto variable = [&](const Type &t, ArrayRef<std::size_t> shape, const std::string &name) {
    const Tensor x = graph.addVariable(t, shape, name);
    graph.setTileMapping(x, 0);
    return x;
  };
  const Tensor x = variable(type.find("half") == std::string::npos ? FLOAT : HALF, {8}, "in");
  graph.setInitialValue<float>(x, 1.5f);
  const ComputeSet cs = graph.addComputeSet("cs");
  const VertexRef v = graph.addVertex(cs, type, {{"in", x}});
  graph.setTileMapping(v, 0);
  auto read = [&](const char *field, const Type &t) {
    const Tensor out = variable(t, {}, field);
    graph.connect(v[field], out);
    graph.createHostRead(field, out);
  };
  if (sums) {
    graph.setInitialValue(v["n"], 8);
    read("sum", FLOAT);
  } else {
    graph.setInitialValue<unsigned>(v["state"], ArrayRef<unsigned>({1, 2, 3}));
    read("inAt", UNSIGNED_INT);
    read("stateAt", UNSIGNED_INT);
  }
  Engine engine(graph, Execute(cs));
  engine.load(device);
  engine.run();
  if (sums)
    std::cout << readTensor<float>(engine, "sum", 1)[0] << "\n";
  else
    std::cout << "[" << readTensor<unsigned>(engine, "inAt", 1)[0] << ","
              << readTensor<unsigned>(engine, "stateAt", 1)[0] << "]\n";
}
