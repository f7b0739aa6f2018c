// SPDX-License-Identifier: Apache-2.0
// Views, and copies between tensors.
#include "cases.hpp"

#include <poplar/Quarter.hpp>

void views(Cases &c) {
  c.add("slice_out_of_range", [](bool bad) {
    Bench b;
    b.x.slice(2, bad ? 9 : 8, 1);
  });
  c.add("slice_backwards", [](bool bad) {
    Bench b;
    b.x.slice(bad ? 3 : 1, 2);
  });
  c.add("slice_dimension_out_of_range", [](bool bad) {
    Bench b;
    b.x.slice(0, 1, bad ? 2 : 1);
  });
  c.add("index_out_of_range", [](bool bad) {
    Bench b;
    b.x[bad ? 4 : 3];
  });
  c.add("reshape_changes_size", [](bool bad) {
    Bench b;
    b.x.reshape({4, bad ? 9u : 8u});
  });
  c.add("permutation_repeats", [](bool bad) {
    Bench b;
    b.x.dimShuffle({bad ? 1u : 0u, 1u});
  });
  c.add("concat_shapes", [](bool bad) {
    Bench b;
    concat(b.x, b.y.slice(0, bad ? 7 : 8, 1), 0);
  });
  c.add("concat_types", [](bool bad) {
    Bench b;
    concat(b.x[0], bad ? b.rows[0] : b.y[0]);
  });
  c.add("squeeze_wide_dimension", [](bool bad) {
    Bench b;
    b.x.slice(0, 1).squeeze({bad ? 1u : 0u});
  });
  c.add("reinterpret_other_size", [](bool bad) {
    Bench b;
    b.x.reinterpret(bad ? HALF : INT);
  });
  c.add("invalid_tensor", [](bool bad) {
    Bench b;
    Tensor t;
    (bad ? t : b.x).flatten();
  });
  c.add("constant_size", [](bool bad) {
    Bench b;
    b.graph.addConstant<float>(FLOAT, {3}, ArrayRef<float>(std::vector<float>(bad ? 2 : 3)));
  });
  c.add("initial_value_below_all", [](bool bad) {
    Bench b;
    b.graph.setInitialValue(b.variable(SHORT, {2}, "t"), bad ? -32769 : -32768);
  });
  c.add("scale_of_quarters",
        [](bool bad) { QuarterMetadata(QuarterMetadata::Format::F143, bad ? 32 : 31); });
  c.add("metadata_of_floats", [](bool bad) {
    Bench b;
    b.graph.addVariable(FLOAT, bad ? b.y : b.x.getMetadata(), {2});
  });
}

void copies(Cases &c) {
  c.add("copy_type_mismatch", [](bool bad) {
    Bench b;
    b.prog.add(Copy(bad ? b.rows.flatten().slice(0, 8) : b.x[0], b.y[0]));
    b.run();
  });
  c.add("copy_shape_mismatch", [](bool bad) {
    Bench b;
    b.prog.add(Copy(bad ? b.x.transpose() : b.x, b.y));
    b.run();
  });
  c.add("copy_size_mismatch", [](bool bad) {
    Bench b;
    b.prog.add(Copy(b.x[0].slice(0, bad ? 7 : 8), b.y[0]));
    b.run();
  });
  c.add("copy_to_constant", [](bool bad) {
    Bench b;
    Tensor t = b.graph.addConstant<float>(FLOAT, {8}, 1.0f, "stone");
    b.graph.setTileMapping(t, 0);
    b.prog.add(Copy(b.x[0], bad ? t : b.y[0]));
    b.run();
  });
  c.add("copy_to_repeated_elements", [](bool bad) {
    Bench b;
    b.prog.add(Copy(b.x[0], bad ? b.y[0].slice(0, 4).broadcast(2, 0) : b.y[0]));
    b.run();
  });
  c.add("write_undef_of_constant", [](bool bad) {
    Bench b;
    Tensor t = b.graph.addConstant<float>(FLOAT, {8}, 1.0f, "stone");
    b.graph.setTileMapping(t, 0);
    b.prog.add(WriteUndef(bad ? t : b.y[0]));
    b.run();
  });
}
