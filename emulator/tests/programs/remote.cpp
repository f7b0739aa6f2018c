// SPDX-License-Identifier: Apache-2.0
// Gathers rows of a remote buffer and scatters them into another:
//   remote TILES ROWS WIDTH FRAGMENTED < offsets
// stdin: the number of offsets, the rows to read, the rows to write.
// stdout: one JSON object of the gathered rows, and of the second buffer after the scatter.
#include "util.hpp"

using namespace poplar;
using namespace poplar::program;

int main(int argc, char **argv) {
  if (argc != 5)
    return 2;
  const unsigned tiles = std::stoul(argv[1]);
  const std::size_t rows = std::stoul(argv[2]), width = std::stoul(argv[3]);
  const bool fragmented = std::stoul(argv[4]) != 0;
  std::size_t n = 0;
  std::cin >> n;
  std::vector<unsigned> read(n), write(n);
  for (unsigned &x : read)
    std::cin >> x;
  for (unsigned &x : write)
    std::cin >> x;

  Device device = emulatedDevice(tiles);
  Graph graph(device);
  RemoteBuffer source = graph.addRemoteBuffer("source", HALF, width, rows);
  RemoteBuffer sink = graph.addRemoteBuffer("sink", HALF, width, rows);
  // Fragmented: the rows are columns of a variable, so every element is a piece.
  Tensor data =
      fragmented
          ? graph.addVariable(HALF, {width, n}, VariableMappingMethod::LINEAR, "data").transpose()
          : graph.addVariable(HALF, {n, width}, VariableMappingMethod::LINEAR, "data");
  Tensor readRows = graph.addVariable(UNSIGNED_INT, {n}, VariableMappingMethod::LINEAR, "readRows");
  Tensor writeRows = graph.addVariable(INT, {n}, VariableMappingMethod::LINEAR, "writeRows");
  graph.setInitialValue<unsigned>(readRows, read);
  graph.setInitialValue<unsigned>(writeRows, write);
  graph.createHostRead("data", data);
  Sequence prog{Copy(source, data, readRows, "gather"), Copy(data, sink, writeRows, "scatter")};
  Engine engine(graph, prog);
  engine.load(device);
  std::vector<std::uint16_t> row(width);
  for (std::size_t r = 0; r < rows; ++r) {
    for (std::size_t i = 0; i < width; ++i)
      row[i] = static_cast<std::uint16_t>(r * width + i);
    engine.copyToRemoteBuffer(row.data(), "source", r);
  }
  try {
    engine.run(0);
  } catch (const poplar::application_runtime_error &e) {
    std::cout << "{\"error\":" << quoted(e.what()) << "}\n";
    return 0;
  }
  std::vector<std::uint16_t> after;
  for (std::size_t r = 0; r < rows; ++r) {
    engine.copyFromRemoteBuffer("sink", row.data(), r);
    after.insert(after.end(), row.begin(), row.end());
  }
  std::cout << "{\"data\":" << jsonList(readTensor<std::uint16_t>(engine, "data", n * width))
            << ",\"sink\":" << jsonList(after) << "}\n";
}
