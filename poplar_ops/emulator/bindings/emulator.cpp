// SPDX-License-Identifier: Apache-2.0
//
// Counts and modelled times of the emulator, for Python.
#include "core.hpp"
#include "sparq_emulator/Counters.hpp"
#include "sparq_emulator/DeviceModel.hpp"
#include <pybind11/stl.h>

namespace py = pybind11;
using namespace py::literals;

namespace sparq {
namespace {

py::dict toDict(const emulator::ModelledTime &t) {
  return py::dict("compute"_a = t.compute, "exchange"_a = t.exchange, "sync"_a = t.sync, "streaming"_a = t.streaming,
                  "host_streams"_a = t.hostStreams, "total"_a = t.total());
}

py::dict toDict(const emulator::StepCount &s) {
  return py::dict("name"_a = s.name, "kind"_a = emulator::toString(s.kind), "executions"_a = s.executions,
                  "tile_cycles"_a = s.tileCycles, "vertices"_a = s.vertices,
                  "vertices_without_estimate"_a = s.verticesWithoutEstimate, "exchanges"_a = s.exchanges,
                  "exchange_bytes_in"_a = s.before.bytesIn + s.after.bytesIn,
                  "max_exchange_bytes_before"_a = s.before.maxBytes, "max_exchange_bytes_after"_a = s.after.maxBytes,
                  "syncs"_a = s.syncs, "buffer"_a = s.buffer, "rows"_a = s.rows, "bytes"_a = s.bytes,
                  "packets"_a = s.packets);
}

// What the last run did and, by the device model, how long it would take: seconds by category and by stage.
py::dict lastRun(PySession &session) {
  const emulator::DeviceModel model;
  const std::vector<emulator::StepCount> steps = emulator::lastRun(session.session().engine());
  py::list list;
  for (const emulator::StepCount &step : steps) {
    py::dict d = toDict(step);
    d["seconds"] = toDict(emulator::modelledTime(model, step));
    list.append(d);
  }
  return py::dict("steps"_a = list, "seconds"_a = toDict(emulator::modelledTime(model, steps)));
}

py::dict memory(PySession &session) {
  const emulator::MemoryCount m = emulator::memory(session.session().engine());
  py::list largest;
  for (const emulator::MemoryUse &use : m.largest)
    largest.append(py::make_tuple(use.name, use.bytes));
  return py::dict("tile"_a = m.tile, "bytes"_a = m.bytes, "limit"_a = m.limit, "variables"_a = m.variables,
                  "vertex_state"_a = m.vertexState, "temporaries"_a = m.temporaries,
                  "code_and_stacks"_a = m.codeAndStacks, "largest"_a = largest);
}

} // namespace

void bindEmulator(py::module_ &module) {
  module.attr("has_emulator") = true;
  module.def("emulator_last_run", &lastRun, "session"_a);
  module.def("emulator_memory", &memory, "session"_a);
}

} // namespace sparq
