// SPDX-License-Identifier: Apache-2.0
// A graph that may not fit tile memory: tile_memory WORDS [HALVES].
// It has a variable of WORDS 8-byte words and one of HALVES halves, all on tile 2.
// One JSON object: what memory() counts, and what the exception says, as each of its types.
#include <sparq_emulator/Counters.hpp>
#include <sparq_emulator/Errors.hpp>

#include "util.hpp"

using namespace poplar;
using namespace poplar::program;

int main(int argc, char **argv) {
  if (argc != 2 && argc != 3)
    return 2;
  const Device device = emulatedDevice(4);
  Graph graph(device);
  const Tensor big = graph.addVariable(FLOAT, {2 * std::stoul(argv[1])}, "big");
  graph.setTileMapping(big, 2);
  if (argc == 3)
    graph.setTileMapping(graph.addVariable(HALF, {std::stoul(argv[2])}, "small"), 2);

  const Engine lenient(graph, Sequence(), {{"debug.allowOutOfMemory", "true"}});
  const sparq::emulator::MemoryCount count = sparq::emulator::memory(lenient);
  std::cout << "{\"counted\":{\"tile\":" << count.tile << ",\"need\":" << count.bytes
            << ",\"room\":" << count.limit << "}";
  try {
    Engine engine(graph, Sequence());
  } catch (const sparq::emulator::OutOfTileMemory &e) {
    std::cout << ",\"thrown\":{\"tile\":" << e.tile << ",\"need\":" << e.need
              << ",\"room\":" << e.room << "},\"message\":" << quoted(e.what());
  }
  try {
    Engine engine(graph, Sequence());
  } catch (const graph_memory_allocation_error &e) {
    std::cout << ",\"messageOfBase\":" << quoted(e.what());
  }
  std::cout << "}\n";
}
