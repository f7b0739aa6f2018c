// SPDX-License-Identifier: Apache-2.0
//
// Runs one vertex of this library alone on a device and counts its cycles. Tests check codelets
// with it, and benchmarks measure a device.
#include "timed.hpp"

namespace py = pybind11;
using namespace py::literals;

namespace sparq {
namespace {

using namespace poplar;
using namespace poplar::program;

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

} // namespace

void bindVertices(py::module_ &module) {
  py::class_<Timed, EngineOwner>(module, "Timed")
      .def("run", &Timed::run,
           "Runs it once: tile cycles, as the device counted them, and seconds of the host.")
      .def_property_readonly("clock_hz", &Timed::clock, "Tile cycles in a second.");
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
}

} // namespace sparq
