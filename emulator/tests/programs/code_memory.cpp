// SPDX-License-Identifier: Apache-2.0
// What the estimate of code memory makes of programs that differ in one thing: code_memory CODELETS
// [SETS FLOATS]. One JSON object a program; with SETS one only, of so many compute sets beside so
// many floats, which may not fit.
#include <sparq_emulator/Counters.hpp>
#include <sparq_emulator/Errors.hpp>

#include "util.hpp"

using namespace poplar;
using namespace poplar::program;

namespace {

struct Wanted {
  std::string name;
  unsigned sets = 1;           // compute sets, each executed once, a vertex each on tile 1
  bool anotherCodelet = false; // every second vertex is of another type
  bool elsewhere = false;      // they work on data of tile 2
  unsigned executions = 1;     // of each
  unsigned pieces = 1;         // that a copy from tile 2 to tile 1 is made of
  unsigned rows = 0;           // of a remote copy to tile 1
  bool rowsInPieces = false;   // the halves of each lie apart
  unsigned branches = 0;       // around the whole
  unsigned floats = 40000;     // on tile 1, which so is the fullest, whatever the code of others
};

void report(const std::string &name, const sparq::emulator::MemoryCount &m) {
  std::cout << "{\"program\":" << quoted(name) << ",\"tile\":" << m.tile << ",\"bytes\":" << m.bytes
            << ",\"variables\":" << m.variables << ",\"vertexState\":" << m.vertexState
            << ",\"temporaries\":" << m.temporaries << ",\"codeAndStacks\":" << m.codeAndStacks
            << ",\"vertexCode\":" << m.vertexCode << ",\"stacks\":" << m.stacks
            << ",\"controlCode\":" << m.controlCode << ",\"exchangeCode\":" << m.exchangeCode
            << ",\"hostExchangeCode\":" << m.hostExchangeCode
            << ",\"codePerTile\":" << jsonList(m.codePerTile);
}

void build(const Wanted &w, const char *codelets) {
  Graph graph(emulatedDevice(4));
  graph.addCodelets(codelets);
  const Tensor big = graph.addVariable(FLOAT, {w.floats}, "big");
  graph.setTileMapping(big, 1);
  const Tensor data = graph.addVariable(FLOAT, {64}, "data");
  graph.setTileMapping(data, w.elsewhere ? 2 : 1);
  Sequence body;
  for (unsigned i = 0; i != w.sets; ++i) {
    const ComputeSet cs = graph.addComputeSet("work");
    const bool other = w.anotherCodelet && i % 2 == 1;
    const Tensor in = data.slice(0, 8), out = data.slice(8, 16);
    const VertexRef v = other ? graph.addVertex(cs, "test::Affine", {{"in", in}, {"out", out}})
                              : graph.addVertex(cs, "test::Increment", {{"data", in}});
    if (other) {
      graph.setInitialValue(v["factor"], 1.0f);
      graph.setInitialValue(v["bias"], 1.0f);
    }
    graph.setTileMapping(v, 1);
    for (unsigned n = 0; n != w.executions; ++n)
      body.add(Execute(cs));
  }
  const Tensor from = graph.addVariable(FLOAT, {w.pieces, 2}, "from");
  graph.setTileMapping(from, 2);
  const Tensor to = graph.addVariable(FLOAT, {w.pieces}, "to");
  graph.setTileMapping(to, 1);
  body.add(Copy(w.pieces == 1 ? from[0].slice(0, 1) : from.slice(0, 1, 1).flatten(), to));
  if (w.rows != 0) {
    const RemoteBuffer buffer = graph.addRemoteBuffer("rows", HALF, 16, 100);
    const Tensor halves = graph.addVariable(HALF, {2, w.rows, 8}, "halves");
    graph.setTileMapping(halves, 1);
    const Tensor whole = graph.addVariable(HALF, {w.rows, 16}, "whole");
    graph.setTileMapping(whole, 1);
    const Tensor offsets = graph.addVariable(UNSIGNED_INT, {w.rows}, "offsets");
    graph.setTileMapping(offsets, 1);
    const Tensor apart = concat(halves[0], halves[1], 1);
    body.add(Copy(buffer, w.rowsInPieces ? apart : whole, offsets));
  }
  const Tensor bit = graph.addVariable(BOOL, {}, "bit");
  graph.setTileMapping(bit, 1);
  Program program = body;
  for (unsigned i = 0; i != w.branches; ++i)
    program = If(bit, program, Sequence());
  try {
    const Engine engine(graph, program);
    report(w.name, sparq::emulator::memory(engine));
  } catch (const sparq::emulator::OutOfTileMemory &e) {
    const Engine engine(graph, program, {{"debug.allowOutOfMemory", "true"}});
    report(w.name, sparq::emulator::memory(engine));
    std::cout << ",\"refused\":{\"tile\":" << e.tile << ",\"need\":" << e.need
              << ",\"room\":" << e.room << "},\"message\":" << quoted(e.what());
  }
  std::cout << "}\n";
}

Wanted with(const std::string &name, void (*change)(Wanted &)) {
  Wanted w;
  w.name = name;
  w.sets = 4;
  change(w);
  return w;
}

} // namespace

int main(int argc, char **argv) {
  if (argc == 4) {
    Wanted w;
    w.sets = static_cast<unsigned>(std::stoul(argv[2]));
    w.floats = static_cast<unsigned>(std::stoul(argv[3]));
    w.elsewhere = true;
    build(w, argv[1]);
    return 0;
  }
  if (argc != 2)
    return 2;
  const std::vector<Wanted> programs = {
      with("plain", [](Wanted &) {}),
      with("twice the compute sets", [](Wanted &w) { w.sets = 8; }),
      with("another codelet", [](Wanted &w) { w.anotherCodelet = true; }),
      with("data elsewhere", [](Wanted &w) { w.elsewhere = true; }),
      with("twice the compute sets, data elsewhere",
           [](Wanted &w) {
             w.sets = 8;
             w.elsewhere = true;
           }),
      with("executed twice", [](Wanted &w) { w.executions = 2; }),
      with("executed twice, data elsewhere",
           [](Wanted &w) {
             w.executions = 2;
             w.elsewhere = true;
           }),
      with("a copy of 10 pieces", [](Wanted &w) { w.pieces = 10; }),
      with("3 branches", [](Wanted &w) { w.branches = 3; }),
      with("a remote copy", [](Wanted &w) { w.rows = 5; }),
      with("a remote copy of more rows", [](Wanted &w) { w.rows = 10; }),
      with("a remote copy in pieces",
           [](Wanted &w) {
             w.rows = 5;
             w.rowsInPieces = true;
           }),
  };
  for (const Wanted &w : programs)
    build(w, argv[1]);
}
