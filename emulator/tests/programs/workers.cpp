// SPDX-License-Identifier: Apache-2.0
// One MultiVertex whose workers keep apart, or do not: workers CODELETS.gp VERTEX STEP [RUNS
// [OTHERS]]: so many runs, and vertices in front of it. What STEP does to the vertex is said in
// codelets.cpp; 0 is a vertex without a race. One JSON object: the tensor it leaves, or the error.
#include "util.hpp"

using namespace poplar;
using namespace poplar::program;

namespace {

struct Built {
  VertexRef vertex;
  Tensor result;
  unsigned numElements;
};

Tensor variable(Graph &graph, const Type &type, std::size_t n, const std::string &name) {
  const Tensor t = graph.addVariable(type, {n}, name);
  graph.setTileMapping(t, 1);
  if (type != HALF)
    graph.setInitialValue<unsigned>(t, 10);
  return t;
}

// A vertex on tile 1, its fields connected.
Built build(Graph &graph, ComputeSet cs, const std::string &name, int step) {
  const VertexRef v = graph.addVertex(cs, "test::" + name);
  graph.setTileMapping(v, 1);
  auto connect = [&](const char *field, const Type &type, std::size_t n) {
    const Tensor t = variable(graph, type, n, field);
    graph.connect(v[field], t);
    return t;
  };
  if (name == "Shares") {
    const auto share = static_cast<unsigned>(step + 2);
    graph.setInitialValue(v["share"], share);
    return {v, connect("out", HALF, 6 * share), 6 * share};
  }
  if (name == "Maxima") {
    connect("in", FLOAT, 15);
    graph.setInitialValue(v["n"], 15);
    graph.setInitialValue(v["firstClears"], step != 0);
    return {v, connect("maxima", FLOAT, 6), 6};
  }
  if (name == "Doubles") {
    connect("data", UNSIGNED_INT, 6);
    graph.setInitialValue(v["step"], step);
    return {v, connect("seen", UNSIGNED_INT, 6), 6};
  }
  if (name == "Stores") {
    graph.setInitialValue(v["step"], step);
    return {v, connect("data", FLOAT, 6), 6};
  }
  if (name == "Agrees") {
    graph.setInitialValue(v["step"], step);
    return {v, connect("flags", UNSIGNED_INT, 6), 6};
  }
  if (name == "Counts") {
    graph.setInitialValue(v["calls"], 0);
    graph.setInitialValue(v["shared"], step != 0);
    return {v, connect("out", UNSIGNED_INT, 6), 6};
  }
  return {v, connect("sums", FLOAT, 6), 6};
}

} // namespace

int main(int argc, char **argv) {
  if (argc < 4 || argc > 6)
    return 2;
  Device device = emulatedDevice(2);
  Graph graph(device);
  graph.addCodelets(argv[1]);
  const ComputeSet cs = graph.addComputeSet("cs");
  for (int others = argc > 5 ? std::stoi(argv[5]) : 0; others > 0; --others)
    graph.setTileMapping(build(graph, cs, "Adds", 0).vertex, 0);
  const Built built = build(graph, cs, argv[2], std::stoi(argv[3]));
  graph.createHostRead("result", built.result);
  const Tensor all = graph.addVariable(BOOL, {}, "all");
  graph.setTileMapping(all, 0);
  graph.createHostRead("all", all);
  Engine engine(graph, Execute(cs, all));
  engine.load(device);
  try {
    for (int runs = argc > 4 ? std::stoi(argv[4]) : 1; runs > 0; --runs)
      engine.run();
  } catch (const application_runtime_error &e) {
    std::cout << "{\"error\":" << quoted(e.what()) << "}\n";
    return 0;
  }
  std::cout << "{\"result\":";
  if (built.result.elementType() == HALF)
    std::cout << jsonList(readTensor<std::uint16_t>(engine, "result", built.numElements));
  else if (built.result.elementType() == FLOAT)
    std::cout << jsonList(readTensor<float>(engine, "result", built.numElements));
  else
    std::cout << jsonList(readTensor<unsigned>(engine, "result", built.numElements));
  std::uint8_t returned = 2;
  engine.readTensor("all", &returned, &returned + 1);
  std::cout << ",\"all\":" << unsigned(returned) << "}\n";
}
