// SPDX-License-Identifier: Apache-2.0
// What connects a graph to its host: remote buffers, streams, handles.
#include <sparq_emulator/Counters.hpp>

#include "cases.hpp"

void remoteBuffers(Cases &c) {
  c.add("remote_buffer_of_nothing", [](bool bad) {
    Bench b;
    b.prog.add(Copy(bad ? RemoteBuffer() : b.remote, b.rows, b.offsets));
    b.run();
  });
  c.add("remote_row_length", [](bool bad) {
    Bench b;
    b.prog.add(Copy(b.remote, bad ? b.rows.slice(0, 15, 1) : b.rows, b.offsets));
    b.run();
  });
  c.add("remote_rows_against_offsets", [](bool bad) {
    Bench b;
    b.prog.add(Copy(b.remote, b.rows, bad ? b.offsets.slice(0, 2) : b.offsets));
    b.run();
  });
  c.add("remote_type_mismatch", [](bool bad) {
    Bench b;
    Tensor t = b.variable(FLOAT, {3, 16}, "floats");
    b.prog.add(Copy(b.remote, bad ? t : b.rows, b.offsets));
    b.run();
  });
  c.add("remote_offset_type", [](bool bad) {
    Bench b;
    Tensor t = b.variable(bad ? UNSIGNED_SHORT : INT, {3}, "shorts");
    b.prog.add(Copy(b.remote, b.rows, t));
    b.run();
  });
  c.add("remote_offset_rank", [](bool bad) {
    Bench b;
    b.prog.add(Copy(b.remote, b.rows, bad ? b.offsets.expand({1}) : b.offsets));
    b.run();
  });
  c.add("remote_offset_out_of_range", [](bool bad) {
    Bench b;
    b.graph.setInitialValue(b.offsets[1], bad ? 5u : 4u);
    b.prog.add(Copy(b.remote, b.rows, b.offsets, "gather"));
    b.run();
  });
  c.add("remote_offset_negative", [](bool bad) {
    Bench b;
    Tensor t = b.variable(INT, {3}, "t");
    b.graph.setInitialValue(t[2], bad ? -1 : 1);
    b.prog.add(Copy(b.remote, b.rows, t, "gather"));
    b.run();
  });
  c.add("remote_store_out_of_range", [](bool bad) {
    Bench b;
    b.graph.setInitialValue(b.offsets[1], bad ? 1000000u : 4u);
    b.prog.add(Copy(b.rows, b.remote, b.offsets, "scatter"));
    b.run();
  });
  c.add("remote_store_repeats_row", [](bool bad) {
    Bench b;
    b.graph.setInitialValue(b.offsets[2], bad ? 4u : 2u);
    b.prog.add(Copy(b.rows, b.remote, b.offsets, "scatter"));
    b.run();
  });
  c.add("remote_buffers_need_extended_memory", [](bool bad) {
    Bench b;
    b.graph.addRemoteBuffer("large", HALF, std::size_t(1) << 20, std::size_t(1) << 12); // 8 GiB
    b.graph.addRemoteBuffer("as large", HALF, std::size_t(1) << 20, std::size_t(1) << 12);
    const sparq::emulator::DryRun dry;
    b.run({{"target.extendedMemory", bad ? "false" : "true"}});
  });
  c.add("remote_buffers_just_without_extended_memory", [](bool bad) {
    Bench b; // its own buffer has 160 bytes
    b.graph.addRemoteBuffer("large", HALF, 8, (std::size_t(1) << 30) - (bad ? 10 : 11));
    const sparq::emulator::DryRun dry;
    b.run();
  });
  c.add("extended_memory_is_true_or_false", [](bool bad) {
    Bench b;
    b.run({{"target.extendedMemory", bad ? "1" : "true"}});
  });
  c.add("remote_without_offset", [](bool bad) {
    Bench b;
    RemoteBuffer one = b.graph.addRemoteBuffer("one", HALF, 16);
    b.prog.add(Copy(bad ? b.remote : one, b.rows[0]));
    b.run();
  });
  c.add("remote_of_another_graph", [](bool bad) {
    Bench a, b;
    b.prog.add(Copy(bad ? a.remote : b.remote, b.rows, b.offsets));
    b.run();
  });
  c.add("remote_load_to_constant", [](bool bad) {
    Bench b;
    Tensor t = b.graph.addConstant<float>(HALF, {3, 16}, 1.0f, "stone");
    b.graph.setTileMapping(t, 0);
    b.prog.add(Copy(b.remote, bad ? t : b.rows, b.offsets));
    b.run();
  });
  c.add("remote_host_row_out_of_range", [](bool bad) {
    Bench b;
    Engine engine(b.graph, b.prog);
    engine.load(b.device);
    std::vector<std::uint16_t> row(16);
    engine.copyToRemoteBuffer(row.data(), "remote", bad ? 5 : 4);
  });
  c.add("remote_host_row_size", [](bool bad) {
    Bench b;
    Engine engine(b.graph, b.prog);
    engine.load(b.device);
    std::vector<std::uint16_t> row(bad ? 17 : 16);
    engine.copyToRemoteBuffer(ArrayRef<std::uint16_t>(row), "remote", 0);
  });
  c.add("remote_unknown_handle", [](bool bad) {
    Bench b;
    Engine engine(b.graph, b.prog);
    engine.load(b.device);
    std::vector<std::uint16_t> row(16);
    engine.copyFromRemoteBuffer(bad ? "remoto" : "remote", row.data(), 0);
  });
  c.add("remote_empty", [](bool bad) {
    Bench b;
    b.graph.addRemoteBuffer("new", HALF, 16, bad ? 0 : 1);
  });
}

