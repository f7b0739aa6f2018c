// SPDX-License-Identifier: Apache-2.0
// What has to be in memory together: liveness CODELETS.gp. A JSON line for each of some small
// programs: the live bytes of the fullest tile without code and stacks, the step that needs them,
// and what is always live. Variables have 1000 bytes on tile 1, `bit` has 4 on tile 0.
#include <sparq_emulator/Counters.hpp>

#include <functional>

#include "util.hpp"

using namespace poplar;
using namespace poplar::program;

namespace {

struct Bench {
  Device device = emulatedDevice(2);
  Graph graph{device};
  Tensor a, b, c, bit;
  DataStream in, out;

  explicit Bench(const std::string &codelets) {
    graph.addCodelets(codelets);
    a = variable(FLOAT, {250}, "a", 1);
    b = variable(FLOAT, {250}, "b", 1);
    c = variable(FLOAT, {250}, "c", 1);
    bit = variable(UNSIGNED_INT, {}, "bit", 0);
    in = graph.addHostToDeviceFIFO("in", FLOAT, 250);
    out = graph.addDeviceToHostFIFO("out", FLOAT, 250);
  }
  Tensor variable(const Type &type, ArrayRef<std::size_t> shape, const std::string &name,
                  unsigned tile) {
    const Tensor t = graph.addVariable(type, shape, name);
    graph.setTileMapping(t, tile);
    return t;
  }
  Program write(const Tensor &t) { return Copy(in, t, false, "write"); }
  Program read(const Tensor &t) { return Copy(t, out, false, "read"); }
  // Adds one; the tensor is InOut. 8 bytes of vertex state.
  Program change(const Tensor &t, unsigned tile = 1) {
    const ComputeSet cs = graph.addComputeSet("change");
    const VertexRef v = graph.addVertex(cs, "test::Increment", {{"data", t}});
    graph.setTileMapping(v, tile);
    return Execute(cs);
  }
};

using Build = std::function<std::vector<Program>(Bench &)>;

const std::vector<std::pair<const char *, Build>> cases = {
    {"one after another",
     [](Bench &x) {
       return std::vector<Program>{Sequence{x.write(x.a), x.read(x.a), x.write(x.b), x.read(x.b)}};
     }},
    {"side by side",
     [](Bench &x) {
       return std::vector<Program>{Sequence{x.write(x.a), x.write(x.b), x.read(x.a), x.read(x.b)}};
     }},
    {"two programs",
     [](Bench &x) {
       return std::vector<Program>{Sequence{x.write(x.a), x.write(x.b), x.read(x.b)}, x.read(x.a)};
     }},
    {"changed before it is written",
     [](Bench &x) {
       return std::vector<Program>{Sequence{x.write(x.a), x.read(x.a), x.change(x.b), x.read(x.b)}};
     }},
    {"changed after WriteUndef",
     [](Bench &x) {
       return std::vector<Program>{
           Sequence{x.write(x.a), x.read(x.a), WriteUndef(x.b), x.change(x.b), x.read(x.b)}};
     }},
    {"written in two pieces",
     [](Bench &x) {
       return std::vector<Program>{
           Sequence{x.write(x.a), x.read(x.a), Copy(x.c.slice(0, 100), x.b.slice(0, 100)),
                    Copy(x.c.slice(100, 250), x.b.slice(100, 250)), x.read(x.b)}};
     }},
    {"written in part",
     [](Bench &x) {
       return std::vector<Program>{
           Sequence{x.write(x.a), Copy(x.a.slice(0, 249), x.b.slice(0, 249)), x.read(x.b)}};
     }},
    {"read in the next pass",
     [](Bench &x) {
       return std::vector<Program>{
           Sequence{x.write(x.b), Repeat(2, Sequence{x.read(x.b), x.write(x.a), x.read(x.a)})}};
     }},
    {"one pass only",
     [](Bench &x) {
       return std::vector<Program>{
           Sequence{x.write(x.b), Repeat(1, Sequence{x.read(x.b), x.write(x.a), x.read(x.a)})}};
     }},
    {"kept while a loop runs",
     [](Bench &x) {
       return std::vector<Program>{
           Sequence{x.write(x.b), Copy(x.bit, x.bit),
                    RepeatWhileTrue(Sequence{x.write(x.c), x.read(x.c)}, x.bit,
                                    Sequence{x.write(x.a), x.read(x.a)}),
                    x.read(x.b)}};
     }},
    {"written in one branch",
     [](Bench &x) {
       return std::vector<Program>{Sequence{If(x.bit, Sequence(), x.write(x.a)), x.read(x.a)}};
     }},
    {"written in both branches",
     [](Bench &x) {
       return std::vector<Program>{Sequence{If(x.bit, x.write(x.a), Copy(x.b, x.a)), x.read(x.a)}};
     }},
    {"for the host",
     [](Bench &x) {
       x.graph.createHostWrite("w", x.a);
       x.graph.createHostRead("r", x.b);
       return std::vector<Program>{Sequence{Copy(x.a, x.c), Copy(x.c, x.b)}};
     }},
    {"never read", [](Bench &x) { return std::vector<Program>{x.write(x.a), x.write(x.b)}; }},
    {"in a function",
     [](Bench &x) {
       const Function f = x.graph.addFunction(Sequence{x.write(x.a), x.read(x.a)});
       return std::vector<Program>{Sequence{Call(f), x.write(x.b), Call(f), x.read(x.b), Call(f)}};
     }},
    {"read whole and in part",
     [](Bench &x) {
       const Tensor d = x.variable(FLOAT, {300}, "d", 1);
       return std::vector<Program>{
           Sequence{x.write(x.a), Copy(concat(x.a, x.a.slice(50, 100)), d)}};
     }},
    {"with a landing copy",
     [](Bench &x) {
       return std::vector<Program>{Sequence{x.write(x.a), x.change(x.a, 0), x.read(x.a)}};
     }},
};

} // namespace

int main(int argc, char **argv) {
  if (argc != 2)
    return 2;
  for (const auto &c : cases) {
    Bench bench(argv[1]);
    const std::vector<Program> programs = c.second(bench);
    const Engine engine(bench.graph, programs);
    const sparq::emulator::MemoryCount m = sparq::emulator::memory(engine);
    std::cout << "{\"case\":" << quoted(c.first) << ",\"bytes\":" << m.bytes - m.codeAndStacks
              << ",\"live\":" << m.liveBytes - m.codePerTile[m.liveTile]
              << ",\"tile\":" << m.liveTile << ",\"step\":" << quoted(m.liveStep)
              << ",\"always\":{";
    const char *separator = "";
    for (const sparq::emulator::MemoryUse &use : m.alwaysLive) {
      std::cout << separator << quoted(use.name) << ":" << use.bytes;
      separator = ",";
    }
    std::cout << "}}\n";
  }
}
