// SPDX-License-Identifier: Apache-2.0
// A vertex that writes element INDEX of an edge of 4: guard CODELETS.gp INDEX; or of one of its two
// Inputs, or of neither (-1): guard CODELETS.gp INDEX input. Or one that copies an element more
// than there are: guard CODELETS.gp 0 copy.
#include "util.hpp"

using namespace poplar;
using namespace poplar::program;

int main(int argc, char **argv) {
  if (argc != 3 && argc != 4)
    return 2;
  Device device = emulatedDevice(2);
  Graph graph(device);
  graph.addCodelets(argv[1]);
  Tensor x = graph.addVariable(FLOAT, {3, 4}, VariableMappingMethod::LINEAR, "x");
  graph.setInitialValue<float>(x, 0);
  graph.createHostRead("x", x);
  ComputeSet cs = graph.addComputeSet("cs");
  const std::string what = argc == 4 ? argv[3] : "";
  const bool ofInput = what == "input", copies = what == "copy";
  VertexRef v = ofInput  ? graph.addVertex(cs, "test::WriteInput", {{"out", x[1][2]}})
                : copies ? graph.addVertex(cs, "test::CopiesOneMore", {{"in", x[0]}, {"out", x[1]}})
                         : graph.addVertex(cs, "test::WriteAt", {{"out", x[1]}});
  if (ofInput) // the second in pieces
    graph.connect(v["in"], std::vector<Tensor>{x[0], concat(x[2].slice(2, 4), x[2].slice(0, 2))});
  if (!copies)
    graph.setInitialValue(v[ofInput ? "row" : "index"], std::stoi(argv[2]));
  graph.setTileMapping(v, 1);
  Engine engine(graph, Execute(cs));
  engine.load(device);
  try {
    engine.run();
  } catch (const application_runtime_error &e) {
    std::cout << "{\"error\":" << quoted(e.what()) << "}\n";
    return 0;
  }
  std::cout << "{\"x\":" << jsonList(readTensor<float>(engine, "x", 12)) << "}\n";
}
