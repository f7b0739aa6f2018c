// SPDX-License-Identifier: Apache-2.0
// What vertices are connected to: tiles, fields, and races between vertices.
#include "cases.hpp"

void mapping(Cases &c) {
  c.add("unmapped_variable", [](bool bad) {
    Bench b;
    Tensor t = b.graph.addVariable(FLOAT, {10}, "orphan");
    b.graph.setTileMapping(t.slice(0, bad ? 7 : 10), 0);
    b.prog.add(Copy(b.x.flatten().slice(0, 10), t));
    b.run();
  });
  c.add("unmapped_constant", [](bool bad) {
    Bench b;
    Tensor t = b.graph.addConstant<float>(FLOAT, {8}, 1.0f, "lost");
    if (!bad)
      b.graph.setTileMapping(t, 0);
    b.prog.add(Copy(t, b.x[0]));
    b.run();
  });
  c.add("unmapped_host_read", [](bool bad) {
    Bench b;
    Tensor t = b.graph.addVariable(FLOAT, {8}, "unseen");
    if (!bad)
      b.graph.setTileMapping(t, 0);
    b.graph.createHostRead("handle", t);
    b.run();
  });
  c.add("vertex_without_tile", [](bool bad) {
    Bench b;
    VertexRef v = b.graph.addVertex(b.cs, "test::Increment", {{"data", b.x[0]}});
    if (!bad)
      b.graph.setTileMapping(v, 0);
    b.prog.add(Execute(b.cs));
    b.run();
  });
  c.add("tile_out_of_range", [](bool bad) {
    Bench b;
    b.graph.setTileMapping(b.x, bad ? 4 : 3);
    b.run();
  });
  c.add("vertex_tile_out_of_range", [](bool bad) {
    Bench b;
    b.graph.setTileMapping(b.affine(b.x[0], b.y[0]), bad ? 9 : 0);
    b.run();
  });
  c.add("virtual_tile_out_of_range", [](bool bad) {
    Bench b;
    Graph part = b.graph.createVirtualGraph(1, 3);
    part.setTileMapping(b.x, bad ? 2 : 1);
    b.run();
  });
}

