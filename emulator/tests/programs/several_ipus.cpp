// SPDX-License-Identifier: Apache-2.0
// Several IPUs: several_ipus CODELETS.gp. One JSON line per question.
#include <poplar/DeviceManager.hpp>
#include <sparq_emulator/Counters.hpp>
#include <sparq_emulator/DeviceModel.hpp>

#include "util.hpp"

using namespace poplar;
using namespace poplar::program;
using namespace sparq::emulator;

namespace {

Device emulatedPod(unsigned ipus, unsigned tiles) {
  IPUModel model;
  model.numIPUs = ipus;
  model.tilesPerIPU = tiles;
  return model.createDevice();
}

std::vector<unsigned> tilesOf(const Graph &graph) {
  std::vector<unsigned> tiles;
  for (unsigned i = 0; i < graph.getTarget().getNumTiles(); ++i)
    tiles.push_back(graph.convertVirtualTileToPhysicalTile(i));
  return tiles;
}

void virtualGraphs() {
  Graph graph(emulatedPod(4, 3));
  auto show = [](const char *name, const Graph &g) {
    std::cout << "{\"virtual\":" << quoted(name) << ",\"ipus\":" << g.getTarget().getNumIPUs()
              << ",\"perIpu\":" << g.getTarget().getTilesPerIPU()
              << ",\"tiles\":" << jsonList(tilesOf(g)) << "}\n";
  };
  show("all", graph);
  Graph second = graph.createVirtualGraph(3, 6);
  show("one", second);
  show("some of one", second.createVirtualGraph(1, 3));
  show("two", graph.createVirtualGraph(6, 12));
  show("two of each", graph.createVirtualGraph(2));
  show("last of each", graph.createVirtualGraph(std::vector<unsigned>{2}));
}

// A row of 8 floats of tile 0 of each sender goes to each receiver.
void copies(unsigned ipus, const std::vector<std::pair<unsigned, unsigned>> &flows) {
  Device device = emulatedPod(ipus, 2);
  Graph graph(device);
  std::vector<Tensor> from, to;
  for (const auto &flow : flows) {
    from.push_back(graph.addVariable(FLOAT, {8}, "from"));
    to.push_back(graph.addVariable(FLOAT, {8}, "to"));
    graph.setTileMapping(from.back(), flow.first * 2);
    graph.setTileMapping(to.back(), flow.second * 2 + 1);
    graph.setInitialValue<float>(from.back(), static_cast<float>(from.size()));
  }
  graph.createHostRead("to", concat(to));
  Engine engine(graph, Copy(concat(from), concat(to)));
  engine.load(device);
  engine.run();
  const StepCount s = lastRun(engine).at(0);
  std::cout << "{\"flows\":" << flows.size() << ",\"ipus\":" << jsonList(s.ipus)
            << ",\"bytes\":" << s.links.bytes << ",\"maxBytes\":" << s.links.maxBytes
            << ",\"exchanges\":" << s.links.exchanges << ",\"hops\":" << s.links.syncHops
            << ",\"seconds\":" << modelledTime(DeviceModel(), s).links
            << ",\"values\":" << jsonList(readTensor<float>(engine, "to", 8 * flows.size()))
            << "}\n";
}

// A vertex on IPU 1 reads from IPU 0 (two of its edges the same row) and writes to IPU 2.
void vertices(const char *codelets) {
  Device device = emulatedPod(4, 2);
  Graph graph(device);
  graph.addCodelets(codelets);
  Tensor x = graph.addVariable(FLOAT, {16}, "x"), y = graph.addVariable(FLOAT, {2, 16}, "y");
  graph.setTileMapping(x, 0);
  graph.setInitialValue<float>(x, 2);
  graph.setTileMapping(y, 5);
  ComputeSet cs = graph.addComputeSet("work");
  for (unsigned i = 0; i < 2; ++i) {
    VertexRef v = graph.addVertex(cs, "test::Affine", {{"in", x}, {"out", y[i]}});
    graph.setInitialValue(v["factor"], 3.0f);
    graph.setInitialValue(v["bias"], 1.0f);
    graph.setTileMapping(v, 2 + i);
    graph.setPerfEstimate(v, 100);
  }
  graph.createHostRead("y", y.flatten());
  Engine engine(graph, Execute(cs));
  engine.load(device);
  engine.run();
  const std::vector<StepCount> steps = lastRun(engine);
  const StepCount &s = steps.at(0);
  const std::vector<ModelledTime> byIPU = modelledTimeByIPU(DeviceModel(), steps);
  std::vector<double> seconds;
  for (const ModelledTime &t : byIPU)
    seconds.push_back(t.total() * 1e9);
  std::cout << "{\"vertices\":2,\"ipus\":" << jsonList(s.ipus) << ",\"bytes\":" << s.links.bytes
            << ",\"maxBytes\":" << s.links.maxBytes << ",\"exchanges\":" << s.links.exchanges
            << ",\"nanoseconds\":" << jsonList(seconds)
            << ",\"last\":" << readTensor<float>(engine, "y", 32).back() << "}\n";
}

float writtenTo(Engine &engine, const std::string &buffer) {
  std::vector<float> row(16);
  engine.copyFromRemoteBuffer(buffer, row.data(), 1);
  return row.back();
}

void streaming() {
  Device device = emulatedPod(2, 2);
  Graph graph(device);
  Sequence program;
  Tensor row = graph.addVariable(UNSIGNED_INT, {1}, "row"); // on one IPU for the buffers of both
  graph.setTileMapping(row, 0);
  graph.setInitialValue(row, 1u);
  for (unsigned ipu = 0; ipu < 2; ++ipu) {
    Tensor t = graph.addVariable(FLOAT, {16}, "t");
    graph.setTileMapping(t, 2 * ipu + 1);
    graph.setInitialValue(t, 5.0f + ipu);
    program.add(Copy(t, graph.addRemoteBuffer("of" + std::to_string(ipu), FLOAT, 16, 2), row));
  }
  Engine engine(graph, program);
  engine.load(device);
  engine.run();
  for (const MemoryUse &use : streamingMemory(engine))
    std::cout << "{\"buffer\":" << quoted(use.name) << ",\"bytes\":" << use.bytes
              << ",\"ipu\":" << use.ipu << ",\"written\":" << writtenTo(engine, use.name) << "}\n";
}

// Remote copies of two IPUs, by what is between them: which go on at once, and what they take
// together.
void copiesAtOnce(const std::string &between) {
  Device device = emulatedPod(2, 2);
  Graph graph(device);
  Sequence program;
  std::vector<Tensor> rows;
  for (unsigned i = 0; i < 2; ++i) {
    const unsigned ipu = between == "same ipu" ? 0 : i;
    Tensor t = graph.addVariable(FLOAT, {i == 0 ? 16u : 4096u}, "t");
    graph.setTileMapping(t, 2 * ipu + 1);
    const RemoteBuffer buffer =
        graph.addRemoteBuffer("of" + std::to_string(i), FLOAT, t.numElements());
    Tensor other = graph.clone(t);
    const Copy copy(t, buffer);
    if (i == 1 && between == "copy")
      program.add(Copy(t, other));
    if (i == 1 && between == "loop")
      program.add(Repeat(1, copy));
    else if (i == 1 && between == "direction")
      program.add(Copy(buffer, t));
    else
      program.add(copy);
  }
  Engine engine(graph, program);
  engine.load(device);
  engine.run();
  const std::vector<StepCount> steps = lastRun(engine);
  double sum = 0, most = 0;
  std::vector<int> beside;
  for (const StepCount &s : steps) {
    const double seconds = modelledTime(DeviceModel(), s).total();
    sum += seconds;
    most = std::max(most, seconds);
    beside.push_back(s.beside);
  }
  std::cout << "{\"between\":" << quoted(between) << ",\"beside\":" << jsonList(beside)
            << ",\"all\":" << modelledTime(DeviceModel(), steps).total() * 1e9
            << ",\"sum\":" << sum * 1e9 << ",\"most\":" << most * 1e9 << "}\n";
}

// An If of IPU 0, around a copy on another IPU.
void branch(unsigned ipu) {
  Device device = emulatedPod(4, 2);
  Graph graph(device);
  Tensor predicate = graph.addVariable(BOOL, {}, "predicate"),
         x = graph.addVariable(FLOAT, {4}, "x"), y = graph.addVariable(FLOAT, {4}, "y");
  graph.setTileMapping(predicate, 0);
  graph.setInitialValue(predicate, true);
  graph.setTileMapping(x, 2 * ipu);
  graph.setTileMapping(y, 2 * ipu + 1);
  Engine engine(graph, If(predicate, Copy(x, y), Sequence()));
  engine.load(device);
  engine.run();
  const StepCount s = lastRun(engine).at(0);
  std::cout << "{\"branch\":" << ipu << ",\"ipus\":" << jsonList(s.ipus)
            << ",\"bytes\":" << s.links.bytes << ",\"exchanges\":" << s.links.exchanges << "}\n";
}

void list() {
  DeviceManager manager = DeviceManager::createDeviceManager();
  for (const Device &d : manager.getDevices())
    std::cout << "{\"device\":" << d.getId() << ",\"ipus\":" << d.getTarget().getNumIPUs()
              << ",\"tiles\":" << d.getTarget().getNumTiles()
              << ",\"isIPU\":" << (d.getTarget().getTargetType() == TargetType::IPU)
              << ",\"drivers\":" << jsonList(d.getDriverIDs()) << ",\"attached\":" << d.isAttached()
              << "}\n";
  std::cout << "{\"devices\":" << manager.getNumDevices()
            << ",\"ofTwo\":" << manager.getDevices(TargetType::IPU, 2).size()
            << ",\"ofThree\":" << manager.getDevices(TargetType::IPU, 3).size() << "}\n";
  if (manager.getNumDevices() == 0)
    return;
  std::cout << "{\"children\":" << jsonList(manager.getChildDeviceIds(6)) << "}\n";
  // One owner at a time, of an IPU by whatever device.
  Device pair = manager.getDevice(4), single = manager.getDevice(1), other = manager.getDevice(2);
  std::cout << "{\"pair\":" << pair.attach() << ",\"single\":" << single.attach()
            << ",\"other\":" << other.attach();
  pair.detach();
  std::cout << ",\"singleThen\":" << single.attach() << ",\"pairThen\":" << pair.attach();
  {
    Device last = manager.getDevice(3);
    std::cout << ",\"last\":" << last.attach() << ",\"again\":" << manager.getDevice(3).attach();
  }
  Device last = manager.getDevice(3);
  std::string message;
  Graph graph(last);
  Tensor t = graph.addVariable(FLOAT, {}, "t");
  graph.setTileMapping(t, 0);
  Engine engine(graph, Copy(graph.clone(t), t));
  try {
    engine.load(last);
  } catch (const application_runtime_error &e) {
    message = e.what();
  }
  std::cout << ",\"lastThen\":" << last.attach() << ",\"message\":" << quoted(message);
  engine.load(last);
  std::cout << "}\n";
}

} // namespace

int main(int argc, char **argv) {
  if (argc != 2)
    return 2;
  virtualGraphs();
  copies(2, {{0, 1}});
  copies(4, {{0, 2}, {1, 0}});
  copies(8, {{0, 5}, {4, 2}, {6, 2}});
  copies(4, {{3, 3}});
  vertices(argv[1]);
  streaming();
  for (const char *const between : {"", "same ipu", "copy", "loop", "direction"})
    copiesAtOnce(between);
  branch(0);
  branch(3);
  list();
}
