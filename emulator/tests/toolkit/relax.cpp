// SPDX-License-Identifier: Apache-2.0
// A program as strangers write them: C++11, options of their SDK's version, codelets compiled when
// it runs. A rod of `n` points with fixed ends relaxes for `steps` steps; it prints what the device
// found.
#include <cstdlib>
#include <iostream>
#include <vector>

#include <poplar/Engine.hpp>
#include <poplar/Graph.hpp>
#include <poplar/IPUModel.hpp>

using namespace poplar;
using namespace poplar::program;

int main(int argc, char **argv) {
  const std::string codelets = argv[1];
  const unsigned n = 16, steps = argc > 2 ? std::atoi(argv[2]) : 5, tiles = 4;
  IPUModel model;
  model.tilesPerIPU = tiles;
  Device device = model.createDevice();
  Graph graph(device.getTarget());
  graph.addCodelets(codelets);

  Tensor rod = graph.addVariable(FLOAT, {n}, "rod"), next = graph.addVariable(FLOAT, {n}, "next");
  Tensor seen = graph.addVariable(FLOAT, {tiles}, "seen");
  const unsigned part = n / tiles;
  ComputeSet cs = graph.addComputeSet("relax");
  for (unsigned tile = 0; tile < tiles; ++tile) {
    const std::size_t begin = tile * part, end = begin + part;
    graph.setTileMapping(rod.slice(begin, end), tile);
    graph.setTileMapping(next.slice(begin, end), tile);
    graph.setTileMapping(seen[tile], tile);
    Tensor padded =
        concat({rod.slice(begin ? begin - 1 : 0, begin ? begin : 1), rod.slice(begin, end),
                rod.slice(end < n ? end : n - 1, end < n ? end + 1 : n)});
    VertexRef v = graph.addVertex(
        cs, "Relax", {{"in", padded}, {"out", next.slice(begin, end)}, {"seen", seen[tile]}});
    graph.connect(v["rate"], 0.25f);
    graph.setInitialValue(v["first"], tile == 0);
    graph.setInitialValue(v["last"], tile == tiles - 1);
    graph.setTileMapping(v, tile);
  }
  // Input and Output of one vertex are the same elements, as public programs have it.
  ComputeSet inPlace = graph.addComputeSet("increment");
  for (unsigned tile = 0; tile < tiles; ++tile) {
    Tensor here = rod.slice(tile * part, (tile + 1) * part);
    graph.setTileMapping(
        graph.addVertex(inPlace, "Increment", {{"x", here}, {"y", here}, {"by", 1.0f}}), tile);
  }
  DataStream in = graph.addHostToDeviceFIFO("in", FLOAT, n);
  DataStream out = graph.addDeviceToHostFIFO("out", FLOAT, n);
  DataStream count = graph.addDeviceToHostFIFO("count", FLOAT, tiles);
  Sequence prog;
  prog.add(Copy(in, rod));
  prog.add(Repeat(steps, Sequence({Execute(cs), Copy(next, rod)})));
  prog.add(Execute(inPlace));
  prog.add(Copy(rod, out));
  prog.add(Copy(seen, count));

  Engine engine(graph, prog, {{"debug.instrument", "true"}, {"an.optionOfAnotherVersion", "1"}});
  std::vector<float> values(n), counts(tiles);
  for (unsigned i = 0; i < n; ++i)
    values[i] = i % 5;
  std::vector<float> result(n);
  engine.connectStream("in", values.data(), values.data() + n);
  engine.connectStream("out", result.data(), result.data() + n);
  engine.connectStream("count", counts.data(), counts.data() + tiles);
  engine.load(device);
  engine.run(0);
  for (float r : result)
    std::cout << r << " ";
  for (float c : counts)
    std::cout << c << " ";
  std::cout << std::endl;
}
