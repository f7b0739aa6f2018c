// SPDX-License-Identifier: Apache-2.0
// An engine that has run goes on in a child of fork(), and in the parent: fork CODELETS.gp. Each
// ends as programs do, with destructors. A child that waits for threads that it does not have is
// ended by its alarm.
#include "util.hpp"

#include <sys/wait.h>
#include <unistd.h>

using namespace poplar;
using namespace poplar::program;

int main(int argc, char **argv) {
  if (argc != 2)
    return 2;
  const unsigned tiles = 64;
  Device device = emulatedDevice(tiles);
  Graph graph(device);
  graph.addCodelets(argv[1]);
  Tensor x = graph.addVariable(FLOAT, {tiles, 4}, VariableMappingMethod::LINEAR, "x");
  graph.setInitialValue<float>(x, 0);
  graph.createHostRead("x", x);
  ComputeSet cs = graph.addComputeSet("cs");
  for (unsigned tile = 0; tile < tiles; ++tile) {
    VertexRef v = graph.addVertex(cs, "test::WriteAt", {{"out", x[tile]}});
    graph.setInitialValue(v["index"], 2);
    graph.setTileMapping(v, tile);
  }
  Engine engine(graph, Execute(cs));
  engine.load(device);
  engine.run();
  const pid_t idle = fork();
  if (idle == 0) {
    alarm(30);
    return 0; // it has not used the engine
  }
  const pid_t child = fork();
  if (child == 0) {
    alarm(30);
    engine.run();
    engine.run();
    return readTensor<float>(engine, "x", 4 * tiles)[4 * tiles - 2] == 1 ? 0 : 1;
  }
  int ofIdle = -1, ofChild = -1;
  waitpid(idle, &ofIdle, 0);
  waitpid(child, &ofChild, 0);
  engine.run();
  std::cout << "{\"idle\":" << ofIdle << ",\"child\":" << ofChild << "}\n";
}
