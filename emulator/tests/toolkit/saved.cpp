// SPDX-License-Identifier: Apache-2.0
// An executable saved by one process and run by another: saved save FILE, saved run FILE, saved
// (both in one process). With random numbers, a remote buffer, a loop, a branch, a printed tensor,
// and state of a vertex.
#ifdef __POPC__
#include <cstddef>

#include <poplar/Vertex.hpp>

// Edges of every direction are Vectors to a function, without const too.
inline unsigned total(poplar::Vector<unsigned> &of) {
  unsigned sum = 0;
  for (unsigned i = 0; i < of.size(); ++i)
    sum += of[i];
  return sum;
}
inline unsigned sizeOf(const poplar::Vector<unsigned> &of) { return of.size(); }

class Draw : public poplar::MultiVertex {
public:
  poplar::Output<poplar::Vector<unsigned>> tile, worker, drawn;
  poplar::Output<poplar::Vector<float>> fraction;
  void compute(unsigned w) {
    const unsigned each = sizeOf(drawn) / numWorkers();
    tile[w] = __builtin_ipu_get_tile_id();
    worker[w] = __builtin_ipu_get_worker_id();
    for (unsigned i = 0; i < each; ++i)
      drawn[w * each + i] = __builtin_ipu_urand32();
    fraction[w] = __builtin_ipu_urand_f32();
  }
};

class Take : public poplar::Vertex {
public:
  poplar::Output<unsigned> worker, drawn;
  bool compute() {
    *worker = __builtin_ipu_get_worker_id();
    *drawn = __builtin_ipu_urand32();
    return true;
  }
};

class Add : public poplar::Vertex {
public:
  poplar::InOut<poplar::Vector<unsigned>> sum;
  poplar::Input<poplar::Vector<unsigned>> more;
  const std::size_t by; // 32 bits on a device
  bool compute() {
    sum[0] = total(sum) + sizeOf(more) - 2 + total(more) + static_cast<unsigned>(by);
    return true;
  }
};
#else
#include <algorithm>
#include <fstream>
#include <iostream>
#include <string>
#include <vector>

#include <poplar/DeviceManager.hpp>
#include <poplar/Engine.hpp>
#include <poplar/Graph.hpp>
#include <poplar/RandomSeed.hpp>

using namespace poplar;
using namespace poplar::program;

constexpr unsigned workers = 6, each = 8, takes = 8, tile = 3;

Executable build(const Device &device) {
  Graph graph(device);
  graph.addCodelets(__FILE__);
  Sequence prog;
  auto onTile = [&](const Type &type, std::size_t n, const char *name) {
    Tensor t = graph.addVariable(type, {n}, name);
    graph.setTileMapping(t, tile);
    graph.createHostRead(name, t);
    return t;
  };
  // the seeds of every worker on every tile: 0 1 2 3 for the first, 1 2 3 4 for the second
  const unsigned tiles = graph.getTarget().getNumTiles();
  std::vector<unsigned> values(tiles * workers * 4);
  for (std::size_t i = 0; i < values.size(); ++i)
    values[i] = i / 4 % workers + i % 4;
  Tensor seeds = graph.addConstant<unsigned>(UNSIGNED_INT, {tiles, workers, 4}, values);
  for (unsigned t = 0; t < tiles; ++t)
    graph.setTileMapping(seeds[t], t);
  setHwSeeds(graph, seeds, prog);
  ComputeSet draw = graph.addComputeSet("draw"), take = graph.addComputeSet("take"),
             add = graph.addComputeSet("add");
  VertexRef v = graph.addVertex(draw, "Draw",
                                {{"tile", onTile(UNSIGNED_INT, workers, "tile")},
                                 {"worker", onTile(UNSIGNED_INT, workers, "worker")},
                                 {"drawn", onTile(UNSIGNED_INT, workers * each, "drawn")},
                                 {"fraction", onTile(FLOAT, workers, "fraction")}});
  graph.setTileMapping(v, tile);
  prog.add(Execute(draw));
  Tensor after = getHwSeeds(graph, prog)[tile].flatten();
  Tensor kept = onTile(UNSIGNED_INT, after.numElements(), "after");
  prog.add(Copy(after, kept));
  Tensor taken = onTile(UNSIGNED_INT, takes, "taken"), taker = onTile(UNSIGNED_INT, takes, "taker");
  for (unsigned i = 0; i < takes; ++i)
    graph.setTileMapping(graph.addVertex(take, "Take", {{"worker", taker[i]}, {"drawn", taken[i]}}),
                         tile);
  prog.add(Execute(take));

  Tensor sum = onTile(UNSIGNED_INT, 2, "sum"), flag = graph.addVariable(BOOL, {}, "flag");
  graph.setTileMapping(flag, tile);
  Tensor more = graph.addConstant<unsigned>(UNSIGNED_INT, {2}, {1, 1});
  graph.setTileMapping(more, tile);
  VertexRef adding = graph.addVertex(add, "Add", {{"sum", sum.slice(0, 1)}, {"more", more}});
  graph.setInitialValue(adding["by"], 3u);
  graph.setInitialValue(sum, ArrayRef<unsigned>({100, 7}));
  graph.setTileMapping(adding, tile);
  RemoteBuffer buffer = graph.addRemoteBuffer("rows", UNSIGNED_INT, 2, 1);
  prog.add(Copy(sum, buffer));
  prog.add(Copy(graph.addHostToDeviceFIFO("flag", BOOL, 1), flag.reshape({1})));
  prog.add(If(flag, Repeat(3, Execute(add)), Copy(buffer, sum)));
  prog.add(PrintTensor("sum", sum));
  return compileGraph(graph, {prog, Sequence({Copy(buffer, sum)})}, {{"debug.instrument", "true"}});
}

int main(int argc, char **argv) {
  const std::string what = argc == 3 ? argv[1] : "";
  try {
    auto devices = DeviceManager::createDeviceManager().getDevices(TargetType::IPU, 1);
    Device device = std::move(devices.at(0));
    device.attach();
    Executable exe; // of nothing
    if (what == "run") {
      std::ifstream in(argv[2], std::ios::binary);
      exe = Executable::deserialize(in);
    } else {
      exe = build(device);
    }
    if (what == "save") {
      std::ofstream out(argv[2], std::ios::binary);
      exe.serialize(out);
      return 0;
    }
    Engine engine(std::move(exe));
    engine.load(device);
    char flag = 1;
    engine.connectStream("flag", &flag, &flag + 1);
    engine.run(0);
    auto print = [&](const char *name, std::size_t n) {
      std::vector<unsigned> values(n);
      engine.readTensor(name, values.data(), values.data() + n);
      std::cout << name;
      for (unsigned value : values)
        std::cout << " " << value;
      std::cout << "\n";
    };
    for (const char *name : {"tile", "worker", "fraction"})
      print(name, workers);
    print("drawn", workers * each);
    print("after", workers * 4);
    print("taken", takes);
    print("taker", takes);
    print("sum", 2);
    engine.run(1);
    print("sum", 2);
  } catch (const std::exception &e) {
    std::cerr << e.what() << "\n";
    return 1;
  }
}
#endif
