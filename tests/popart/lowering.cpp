// SPDX-License-Identifier: Apache-2.0
//
// Python module _popart_lowering: makes the operators as PopART would make them from a model,
// lowers them in an order of its own choice, and runs the program on the emulator.
#include "sparq/session.hpp"
#include <algorithm>
#include <popart/ir.hpp>
#include <popart/opmanager.hpp>
#include <popart/opserialiser.hpp>
#include <popart/popx/opxmanager.hpp>
#include <poplar/CSRFunctions.hpp>
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <sparq_emulator/Counters.hpp>

namespace py = pybind11;

namespace {

poplar::Type poplarType(popart::DataType type) {
  switch (type) {
  case popart::DataType::FLOAT16:
    return poplar::HALF;
  case popart::DataType::INT32:
    return poplar::INT;
  default:
    return poplar::FLOAT;
  }
}

popart::DataType dataType(const std::string &name) {
  return name == "float16" ? popart::DataType::FLOAT16
         : name == "int32" ? popart::DataType::INT32
                           : popart::DataType::FLOAT;
}

class Model {
public:
  void addInput(const std::string &id, const std::string &type, const popart::Shape &shape) {
    graph().tensors[id] = {id, popart::TensorInfo(dataType(type), shape), {}};
    inputs_.push_back(id);
  }

  // As PopART does with a node of a model: make, move into the graph, connect, setup().
  popart::OpId addOp(const std::string &type, const std::vector<std::string> &inputs,
                     const std::vector<std::string> &outputs, const py::dict &attributes,
                     std::optional<popart::VGraphId> virtualGraph) {
    const popart::OperatorIdentifier opid("ai.sparq", type, 1);
    const popart::OpManager::OpInfo &info = popart::OpManager::all().at(opid);
    popart::Attributes values;
    values.set("__debug_info_id", popart::Attributes::Int(nextId_)); // one of PopART's own
    for (const auto &item : attributes) {
      const auto name = item.first.cast<std::string>();
      if (py::isinstance<py::str>(item.second))
        values.set(name, item.second.cast<std::string>());
      else if (py::isinstance<py::float_>(item.second))
        values.set(name, item.second.cast<float>());
      else if (py::isinstance<py::list>(item.second))
        values.set(name, item.second.cast<popart::Attributes::Ints>());
      else
        values.set(name, item.second.cast<std::int64_t>());
    }
    popart::Op::Settings settings{graph(), type + std::to_string(nextId_), virtualGraph};
    return addToGraph(info.factory({opid, settings, values}), inputs, outputs);
  }

  void setOptions(bool stochasticRounding, std::int64_t replicas, bool floatingPointChecks) {
    ir_.options.enableFloatingPointChecks = floatingPointChecks;
    ir_.options.enableStochasticRounding = stochasticRounding;
    ir_.options.enableReplicatedGraphs = replicas != 1;
    ir_.options.replicatedGraphCount = replicas;
  }

  // A copy of an operator beside it, as transforms make them.
  popart::OpId cloneOp(popart::OpId id, const std::vector<std::string> &inputs,
                       const std::vector<std::string> &outputs) {
    return addToGraph(op(id).clone(), inputs, outputs);
  }

  void setup(popart::OpId id) { op(id).setup(); }

  py::dict describe(popart::OpId id) {
    const popart::Op &o = op(id);
    popart::OpAttributeList outline, all;
    o.appendOutlineAttributes(outline);
    o.appendAttributes(all);
    py::dict d;
    d["type"] = o.opid.type;
    d["outline"] = outline.all;
    d["attributes"] = all.all;
    d["side_effect"] = o.hasSideEffect();
    d["outlineable"] = o.isOutlineable();
    d["subgraph_value"] = o.getSubgraphValue();
    return d;
  }

  std::vector<std::pair<popart::OpId, popart::OpId>> constraints() {
    std::vector<std::pair<popart::OpId, popart::OpId>> all;
    for (const auto &entry : graph().getOps())
      for (const popart::Op *const after : graph().topoCons->getAfters(entry.second.get()))
        all.emplace_back(entry.first, after->id);
    return all;
  }

  // Any order that tensors and constraints allow; of those free to go, the one added last first.
  std::vector<popart::OpId> schedule() { return order(true); }

