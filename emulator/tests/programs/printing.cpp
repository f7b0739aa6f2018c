// SPDX-License-Identifier: Apache-2.0
// Tensors as PrintTensor writes them; to stdout here.
#include <poplar/Engine.hpp>
#include <poplar/Graph.hpp>
#include <poplar/IPUModel.hpp>

#include <iostream>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

using namespace poplar;
using namespace poplar::program;

int main() {
  Device device = IPUModel("ipu2").createDevice();
  Graph graph(device.getTarget());
  Sequence prog;
  const auto print = [&](const char *title, std::vector<std::size_t> shape,
                         const std::vector<float> &values,
                         const PrintTensorFmt &format = PrintTensorFmt()) {
    Tensor t = graph.addConstant<float>(FLOAT, shape, values);
    graph.setTileMapping(t, 0);
    prog.add(PrintTensor(title, t, format));
  };
  print("vector", {4}, {1, 1.5, -2, 2.5});
  print("matrix", {2, 2}, {5, 4.5, 4, 3.5});
  print("cube", {2, 1, 2}, {1, 2, 3, 4});
  print("scalar", {}, {7});
  print("wide", {3}, {10.25, 2, 300});
  print("huge", {2}, {1e9f, 2});
  print("tiny", {2}, {1, 1e-8f});
  print("odd", {3}, {std::numeric_limits<float>::infinity(), 1, 0});
  print("scientific", {2}, {1.5, -20}, {1000, 3, 75, 3, PrintTensorFmt::FloatFormat::Scientific});
  print("unaligned", {3}, {1, 22.5, 1e-8f}, {1000, 3, 75, 0});
  print("other", {2, 2}, {1, 2, 3, 4},
        {1000, 3, 75, 2, PrintTensorFmt::FloatFormat::Fixed, ',', '{', '}'});
  std::vector<float> many(12);
  std::iota(many.begin(), many.end(), 0.0f);
  print("split", {12}, many, {1000, 3, 30, 3});
  print("not split", {12}, many, {1000, 3, 0, 3});
  print("cut", {12}, many, {11, 2, 75, 3});
  print("cut rows", {6, 2}, many, {11, 1, 75, 3});
  print("not cut", {12}, many, {0, 2, 75, 3});
  Tensor whole = graph.addConstant<int>(INT, {3}, std::vector<int>{1, -20, 3}.data());
  graph.setTileMapping(whole, 0);
  prog.add(PrintTensor("whole", whole));
  std::cerr.rdbuf(std::cout.rdbuf());
  Engine engine(graph, prog);
  engine.load(device);
  engine.run();
}
