// SPDX-License-Identifier: Apache-2.0
// Calls what the emulator has not implemented, and prints what each throws; then uses what is there
// and prints what it gave.
#include <cstdlib>
#include <cstring>
#include <functional>
#include <iostream>
#include <memory>
#include <set>
#include <unordered_set>
#include <vector>

#include <poplar/Engine.hpp>
#include <poplar/EngineOptions.hpp>
#include <poplar/Graph.hpp>
#include <poplar/IPUModel.hpp>
#include <poplar/MetadataCreation.hpp>
#include <poplar/ProfileValue.hpp>
#include <poplar/Quarter.hpp>
#include <poplar/RandomSeed.hpp>
#include <poplar/TypeConversion.hpp>

using namespace poplar;
using namespace pva; // as the SDK's headers name it
using namespace poplar::program;

static void refused(const char *name, const std::function<void()> &f) {
  try {
    f();
    std::cout << name << "|did not throw\n";
  } catch (const poplar_error &e) {
    std::cout << name << "|" << e.what() << "\n";
  }
}

static void print(const char *name, const std::vector<float> &values) {
  std::cout << name << "|";
  for (float v : values)
    std::cout << v << " ";
  std::cout << "\n";
}

// Gives 1, 2, 3, ... and counts what it was asked.
struct Source : StreamCallback {
  float next = 1;
  std::string &asked;
  explicit Source(std::string &asked) : asked(asked) {}
  Result prefetch(void *p) override {
    asked += "p";
    return give(p), Result::Success;
  }
  void fetch(void *p) override {
    asked += "f";
    give(p);
  }
  void complete() override { asked += "c"; }
  void invalidatePrefetched() override { asked += "i"; }
  void give(void *p) {
    std::memcpy(p, &next, 4);
    next += 1;
  }
};

// Has only what it must have.
struct Plain : StreamCallback {
  Result prefetch(void *) override { return Result::NotAvailable; }
  void fetch(void *p) override { std::memset(p, 0, 4); }
};

