// SPDX-License-Identifier: Apache-2.0
//
// Runs one probe, or one vertex of this library, alone on a device and counts its cycles. Tests
// check codelets with it, and benchmarks measure a device.
#include "core.hpp"
#include "probe.hpp"
#include <chrono>
#include <poplar/CycleCount.hpp>
#include <poplar/Engine.hpp>

namespace py = pybind11;
using namespace py::literals;

namespace sparq {
namespace {

using namespace poplar;
using namespace poplar::program;

// An engine with one program, of which tile 0 counts the cycles.
class Timed : public EngineOwner {
public:
  Engine &engine() override { return *engine_; }
  double clock() const { return device_.getTarget().getTileClockFrequency(); }
  // Tile cycles of a run, and seconds that the host waited for it.
  std::pair<std::uint64_t, double> run() {
    std::uint32_t words[2]; // the low one first
    std::chrono::duration<double> seconds{};
    {
      const py::gil_scoped_release release;
      const auto start = std::chrono::steady_clock::now();
      engine_->run(0);
      seconds = std::chrono::steady_clock::now() - start;
      engine_->readTensor("cycles", words, words + 2);
    }
    return {words[0] + (std::uint64_t(words[1]) << 32), seconds.count()};
  }

protected:
  explicit Timed(const DeviceOptions &options)
      : device_(openDevice(options)), graph_(device_.getTarget()) {
    addCodelets(graph_);
  }
  void load(Sequence body) {
    const Tensor cycles = cycleCount(graph_, body, 0, SyncType::EXTERNAL, {"cycles"});
    graph_.createHostRead("cycles", cycles);
    engine_ = std::make_unique<Engine>(graph_, body);
    engine_->load(device_);
  }

  Device device_;
  Graph graph_;
  std::unique_ptr<Engine> engine_;
};

class Probe final : public Timed {
public:
  Probe(const std::string &kind, const ProbeSizes &sizes, const DeviceOptions &options)
      : Timed(options) {
    const py::gil_scoped_release release;
    ProbeGraph probe{graph_, sizes, {}, {}};
    addProbe(kind, probe);
    load(probe.body);
    onLoad_ = std::move(probe.onLoad);
    for (const auto &prepare : onLoad_)
      prepare(*engine_);
  }

private:
  std::vector<std::function<void(Engine &)>> onLoad_; // with the memory that streams use
};

Type typeOf(const py::array &array) {
  const char kind = array.dtype().kind();
  const py::ssize_t size = array.dtype().itemsize();
  if (kind == 'f' && size == 4)
    return FLOAT;
  if (kind == 'f' && size == 2)
    return HALF;
  if (kind == 'u' && size == 4)
    return UNSIGNED_INT;
  if (kind == 'i' && size == 4)
    return INT;
  if (kind == 'b')
    return BOOL;
  throw Error("run_vertex: fields must be float32, float16, uint32, int32 or bool, got " +
              std::string(py::str(array.dtype())));
}

// On tile 0, with its edges there.
class VertexProbe final : public Timed {
public:
  VertexProbe(const std::string &name, const NamedArrays &fields, const NamedValues &settings,
              std::uint64_t estimate, const DeviceOptions &options)
      : Timed(options) {
    const ComputeSet cs = graph_.addComputeSet("vertex");
    VertexRef vertex = graph_.addVertex(cs, name);
    graph_.setTileMapping(vertex, 0);
    for (const auto &item : fields) {
      const auto field = item.first.cast<std::string>();
      const auto array = py::array::ensure(item.second, py::array::c_style | py::array::forcecast);
      const Tensor tensor =
          array.ndim() == 0
              ? graph_.addVariable(typeOf(array), {}, field)
              : graph_.addVariable(typeOf(array), {static_cast<std::size_t>(array.size())}, field);
      graph_.setTileMapping(tensor, 0);
      graph_.connect(vertex[field], tensor);
      graph_.createHostWrite(field, tensor);
      graph_.createHostRead("read/" + field, tensor);
      arrays_.emplace_back(field, array.attr("copy")().cast<py::array>());
    }
    for (const auto &item : settings) {
      const FieldRef field = vertex[item.first.cast<std::string>()];
      if (py::isinstance<py::bool_>(item.second))
        graph_.setInitialValue(field, item.second.cast<bool>());
      else if (py::isinstance<py::float_>(item.second))
        graph_.setInitialValue(field, item.second.cast<float>());
      else
        graph_.setInitialValue(field, item.second.cast<unsigned>());
    }
    graph_.setPerfEstimate(vertex, estimate);
    load(Sequence({Execute(cs, {"vertex"})}));
    reset();
  }
  // The arrays as they were given go to the device.
  void reset() {
    for (auto &[field, array] : arrays_)
      engine_->writeTensor(field, array.data(),
                           static_cast<const char *>(array.data()) + array.nbytes());
  }
  NamedArrays arrays() {
    NamedArrays results;
    for (const auto &[field, given] : arrays_) {
      auto array = given.attr("copy")().cast<py::array>();
      engine_->readTensor("read/" + field, array.mutable_data(),
                          static_cast<char *>(array.mutable_data()) + array.nbytes());
      results[py::str(field)] = array;
    }
    return results;
  }

private:
  std::vector<std::pair<std::string, py::array>> arrays_;
};

DeviceOptions oneTile(const std::string &device) {
  return {device, device == "emulator" ? 1u : 0u};
}

NamedArrays runVertex(const std::string &name, const NamedArrays &fields,
                      const NamedValues &settings, const std::string &device) {
  VertexProbe vertex(name, fields, settings, 0, oneTile(device));
  vertex.engine().run(0);
  return vertex.arrays();
}

} // namespace

void bindProbes(py::module_ &module) {
  py::class_<Timed, EngineOwner>(module, "Timed")
      .def("run", &Timed::run,
           "Runs it once: tile cycles, as the device counted them, and seconds of the host.")
      .def_property_readonly("clock_hz", &Timed::clock, "Tile cycles in a second.");
  py::class_<Probe, Timed>(module, "Probe")
      .def(py::init([](const std::string &kind, const ProbeSizes &sizes,
                       const std::optional<DeviceOptions> &options, const std::string &device) {
             DeviceOptions made = options.value_or(DeviceOptions{});
             made.device = device;
             return std::make_unique<Probe>(kind, sizes, made);
           }),
           "kind"_a, "sizes"_a, py::kw_only(), "options"_a = py::none(), "device"_a = "emulator");
  py::class_<VertexProbe, Timed>(module, "VertexProbe")
      .def(py::init([](const std::string &name, const NamedArrays &fields,
                       const NamedValues &settings, std::uint64_t estimate,
                       const std::string &device) {
             return std::make_unique<VertexProbe>(name, fields, settings, estimate,
                                                  oneTile(device));
           }),
           "name"_a, "fields"_a, "settings"_a, "estimate"_a = 0u, py::kw_only(),
           "device"_a = "emulator")
      .def("reset", &VertexProbe::reset, "The arrays that it was made with go to the device again.")
      .def("arrays", &VertexProbe::arrays, "Every array as the last run left it.");
  module.def("run_vertex", &runVertex, "name"_a, "fields"_a, "settings"_a, "device"_a = "emulator",
             "Runs one vertex with these arrays as its edges and these settings; returns every "
             "array as the vertex left it.");
}

} // namespace sparq
