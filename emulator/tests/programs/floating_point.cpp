// SPDX-License-Identifier: Apache-2.0
// One vertex, on tile 1 of 2, between changes of the floating-point behaviour:
//   floating_point CODELETS.gp VERTEX A B STEP...
// Its fields hold 19 times a and b. Each step is a program of one engine, run in turn; behaviours
// are five digits: inv, div0, oflo, esr, nanoo.
//   run             the vertex: prints its first output, or the error
//   set:BEHAVIOUR   setFloatingPointBehaviour
//   first:BEHAVIOUR the same of a virtual graph of tile 0 alone
//   modify:CLEAR:SET  getAndModifyFloatingPointBehaviour
//   restore         setFloatingPointBehaviour of what the last `modify` gave, and prints that
//   load            loads the engine again
//   option:NAME=VALUE  of the engine (before any step)
#include "util.hpp"

#include <cmath>
#include <poplar/CSRFunctions.hpp>

using namespace poplar;
using namespace poplar::program;

namespace {

FloatingPointBehaviour behaviourOf(const std::string &s) {
  return {s.at(0) == '1', s.at(1) == '1', s.at(2) == '1', s.at(3) == '1', s.at(4) == '1'};
}

// As JSON readers of Python have it.
std::string number(float x) {
  return x != x ? "NaN" : std::isinf(x) ? (x < 0 ? "-Infinity" : "Infinity") : std::to_string(x);
}

} // namespace

int main(int argc, char **argv) try {
  if (argc < 5)
    return 2;
  constexpr unsigned n = 19;
  Device device = emulatedDevice(2);
  Graph graph(device);
  Graph first = graph.createVirtualGraph(0, 1);
  graph.addCodelets(argv[1]);
  auto variable = [&](const std::string &name) {
    Tensor t = graph.addVariable(FLOAT, {n}, name);
    graph.setTileMapping(t, 1);
    return t;
  };
  Tensor a = variable("a"), b = variable("b"), out = variable("out");
  graph.setInitialValue<float>(a, std::vector<float>(n, std::stof(argv[3])));
  graph.setInitialValue<float>(b, std::vector<float>(n, std::stof(argv[4])));
  graph.createHostRead("out", out);
  ComputeSet cs = graph.addComputeSet("cs");
  graph.setTileMapping(graph.addVertex(cs, argv[2], {{"a", a}, {"b", b}, {"out", out}}), 1);

  const std::vector<std::string> steps(argv + 5, argv + argc);
  std::vector<Program> programs;
  OptionFlags options, ofEngine;
  Tensor before;
  for (const std::string &step : steps) {
    Sequence program;
    const std::string kind = step.substr(0, step.find(':')),
                      rest = step.substr(std::min(step.size(), kind.size() + 1));
    if (kind == "run") {
      program.add(Execute(cs));
    } else if (kind == "set") {
      setFloatingPointBehaviour(graph, program, behaviourOf(rest));
    } else if (kind == "first") {
      setFloatingPointBehaviour(first, program, behaviourOf(rest));
    } else if (kind == "modify") {
      before = getAndModifyFloatingPointBehaviour(graph, program, behaviourOf(rest),
                                                  behaviourOf(rest.substr(6)));
      graph.createHostRead("before", before);
    } else if (kind == "restore") {
      setFloatingPointBehaviour(graph, program, before);
    } else if (kind == "option" || kind == "engine") {
      (kind == "engine" ? ofEngine : options)
          .set(rest.substr(0, rest.find('=')), rest.substr(rest.find('=') + 1));
    }
    programs.push_back(program);
  }
  Engine engine(compileGraph(graph, programs, options), ofEngine);
  engine.load(device);
  std::string separator = "[";
  auto print = [&](const std::string &json) {
    std::cout << separator << json;
    separator = ",";
  };
  for (unsigned i = 0; i < steps.size(); ++i) {
    if (steps[i] == "load")
      engine.load(device);
    try {
      engine.run(i);
      if (steps[i] == "run")
        print(number(readTensor<float>(engine, "out", n)[0]));
      else if (steps[i] == "restore")
        print(jsonList(readTensor<unsigned>(engine, "before", 2)));
    } catch (const application_runtime_error &e) {
      print(quoted(e.what()));
    }
  }
  std::cout << "]\n";
} catch (const poplar_error &e) {
  std::cout << "{\"refused\":" << quoted(e.what()) << "}\n";
}
