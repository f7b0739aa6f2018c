// SPDX-License-Identifier: Apache-2.0
// Programs that must be refused, one function each: refusals CODELETS.gp.
// A JSON line per case: the exception's type and message, or "accepted".
// Every case has a control without the defect, which must run.
#include <functional>
#include <map>
#include <typeinfo>

#include <cxxabi.h>

#include "util.hpp"

using namespace poplar;
using namespace poplar::program;

namespace {

std::string codelets;

// A small correct program; a case spoils one thing in it.
struct Bench {
  Device device;
  Graph graph;
  Tensor x, y, rows, offsets, flag;
  RemoteBuffer remote;
  DataStream in, out;
  Sequence prog;
  ComputeSet cs;

  explicit Bench(unsigned tiles = 4) : device(emulatedDevice(tiles)), graph(device) {
    graph.addCodelets(codelets);
    x = graph.addVariable(FLOAT, {4, 8}, VariableMappingMethod::LINEAR, "x");
    y = graph.addVariable(FLOAT, {4, 8}, VariableMappingMethod::LINEAR, "y");
    graph.setInitialValue<float>(x, 1);
    graph.setInitialValue<float>(y, 2);
    rows = graph.addVariable(HALF, {3, 16}, VariableMappingMethod::LINEAR, "rows");
    offsets = graph.addVariable(UNSIGNED_INT, {3}, VariableMappingMethod::LINEAR, "offsets");
    graph.setInitialValue<unsigned>(offsets, ArrayRef<unsigned>({0, 4, 2}));
    flag = graph.addVariable(BOOL, {}, "flag");
    graph.setTileMapping(flag, 0);
    graph.setInitialValue(flag, false);
    remote = graph.addRemoteBuffer("remote", HALF, 16, 5);
    in = graph.addHostToDeviceFIFO("in", FLOAT, 32);
    out = graph.addDeviceToHostFIFO("out", FLOAT, 32);
    cs = graph.addComputeSet("work");
  }
  VertexRef affine(const Tensor &from, const Tensor &to) {
    VertexRef v = graph.addVertex(cs, "test::Affine", {{"in", from}, {"out", to}});
    graph.setInitialValue(v["factor"], 1.0f);
    graph.setInitialValue(v["bias"], 1.0f);
    graph.setTileMapping(v, 1);
    return v;
  }
  Tensor variable(const Type &type, ArrayRef<std::size_t> shape, const std::string &name) {
    Tensor t = graph.addVariable(type, shape, name);
    graph.setTileMapping(t, 0);
    graph.setInitialValue(t, 0);
    return t;
  }
  void run(const OptionFlags &options = {}) {
    Engine engine(graph, prog, options);
    engine.load(device);
    std::vector<float> buffer(32);
    engine.connectStream("in", buffer.data());
    engine.connectStream("out", buffer.data());
    engine.run();
  }
};

// A case: `spoil` is false for the control.
using Case = std::function<void(bool spoil)>;

std::vector<std::pair<std::string, Case>> cases() {
  std::vector<std::pair<std::string, Case>> c;
  auto add = [&](const std::string &name, Case f) { c.emplace_back(name, std::move(f)); };

  // ---- mapping
  add("unmapped_variable", [](bool bad) {
    Bench b;
    Tensor t = b.graph.addVariable(FLOAT, {10}, "orphan");
    b.graph.setTileMapping(t.slice(0, bad ? 7 : 10), 0);
    b.prog.add(Copy(b.x.flatten().slice(0, 10), t));
    b.run();
  });
  add("unmapped_constant", [](bool bad) {
    Bench b;
    Tensor t = b.graph.addConstant<float>(FLOAT, {8}, 1.0f, "lost");
    if (!bad)
      b.graph.setTileMapping(t, 0);
    b.prog.add(Copy(t, b.x[0]));
    b.run();
  });
  add("unmapped_host_read", [](bool bad) {
    Bench b;
    Tensor t = b.graph.addVariable(FLOAT, {8}, "unseen");
    if (!bad)
      b.graph.setTileMapping(t, 0);
    b.graph.createHostRead("handle", t);
    b.run();
  });
  add("vertex_without_tile", [](bool bad) {
    Bench b;
    VertexRef v = b.graph.addVertex(b.cs, "test::Increment", {{"data", b.x[0]}});
    if (!bad)
      b.graph.setTileMapping(v, 0);
    b.prog.add(Execute(b.cs));
    b.run();
  });
  add("tile_out_of_range", [](bool bad) {
    Bench b;
    b.graph.setTileMapping(b.x, bad ? 4 : 3);
    b.run();
  });
  add("vertex_tile_out_of_range", [](bool bad) {
    Bench b;
    b.graph.setTileMapping(b.affine(b.x[0], b.y[0]), bad ? 9 : 0);
    b.run();
  });
  add("virtual_tile_out_of_range", [](bool bad) {
    Bench b;
    Graph part = b.graph.createVirtualGraph(1, 3);
    part.setTileMapping(b.x, bad ? 2 : 1);
    b.run();
  });

  // ---- vertices and fields
  add("unknown_vertex", [](bool bad) {
    Bench b;
    b.graph.addVertex(b.cs, bad ? "test::WeightedRows<int>" : "test::Short");
  });
  add("unknown_field", [](bool bad) {
    Bench b;
    VertexRef v = b.graph.addVertex(b.cs, "test::Increment");
    b.graph.connect(v[bad ? "date" : "data"], b.x[0]);
  });
  add("unconnected_field", [](bool bad) {
    Bench b;
    VertexRef v = b.affine(b.x[0], b.y[0]);
    VertexRef w = b.graph.addVertex(b.cs, "test::Affine", {{"in", b.x[1]}});
    if (!bad)
      b.graph.connect(w["out"], b.y[1]);
    b.graph.setInitialValue(w["factor"], 1.0f);
    b.graph.setInitialValue(w["bias"], 1.0f);
    b.graph.setTileMapping(w, 2);
    (void)v;
    b.run();
  });
  add("unconnected_list_element", [](bool bad) {
    Bench b;
    VertexRef v = b.graph.addVertex(b.cs, "test::WeightedRows<float>", {{"sum", b.y[0][0]}});
    b.graph.setFieldSize(v["rows"], 3);
    b.graph.connect(v["rows"][0], b.x[0]);
    b.graph.connect(v["rows"][2], b.x[1]);
    if (!bad)
      b.graph.connect(v["rows"][1], b.x[2]);
    b.graph.setInitialValue<unsigned>(v["weights"], ArrayRef<unsigned>({1, 1, 1}));
    b.graph.setTileMapping(v, 0);
    b.run();
  });
  add("list_without_size", [](bool bad) {
    Bench b;
    VertexRef v = b.graph.addVertex(b.cs, "test::WeightedRows<float>");
    if (!bad)
      b.graph.setFieldSize(v["rows"], 3);
    b.graph.connect(v["rows"][0], b.x[0]);
  });
  add("list_index_out_of_range", [](bool bad) {
    Bench b;
    VertexRef v = b.graph.addVertex(b.cs, "test::WeightedRows<float>");
    b.graph.setFieldSize(v["rows"], 3);
    b.graph.connect(v["rows"][bad ? 3 : 2], b.x[0]);
  });
  add("list_size_changed", [](bool bad) {
    Bench b;
    VertexRef v = b.graph.addVertex(b.cs, "test::WeightedRows<float>");
    b.graph.setFieldSize(v["rows"], bad ? 3 : 4);
    b.graph.connect(v["rows"], b.x);
  });
  add("field_size_mismatch", [](bool bad) {
    Bench b;
    VertexRef v = b.affine(b.x[0], b.y[0]);
    b.graph.setFieldSize(v["in"], bad ? 9 : 8);
  });
  add("state_not_set", [](bool bad) {
    Bench b;
    VertexRef v = b.graph.addVertex(b.cs, "test::Affine", {{"in", b.x[0]}, {"out", b.y[0]}});
    b.graph.setInitialValue(v["factor"], 1.0f);
    if (!bad)
      b.graph.setInitialValue(v["bias"], 1.0f);
    b.graph.setTileMapping(v, 0);
    b.run();
  });
  add("state_value_too_large", [](bool bad) {
    Bench b;
    VertexRef v = b.graph.addVertex(b.cs, "test::Rows");
    b.graph.setInitialValue(v["c"], bad ? 256 : 255);
  });
  add("state_value_negative", [](bool bad) {
    Bench b;
    VertexRef v = b.graph.addVertex(b.cs, "test::Count");
    b.graph.setInitialValue(v["step"], bad ? -1 : 1);
  });
  add("initial_value_of_edge", [](bool bad) {
    Bench b;
    VertexRef v = b.graph.addVertex(b.cs, "test::Count");
    b.graph.setInitialValue(v[bad ? "counter" : "step"], 1);
  });
  add("connect_state", [](bool bad) {
    Bench b;
    VertexRef v = b.graph.addVertex(b.cs, "test::Count");
    Tensor t = b.variable(UNSIGNED_INT, {}, "t");
    b.graph.connect(v[bad ? "step" : "counter"], t);
  });
  add("connect_twice", [](bool bad) {
    Bench b;
    VertexRef v = b.affine(b.x[0], b.y[0]);
    if (bad)
      b.graph.connect(v["in"], b.x[1]);
  });
  add("connect_wrong_type", [](bool bad) {
    Bench b;
    VertexRef v = b.graph.addVertex(b.cs, "test::Increment");
    b.graph.connect(v["data"], bad ? b.rows[0] : b.x[0]);
  });
  add("connect_wrong_rank", [](bool bad) {
    Bench b;
    VertexRef v = b.graph.addVertex(b.cs, "test::Increment");
    b.graph.connect(v["data"], bad ? b.x : b.x.flatten());
  });
  add("connect_scalar_of_rank_1", [](bool bad) {
    Bench b;
    VertexRef v = b.graph.addVertex(b.cs, "test::Short");
    b.graph.connect(v["out"], bad ? b.x[0].slice(0, 1) : b.x[0][0]);
  });
  add("connect_list_of_rank_1", [](bool bad) {
    Bench b;
    VertexRef v = b.graph.addVertex(b.cs, "test::WeightedRows<float>");
    b.graph.connect(v["rows"], bad ? b.x.flatten() : b.x);
  });
  add("short_span_too_long", [](bool bad) {
    Bench b;
    Tensor t =
        b.graph.addVariable(FLOAT, {bad ? 2048u : 2047u}, VariableMappingMethod::LINEAR, "long");
    VertexRef v = b.graph.addVertex(b.cs, "test::Short", {{"in", t}, {"out", b.y[0][0]}});
    b.graph.setTileMapping(v, 0);
    b.run();
  });
  add("output_repeats_elements", [](bool bad) {
    Bench b;
    b.affine(b.x[0], bad ? b.y[0].slice(0, 1).broadcast(8, 0) : b.y[0]);
  });
  add("inout_overlaps_itself", [](bool bad) {
    Bench b;
    VertexRef v = b.graph.addVertex(b.cs, "test::Increment");
    b.graph.connect(v["data"], concat(b.x[0].slice(0, 4), b.x[0].slice(bad ? 3 : 4, 8)));
  });
  add("output_is_constant", [](bool bad) {
    Bench b;
    Tensor t = b.graph.addConstant<float>(FLOAT, {8}, 1.0f, "stone");
    b.affine(b.x[0], bad ? t : b.y[0]);
  });
  add("tensor_of_another_graph", [](bool bad) {
    Bench a, b;
    VertexRef v = b.graph.addVertex(b.cs, "test::Increment");
    b.graph.connect(v["data"], bad ? a.x[0] : b.x[0]);
  });

  // ---- races in a compute set
  add("two_vertices_write_one_element", [](bool bad) {
    Bench b;
    b.affine(b.x[0], b.y[0]);
    b.affine(b.x[1], bad ? b.y.flatten().slice(7, 15) : b.y[1]);
    b.run();
  });
  add("two_fields_write_one_element", [](bool bad) {
    Bench b;
    Tensor value = b.variable(HALF, {8}, "value"), word = b.variable(UNSIGNED_INT, {2}, "word");
    VertexRef v = b.graph.addVertex(
        b.cs, "test::Aligned",
        {{"in", value.slice(0, 4)}, {"out", value.slice(4, 8)}, {"remainder", word[0]}});
    VertexRef w = b.graph.addVertex(
        b.cs, "test::Aligned",
        {{"in", b.rows[0]}, {"out", b.rows[1]}, {"remainder", word[bad ? 0 : 1]}});
    b.graph.setTileMapping(v, 0);
    b.graph.setTileMapping(w, 1);
    b.run();
  });
  add("read_of_what_another_writes", [](bool bad) {
    Bench b;
    b.affine(b.x[0], b.y[0]);
    b.affine(bad ? b.y[0].reverse(0) : b.x[0], b.y[1]);
    b.run();
  });
  add("inout_against_read", [](bool bad) {
    Bench b;
    VertexRef v = b.graph.addVertex(b.cs, "test::Increment", {{"data", bad ? b.x[0] : b.x[1]}});
    b.graph.setTileMapping(v, 0);
    b.affine(b.x[0], b.y[0]);
    b.run();
  });

  // ---- views
  add("slice_out_of_range", [](bool bad) {
    Bench b;
    b.x.slice(2, bad ? 9 : 8, 1);
  });
  add("slice_backwards", [](bool bad) {
    Bench b;
    b.x.slice(bad ? 3 : 1, 2);
  });
  add("slice_dimension_out_of_range", [](bool bad) {
    Bench b;
    b.x.slice(0, 1, bad ? 2 : 1);
  });
  add("index_out_of_range", [](bool bad) {
    Bench b;
    b.x[bad ? 4 : 3];
  });
  add("reshape_changes_size", [](bool bad) {
    Bench b;
    b.x.reshape({4, bad ? 9u : 8u});
  });
  add("permutation_repeats", [](bool bad) {
    Bench b;
    b.x.dimShuffle({bad ? 1u : 0u, 1u});
  });
  add("concat_shapes", [](bool bad) {
    Bench b;
    concat(b.x, b.y.slice(0, bad ? 7 : 8, 1), 0);
  });
  add("concat_types", [](bool bad) {
    Bench b;
    concat(b.x[0], bad ? b.rows[0] : b.y[0]);
  });
  add("squeeze_wide_dimension", [](bool bad) {
    Bench b;
    b.x.slice(0, 1).squeeze({bad ? 1u : 0u});
  });
  add("reinterpret_other_size", [](bool bad) {
    Bench b;
    b.x.reinterpret(bad ? HALF : INT);
  });
  add("invalid_tensor", [](bool bad) {
    Bench b;
    Tensor t;
    (bad ? t : b.x).flatten();
  });
  add("constant_size", [](bool bad) {
    Bench b;
    b.graph.addConstant<float>(FLOAT, {3}, ArrayRef<float>(std::vector<float>(bad ? 2 : 3)));
  });

  // ---- copies
  add("copy_type_mismatch", [](bool bad) {
    Bench b;
    b.prog.add(Copy(bad ? b.rows.flatten().slice(0, 8) : b.x[0], b.y[0]));
    b.run();
  });
  add("copy_shape_mismatch", [](bool bad) {
    Bench b;
    b.prog.add(Copy(bad ? b.x.transpose() : b.x, b.y));
    b.run();
  });
  add("copy_size_mismatch", [](bool bad) {
    Bench b;
    b.prog.add(Copy(b.x[0].slice(0, bad ? 7 : 8), b.y[0]));
    b.run();
  });
  add("copy_to_constant", [](bool bad) {
    Bench b;
    Tensor t = b.graph.addConstant<float>(FLOAT, {8}, 1.0f, "stone");
    b.graph.setTileMapping(t, 0);
    b.prog.add(Copy(b.x[0], bad ? t : b.y[0]));
    b.run();
  });
  add("copy_to_repeated_elements", [](bool bad) {
    Bench b;
    b.prog.add(Copy(b.x[0], bad ? b.y[0].slice(0, 4).broadcast(2, 0) : b.y[0]));
    b.run();
  });
  add("write_undef_of_constant", [](bool bad) {
    Bench b;
    Tensor t = b.graph.addConstant<float>(FLOAT, {8}, 1.0f, "stone");
    b.graph.setTileMapping(t, 0);
    b.prog.add(WriteUndef(bad ? t : b.y[0]));
    b.run();
  });

  // ---- remote buffers
  add("remote_row_length", [](bool bad) {
    Bench b;
    b.prog.add(Copy(b.remote, bad ? b.rows.slice(0, 15, 1) : b.rows, b.offsets));
    b.run();
  });
  add("remote_rows_against_offsets", [](bool bad) {
    Bench b;
    b.prog.add(Copy(b.remote, b.rows, bad ? b.offsets.slice(0, 2) : b.offsets));
    b.run();
  });
  add("remote_type_mismatch", [](bool bad) {
    Bench b;
    Tensor t = b.variable(FLOAT, {3, 16}, "floats");
    b.prog.add(Copy(b.remote, bad ? t : b.rows, b.offsets));
    b.run();
  });
  add("remote_offset_type", [](bool bad) {
    Bench b;
    Tensor t = b.variable(bad ? UNSIGNED_SHORT : INT, {3}, "shorts");
    b.prog.add(Copy(b.remote, b.rows, t));
    b.run();
  });
  add("remote_offset_rank", [](bool bad) {
    Bench b;
    b.prog.add(Copy(b.remote, b.rows, bad ? b.offsets.expand({1}) : b.offsets));
    b.run();
  });
  add("remote_offset_out_of_range", [](bool bad) {
    Bench b;
    b.graph.setInitialValue(b.offsets[1], bad ? 5u : 4u);
    b.prog.add(Copy(b.remote, b.rows, b.offsets, "gather"));
    b.run();
  });
  add("remote_offset_negative", [](bool bad) {
    Bench b;
    Tensor t = b.variable(INT, {3}, "t");
    b.graph.setInitialValue(t[2], bad ? -1 : 1);
    b.prog.add(Copy(b.remote, b.rows, t, "gather"));
    b.run();
  });
  add("remote_store_out_of_range", [](bool bad) {
    Bench b;
    b.graph.setInitialValue(b.offsets[1], bad ? 1000000u : 4u);
    b.prog.add(Copy(b.rows, b.remote, b.offsets, "scatter"));
    b.run();
  });
  add("remote_store_repeats_row", [](bool bad) {
    Bench b;
    b.graph.setInitialValue(b.offsets[2], bad ? 4u : 2u);
    b.prog.add(Copy(b.rows, b.remote, b.offsets, "scatter"));
    b.run();
  });
  add("remote_without_offset", [](bool bad) {
    Bench b;
    RemoteBuffer one = b.graph.addRemoteBuffer("one", HALF, 16);
    b.prog.add(Copy(bad ? b.remote : one, b.rows[0]));
    b.run();
  });
  add("remote_of_another_graph", [](bool bad) {
    Bench a, b;
    b.prog.add(Copy(bad ? a.remote : b.remote, b.rows, b.offsets));
    b.run();
  });
  add("remote_load_to_constant", [](bool bad) {
    Bench b;
    Tensor t = b.graph.addConstant<float>(HALF, {3, 16}, 1.0f, "stone");
    b.graph.setTileMapping(t, 0);
    b.prog.add(Copy(b.remote, bad ? t : b.rows, b.offsets));
    b.run();
  });
  add("remote_host_row_out_of_range", [](bool bad) {
    Bench b;
    Engine engine(b.graph, b.prog);
    engine.load(b.device);
    std::vector<std::uint16_t> row(16);
    engine.copyToRemoteBuffer(row.data(), "remote", bad ? 5 : 4);
  });
  add("remote_host_row_size", [](bool bad) {
    Bench b;
    Engine engine(b.graph, b.prog);
    engine.load(b.device);
    std::vector<std::uint16_t> row(bad ? 17 : 16);
    engine.copyToRemoteBuffer(ArrayRef<std::uint16_t>(row), "remote", 0);
  });
  add("remote_unknown_handle", [](bool bad) {
    Bench b;
    Engine engine(b.graph, b.prog);
    engine.load(b.device);
    std::vector<std::uint16_t> row(16);
    engine.copyFromRemoteBuffer(bad ? "remoto" : "remote", row.data(), 0);
  });
  add("remote_empty", [](bool bad) {
    Bench b;
    b.graph.addRemoteBuffer("new", HALF, 16, bad ? 0 : 1);
  });

  // ---- handles and streams
  add("duplicate_remote_handle", [](bool bad) {
    Bench b;
    b.graph.addRemoteBuffer(bad ? "remote" : "remote2", HALF, 16, 5);
  });
  add("duplicate_stream_handle", [](bool bad) {
    Bench b;
    b.graph.addDeviceToHostFIFO(bad ? "in" : "in2", FLOAT, 3);
  });
  add("duplicate_host_write", [](bool bad) {
    Bench b;
    b.graph.createHostWrite("w", b.x);
    b.graph.createHostWrite(bad ? "w" : "w2", b.y);
  });
  add("duplicate_host_read", [](bool bad) {
    Bench b;
    b.graph.createHostRead("r", b.x);
    b.graph.createHostRead(bad ? "r" : "r2", b.y);
  });
  add("host_write_to_constant", [](bool bad) {
    Bench b;
    Tensor t = b.graph.addConstant<float>(FLOAT, {8}, 1.0f, "stone");
    b.graph.createHostWrite("w", bad ? t : b.x);
  });
  add("unknown_host_handle", [](bool bad) {
    Bench b;
    b.graph.createHostRead("r", b.x);
    Engine engine(b.graph, b.prog);
    engine.load(b.device);
    readTensor<float>(engine, bad ? "q" : "r", 32);
  });
  add("host_array_size", [](bool bad) {
    Bench b;
    b.graph.createHostRead("r", b.x);
    Engine engine(b.graph, b.prog);
    engine.load(b.device);
    readTensor<float>(engine, "r", bad ? 31 : 32);
  });
  add("stream_size_mismatch", [](bool bad) {
    Bench b;
    b.prog.add(Copy(b.in, bad ? b.x[0] : b.x));
    b.run();
  });
  add("stream_type_mismatch", [](bool bad) {
    Bench b;
    Tensor t = b.variable(INT, {32}, "ints");
    b.prog.add(Copy(b.in, bad ? t : b.x.flatten()));
    b.run();
  });
  add("stream_direction", [](bool bad) {
    Bench b;
    b.prog.add(Copy(bad ? b.out : b.in, b.x));
    b.run();
  });
  add("stream_not_connected", [](bool bad) {
    Bench b;
    b.prog.add(Copy(b.in, b.x));
    Engine engine(b.graph, b.prog);
    engine.load(b.device);
    std::vector<float> buffer(32);
    engine.connectStream(bad ? "out" : "in", buffer.data());
    engine.run();
  });
  add("stream_unknown", [](bool bad) {
    Bench b;
    Engine engine(b.graph, b.prog);
    std::vector<float> buffer(32);
    engine.connectStream(bad ? "inn" : "in", buffer.data());
  });
  add("stream_buffer_size", [](bool bad) {
    Bench b;
    Engine engine(b.graph, b.prog);
    std::vector<float> buffer(64);
    engine.connectStream("in", buffer.data(), buffer.data() + (bad ? 63 : 64));
  });

  // ---- control
  add("predicate_of_rank_1", [](bool bad) {
    Bench b;
    Tensor t = b.variable(BOOL, {1}, "t");
    b.prog.add(If(bad ? t : t[0], Sequence(), Sequence()));
    b.run();
  });
  add("predicate_of_float", [](bool bad) {
    Bench b;
    b.prog.add(RepeatWhileTrue(Sequence(), bad ? b.x[0][0] : b.flag, Sequence()));
    b.run();
  });
  add("switch_control_type", [](bool bad) {
    Bench b;
    Tensor t = b.variable(bad ? SHORT : INT, {}, "t");
    b.prog.add(Switch(t, {{0, Sequence()}}));
    b.run();
  });
  add("switch_repeats_case", [](bool bad) {
    Bench b;
    Tensor t = b.variable(INT, {}, "t");
    b.prog.add(Switch(t, {{3, Sequence()}, {bad ? 3 : 4, Sequence()}}));
    b.run();
  });
  add("switch_out_of_bounds", [](bool bad) {
    Bench b;
    Tensor t = b.variable(INT, {}, "t");
    b.graph.setInitialValue(t, bad ? 7 : 1);
    b.prog.add(Switch::switchWithBoundsChecking(t, {{0, Sequence()}, {1, Sequence()}}));
    b.run();
  });
  add("abort_on_condition", [](bool bad) {
    Bench b;
    b.graph.setInitialValue(b.flag, bad);
    b.prog.add(AbortOnCondition(b.flag, std::string("the condition holds")));
    b.run();
  });
  add("error_program", [](bool bad) {
    Bench b;
    Tensor t = b.variable(INT, {}, "t");
    b.graph.setInitialValue(t, 17);
    b.graph.setInitialValue(b.flag, bad);
    b.prog.add(If(b.flag, ErrorProgram("seen", t), Sequence()));
    b.run();
  });
  add("function_calls_itself", [](bool bad) {
    Bench b;
    Function f = b.graph.addFunction(bad ? Program(Call(Function(0))) : Program(Sequence()));
    b.prog.add(Call(f));
    b.run();
  });

  // ---- engine
  add("run_before_load", [](bool bad) {
    Bench b;
    Engine engine(b.graph, b.prog);
    if (!bad)
      engine.load(b.device);
    engine.run();
  });
  add("unknown_program", [](bool bad) {
    Bench b;
    Engine engine(b.graph, b.prog);
    engine.load(b.device);
    engine.run(bad ? 1 : 0);
  });
  add("unknown_option", [](bool bad) {
    Bench b;
    b.run({{bad ? "debug.instrumnt" : "debug.instrument", "true"}});
  });
  add("device_of_another_size", [](bool bad) {
    Bench b;
    Engine engine(b.graph, b.prog);
    engine.load(emulatedDevice(bad ? 5 : 4));
  });
  add("tile_memory", [](bool bad) {
    Bench b;
    Tensor big = b.graph.addVariable(FLOAT, {bad ? 160000u : 150000u}, "big");
    b.graph.setTileMapping(big, 2);
    b.run();
  });
  add("tile_memory_of_landing", [](bool bad) {
    // 300 kB on tile 2, read on tile 3, which holds 400 kB itself
    Bench b;
    Tensor big = b.graph.addVariable(FLOAT, {75000}, "big"),
           own = b.graph.addVariable(FLOAT, {100000}, "own");
    b.graph.setTileMapping(big, 2);
    b.graph.setTileMapping(own, bad ? 3 : 1);
    VertexRef v = b.affine(big, b.variable(FLOAT, {1}, "o"));
    b.graph.setTileMapping(v, 3);
    Engine engine(b.graph, Execute(b.cs));
  });
  add("serialise", [](bool bad) {
    Bench b;
    Executable exe = compileGraph(b.graph, {b.prog});
    std::stringstream s;
    if (bad)
      exe.serialize(s);
    Engine engine(std::move(exe));
  });
  add("replication", [](bool bad) {
    Bench b;
    Graph g(b.device, replication_factor(bad ? 2 : 1));
  });

  // ---- codelets
  add("missing_codelet_file", [](bool bad) {
    Bench b;
    Graph g(b.device);
    g.addCodelets(bad ? codelets + ".not" : codelets);
  });
  add("codelet_syntax", [](bool bad) {
    Bench b;
    std::stringstream s(
        "#include <poplar/Vertex.hpp>\n"
        "struct New : poplar::Vertex { poplar::Output<float> o; bool compute() { *o = 1" +
        std::string(bad ? "" : ";") + " return true; } };");
    b.graph.addCodelets(s);
  });
  add("codelet_defined_twice", [](bool bad) {
    Bench b;
    std::stringstream s(
        "#include <poplar/Vertex.hpp>\nnamespace test { struct " +
        std::string(bad ? "Increment" : "Decrement") +
        " : poplar::Vertex { poplar::Output<float> o; bool compute() { return true; } }; }");
    b.graph.addCodelets(s);
  });
  add("object_not_codelets", [](bool bad) {
    Bench b;
    Graph g(b.device);
    g.addCodelets(bad ? std::string("/proc/self/exe") : codelets, CodeletFileType::Object);
  });
  add("codelet_field_type", [](bool bad) {
    Bench b;
    std::stringstream s(
        "#include <poplar/Vertex.hpp>\nstruct Bad : poplar::Vertex { poplar::Output<float> o; " +
        std::string(bad ? "double" : "float") + " d; bool compute() { return true; } };");
    b.graph.addCodelets(s);
  });
  return c;
}

std::string typeName(const std::exception &e) {
  int status = 0;
  char *name = abi::__cxa_demangle(typeid(e).name(), nullptr, nullptr, &status);
  std::string r = name ? name : typeid(e).name();
  std::free(name);
  return r;
}

std::string outcome(const Case &f, bool spoil) {
  try {
    f(spoil);
  } catch (const std::exception &e) {
    return "{\"type\":" + quoted(typeName(e)) + ",\"message\":" + quoted(e.what()) + "}";
  }
  return "\"accepted\"";
}

} // namespace

int main(int argc, char **argv) {
  if (argc != 2)
    return 2;
  codelets = argv[1];
  for (const auto &c : cases())
    std::cout << "{\"case\":" << quoted(c.first) << ",\"refused\":" << outcome(c.second, true)
              << ",\"control\":" << outcome(c.second, false) << "}" << std::endl;
}