  // Lowers, compiles, loads. Runs `iterations` times a run; virtual graphs are ranges of tiles.
  void compile(unsigned nTiles, unsigned iterations,
               const std::map<popart::VGraphId, std::pair<unsigned, unsigned>> &virtualGraphs) {
    engine_.reset();
    opxs_.clear();
    device_ = sparq::openDevice({"emulator", nTiles});
    devicex_ = std::make_unique<popart::popx::Devicex>(poplar::Graph(device_.getTarget()));
    for (const auto &range : virtualGraphs)
      devicex_->virtualGraphs.emplace(
          range.first, devicex_->top.createVirtualGraph(range.second.first, range.second.second));
    for (const auto &entry : graph().getOps()) // before any tensor exists
      opxs_[entry.first] = popart::popx::OpxManager::all().at(entry.second->opid)(
          entry.second.get(), devicex_.get());
    for (const std::string &id : inputs_) {
      const popart::TensorInfo &info = graph().tensors.at(id).info;
      const std::vector<std::size_t> shape(info.shape().begin(), info.shape().end());
      const poplar::Tensor tensor = devicex_->top.addVariable(
          poplarType(info.dataType()), shape, poplar::VariableMappingMethod::LINEAR, id);
      devicex_->top.createHostWrite(id, tensor);
      devicex_->tensors.emplace(id, tensor);
    }
    // As PopART does: each operator is lowered as soon as there are the tensors that it takes, into
    // a sequence of its own, and these are put together in the order of the schedule.
    std::map<popart::OpId, poplar::program::Sequence> sequences;
    outputs_.clear();
    for (const popart::OpId id : order(false)) {
      opxs_.at(id)->grow(sequences[id]);
      for (const popart::Tensor *const tensor : op(id).output->tensors()) {
        const poplar::Tensor &made = devicex_->tensors.at(tensor->id);
        const std::vector<std::size_t> shape(tensor->info.shape().begin(),
                                             tensor->info.shape().end());
        if (made.shape() != shape || made.elementType() != poplarType(tensor->info.dataType()))
          throw popart::error("an output must be what setup() said, got " + made.shapeToString());
        devicex_->top.createHostRead(tensor->id, made);
        outputs_.push_back(tensor->id);
      }
    }
    poplar::program::Sequence program;
    for (const popart::OpId id : schedule())
      program.add(sequences.at(id));
    poplar::program::Sequence whole; // checks are switched on first, where the session asks
    if (ir_.options.enableFloatingPointChecks)
      poplar::setFloatingPointBehaviour(devicex_->top, whole, {true, true, true, false, true});
    whole.add(poplar::program::Repeat(iterations, program));
    engine_ = std::make_unique<poplar::Engine>(devicex_->top, whole);
    engine_->load(device_);
  }

  py::dict run(const py::dict &inputs) {
    for (const auto &item : inputs) {
      const auto id = item.first.cast<std::string>();
      const auto array = py::array::ensure(item.second, py::array::c_style);
      checkArray(id, array);
      const auto *const begin = static_cast<const char *>(array.data());
      engine_->writeTensor(id, begin, begin + array.nbytes());
    }
    engine_->run(0);
    py::dict results;
    for (const std::string &id : outputs_) {
      const popart::TensorInfo &info = graph().tensors.at(id).info;
      py::array array(py::dtype(info.data_type_lcase()), info.shape());
      auto *const begin = static_cast<char *>(array.mutable_data());
      engine_->readTensor(id, begin, begin + array.nbytes());
      results[py::str(id)] = array;
    }
    return results;
  }

  std::uint64_t vertices() const { return sparq::emulator::memory(*engine_).vertices; }

  // Bytes of each remote buffer of the compiled model, by handle.
  std::map<std::string, std::uint64_t> streamingMemory() const {
    std::map<std::string, std::uint64_t> bytes;
    for (const sparq::emulator::MemoryUse &use : sparq::emulator::streamingMemory(*engine_))
      bytes[use.name] = use.bytes;
    return bytes;
  }

  // Of the last run: how often each step was executed, by the last part of its name.
  std::map<std::string, std::uint64_t> executions() const {
    std::map<std::string, std::uint64_t> counts;
    for (const sparq::emulator::StepCount &step : sparq::emulator::lastRun(*engine_))
      counts[step.name.substr(step.name.rfind('/') + 1)] += step.executions;
    return counts;
  }

  // What SRAM keeps for good: variables that are live between programs, in bytes.
  std::map<std::string, std::uint64_t> stateInSram() const {
    std::map<std::string, std::uint64_t> bytes;
    for (const sparq::emulator::MemoryUse &use : sparq::emulator::memory(*engine_).alwaysLive)
      bytes[use.name] += use.bytes;
    return bytes;
  }

private:
  popart::Graph &graph() { return ir_.getMainGraph(); }
  popart::Op &op(popart::OpId id) { return *graph().getOps().at(id); }

