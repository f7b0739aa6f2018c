// SPDX-License-Identifier: Apache-2.0
// Dry runs count as real ones do: dry_run CODELETS.gp. One JSON object of results.
#include <sparq_emulator/Counters.hpp>

#include <memory>

#include "util.hpp"

using namespace poplar;
using namespace poplar::program;
using sparq::emulator::DryRun;

namespace {

struct Built {
  std::unique_ptr<Graph> graph;
  Sequence program;
};

// Loops to `n`, which the host writes; `fromRemote` lets the loop depend on a remote row instead.
Built build(const Device &device, const char *codelets, bool fromRemote) {
  Built b{std::make_unique<Graph>(device), {}};
  Graph &graph = *b.graph;
  graph.addCodelets(codelets);
  auto scalar = [&](const Type &type, const char *name) {
    Tensor t = graph.addVariable(type, {}, name);
    graph.setTileMapping(t, 0);
    return t;
  };
  Tensor i = scalar(UNSIGNED_INT, "i"), n = scalar(UNSIGNED_INT, "n"),
         total = scalar(UNSIGNED_INT, "total"), more = scalar(BOOL, "more");
  graph.setInitialValue(total, 0u);
  graph.createHostWrite("n", n);
  graph.createHostRead("total", total);
  auto count = [&](const Tensor &t, unsigned step, const char *name) {
    ComputeSet cs = graph.addComputeSet(name);
    VertexRef v = graph.addVertex(cs, "test::Count", {{"counter", t}});
    graph.setInitialValue(v["step"], step);
    graph.setTileMapping(v, 0);
    graph.setPerfEstimate(v, 30);
    return Execute(cs);
  };
  ComputeSet below = graph.addComputeSet("below");
  VertexRef v = graph.addVertex(below, "test::Below", {{"value", i}, {"below", more}});
  graph.setInitialValue(v["limit"], 10u);
  graph.setTileMapping(v, 0);
  graph.setPerfEstimate(v, 30);
  RemoteBuffer remote = graph.addRemoteBuffer("rows", UNSIGNED_INT, 1, 4);
  Tensor offset = graph.addConstant(UNSIGNED_INT, {1}, 2u);
  graph.setTileMapping(offset, 0);
  Function work = graph.addFunction(Sequence{
      count(total, 5, "work"), Copy(total.reshape({1, 1}), remote, offset, "store_total")});
  b.program.add(Copy(n, i, false, "start"));
  if (fromRemote)
    b.program.add(Copy(remote, i.reshape({1, 1}), offset, "start_from_remote"));
  b.program.add(RepeatWhileTrue(
      Execute(below), more, Sequence{Call(work), count(i, 2, "next"), Sync(SyncType::INTERNAL)}));
  b.program.add(If(more, count(total, 100, "never"), count(total, 1, "once")));
  return b;
}

std::string counts(const Engine &engine) {
  std::string r;
  for (const auto &step : sparq::emulator::lastRun(engine))
    r += (r.empty() ? "" : ",") + quoted(step.name) + ":" + std::to_string(step.executions);
  return "{" + r + "}";
}

template <class F> std::string message(F &&f) {
  try {
    f();
  } catch (const poplar_error &error) {
    return error.what();
  }
  return "";
}

} // namespace

int main(int argc, char **argv) {
  if (argc != 2)
    return 2;
  Device device = emulatedDevice(2);
  std::string separator = "{";
  for (unsigned n : {0u, 3u, 10u})
    for (bool dry : {false, true}) {
      const Built b = build(device, argv[1], false);
      std::unique_ptr<DryRun> scope(dry ? new DryRun : nullptr);
      Engine engine(*b.graph, b.program);
      scope.reset(); // an engine is dry if it was made in the scope
      engine.load(device);
      engine.writeTensor("n", &n, &n + 1);
      engine.run(0);
      std::cout << separator << quoted((dry ? "dry" : "real") + std::to_string(n)) << ":"
                << counts(engine);
      separator = ",";
      if (!dry)
        std::cout << ",\"total" << n << "\":" << readTensor<unsigned>(engine, "total", 1)[0];
      else if (n == 0) {
        unsigned row = 0;
        std::cout << ",\"remoteRow\":"
                  << quoted(message([&] { engine.copyFromRemoteBuffer("rows", &row, 0); }));
        std::cout << ",\"streaming\":" << sparq::emulator::streamingMemory(engine).at(0).bytes;
      }
    }
  const Built dependent = build(device, argv[1], true);
  const DryRun scope;
  std::cout << ",\"dependent\":"
            << quoted(message([&] { Engine engine(*dependent.graph, dependent.program); }))
            << "}\n";
}
