// SPDX-License-Identifier: Apache-2.0
// The emulator's poputil: a line for each function.
#include <poplar/Engine.hpp>
#include <poplar/IPUModel.hpp>
#include <poputil/Broadcast.hpp>
#include <poputil/TileMapping.hpp>
#include <poputil/Util.hpp>
#include <poputil/VertexTemplates.hpp>

#include <iostream>

using namespace poplar;

namespace {

std::ostream &operator<<(std::ostream &out, const std::vector<Interval> &regions) {
  for (std::size_t i = 0; i != regions.size(); ++i)
    out << (i ? " " : "") << regions[i].begin() << "-" << regions[i].end();
  return out;
}
template <class T> void line(const char *name, const std::vector<T> &parts) {
  std::cout << name;
  for (const T &part : parts)
    std::cout << "|" << part;
  std::cout << "\n";
}

} // namespace

int main() {
  IPUModel model;
  model.tilesPerIPU = 4;
  Device device = model.createDevice();
  const Target target = device.getTarget();
  Graph graph(target);
  std::cout << poputil::templateVertex("ns::V", FLOAT, "x", std::string("y"), true, 3u) << "\n"
            << poputil::templateVertex("Plain") << "\n";
  line("grains", poputil::calcLinearTileMapping(target, {5, 2}, 0, 4));
  line("least", poputil::calcLinearTileMapping(graph, {10}, 6, 1));
  line("offset", poputil::calcLinearTileMapping(graph, {8}, 0, 2, 3));
  line("down", poputil::calcLinearTileMapping(graph, {8}, 0, 2, 0, false));
  Tensor t = graph.addVariable(FLOAT, {3, 32}, "t");
  poputil::mapTensorLinearly(graph, t);
  line("bytes", graph.getTileMapping(t));
  poputil::mapTensorLinearlyWithOffset(graph, t, 24, 8, 1);
  line("moved", graph.getTileMapping(t));

  const poputil::Regions regions = {{0, 5}, {10, 12}, {20, 30}};
  line("parts", poputil::splitRegions(regions, 2, 4));
  line("workers", poputil::splitRegionsBetweenWorkers(target, regions, 1));
  line("few", poputil::splitRegions(regions, 1, 4, 9));
  line("short", poputil::splitRegions(regions, 1, 4, 9, 100, 4));
  for (const poputil::Sequences &part :
       poputil::splitRegions(poputil::Sequences{{{0, 3}}, {{3, 7}, {9, 10}}}, 1, 2))
    line("sequences", part);
  try {
    poputil::splitRegions(regions, 1, 2, 0, 3);
  } catch (const poputil::poplibs_error &e) {
    std::cout << e.what() << "\n";
  }
  poputil::Regions merged = {{4, 6}, {0, 2}, {2, 4}, {8, 9}};
  poputil::mergeAdjacentRegions(merged);
  std::cout << merged << "|" << poputil::intervalSequenceNumElements({regions, merged}) << "|"
            << poputil::flattenIndex<unsigned>({3, 4}, {2, 1}) << "|"
            << poputil::unflattenIndex<unsigned>({3, 4}, 9)[0] << "\n";

  program::Sequence program;
  Tensor row = graph.addConstant<float>(FLOAT, {1, 4}, ArrayRef<float>({1, 2, 3, 4}));
  Tensor column = graph.addConstant<float>(FLOAT, {2, 1, 1}, ArrayRef<float>({5, 6}));
  graph.setTileMapping(row, 1);
  graph.setTileMapping(column, 2);
  std::cout << poputil::canBroadcastToMatch(row, column)
            << poputil::canBroadcastToMatch(row, t.slice(0, 3, 1)) << "\n";
  poputil::broadcastToMatch(row, column);
  std::cout << row.shapeToString() << column.shapeToString() << "\n";
  Tensor copy = poputil::duplicate(graph, concat(row, column, 1), program, "copy");
  graph.createHostRead("copy", copy);
  Engine engine(graph, program);
  engine.load(device);
  engine.run();
  std::vector<float> host(copy.numElements());
  engine.readTensor("copy", host.data(), host.data() + host.size());
  for (float value : host)
    std::cout << value << " ";
  std::cout << "\n";
}