void streams(Cases &c) {
  c.add("stream_of_nothing", [](bool bad) {
    Bench b;
    b.prog.add(Copy(bad ? DataStream() : b.in, b.x.flatten()));
    b.run();
  });
  c.add("duplicate_remote_handle", [](bool bad) {
    Bench b;
    b.graph.addRemoteBuffer(bad ? "remote" : "remote2", HALF, 16, 5);
  });
  c.add("duplicate_stream_handle", [](bool bad) {
    Bench b;
    b.graph.addDeviceToHostFIFO(bad ? "in" : "in2", FLOAT, 3);
  });
  c.add("duplicate_host_write", [](bool bad) {
    Bench b;
    b.graph.createHostWrite("w", b.x);
    b.graph.createHostWrite(bad ? "w" : "w2", b.y);
  });
  c.add("duplicate_host_read", [](bool bad) {
    Bench b;
    b.graph.createHostRead("r", b.x);
    b.graph.createHostRead(bad ? "r" : "r2", b.y);
  });
  c.add("host_write_to_constant", [](bool bad) {
    Bench b;
    Tensor t = b.graph.addConstant<float>(FLOAT, {8}, 1.0f, "stone");
    b.graph.createHostWrite("w", bad ? t : b.x);
  });
  c.add("unknown_host_handle", [](bool bad) {
    Bench b;
    b.graph.createHostRead("r", b.x);
    Engine engine(b.graph, b.prog);
    engine.load(b.device);
    readTensor<float>(engine, bad ? "q" : "r", 32);
  });
  c.add("host_array_size", [](bool bad) {
    Bench b;
    b.graph.createHostRead("r", b.x);
    Engine engine(b.graph, b.prog);
    engine.load(b.device);
    readTensor<float>(engine, "r", bad ? 31 : 33); // it may be larger
  });
  c.add("stream_size_mismatch", [](bool bad) {
    Bench b;
    b.prog.add(Copy(b.in, bad ? b.x[0] : b.x));
    b.run();
  });
  c.add("stream_type_mismatch", [](bool bad) {
    Bench b;
    Tensor t = b.variable(INT, {32}, "ints");
    b.prog.add(Copy(b.in, bad ? t : b.x.flatten()));
    b.run();
  });
  c.add("stream_direction", [](bool bad) {
    Bench b;
    b.prog.add(Copy(bad ? b.out : b.in, b.x));
    b.run();
  });
  c.add("stream_not_connected", [](bool bad) {
    Bench b;
    b.prog.add(Copy(b.in, b.x));
    Engine engine(b.graph, b.prog);
    engine.load(b.device);
    std::vector<float> buffer(32);
    engine.connectStream(bad ? "out" : "in", buffer.data());
    engine.run();
  });
  c.add("stream_unknown", [](bool bad) {
    Bench b;
    Engine engine(b.graph, b.prog);
    std::vector<float> buffer(32);
    engine.connectStream(bad ? "inn" : "in", buffer.data());
  });
  c.add("stream_buffer_size", [](bool bad) {
    Bench b;
    Engine engine(b.graph, b.prog);
    std::vector<float> buffer(64);
    engine.connectStream("in", buffer.data(), buffer.data() + (bad ? 63 : 64));
  });
}
