// SPDX-License-Identifier: Apache-2.0
// Replicated graphs, which are compiled and not run.
#include "cases.hpp"

namespace {

Device twoDevices() {
  IPUModel model;
  model.numIPUs = 2;
  model.tilesPerIPU = 4;
  return model.createDevice();
}
Tensor onTile(Graph &graph, unsigned tile) {
  const Tensor t = graph.addVariable(UNSIGNED_INT, {4}, "row");
  graph.setTileMapping(t, tile);
  return t;
}

} // namespace

void replication(Cases &c) {
  c.add("replication_factor",
        [](bool bad) { Graph g(twoDevices(), replication_factor(bad ? 3 : 2)); });
  c.add("replica_tile", [](bool bad) {
    Graph graph(twoDevices(), replication_factor(2));
    onTile(graph, bad ? 4 : 3);
  });
  c.add("replicas_to_run", [](bool bad) {
    const Device device = bad ? twoDevices() : emulatedDevice(4);
    Graph graph(device, replication_factor(bad ? 2 : 1));
    Engine engine(graph, Sequence());
    engine.load(device);
  });
  c.add("replica_out_of_range", [](bool bad) {
    Graph graph(twoDevices(), replication_factor(2));
    const std::map<unsigned, unsigned> replicas = {{0, 1}, {1, bad ? 2 : 0}};
    compileGraph(graph, {CrossReplicaCopy(onTile(graph, 0), onTile(graph, 0), replicas)});
  });
}
