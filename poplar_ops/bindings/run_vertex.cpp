// SPDX-License-Identifier: Apache-2.0
//
// One vertex of this library alone on a tile: how tests look at a codelet without a program around
// it.
#include "core.hpp"
#include <poplar/Engine.hpp>

namespace py = pybind11;

namespace sparq {
namespace {

poplar::Type typeOf(const py::array &array) {
  const char kind = array.dtype().kind();
  const py::ssize_t size = array.dtype().itemsize();
  if (kind == 'f' && size == 4)
    return poplar::FLOAT;
  if (kind == 'f' && size == 2)
    return poplar::HALF;
  if (kind == 'u' && size == 4)
    return poplar::UNSIGNED_INT;
  if (kind == 'i' && size == 4)
    return poplar::INT;
  if (kind == 'b')
    return poplar::BOOL;
  throw Error("run_vertex: fields must be float32, float16, uint32, int32 or bool, got " +
              std::string(py::str(array.dtype())));
}

} // namespace

NamedArrays runVertex(const std::string &name, const NamedArrays &fields,
                      const NamedValues &settings, const std::string &deviceName) {
  poplar::Device device = openDevice({deviceName, deviceName == "emulator" ? 1u : 0u});
  poplar::Graph graph(device.getTarget());
  addCodelets(graph);
  const poplar::ComputeSet cs = graph.addComputeSet("vertex");
  poplar::VertexRef vertex = graph.addVertex(cs, name);
  graph.setTileMapping(vertex, 0);
  std::vector<std::pair<std::string, py::array>> arrays;
  for (const auto &item : fields) {
    const auto field = item.first.cast<std::string>();
    const auto array = py::array::ensure(item.second, py::array::c_style | py::array::forcecast);
    const poplar::Tensor tensor =
        array.ndim() == 0
            ? graph.addVariable(typeOf(array), {}, field)
            : graph.addVariable(typeOf(array), {static_cast<std::size_t>(array.size())}, field);
    graph.setTileMapping(tensor, 0);
    graph.connect(vertex[field], tensor);
    graph.createHostWrite(field, tensor);
    graph.createHostRead(field, tensor);
    arrays.emplace_back(field, array.attr("copy")().cast<py::array>());
  }
  for (const auto &item : settings) {
    const poplar::FieldRef field = vertex[item.first.cast<std::string>()];
    if (py::isinstance<py::bool_>(item.second))
      graph.setInitialValue(field, item.second.cast<bool>());
    else if (py::isinstance<py::float_>(item.second))
      graph.setInitialValue(field, item.second.cast<float>());
    else
      graph.setInitialValue(field, item.second.cast<unsigned>());
  }
  graph.setPerfEstimate(vertex, 0);
  poplar::Engine engine(graph, poplar::program::Execute(cs));
  engine.load(device);
  for (auto &[field, array] : arrays)
    engine.writeTensor(field, array.data(),
                       static_cast<const char *>(array.data()) + array.nbytes());
  engine.run(0);
  NamedArrays results;
  for (auto &[field, array] : arrays) {
    engine.readTensor(field, array.mutable_data(),
                      static_cast<char *>(array.mutable_data()) + array.nbytes());
    results[py::str(field)] = array;
  }
  return results;
}

void bindRunVertex(py::module_ &module) {
  module.def("run_vertex", &runVertex, py::arg("name"), py::arg("fields"), py::arg("settings"),
             py::arg("device") = "emulator",
             "Runs one vertex with these arrays as its edges and these settings; returns every "
             "array as the vertex left it.");
}

} // namespace sparq
