// SPDX-License-Identifier: Apache-2.0
// Control programs, functions, streams, undefined values: control CODELETS.gp.
// One JSON object of results.
#include <poplar/CycleCount.hpp>

#include "util.hpp"

using namespace poplar;
using namespace poplar::program;

int main(int argc, char **argv) {
  if (argc != 2)
    return 2;
  Device device = emulatedDevice(3);
  Graph graph(device);
  graph.addCodelets(argv[1]);

  auto counter = [&](const std::string &name) {
    Tensor t = graph.addVariable(UNSIGNED_INT, {}, name);
    graph.setTileMapping(t, 1);
    graph.setInitialValue(t, 0u);
    graph.createHostRead(name, t);
    return t;
  };
  auto add = [&](const Tensor &t, unsigned step) -> Program {
    ComputeSet cs = graph.addComputeSet("add");
    VertexRef v = graph.addVertex(cs, "test::Count", {{"counter", t}});
    graph.setInitialValue(v["step"], step);
    graph.setTileMapping(v, 1);
    graph.setPerfEstimate(v, 30);
    return Execute(cs);
  };
  Tensor flag = graph.addVariable(BOOL, {}, "flag");
  graph.setTileMapping(flag, 0);
  auto below = [&](const Tensor &t, unsigned limit) -> Program {
    ComputeSet cs = graph.addComputeSet("below");
    VertexRef v = graph.addVertex(cs, "test::Below", {{"value", t}, {"below", flag}});
    graph.setInitialValue(v["limit"], limit);
    graph.setTileMapping(v, 0);
    return Execute(cs);
  };

  Sequence prog;
  Tensor repeated = counter("repeated");
  prog.add(Repeat(
      5, Sequence{add(repeated, 1), Repeat(3, add(repeated, 10)), Repeat(0, add(repeated, 1000))}));
  Tensor whileTrue = counter("whileTrue"); // tested before the body: stops at 7
  prog.add(RepeatWhileTrue(below(whileTrue, 7), flag, add(whileTrue, 1)));
  Tensor never = counter("never");
  // True at once: the body does not run.
  prog.add(RepeatWhileFalse(below(never, 1), flag, add(never, 1)));
  Tensor ifTrue = counter("ifTrue"), ifFalse = counter("ifFalse");
  prog.add(below(never, 1));
  prog.add(If(flag, add(ifTrue, 1), add(ifFalse, 1)));
  prog.add(below(whileTrue, 7));
  prog.add(If(flag, add(ifTrue, 10), add(ifFalse, 10)));

  Tensor control = counter("control"), one = counter("one"), five = counter("five"),
         other = counter("other");
  Switch s(control, {{1, add(one, 1)}, {5, add(five, 1)}}, add(other, 1));
  prog.add(Repeat(7, Sequence{s, add(control, 1)})); // control 0 .. 6
  prog.add(Sequence{add(control, 65530), s});        // 1 in its low 16 bits

  Tensor called = counter("called");
  Function f = graph.addFunction(Sequence{add(called, 1), add(called, 2)});
  prog.add(Sequence{Call(f), Repeat(2, Call(f))});

  // A sequence is a value: what is added to a copy stays out of the original.
  Tensor value = counter("value");
  Sequence original{add(value, 1)};
  Sequence copy = original;
  copy.add(add(value, 100));
  prog.add(original);

  // AND of what compute() returned.
  Tensor predicate = graph.addVariable(BOOL, {}, "predicate");
  graph.setTileMapping(predicate, 2);
  graph.createHostRead("predicate", predicate);
  ComputeSet both = graph.addComputeSet("both");
  Tensor flags = graph.addVariable(BOOL, {2}, VariableMappingMethod::LINEAR, "flags");
  for (unsigned i = 0; i < 2; ++i) {
    VertexRef v = graph.addVertex(both, "test::Below", {{"value", whileTrue}, {"below", flags[i]}});
    graph.setInitialValue(v["limit"], i ? 100u : 7u);
    graph.setTileMapping(v, i);
  }
  prog.add(Execute(both, predicate));

  // Streams: a circular buffer of two transfers, a callback, and back.
  DataStream in = graph.addHostToDeviceFIFO("in", UNSIGNED_INT, 3);
  DataStream called3 = graph.addHostToDeviceFIFO("callback", UNSIGNED_INT, 3);
  DataStream out = graph.addDeviceToHostFIFO("out", UNSIGNED_INT, 3);
  Tensor data = graph.addVariable(UNSIGNED_INT, {3, 2}, VariableMappingMethod::LINEAR, "data");
  graph.setInitialValue(data, 0u);
  Tensor column = data.transpose()[1];
  prog.add(Repeat(3, Sequence{Copy(in, column), Copy(column, out)}));
  prog.add(Sequence{Copy(called3, column), Copy(column, out)});

  // Undefined values show.
  Tensor undefined = graph.addVariable(FLOAT, {4}, VariableMappingMethod::LINEAR, "undefined");
  Tensor undone = graph.addVariable(FLOAT, {4}, VariableMappingMethod::LINEAR, "undone");
  graph.setInitialValue(undone, 1.0f);
  graph.createHostRead("undefined", undefined);
  graph.createHostRead("undone", undone);
  prog.add(WriteUndef(undone.slice(1, 3)));

  // Overlapping source and destination: the copy reads everything before it writes.
  Tensor shift = graph.addVariable(INT, {6}, VariableMappingMethod::LINEAR, "shift");
  graph.setInitialValue<int>(shift, ArrayRef<int>({0, 1, 2, 3, 4, 5}));
  graph.createHostRead("shift", shift);
  prog.add(Copy(shift.slice(0, 5), shift.slice(1, 6)));

  Sequence timed{Repeat(4, add(counter("timed"), 1))};
  Tensor cycles = cycleCount(graph, timed, 0, SyncType::INTERNAL, "timed");
  graph.createHostRead("cycles", cycles);
  prog.add(timed);

  Engine engine(graph, prog);
  engine.load(device);
  std::vector<unsigned> host = {1, 2, 3, 4, 5, 6}, received(12);
  engine.connectStream("in", host.data(), host.data() + 6);
  unsigned calls = 0;
  engine.connectStreamToCallback("callback", [&](void *p) {
    for (unsigned i = 0; i < 3; ++i)
      static_cast<unsigned *>(p)[i] = 70 + i;
    ++calls;
  });
  engine.connectStream("out", received.data(), received.data() + 12);
  engine.run();
  std::cout << "{";
  for (const char *name : {"repeated", "whileTrue", "never", "ifTrue", "ifFalse", "control", "one",
                           "five", "other", "called", "value", "timed"})
    std::cout << quoted(name) << ":" << readTensor<unsigned>(engine, name, 1)[0] << ",";
  std::cout << "\"predicate\":" << unsigned(readTensor<std::uint8_t>(engine, "predicate", 1)[0])
            << ",\"received\":" << jsonList(received) << ",\"calls\":" << calls;
  auto nans = [&](const char *name) {
    std::vector<int> r;
    for (float x : readTensor<float>(engine, name, 4))
      r.push_back(x != x);
    return jsonList(r);
  };
  std::cout << ",\"undefined\":" << nans("undefined") << ",\"undone\":" << nans("undone")
            << ",\"shift\":" << jsonList(readTensor<int>(engine, "shift", 6))
            << ",\"cycles\":" << jsonList(readTensor<unsigned>(engine, "cycles", 2)) << "}\n";
}