int main() {
  IPUModel model;
  model.tilesPerIPU = 4;
  Device device = model.createDevice();
  const Target target = device.getTarget();
  Graph graph(target);
  Tensor t = graph.addVariable(FLOAT, {2, 3}, VariableMappingMethod::LINEAR, "t");
  Sequence prog;
  const OptionFlags none;

  refused("Device::createSimulatorDevice", [&] { Device::createSimulatorDevice(target); });
  refused("Graph::addExternalExchangeVertex",
          [&] { graph.addExternalExchangeVertex(ComputeSet(0), "X", 1, true, true); });
  refused("Graph::addExternalVariable", [&] { graph.addExternalVariable(FLOAT, {2}, "x"); });
  refused("Graph::addFunctionBuffer",
          [&] { graph.addFunctionBuffer(Function(0), FunctionBufferMappingType::REMOTE); });
  refused("Graph::addHostFunction", [&] { graph.addHostFunction("f", {}, {}); });
  refused("Graph::addVariable of quarter", [&] { graph.addVariable(QUARTER, Tensor(), {2}); });
  refused("Graph::clone of quarter", [&] { graph.clone(QUARTER, Tensor(), t); });
  refused("Graph::setInitialValue with a map",
          [&] { graph.setInitialValue(t, std::map<unsigned, unsigned>()); });
  const auto f143 = QuarterMetadata::Format::F143;
  QuarterMetadata metadata(f143, 1);
  Engine idle(graph, Sequence());
  refused("dumpProgram", [&] { dumpProgram(graph, prog, std::cout); });
  refused("Engine::readTensor of quarter",
          [&] { idle.readTensor("t", metadata, nullptr, nullptr); });
  refused("Engine::writeTensor of quarter",
          [&] { idle.writeTensor("t", metadata, nullptr, nullptr); });
  Sequence creation;
  refused("createConstantMetadataTensor", [&] { createConstantMetadataTensor(graph, f143, 1); });
  refused("createVariableMetadataTensor", [&] { createVariableMetadataTensor(graph, f143, 1); });
  refused("createVariableMetadataTensor with a scale on the device",
          [&] { createVariableMetadataTensor(graph, f143, t, creation); });
  refused("Target::getNumTilesPerXBContext", [&] { target.getNumTilesPerXBContext(); });
  refused("Target::getNumContextsPerXB", [&] { target.getNumContextsPerXB(); });
  refused("Target::getTileHostExchangeXB", [&] { target.getTileHostExchangeXB(0); });
  refused("Target::getTileHostExchangeContext", [&] { target.getTileHostExchangeContext(0); });
  refused("Target::getTileHostExchangeContextPosition",
          [&] { target.getTileHostExchangeContextPosition(0); });
  std::cout << "control|" << target.makeFpIctlValue(true, true, true, true, true) << "\n";
  refused("Target::getFpIctlRegIndex", [&] { target.getFpIctlRegIndex(); });
  refused("Target::getDbgDataRegIndex", [&] { target.getDbgDataRegIndex(); });
  refused("DebugInfo::initializeStreamer", [&] { DebugInfo::initializeStreamer("f"); });
  refused("DebugInfo::closeStreamer", [&] { DebugInfo::closeStreamer(); });
  {
    Tensor odd = graph.addVariable(HALF, {2, 3});
    graph.setTileMapping(odd.slice({0, 1}, {2, 3}), 1);
    std::stringstream form, text;
    graph.serializeTensors(form, {odd, t}, SerializationFormat::Binary);
    graph.serializeTensors(text, {odd}, SerializationFormat::JSON);
    const std::vector<Tensor> read = graph.deserializeTensors(form, SerializationFormat::Binary);
    const bool same = read.at(0).shape() == odd.shape() && read[0].elementType() == HALF &&
                      graph.getTileMapping(read[0], false) == graph.getTileMapping(odd, false) &&
                      read.at(1).shape() == t.shape() &&
                      graph.getTileMapping(read[1], false) == graph.getTileMapping(t, false);
    std::cout << "tensors|" << same << " " << (text.str().find("\"mapping\"") != std::string::npos)
              << "\n";
  }
  refused("printGraphSummary", [&] { printGraphSummary(std::cout, "profile.pop", none); });
  refused("printProfileSummary", [&] { printProfileSummary(std::cout, "profile.pop", none); });
  refused("getLanguageOption", [&] { getLanguageOption(CodeletFileType::CppSource); });
  refused("program::Loop", [&] { Loop loop(prog); });
  refused("program::Copy of a FunctionBuffer", [&] { Copy copy(FunctionBuffer(0), Function(0)); });
  refused("program::Call of a HostFunction", [&] { Call call(HostFunction(0), {}, {}); });
  refused("compileGraph with a bool",
          [&] { compileGraph(graph, {prog}, true, none, ProgressFunc(), {}); });

  DataStream in = graph.addHostToDeviceFIFO("in", FLOAT, 1);
  DataStream out = graph.addDeviceToHostFIFO("out", FLOAT, 1);
  Tensor x = graph.addVariable(FLOAT, {1}, VariableMappingMethod::LINEAR, "x");
  prog.add(Repeat(2, Sequence({Copy(in, x), Copy(x, out)})));
  for (const char *option : {"true", "false"}) {
    Engine engine(graph, prog, {{"exchange.enablePrefetch", option}});
    std::string asked;
    std::vector<float> got;
    engine.connectStreamToCallback("in", std::unique_ptr<Source>(new Source(asked)));
    engine.connectStreamToCallback("out",
                                   [&](void *p) { got.push_back(*static_cast<float *>(p)); });
    engine.load(device);
    engine.run();
    engine.run();
    engine.connectStreamToCallback("in", std::unique_ptr<Source>(new Source(asked)));
    print("streamed", got);
    std::cout << "asked|" << asked << "\n";
  }
  {
    Engine engine(graph, prog);
    std::vector<float> got;
    engine.connectStreamToCallback("in", std::unique_ptr<Plain>(new Plain()));
    engine.connectStreamToCallback("out",
                                   [&](void *p) { got.push_back(*static_cast<float *>(p)); });
    engine.load(device);
    engine.run();
    print("zeros", got);
  }
  refused("Engine::clearSimulatedErrors", [&] { Engine(graph, prog).clearSimulatedErrors(); });
  refused("Engine::getSimulatedErrorLocations",
          [&] { Engine(graph, prog).getSimulatedErrorLocations(0); });

  const Tensor shuffled = t.dimShuffle({1, 0}).flatten();
  const TensorRearranger r = graph.getSimplifyingRearranger(shuffled);
  std::cout << "contiguous|" << shuffled.getContiguousRegions().size() << " "
            << r.rearrange(shuffled).getContiguousRegions().size() << " "
            << (r.undoRearrangement(r.rearrange(shuffled)) == shuffled) << "\n";
  std::cout << "unbroadcast|"
            << graph.findUnbroadcastTensor(t.expand({0}).broadcast(5, 0)).shapeToString() << "\n";
  float three = 0;
  const bool isConstant = graph.addConstant(HALF, {}, 3.0f).getConstantValue(&three);
  std::cout << "constant|" << isConstant << " " << three << " " << t[0][0].getConstantValue(&three)
            << "\n";
  std::cout << "limits|" << target.getTypeLimitsMaxAs<unsigned>(UNSIGNED_SHORT) << " "
            << target.getTypeLimitsLowestAs<float>(HALF) << "\n";
  std::cout << "json|"
            << ProfileValue(ProfileValue::Map{{"a", 1}, {"b", ProfileValue::Vector{true, "x\"\n"}}})
            << "\n";
  const std::vector<unsigned> drivers = device.getDriverIDs();
  std::cout << "drivers|" << drivers.size() << "\n";
  const OptionFlags some = {{"an.option", "7"}};
  std::cout << "target|" << Target::createIPUTarget(2, "ipu2", some).getTargetOptions() << " "
            << target.getTargetOptions() << "\n";
  const EngineOptions made(some, target), same(some, target);
  const Target two = Target::createIPUTarget(2, "ipu2");
  const std::vector<std::vector<Interval>> lists = {{Interval(0, 2), Interval(5, 9)}};
  std::cout << "one of all|" << t[1].slice(2, 3).slices(lists)[0].shapeToString();
  try {
    t[1].slices(lists);
  } catch (const index_error &e) {
    std::cout << " index_error";
  }
  std::cout << "\n";
  std::cout << "regions|" << (shuffled.getVarRegions() == t.flatten().getVarRegions())
            << (t.getVarRegions() == t.flatten().getVarRegions())
            << (t[0].getVarRegions() < t[1].getVarRegions()) << "\n";
  std::cout << "keys|" << std::unordered_set<Type>{FLOAT, HALF, FLOAT}.size() << " "
            << std::set<Target>{target, two, device.getTarget()}.size() << "\n";
  std::cout << "same|" << (made.hash() == hash_value(same))
            << (made.hash() == std::hash<EngineOptions>()(EngineOptions(none, target)))
            << (made.hash() == EngineOptions(some, two).hash())
            << (made.hash() == EngineOptions(some, target, 2).hash());
  setenv("POPLAR_ENGINE_OPTIONS", "{\"an.option\":\"8\"}", 1);
  std::cout << (made.hash() == EngineOptions(some, target).hash()) << "\n";
  unsetenv("POPLAR_ENGINE_OPTIONS");
  Graph large(target);
  Sequence much;
  much.add(Copy(large.addVariable(FLOAT, {1u << 20}, VariableMappingMethod::LINEAR, "large"),
                large.addVariable(FLOAT, {1u << 20}, VariableMappingMethod::LINEAR, "too")));
  try {
    Engine engine(large, much);
  } catch (const graph_memory_allocation_error &e) {
    std::cout << "profile|" << e.profilePath << ".\n";
  }
  setenv("POPLAR_ENGINE_OPTIONS", "{\"debug.allowOutOfMemory\":\"true\"}", 1);
  std::cout << "from the environment|" << Engine(large, much).getEngineOptions() << "\n";
  unsetenv("POPLAR_ENGINE_OPTIONS");
  const float whole = 3;
  std::uint8_t stored = 0;
  std::vector<float> back(1);
  convertToDeviceType(QUARTER, metadata, ArrayRef<const float>(&whole, 1), &stored);
  convertFromDeviceType(QUARTER, metadata, &stored, ArrayRef<float>(back));
  std::cout << "quarter|" << metadata << " " << back[0] << "\n";
  std::cout << "code|" << errorCodeToString(ErrorCode::MEMORY_ERROR) << " "
            << (errorCodeFromString("MEMORY_ERROR") == ErrorCode::MEMORY_ERROR) << "\n";
}
