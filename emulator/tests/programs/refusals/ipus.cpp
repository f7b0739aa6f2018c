// SPDX-License-Identifier: Apache-2.0
// Several IPUs.
#include <sparq_emulator/Counters.hpp>

#include "cases.hpp"

namespace {

struct Pod {
  Device device;
  Graph graph;
  RemoteBuffer buffer;
  Sequence prog;
  explicit Pod(std::size_t rows = 1, std::size_t width = 8) : device(model()), graph(device) {
    buffer = graph.addRemoteBuffer("rows", FLOAT, width, rows);
  }
  static Device model() {
    IPUModel m;
    m.numIPUs = 2;
    m.tilesPerIPU = 4;
    return m.createDevice();
  }
  Tensor on(unsigned tile, const Type &type = FLOAT, ArrayRef<std::size_t> shape = {8}) {
    Tensor t = graph.addVariable(type, shape, "t");
    graph.setTileMapping(t, tile);
    graph.setInitialValue(t, 0);
    return t;
  }
  void run(const OptionFlags &options = {}) {
    Engine engine(graph, prog, options);
    engine.load(device);
    engine.run();
  }
};

} // namespace

void ipus(Cases &c) {
  c.add("remote_buffer_of_two_ipus", [](bool spoil) {
    Pod p;
    p.prog.add(Copy(p.on(1), p.buffer));
    p.prog.add(Copy(p.buffer, p.on(spoil ? 5 : 3)));
    p.run();
  });
  c.add("remote_copy_over_two_ipus", [](bool spoil) {
    Pod p;
    Tensor t = p.on(6);
    p.graph.setTileMapping(t.slice(0, 4), spoil ? 3 : 7);
    p.prog.add(Copy(t, p.buffer));
    p.run();
  });
  c.add("streaming_memory_of_an_ipu", [](bool spoil) {
    Pod p(std::size_t(1) << 20, 4096); // 16 GiB
    p.graph.addRemoteBuffer("small", FLOAT, 8);
    sparq::emulator::DryRun dry;
    p.prog.add(Copy(p.buffer, p.on(5, FLOAT, {4096}), p.on(5, UNSIGNED_INT, {1})));
    p.run({{"target.extendedMemory", spoil ? "false" : "true"}});
  });
  c.add("virtual_graph_across_ipus", [](bool spoil) {
    Pod p;
    p.graph.createVirtualGraph(spoil ? 2 : 4, spoil ? 6 : 8);
  });
  c.add("virtual_tile_of_each_ipu", [](bool spoil) {
    Pod p;
    p.graph.createVirtualGraph(std::vector<unsigned>{spoil ? 4u : 3u});
  });
  c.add("virtual_graph_of_no_tile", [](bool spoil) {
    Pod p;
    p.graph.createVirtualGraph(spoil ? 2 : 1, 2);
  });
  c.add("target_of_no_tile", [](bool spoil) { Target::createIPUTarget(1, spoil ? 0 : 1, "ipu2"); });
  c.add("tile_memory_of_an_ipu", [](bool spoil) {
    Pod p;
    Tensor t = p.on(6, FLOAT, {spoil ? 160000u : 1000u});
    p.prog.add(Copy(t, p.graph.clone(t)));
    p.run();
  });
}