  popart::OpId addToGraph(std::unique_ptr<popart::Op> made, const std::vector<std::string> &inputs,
                          const std::vector<std::string> &outputs) {
    made->id = nextId_++;
    popart::Op &o = *made;
    graph().getOps().emplace(o.id, std::move(made));
    for (std::size_t i = 0; i != inputs.size(); ++i) {
      if (inputs[i].empty())
        continue;
      popart::Tensor &tensor = graph().tensors.at(inputs[i]);
      tensor.consumers.increment(&o);
      o.input->insert(static_cast<int>(i), &tensor);
    }
    for (std::size_t i = 0; i != outputs.size(); ++i) {
      popart::Tensor &tensor = graph().tensors[outputs[i]];
      tensor.id = outputs[i];
      o.output->insert(static_cast<int>(i), &tensor);
    }
    o.setup();
    return o.id;
  }

  std::vector<popart::OpId> order(bool constraints) {
    std::map<popart::OpId, int> waiting;
    const auto eachAfter = [&](popart::Op *o, const auto &visit) {
      for (const popart::Tensor *const tensor : o->output->tensors())
        for (popart::Op *const consumer : tensor->consumers.getOps())
          visit(consumer);
      if (constraints)
        for (popart::Op *const after : graph().topoCons->getAfters(o))
          visit(after);
    };
    for (const auto &entry : graph().getOps()) {
      waiting.emplace(entry.first, 0);
      eachAfter(entry.second.get(), [&](const popart::Op *after) { ++waiting[after->id]; });
    }
    std::vector<popart::OpId> found;
    while (found.size() != graph().getOps().size()) {
      const auto next = std::find_if(waiting.rbegin(), waiting.rend(),
                                     [](const auto &entry) { return entry.second == 0; });
      if (next == waiting.rend())
        throw popart::error("operators must have an order, got a cycle");
      const popart::OpId id = next->first;
      waiting.erase(id);
      found.push_back(id);
      eachAfter(&op(id), [&](const popart::Op *after) { --waiting.at(after->id); });
    }
    return found;
  }

  void checkArray(const std::string &id, const py::array &array) {
    const popart::TensorInfo &info = graph().tensors.at(id).info;
    const std::vector<py::ssize_t> shape(info.shape().begin(), info.shape().end());
    if (!array.dtype().is(py::dtype(info.data_type_lcase())) ||
        !std::equal(shape.begin(), shape.end(), array.shape(), array.shape() + array.ndim()))
      throw popart::error("an input must be what the model says, got another " + id);
  }

  popart::Ir ir_;
  popart::OpId nextId_ = 100;
  std::vector<std::string> inputs_, outputs_;
  poplar::Device device_;
  std::unique_ptr<popart::popx::Devicex> devicex_;
  std::map<popart::OpId, std::unique_ptr<popart::popx::Opx>> opxs_;
  std::unique_ptr<poplar::Engine> engine_;
};

// {type: (inputs, outputs, attributes)} of all operators registered.
py::dict registered() {
  py::dict all;
  for (const auto &entry : popart::OpManager::all()) {
    py::list inputs, outputs, attributes;
    for (const auto &input : entry.second.definition.inputs)
      inputs.append(input.name);
    for (const auto &output : entry.second.definition.outputs)
      outputs.append(output.name);
    for (const auto &attribute : entry.second.definition.attributes)
      attributes.append(attribute.first);
    all[py::make_tuple(entry.first.domain, entry.first.type, entry.first.version)] =
        py::make_tuple(inputs, outputs, attributes);
  }
  return all;
}

} // namespace

PYBIND11_MODULE(_popart_lowering, m) {
  using namespace pybind11::literals;
  m.doc() = "Lowers the PopART operators without PopART.";
  m.def("registered", &registered);
  py::class_<Model>(m, "Model")
      .def(py::init<>())
      .def("add_input", &Model::addInput, "id"_a, "dtype"_a, "shape"_a)
      .def("add_op", &Model::addOp, "type"_a, "inputs"_a, "outputs"_a, "attributes"_a,
           "virtual_graph"_a = py::none())
      .def("set_options", &Model::setOptions, "stochastic_rounding"_a = false, "replicas"_a = 1,
           "floating_point_checks"_a = false)
      .def("clone_op", &Model::cloneOp, "id"_a, "inputs"_a, "outputs"_a)
      .def("setup", &Model::setup, "id"_a)
      .def("describe", &Model::describe, "id"_a)
      .def("constraints", &Model::constraints)
      .def("schedule", &Model::schedule)
      .def("compile", &Model::compile, "n_tiles"_a = 8, "iterations"_a = 1,
           "virtual_graphs"_a = std::map<popart::VGraphId, std::pair<unsigned, unsigned>>())
      .def("run", &Model::run, "inputs"_a)
      .def("streaming_memory", &Model::streamingMemory)
      .def("executions", &Model::executions)
      .def("state_in_sram", &Model::stateInSram)
      .def("vertices", &Model::vertices);
}