void fields(Cases &c) {
  c.add("unknown_vertex", [](bool bad) {
    Bench b;
    b.graph.addVertex(b.cs, bad ? "test::WeightedRows<int>" : "test::Short");
  });
  c.add("unknown_field", [](bool bad) {
    Bench b;
    VertexRef v = b.graph.addVertex(b.cs, "test::Increment");
    b.graph.connect(v[bad ? "date" : "data"], b.x[0]);
  });
  c.add("unconnected_field", [](bool bad) {
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
  c.add("unconnected_list_element", [](bool bad) {
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
  c.add("list_without_size", [](bool bad) {
    Bench b;
    VertexRef v = b.graph.addVertex(b.cs, "test::WeightedRows<float>");
    b.graph.connect(v["sum"], b.y[0][0]);
    b.graph.connect(v["rows"][1], b.x[0]);
    b.graph.connect(v["rows"][0], b.x[1]);
    if (!bad) // after its elements, as PopLibs does
      b.graph.setFieldSize(v["rows"], 2);
    b.graph.setInitialValue<unsigned>(v["weights"], ArrayRef<unsigned>({1, 1}));
    b.graph.setTileMapping(v, 0);
    b.run();
  });
  c.add("list_size_below_its_elements", [](bool bad) {
    Bench b;
    VertexRef v = b.graph.addVertex(b.cs, "test::WeightedRows<float>");
    b.graph.connect(v["rows"][2], b.x[0]);
    b.graph.setFieldSize(v["rows"], bad ? 2 : 3);
  });
  c.add("list_index_out_of_range", [](bool bad) {
    Bench b;
    VertexRef v = b.graph.addVertex(b.cs, "test::WeightedRows<float>");
    b.graph.setFieldSize(v["rows"], 3);
    b.graph.connect(v["rows"][bad ? 3 : 2], b.x[0]);
  });
  c.add("list_size_changed", [](bool bad) {
    Bench b;
    VertexRef v = b.graph.addVertex(b.cs, "test::WeightedRows<float>");
    b.graph.setFieldSize(v["rows"], bad ? 3 : 4);
    b.graph.connect(v["rows"], b.x);
  });
  c.add("field_indexed_twice", [](bool bad) {
    Bench b;
    VertexRef v = b.graph.addVertex(b.cs, "test::WeightedRows<float>");
    b.graph.setFieldSize(v["rows"], 3);
    b.graph.connect(bad ? v["rows"][1][2] : v["rows"][1], b.x[0]);
  });
  c.add("size_of_a_field_without_one", [](bool bad) {
    Bench b;
    VertexRef v = b.graph.addVertex(b.cs, "test::WeightedRows<float>");
    if (!bad)
      b.graph.setFieldSize(v["rows"], 3);
    b.graph.getFieldSize(v["rows"]);
  });
  c.add("field_size_mismatch", [](bool bad) {
    Bench b;
    VertexRef v = b.affine(b.x[0], b.y[0]);
    b.graph.setFieldSize(v["in"], bad ? 9 : 8);
  });
  c.add("state_not_set", [](bool bad) {
    Bench b;
    VertexRef v = b.graph.addVertex(b.cs, "test::Affine", {{"in", b.x[0]}, {"out", b.y[0]}});
    b.graph.setInitialValue(v["factor"], 1.0f);
    if (!bad)
      b.graph.setInitialValue(v["bias"], 1.0f);
    b.graph.setTileMapping(v, 0);
    b.run();
  });
  c.add("state_value_too_large", [](bool bad) {
    Bench b;
    VertexRef v = b.graph.addVertex(b.cs, "test::Rows");
    b.graph.setInitialValue(v["c"], bad ? 256 : 255);
  });
  c.add("state_value_negative", [](bool bad) {
    Bench b;
    VertexRef v = b.graph.addVertex(b.cs, "test::Count");
    b.graph.setInitialValue(v["step"], bad ? -1 : 1);
  });
  c.add("initial_value_of_edge", [](bool bad) {
    Bench b;
    VertexRef v = b.graph.addVertex(b.cs, "test::Count");
    b.graph.setInitialValue(v[bad ? "counter" : "step"], 1);
  });
  c.add("connect_state", [](bool bad) {
    Bench b;
    VertexRef v = b.graph.addVertex(b.cs, "test::Count");
    Tensor t = b.variable(UNSIGNED_INT, {}, "t");
    b.graph.connect(v[bad ? "step" : "counter"], t);
  });
  c.add("connect_twice", [](bool bad) {
    Bench b;
    VertexRef v = b.affine(b.x[0], b.y[0]);
    if (bad)
      b.graph.connect(v["in"], b.x[1]);
  });
  c.add("connect_wrong_type", [](bool bad) {
    Bench b;
    VertexRef v = b.graph.addVertex(b.cs, "test::Increment");
    b.graph.connect(v["data"], bad ? b.rows[0] : b.x[0]);
  });
  c.add("connect_wrong_rank", [](bool bad) {
    Bench b;
    VertexRef v = b.graph.addVertex(b.cs, "test::Increment");
    b.graph.connect(v["data"], bad ? b.x : b.x.flatten());
  });
  c.add("connect_scalar_of_rank_1", [](bool bad) {
    Bench b;
    VertexRef v = b.graph.addVertex(b.cs, "test::Short");
    b.graph.connect(v["out"], bad ? b.x[0].slice(0, 1) : b.x[0][0]);
  });
  c.add("connect_list_of_rank_1", [](bool bad) {
    Bench b;
    VertexRef v = b.graph.addVertex(b.cs, "test::WeightedRows<float>");
    b.graph.connect(v["rows"], bad ? b.x.flatten() : b.x);
  });
  c.add("short_span_too_long", [](bool bad) {
    Bench b;
    Tensor t =
        b.graph.addVariable(FLOAT, {bad ? 2048u : 2047u}, VariableMappingMethod::LINEAR, "long");
    VertexRef v = b.graph.addVertex(b.cs, "test::Short", {{"in", t}, {"out", b.y[0][0]}});
    b.graph.setTileMapping(v, 0);
    b.run();
  });
  c.add("output_repeats_elements", [](bool bad) {
    Bench b;
    b.affine(b.x[0], bad ? b.y[0].slice(0, 1).broadcast(8, 0) : b.y[0]);
  });
  c.add("inout_overlaps_itself", [](bool bad) {
    Bench b;
    VertexRef v = b.graph.addVertex(b.cs, "test::Increment");
    b.graph.connect(v["data"], concat(b.x[0].slice(0, 4), b.x[0].slice(bad ? 3 : 4, 8)));
  });
  c.add("output_is_constant", [](bool bad) {
    Bench b;
    Tensor t = b.graph.addConstant<float>(FLOAT, {8}, 1.0f, "stone");
    b.affine(b.x[0], bad ? t : b.y[0]);
  });
  c.add("tensor_of_another_graph", [](bool bad) {
    Bench a, b;
    VertexRef v = b.graph.addVertex(b.cs, "test::Increment");
    b.graph.connect(v["data"], bad ? a.x[0] : b.x[0]);
  });
}

void races(Cases &c) {
  c.add("two_vertices_write_one_element", [](bool bad) {
    Bench b;
    b.affine(b.x[0], b.y[0]);
    b.affine(b.x[1], bad ? b.y.flatten().slice(7, 15) : b.y[1]);
    b.run();
  });
  c.add("two_fields_write_one_element", [](bool bad) {
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
  c.add("read_of_what_another_writes", [](bool bad) {
    Bench b;
    b.affine(b.x[0], b.y[0]);
    b.affine(bad ? b.y[0].reverse(0) : b.x[0], b.y[1]);
    b.run();
  });
  c.add("inout_against_read", [](bool bad) {
    Bench b;
    VertexRef v = b.graph.addVertex(b.cs, "test::Increment", {{"data", bad ? b.x[0] : b.x[1]}});
    b.graph.setTileMapping(v, 0);
    b.affine(b.x[0], b.y[0]);
    b.run();
  });
}
