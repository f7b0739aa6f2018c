// SPDX-License-Identifier: Apache-2.0
// Replicated graphs: control flow must not differ between replicas where they have to meet.
#include "cases.hpp"

namespace {

// Two replicas of a graph of 4 tiles.
struct Pair {
  Device device;
  Graph graph;
  Tensor flag, value, host, row;
  RemoteBuffer remote;
  Sequence prog;

  static Device twoDevices() {
    IPUModel model;
    model.numIPUs = 2;
    model.tilesPerIPU = 4;
    return model.createDevice();
  }
  Pair() : device(twoDevices()), graph(device, replication_factor(2)) {
    graph.addCodelets(codelets);
    flag = variable(BOOL, {}, "flag");
    value = variable(UNSIGNED_INT, {}, "value");
    graph.setInitialValue(value, 1u);
    host = variable(UNSIGNED_INT, {}, "host");
    graph.createHostWrite("host", host);
    row = variable(UNSIGNED_INT, {4}, "row");
    remote = graph.addRemoteBuffer("remote", UNSIGNED_INT, 4);
  }
  Tensor variable(const Type &type, ArrayRef<std::size_t> shape, const std::string &name) {
    const Tensor t = graph.addVariable(type, shape, name);
    graph.setTileMapping(t, 0);
    return t;
  }
  // below = *from < 7
  Execute compare(const Tensor &from, const Tensor &below) {
    const ComputeSet cs = graph.addComputeSet("compare");
    const VertexRef v = graph.addVertex(cs, "test::Below", {{"value", from}, {"below", below}});
    graph.setInitialValue(v["limit"], 7);
    graph.setTileMapping(v, 0);
    return Execute(cs);
  }
  Program copyRow() { return Copy(remote, row, "row"); }
  void compile() { compileGraph(graph, {prog}); }
};

void sources(Cases &c) {
  c.add("replicas_part_at_a_host_write", [](bool bad) {
    Pair p;
    p.graph.setInitialValue(p.flag, true);
    if (bad)
      p.graph.createHostWrite("flag", p.flag);
    p.prog.add(If(p.flag, p.copyRow(), Sequence(), "if"));
    p.compile();
  });
  c.add("replicas_part_at_a_stream", [](bool bad) {
    Pair p;
    const Tensor work = p.variable(INT, {}, "work");
    const DataStream in = p.graph.addHostToDeviceFIFO(
        "in", INT, 1, bad ? ReplicatedStreamMode::REPLICATE : ReplicatedStreamMode::BROADCAST);
    const DataStream out = p.graph.addDeviceToHostFIFO("out", UNSIGNED_INT, 4);
    p.prog.add(Copy(p.remote, p.row));
    p.prog.add(RepeatWhileTrue(Copy(in, work), work, Copy(p.row, out)));
    p.compile();
  });
  c.add("replicas_part_at_a_remote_row", [](bool bad) {
    Pair p;
    const Tensor other = p.variable(UNSIGNED_INT, {4}, "other");
    p.prog.add(p.copyRow());
    p.prog.add(Copy(p.row[0], p.value));
    const Program ring = CrossReplicaCopy(p.row, other, {{0, 1}, {1, 0}}, "ring");
    p.prog.add(Switch(p.value, {{3, bad ? ring : Program(Copy(p.row, other))}}));
    p.prog.add(ring);
    p.compile();
  });
  c.add("replicas_part_beside_equal_elements", [](bool bad) {
    Pair p;
    p.prog.add(p.copyRow());
    p.prog.add(Copy(p.value, p.row[1]));
    p.prog.add(Switch(p.row[bad ? 3 : 1], {{3, p.copyRow()}}));
    p.compile();
  });
  c.add("replicas_part_between_elements", [](bool bad) {
    Pair p;
    p.prog.add(p.copyRow());
    for (unsigned i : {1u, 2u})
      p.prog.add(Copy(p.value, p.row[i]));
    p.graph.setInitialValue(p.flag, true);
    const Copy ends(concat(p.row.slice(3, 4), p.row.slice(0, 1)), p.row.slice(0, 2));
    p.prog.add(If(p.flag, Sequence(), ends));
    p.prog.add(Switch(p.row[bad ? 1 : 2], {{3, p.copyRow()}}));
    p.compile();
  });
  c.add("replicas_part_at_their_index", [](bool bad) {
    Pair p;
    const Tensor index = p.graph.addReplicationIndexConstant();
    p.graph.setTileMapping(index, 1);
    const Tensor below = p.variable(BOOL, {}, "below");
    Sequence condition{p.compare(index, below)};
    if (!bad)
      condition.add(AssumeEqualAcrossReplicas(below));
    p.prog.add(RepeatWhileFalse(condition, below, PrintTensor("row", p.row)));
    p.compile();
  });
  c.add("replicas_part_at_undefined_elements", [](bool bad) {
    Pair p;
    if (!bad)
      p.prog.add(p.compare(p.value, p.flag));
    p.prog.add(If(p.flag, Sequence(), p.copyRow()));
    p.compile();
  });
}

void flow(Cases &c) {
  c.add("replicas_part_after_they_parted", [](bool bad) {
    Pair p;
    p.graph.createHostWrite("flag", p.flag);
    const Tensor two = p.graph.addConstant(UNSIGNED_INT, {}, 2u);
    p.graph.setTileMapping(two, 0);
    p.prog.add(If(p.flag, Copy(two, p.value), Sequence()));
    if (!bad) // now it is the same again
      p.prog.add(Copy(two, p.value));
    p.prog.add(If(p.value, Sync(SyncType::EXTERNAL), Sequence()));
    p.compile();
  });
  c.add("replicas_part_in_the_second_pass", [](bool bad) {
    Pair p;
    const Function row = p.graph.addFunction(p.copyRow());
    const Tensor two = p.graph.addConstant(UNSIGNED_INT, {}, 2u);
    p.graph.setTileMapping(two, 0);
    p.prog.add(Copy(two, p.value)); // the same in the first pass
    p.prog.add(Repeat(2, Sequence{If(p.value, Call(row), Sequence()),
                                  Copy(bad ? p.host : p.value, bad ? p.value : p.host)}));
    p.compile();
  });
  c.add("replicas_part_in_another_program", [](bool bad) {
    Pair p;
    p.prog.add(If(p.value, p.copyRow(), Sequence()));
    compileGraph(p.graph, {p.prog, Copy(bad ? p.host : p.value, bad ? p.value : p.host)});
  });
}

void graphs(Cases &c) {
  c.add("replication_factor",
        [](bool bad) { Graph g(Pair::twoDevices(), replication_factor(bad ? 3 : 2)); });
  c.add("replica_tile", [](bool bad) {
    Pair p;
    p.graph.setTileMapping(p.row, bad ? 4 : 3);
    p.compile();
  });
  c.add("replicas_to_run", [](bool bad) {
    const Device device = bad ? Pair::twoDevices() : emulatedDevice(4);
    Graph graph(device, replication_factor(bad ? 2 : 1));
    Engine engine(graph, Sequence());
    engine.load(device);
  });
  c.add("replica_out_of_range", [](bool bad) {
    Pair p;
    p.prog.add(CrossReplicaCopy(p.row, p.variable(UNSIGNED_INT, {4}, "other"),
                                {{0, 1}, {1, bad ? 2 : 0}}));
    p.compile();
  });
}

} // namespace

void replication(Cases &c) {
  graphs(c);
  sources(c);
  flow(c);
}
