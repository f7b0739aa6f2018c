// SPDX-License-Identifier: Apache-2.0
//
// Counts and modelled times of the emulator, for Python.
#include "core.hpp"
#include "sparq_emulator/Counters.hpp"
#include "sparq_emulator/DeviceModel.hpp"
#include "sparq_emulator/Trace.hpp"

namespace py = pybind11;
using namespace py::literals;

namespace sparq {
namespace {

using emulator::DeviceModel;

// Calls f(name, member) for every parameter of the model, under the names of device_models.json.
template <class Model, class F> void forEachParameter(Model &m, const F &f) {
  f("clock_hz", m.clock);
  f("tiles", m.tiles);
  f("exchange_bytes_per_cycle", m.exchangeBytesPerCycle);
  f("exchange_piece_cycles", m.exchangePieceCycles);
  f("sync_cycles", m.syncCycles);
  f("exchange_fixed_cycles", m.exchangeFixedCycles);
  f("compute_set_fixed_cycles", m.computeSetFixedCycles);
  f("local_element_cycles", m.localElementCycles);
  f("local_bytes_per_cycle", m.localBytesPerCycle);
  f("streaming_bytes_per_second", m.streamingBytesPerSecond);
  f("packet_overhead_bytes", m.packetOverheadBytes);
  f("remote_copy_seconds", m.remoteCopySeconds);
  f("shared_row_penalty", m.sharedRowPenalty);
  f("shared_row_knee_bytes", m.sharedRowKneeBytes);
  f("host_stream_bytes_per_second", m.hostStreamBytesPerSecond);
  f("link_bytes_per_second", m.linkBytesPerSecond);
  f("link_hop_seconds", m.linkHopSeconds);
}

// A Bow IPU, with these parameters instead of its own.
DeviceModel modelFrom(const NamedValues &parameters) {
  DeviceModel model;
  std::size_t used = 0;
  forEachParameter(model, [&](const char *name, auto &value) {
    if (!parameters.contains(name))
      return;
    value = parameters[name].cast<std::decay_t<decltype(value)>>();
    ++used;
  });
  if (used != parameters.size())
    throw Error("device_model: model must have only known parameters, got " +
                std::string(py::str(py::list(parameters))));
  return model;
}

NamedValues parametersOf(const DeviceModel &model) {
  py::dict d;
  forEachParameter(model, [&](const char *name, const auto &value) { d[name] = value; });
  return d;
}

py::dict toDict(const emulator::ModelledTime &t) {
  return py::dict("compute"_a = t.compute, "exchange"_a = t.exchange, "sync"_a = t.sync,
                  "streaming"_a = t.streaming, "host_streams"_a = t.hostStreams,
                  "links"_a = t.links, "total"_a = t.total());
}

py::dict toDict(const emulator::StepCount &s) {
  return py::dict("name"_a = s.name, "kind"_a = emulator::toString(s.kind),
                  "executions"_a = s.executions, "tile_cycles"_a = s.tileCycles,
                  "vertices"_a = s.vertices,
                  "vertices_without_estimate"_a = s.verticesWithoutEstimate,
                  "exchanges"_a = s.exchanges, "busy_exchange_bytes_before"_a = s.before.busyBytes,
                  "busy_exchange_pieces_before"_a = s.before.busyPieces,
                  "busy_exchange_bytes_after"_a = s.after.busyBytes,
                  "busy_exchange_pieces_after"_a = s.after.busyPieces,
                  "local_elements"_a = s.localCopy.elements, "local_bytes"_a = s.localCopy.bytes,
                  "syncs"_a = s.syncs, "buffer"_a = s.buffer, "rows"_a = s.rows,
                  "bytes"_a = s.bytes, "packets"_a = s.packets, "beside"_a = s.beside,
                  "ipus"_a = s.ipus, "link_bytes"_a = s.links.bytes,
                  "max_link_bytes"_a = s.links.maxBytes, "link_hops"_a = s.links.syncHops);
}

NamedValues lastRunOf(const poplar::Engine &engine, const DeviceModel &model) {
  const std::vector<emulator::StepCount> steps = emulator::lastRun(engine);
  py::list list;
  const std::vector<emulator::ModelledTime> seconds = emulator::modelledTimes(model, steps);
  for (std::size_t i = 0; i != steps.size(); ++i) {
    py::dict d = toDict(steps[i]);
    d["seconds"] = toDict(seconds[i]);
    list.append(d);
  }
  py::list byIpu;
  for (const emulator::ModelledTime &time : emulator::modelledTimeByIPU(model, steps))
    byIpu.append(toDict(time));
  return py::dict("steps"_a = list, "seconds"_a = toDict(emulator::modelledTime(model, steps)),
                  "seconds_by_ipu"_a = byIpu);
}

NamedValues memoryOf(const poplar::Engine &engine) {
  const emulator::MemoryCount m = emulator::memory(engine);
  py::list largest;
  for (const emulator::MemoryUse &use : m.largest)
    largest.append(py::make_tuple(use.name, use.bytes));
  py::list alwaysLive;
  for (const emulator::MemoryUse &use : m.alwaysLive)
    alwaysLive.append(py::make_tuple(use.name, use.bytes));
  return py::dict(
      "tile"_a = m.tile, "bytes"_a = m.bytes, "limit"_a = m.limit, "variables"_a = m.variables,
      "vertex_state"_a = m.vertexState, "temporaries"_a = m.temporaries,
      "vertex_code"_a = m.vertexCode, "stacks"_a = m.stacks, "control_code"_a = m.controlCode,
      "exchange_code"_a = m.exchangeCode, "host_exchange_code"_a = m.hostExchangeCode,
      "largest"_a = largest, "bytes_per_tile"_a = m.bytesPerTile, "code_per_tile"_a = m.codePerTile,
      "vertices"_a = m.vertices, "always_live"_a = alwaysLive);
}

py::dict toDict(const Waves &w) {
  return py::dict("positions_per_wave"_a = w.stride, "n_waves"_a = w.nWaves);
}

// Tile mapping and waves of the plan, in the words of sparq/plan.hpp.
py::dict toDict(const Plan &plan, const Waves &waves) {
  const Placement &p = plan.placement;
  py::dict result("n_tasks"_a = p.nTasks, "slots"_a = p.slots, "rounds"_a = p.nRounds,
                  "parts"_a = p.parts, "tiles_used"_a = p.slots * p.parts,
                  "capacity"_a = plan.layout.capacity, "chunk"_a = plan.layout.chunk,
                  "waves"_a = toDict(waves));
  if (plan.attention[0].kernel->memory == Memory::sram)
    result["wide_rows"] = plan.layout.wideRows;
  if (plan.hot.nPlaces != 0)
    result["hot_rows"] = plan.hot.nPlaces;
  return result;
}

// Counts one attention call over a cache of these lengths, without its memory or arithmetic: of one
// layer or, stacked, of all layers in one launch. onlyBetween: only what passes between IPUs, and
// one branch in each layer.
NamedValues plan(const CacheSpec &cache, unsigned nHeads, const Attention &attention,
                 const std::vector<std::uint32_t> &lengths,
                 const std::optional<DeviceOptions> &given, const NamedValues &parameters,
                 bool append, unsigned nLayers, double hitRate, bool stacked,
                 const std::vector<unsigned> &misses, bool onlyBetween, bool mayWiden) {
  const DeviceModel model = modelFrom(parameters);
  DeviceOptions options = given.value_or(DeviceOptions{});
  options.tiers.assumedHitRate = hitRate;
  options.tiers.assumedMisses = misses;
  Programs programs;
  programs.append = append;
  programs.nLayers = nLayers;
  programs.onlyBetween = onlyBetween;
  programs.mayWiden = mayWiden;
  programs.attention = {attention};
  std::unique_ptr<Session> session;
  {
    const py::gil_scoped_release release;
    const emulator::DryRun dry;
    session = std::make_unique<Session>(Shape(cache, nHeads), programs, options, 0, stacked);
    for (unsigned layer = 0; layer != (stacked ? nLayers : 1); ++layer)
      session->assumeLengths(lengths, layer);
    std::vector<std::uint16_t> query(std::size_t(cache.batch) * nHeads * cache.headDim);
    if (stacked)
      session->attendAll(0, query.data(), query.data());
    else
      session->attention(0, query.data(), query.data());
  }
  poplar::Engine &engine = session->engine();
  NamedValues result = lastRunOf(engine, model);
  result["memory"] = memoryOf(engine);
  py::list streaming;
  for (const emulator::MemoryUse &use : emulator::streamingMemory(engine))
    streaming.append(py::make_tuple(use.name, use.bytes, use.ipu));
  result["streaming_memory"] = streaming;
  result["extended_memory"] = session->extendedMemory();
  result["mapping"] = toDict(session->plan(), session->plan().attention[0].waves);
  return result;
}

} // namespace

void bindEmulator(py::module_ &module) {
  module.attr("has_emulator") = true;
  module.def(
      "emulator_device_model", [] { return parametersOf(DeviceModel{}); },
      "The parameters of a Bow IPU as this build has them.");
  module.def(
      "emulator_streaming_seconds",
      [](std::uint64_t bytes, std::uint64_t packets, std::uint64_t rows, const NamedValues &model) {
        return modelFrom(model).streamingSeconds(bytes, packets, rows);
      },
      "bytes"_a, "packets"_a, "rows"_a, "model"_a = py::dict(),
      "Modelled seconds of one remote copy.");
  module.def(
      "emulator_last_run",
      [](EngineOwner &session, const NamedValues &model) {
        return lastRunOf(session.engine(), modelFrom(model));
      },
      "session"_a, "model"_a = py::dict(),
      "What the last run did and, by the device model, how long it would take: seconds by category "
      "and by step.");
  module.def("emulator_record_tiles", &emulator::recordTiles, "on"_a,
             "Whether sessions that are made from now on keep the cycles of each tile.");
  module.def(
      "emulator_trace",
      [](EngineOwner &session, const std::string &name, unsigned process,
         const NamedValues &model) {
        const std::vector<emulator::StepCount> steps = emulator::lastRun(session.engine());
        return py::make_tuple(emulator::traceEvents(steps, modelFrom(model), name, process),
                              emulator::cyclesOfTiles(steps));
      },
      "session"_a, "name"_a, "process"_a = 1u, "model"_a = py::dict(),
      "Events of the last run for Chrome's trace format, as text, and the cycles of each tile.");
  module.def(
      "emulator_host_calls",
      [](EngineOwner &session) -> NamedValues {
        const emulator::HostCalls calls = emulator::hostCalls(session.engine());
        return py::dict("runs"_a = calls.runs, "tensor_writes"_a = calls.tensorWrites,
                        "tensor_reads"_a = calls.tensorReads, "row_writes"_a = calls.rowWrites,
                        "row_reads"_a = calls.rowReads);
      },
      "session"_a, "What the host has asked of the engine since the session was made.");
  module.def(
      "emulator_memory", [](EngineOwner &session) { return memoryOf(session.engine()); },
      "session"_a);
  module.def("emulator_plan", &plan, "cache"_a, "n_heads"_a, "attention"_a, "lengths"_a,
             py::kw_only(), "options"_a = py::none(), "model"_a = py::dict(), "append"_a = true,
             "n_layers"_a = 1u, "hit_rate"_a.noconvert() = 0.0, "stacked"_a = false,
             "misses"_a = std::vector<unsigned>(), "only_between"_a = false, "may_widen"_a = true,
             "Counts one call of an attention program, or of all layers in one launch, without "
             "running it.");
}

} // namespace sparq
