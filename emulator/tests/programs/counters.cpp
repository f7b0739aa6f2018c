// SPDX-License-Identifier: Apache-2.0
// Programs whose counts can be worked out by hand: counters CODELETS.gp.
// One JSON line per step of each program.
#include <sparq_emulator/Counters.hpp>
#include <sparq_emulator/DeviceModel.hpp>

#include "util.hpp"

using namespace poplar;
using namespace poplar::program;
using namespace sparq::emulator;

namespace {

std::string json(const ExchangeCount &e) {
  return "{\"bytesIn\":" + std::to_string(e.bytesIn) +
         ",\"bytesOut\":" + std::to_string(e.bytesOut) +
         ",\"maxBytesIn\":" + std::to_string(e.maxBytesIn) +
         ",\"maxBytesOut\":" + std::to_string(e.maxBytesOut) +
         ",\"maxBytes\":" + std::to_string(e.maxBytes) +
         ",\"busyBytes\":" + std::to_string(e.busyBytes) +
         ",\"busyPieces\":" + std::to_string(e.busyPieces) + "}";
}

void report(const std::string &program, const Engine &engine) {
  const DeviceModel model;
  for (const StepCount &s : lastRun(engine)) {
    const ModelledTime t = modelledTime(model, s);
    std::cout << "{\"program\":" << quoted(program) << ",\"name\":" << quoted(s.name)
              << ",\"kind\":\"" << toString(s.kind) << "\",\"executions\":" << s.executions
              << ",\"tileCycles\":" << s.tileCycles << ",\"flops\":" << s.flops
              << ",\"vertices\":" << s.vertices
              << ",\"withoutEstimate\":" << s.verticesWithoutEstimate
              << ",\"exchanges\":" << s.exchanges << ",\"before\":" << json(s.before)
              << ",\"after\":" << json(s.after) << ",\"syncs\":" << s.syncs
              << ",\"buffer\":" << quoted(s.buffer) << ",\"rows\":" << s.rows
              << ",\"bytes\":" << s.bytes << ",\"packets\":" << s.packets
              << ",\"onChipCycles\":" << t.onChip() * model.clock
              << ",\"streamingSeconds\":" << t.streaming << ",\"hostSeconds\":" << t.hostStreams
              << "}\n";
  }
  const ModelledTime all = modelledTime(model, lastRun(engine));
  std::cout << "{\"program\":" << quoted(program + " in all")
            << ",\"streamingSeconds\":" << all.streaming << ",\"hostSeconds\":" << all.hostStreams
            << "}\n";
}

// Estimators read constants that vertices are connected to as they read state.
void estimateFromValues(const Device &device, const char *codelets) {
  Graph graph(device);
  graph.addCodelets(codelets);
  Tensor c = graph.addConstant<float>(FLOAT, {5}, {1, 2, 3, 4, 5}, "c");
  Tensor x = graph.addVariable(FLOAT, {2}, "x"), sum = graph.addVariable(FLOAT, {}, "sum");
  graph.registerPerfEstimator(
      "test::WeightedRows<float>", [](const VertexIntrospector &v, const Target &t) {
        std::uint64_t cycles = 0;
        for (const auto &row : v.getFieldInfo("rows").getInitialValues<std::vector<unsigned>>(t)) {
          cycles *= 1000;
          for (unsigned element : row)
            cycles = 10 * cycles + element;
        }
        const auto weights = v.getFieldInfo("weights");
        const std::size_t size = weights.getInitialValues<unsigned>(t).size();
        return VertexPerfEstimate(cycles, weights.getSizeAtIndex(1) == size ? size : 0);
      });
  ComputeSet cs = graph.addComputeSet("values");
  auto vertex = [&](const Tensor &second) {
    VertexRef v = graph.addVertex(cs, "test::WeightedRows<float>", {{"sum", sum}});
    graph.connect(v["rows"], {c.slice(1, 4), second});
    graph.setInitialValue(v["weights"], std::vector<unsigned>{6, 7});
    return v;
  };
  const VertexPerfEstimate e = graph.getPerfEstimate(vertex(concat(c.slice(4, 5), c.slice(0, 1))));
  std::cout << "{\"program\":\"values\",\"cycles\":" << e.cycles << ",\"flops\":" << e.flops;
  try {
    graph.getPerfEstimate(vertex(x));
  } catch (const index_error &error) {
    std::cout << ",\"message\":" << quoted(error.what()) << "}\n";
  }
}

} // namespace

