// SPDX-License-Identifier: Apache-2.0
// Cases of programs that must be refused. Each has a control without the defect, which must run.
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "../util.hpp"

using namespace poplar;
using namespace poplar::program;

extern std::string codelets; // the file that every graph loads

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

class Cases {
public:
  void add(const std::string &name, Case f) { list.emplace_back(name, std::move(f)); }
  std::vector<std::pair<std::string, Case>> list;
};

void mapping(Cases &c);
void fields(Cases &c);
void races(Cases &c);
void views(Cases &c);
void copies(Cases &c);
void remoteBuffers(Cases &c);
void streams(Cases &c);
void control(Cases &c);
void engine(Cases &c);
void replication(Cases &c);
void ipus(Cases &c);
void codeletFiles(Cases &c);
