// SPDX-License-Identifier: Apache-2.0
// Saves a compiled program, loads it, or runs it without either: executable CODELETS.gp
// save|load|run FILE. What "load" and "run" print must be the same: results, counts, memory. "save"
// prints how far it is.
#include <poplar/DeviceManager.hpp>

#include <fstream>

#include "util.hpp"

using namespace poplar;
using namespace poplar::program;

namespace {

Executable compile(const Target &target, const std::string &codelets,
                   const ProgressFunc &progress) {
  Graph graph(target);
  graph.addCodelets(codelets);
  Tensor x = graph.addVariable(FLOAT, {4, 6}, "x"), y = graph.addVariable(FLOAT, {6, 4}, "y"),
         ids = graph.addVariable(UNSIGNED_INT, {9}, "ids");
  for (unsigned row = 0; row < 4; ++row)
    graph.setTileMapping(x[row], row);
  graph.setTileMapping(y, 5);
  graph.setTileMapping(ids, 3);
  Tensor offset = graph.addConstant<unsigned>(UNSIGNED_INT, {1}, 2U, "offset"),
         three = graph.addConstant<int>(INT, {}, 3, "three");
  graph.setTileMapping(offset, 0);
  graph.setTileMapping(three, 0);
  graph.setInitialValue<float>(y.flatten().slice(0, 2), {0.5f, -0.25f});
  ComputeSet increment = graph.addComputeSet("increment"), work = graph.addComputeSet("work");
  for (unsigned row = 0; row < 4; ++row) {
    VertexRef v = graph.addVertex(increment, "test::Increment", {{"data", x[row]}});
    graph.setTileMapping(v, row);
    graph.setPerfEstimate(v, 40 + row);
  }
  // Columns of x, which lie in pieces, to a part of y.
  VertexRef affine = graph.addVertex(
      work, "test::Affine",
      {{"in", x.transpose().slice(0, 2).flatten()}, {"out", y.flatten().slice(8, 16)}});
  graph.setInitialValue(affine["factor"], 2.0f);
  graph.setInitialValue(affine["bias"], 0.125f);
  graph.setTileMapping(affine, 2);
  VertexRef workers = graph.addVertex(work, "test::WorkerIds", {{"out", ids}}); // a MultiVertex
  graph.setInitialValue(workers["n"], 9u);
  graph.setTileMapping(workers, 3);

  DataStream in = graph.addHostToDeviceFIFO("in", FLOAT, 24);
  DataStream out = graph.addDeviceToHostFIFO("out", FLOAT, 24);
  RemoteBuffer rows = graph.addRemoteBuffer("rows", FLOAT, 6, 4);
  graph.createHostWrite("y-write", y);
  graph.createHostRead("ids", ids);
  Sequence body({Execute(increment), Copy(x[1], rows, offset)});
  Sequence first({Copy(in, x), Repeat(3, body), Copy(rows, x[0], offset), Execute(work),
                  Switch(three, {{3, PrintTensor("y", y)}}, Sequence()), Copy(y, out)});
  return compileGraph(graph, {first, Sequence({Execute(increment), Sync(SyncType::INTERNAL)})}, {},
                      progress);
}

void run(Engine &engine, const Device &device) {
  engine.load(device);
  std::vector<float> in(24), out(24);
  for (std::size_t i = 0; i < in.size(); ++i)
    in[i] = 0.5f * static_cast<float>(i);
  engine.connectStream("in", in.data());
  engine.connectStream("out", out.data());
  std::cerr.rdbuf(std::cout.rdbuf()); // where tensors are printed
  for (unsigned program : {0u, 1u, 0u}) {
    engine.run(program);
    std::cout << jsonList(out) << "\n" << jsonList(readTensor<unsigned>(engine, "ids", 9)) << "\n";
    engine.printProfileSummary(std::cout,
                               {{"showExecutionSteps", "true"}, {"showVarStorage", "true"}});
    engine.writeTensor("y-write", in.data(), in.data() + 24);
  }
}

} // namespace

int main(int argc, char **argv) {
  if (argc != 4)
    return 2;
  const std::string what = argv[2];
  auto devices = DeviceManager().getDevices(TargetType::IPU, 1);
  if (devices.empty() || !devices[0].attach())
    return 3;
  try {
    if (what == "load") {
      std::ifstream file(argv[3], std::ios::binary);
      Engine engine(Executable::deserialize(file));
      run(engine, devices[0]);
      return 0;
    }
    const auto progress = [&](int step, int of) {
      if (what == "save")
        std::cout << step << "/" << of << " ";
    };
    const Executable exe = compile(devices[0].getTarget(), argv[1], progress);
    if (what == "save") {
      std::ofstream file(argv[3], std::ios::binary);
      exe.serialize(file);
    } else {
      Engine engine(exe);
      run(engine, devices[0]);
    }
  } catch (const poplar_error &e) {
    std::cout << e.what() << "\n";
  }
}