int main(int argc, char **argv) {
  if (argc != 2)
    return 2;
  Device device = emulatedDevice(4);
  estimateFromValues(device, argv[1]);
  {
    Graph graph(device);
    graph.addCodelets(argv[1]);
    // 8 vertices on tile 0 for 6 workers, 1 on tile 1, which reads from tile 0 and writes to
    // tile 2.
    Tensor x = graph.addVariable(FLOAT, {10, 16}, "x");
    graph.setTileMapping(x, 0);
    graph.setInitialValue<float>(x, 1);
    Tensor y = graph.addVariable(FLOAT, {10, 16}, "y");
    graph.setTileMapping(y, 0);
    graph.setTileMapping(y[9], 2);
    ComputeSet cs = graph.addComputeSet("affine");
    for (unsigned i = 0; i < 9; ++i) {
      const unsigned row = i == 8 ? 9 : i;
      VertexRef v = graph.addVertex(cs, "test::Affine", {{"in", x[row]}, {"out", y[row]}});
      graph.setInitialValue(v["factor"], 1.0f);
      graph.setInitialValue(v["bias"], 1.0f);
      graph.setTileMapping(v, i == 8 ? 1 : 0);
      // Issue slots of the six workers: 100 + 106, 101 + 107, and 102 to 105 alone.
      if (i < 8)
        graph.setPerfEstimate(v, 100 + i, 32);
    }
    Tensor ids = graph.addVariable(UNSIGNED_INT, {12}, "ids");
    graph.setTileMapping(ids, 3);
    graph.registerPerfEstimator(
        "test::WorkerIds", [](const VertexIntrospector &v, const Target &t) {
          return VertexPerfEstimate(1000 + v.getFieldInfo("out").size() + t.getNumWorkerContexts() +
                                    v.getFieldInfo("n").getInitialValue<unsigned>(t));
        });
    ComputeSet multi = graph.addComputeSet("multi");
    VertexRef w = graph.addVertex(multi, "test::WorkerIds", {{"out", ids}});
    graph.setInitialValue(w["n"], 12u);
    graph.setTileMapping(w, 3);
    // A broadcast: 16 floats of tile 0 to tiles 1, 2 and 3; what stays on tile 0 is free.
    Tensor copies = graph.addVariable(FLOAT, {4, 16}, "copies");
    for (unsigned t = 0; t < 4; ++t)
      graph.setTileMapping(copies[t], t);
    Sequence prog{
        Repeat(3, Execute(cs, "stage/affine")),
        Execute(multi),
        Copy(x[0].expand({0}).broadcast(4, 0), copies, false, "stage/broadcast"),
        Copy(x.slice({0, 0}, {10, 1}).flatten(), copies[3].slice(0, 10), false, "pieces"),
        Copy(x.slice(2, 4), x.slice(4, 6), false, "within"),
        Copy(concat({copies[1].slice(0, 5), copies[3].slice(0, 1), copies[3].slice(2, 3)}),
             concat({y[9].slice(0, 5), x[0].slice(0, 1), x[0].slice(2, 3)}), false, "tie"),
        Copy(x[1], x[2]),
        Sync(SyncType::INTERNAL, "sync")};
    Engine engine(graph, prog);
    engine.load(device);
    engine.run();
    report("onchip", engine);
    try {
      requireEstimates(lastRun(engine));
      return 1;
    } catch (const missing_perf_estimate &e) {
      std::cout << "{\"program\":\"estimates\",\"message\":" << quoted(e.what()) << "}\n";
    }
    const auto stages = modelledTimeByStage(DeviceModel(), lastRun(engine));
    std::cout << "{\"program\":\"stages\"";
    for (const auto &s : stages)
      std::cout << "," << quoted(s.first) << ":" << s.second.total() * 1.85e9;
    std::cout << "}\n";
    const MemoryCount m = memory(engine);
    std::cout << "{\"program\":\"memory\",\"tile\":" << m.tile << ",\"bytes\":" << m.bytes
              << ",\"limit\":" << m.limit << ",\"variables\":" << m.variables
              << ",\"vertexState\":" << m.vertexState << ",\"temporaries\":" << m.temporaries
              << ",\"codeAndStacks\":" << m.codeAndStacks
              << ",\"codePerTile\":" << jsonList(m.codePerTile)
              << ",\"perTile\":" << jsonList(m.bytesPerTile) << ",\"largest\":{";
    for (std::size_t i = 0; i < m.largest.size(); ++i)
      std::cout << (i ? "," : "") << quoted(m.largest[i].name) << ":" << m.largest[i].bytes;
    std::cout << "}}\n";
  }
  {
    Graph graph(device);
    // Rows of 1500 halves = 3000 bytes.
    // Whole rows on one tile: packets of 1024, 1024 and 952 bytes.
    // Rows cut after 600 halves: 1200 bytes on one tile (2 packets), 1800 on the next (2).
    RemoteBuffer rb = graph.addRemoteBuffer("rows", HALF, 1500, 10);
    Tensor whole = graph.addVariable(HALF, {4, 1500}, "whole");
    for (unsigned t = 0; t < 4; ++t)
      graph.setTileMapping(whole[t], t);
    Tensor cut = graph.addVariable(HALF, {2, 1500}, "cut");
    graph.setTileMapping(cut.slice(0, 600, 1), 0);
    graph.setTileMapping(cut.slice(600, 1500, 1), 1);
    Tensor offsets = graph.addConstant<unsigned>(UNSIGNED_INT, {4}, {9, 1, 3, 2}, "offsets");
    graph.setTileMapping(offsets, 0);
    RemoteBuffer small = graph.addRemoteBuffer("small", HALF, 128, 100);
    Tensor smallRows = graph.addVariable(HALF, {8, 128}, "smallRows"); // one tile: 8 packets
    graph.setTileMapping(smallRows, 0);
    Tensor eight =
        graph.addConstant<unsigned>(UNSIGNED_INT, {8}, {0, 1, 2, 3, 4, 5, 6, 7}, "eight");
    graph.setTileMapping(eight, 0);
    DataStream in = graph.addHostToDeviceFIFO("in", HALF, 1024);
    Tensor hostData = smallRows.flatten();
    Sequence prog{Copy(rb, whole, offsets, "gather/whole"),
                  Copy(cut, rb, offsets.slice(0, 2), "scatter/cut"),
                  Repeat(2, Copy(small, smallRows, eight, "gather/small")),
                  Copy(in, hostData, false, "host")};
    Engine engine(graph, {prog, Sequence{}});
    engine.load(device);
    std::vector<std::uint16_t> host(1024);
    engine.connectStream("in", host.data());
    engine.run();
    report("remote", engine);
    engine.run(1); // counts are of the last run alone
    if (!lastRun(engine).empty())
      return 1;
  }
}
