// SPDX-License-Identifier: Apache-2.0
// Running steps.
#include <sparq_emulator/DeviceModel.hpp>

#include <atomic>
#include <cstring>
#include <iostream>

#include "engine_impl.hpp"
#include "workers.hpp"

namespace poplar {
namespace core {

void copyRuns(std::uint8_t *dst, const std::uint8_t *src, const Run *begin, const Run *end) {
  for (const Run *r = begin; r != end; ++r) {
    std::uint8_t *d = dst + r->dst;
    const std::uint8_t *s = src + r->src;
    // Transposes and broadcasts copy element by element: with a size known to the compiler each is
    // a single move.
    switch (r->count == 1 ? 0 : r->bytes) {
    case 2:
      for (std::uint64_t i = 0; i < r->count; ++i, d += r->dstStep, s += r->srcStep)
        std::memcpy(d, s, 2);
      break;
    case 4:
      for (std::uint64_t i = 0; i < r->count; ++i, d += r->dstStep, s += r->srcStep)
        std::memcpy(d, s, 4);
      break;
    default:
      for (std::uint64_t i = 0; i < r->count; ++i) {
        std::memcpy(d, s, r->bytes);
        if (i + 1 < r->count) {
          d += r->dstStep;
          s += r->srcStep;
        }
      }
    }
  }
}

// The same with the roles of `dst` and `src` exchanged.
static void copyRunsBack(std::uint8_t *src, const std::uint8_t *dst, const Run *begin,
                         const Run *end) {
  for (const Run *r = begin; r != end; ++r) {
    for (std::uint64_t i = 0; i < r->count; ++i) {
      const std::int64_t k = static_cast<std::int64_t>(i);
      std::memcpy(src + r->src + k * r->srcStep, dst + r->dst + k * r->dstStep, r->bytes);
    }
  }
}

// Whether the gathers' destinations hold what their sources hold.
static bool areCopies(const std::uint8_t *base, const Run *begin, const Run *end) {
  for (const Run *r = begin; r != end; ++r)
    for (std::uint64_t i = 0; i < r->count; ++i) {
      const std::int64_t k = static_cast<std::int64_t>(i);
      if (std::memcmp(base + r->dst + k * r->dstStep, base + r->src + k * r->srcStep, r->bytes) !=
          0)
        return false;
    }
  return true;
}

static void checkGuards(const std::uint8_t *base, const ComputeSetPlan &plan, const VertexPlan &v,
                        const Guard *begin, const Guard *end) {
  const auto refuse = [&](const std::string &what) {
    throw errors::write_outside(std::string("vertex ") + v.name + " on tile " +
                                std::to_string(v.tile) + " must not write " + what);
  };
  bool before = true; // guards come in pairs
  for (const Guard *g = begin; g != end; ++g) {
    if (g->isInput()) {
      if (!areCopies(base, plan.gathers.data() + g->gathers, plan.gathers.data() + g->gathersEnd))
        refuse("to its Input '" + std::string(g->field) + "', got elements that have changed");
      continue;
    }
#if !defined(SPARQ_ADDRESS_SANITIZER) // it reports the access itself
    for (std::uint64_t i = 0; i < g->bytes; ++i)
      if (base[g->at + i] != guardByte(static_cast<std::size_t>(g - plan.guards.data()), i))
        refuse("outside the elements of field '" + std::string(g->field) + "', got a write " +
               (before ? std::to_string(g->bytes - i) + " bytes before them"
                       : std::to_string(i) + " bytes after them"));
#endif
    before = !before;
  }
}

// From vertex `i` on, the first that is not on the tile of the one before it.
static std::size_t nextTile(const std::vector<VertexPlan> &vertices, std::size_t i) {
  while (i > 0 && i < vertices.size() && vertices[i].tile == vertices[i - 1].tile)
    ++i;
  return i;
}

// What an IPU stops at while `worker` runs is seen when it has run.
void EngineImpl::stopAtEvents(const ComputeSetPlan &plan, const VertexPlan &v,
                              unsigned worker) const {
  const char *const event = stoppingEvent(floatingPoint.of(v.tile));
  if (event)
    throw errors::floating_point_exception(
        "run: floating-point " + std::string(event) + " in vertex " + v.name +
        (v.calls == 1 ? "" : ", worker " + std::to_string(worker) + ",") + " on tile " +
        std::to_string(v.tile) + (plan.name.empty() ? "" : " of compute set '" + plan.name + "'") +
        ", where it is an exception");
}

bool EngineImpl::runVertex(const ComputeSetPlan &plan, const VertexPlan &v, unsigned firstWorker,
                           const WorkerList &order) {
  std::uint8_t *const state = arena.get() + v.state;
  const bool stops = floatingPoint.of(v.tile) != 0;
  if (stops && !v.showsEvents)
    throw errors::no_floating_point_events(
        std::string("run: vertex ") + v.name + " on tile " + std::to_string(v.tile) +
        " must come from codelets made with popc --floating-point-events (or with "
        "SPARQ_POPC_EVENTS=1) where floating-point exceptions are on, got others");
  bool all = true;
  for (unsigned i = 0; i < v.calls; ++i) {
    const unsigned w = order[i];
    if (plan.asksWorker)
      generators.enter(v.tile, firstWorker + w);
    if (stops)
      clearEvents();
    all &= v.run(state, w);
    if (stops)
      stopAtEvents(plan, v, w);
  }
  return all;
}

bool EngineImpl::runComputeSet(const ComputeSetPlan &plan) {
  std::uint8_t *base = arena.get();
  std::atomic<bool> all{true};
  workerOrder.next();
  if (reads)
    reads->beforeVertices(plan);
  if (plan.asksWorker && !plan.vertices.empty())
    generators.reserve(plan.vertices.back().tile + 1);
  // Several vertices per piece: they are short, and there are many.
  const std::size_t grain = std::max<std::size_t>(1, plan.vertices.size() / (pool->threads() * 8));
  pool->run(plan.vertices.size(), grain, [&](std::size_t begin, std::size_t end) {
    if (plan.asksWorker) { // a tile's run in order, on one thread: random numbers do not depend on
                           // how many there are
      begin = nextTile(plan.vertices, begin);
      end = nextTile(plan.vertices, end);
    }
    unsigned turn = 0; // of the workers, where a vertex has one
    bool ok = true;
    for (std::size_t i = begin; i < end; ++i) {
      const VertexPlan &v = plan.vertices[i];
      const VertexPlan *previous = i ? &plan.vertices[i - 1] : nullptr;
      const unsigned gathers = previous ? previous->gathersEnd : 0,
                     scatters = previous ? previous->scattersEnd : 0,
                     poisons = previous ? previous->poisonsEnd : 0,
                     guards = previous ? previous->guardsEnd : 0,
                     written = previous ? previous->writtenEnd : 0;
      for (unsigned k = poisons; k < v.poisonsEnd; ++k)
        poison(base + plan.poisons[k].at, plan.poisons[k].type, plan.poisons[k].bytes);
      copyRuns(base, base, plan.gathers.data() + gathers, plan.gathers.data() + v.gathersEnd);
      turn = i > begin && previous->tile == v.tile ? (turn + 1) % workersPerTile : 0;
      const unsigned first = v.calls == 1 ? turn : 0;
      if (plan.asksWorker || v.showsEvents)
        floatingPoint.enter(v.tile);
      // Its many runs on other values would have events of their own.
      const WorkerList order = workerOrder.of(i, v.calls);
      const bool checks = written != v.writtenEnd && !floatingPoint.of(v.tile);
      if (checks)
        ok &= runChecked(base, plan, v, plan.written.data() + written,
                         plan.written.data() + v.writtenEnd, order, generators);
      else
        ok &= runVertex(plan, v, first, order);
      if (guards != v.guardsEnd)
        checkGuards(base, plan, v, plan.guards.data() + guards, plan.guards.data() + v.guardsEnd);
      copyRuns(base, base, plan.scatters.data() + scatters, plan.scatters.data() + v.scattersEnd);
    }
    if (!ok)
      all = false;
  });
  if (reads)
    reads->afterVertices(plan);
  return all;
}

void EngineImpl::runCopy(const CopyPlan &plan) {
  if (reads)
    reads->copied(plan.runs);
  copyRuns(arena.get(), arena.get(), plan.runs.data(), plan.runs.data() + plan.runs.size());
}

// What the callback gives before it is asked for is what the next transfer takes.
void EngineImpl::prefetch(StreamState &s, std::uint64_t bytes) {
  const auto option = exe->options.find("exchange.enablePrefetch");
  s.prefetched.clear();
  if (option != exe->options.end() && option->second == "false")
    return;
  s.prefetched.resize(bytes);
  if ((*s.callback)->prefetch(s.prefetched.data()) != StreamCallback::Result::Success)
    s.prefetched.clear();
}

void EngineImpl::runStream(const TransferPlan &plan) {
  const StreamInfo &info = *exe->streams[plan.index];
  const auto it = streams.find(info.handle);
  if (it == streams.end())
    throw errors::stream_not_connected("stream '" + info.handle +
                                       "' must be connected before a program uses it");
  StreamState &s = it->second;
  std::uint8_t *host = s.at;
  if (s.callback) {
    transferBuffer.resize(plan.bytes);
    host = transferBuffer.data();
    if (plan.toDevice && s.prefetched.empty())
      (*s.callback)->fetch(host);
    else if (plan.toDevice)
      transferBuffer.swap(s.prefetched), host = transferBuffer.data();
  }
  if (reads && plan.toDevice)
    reads->written(plan.runs);
  else if (reads)
    reads->read(plan.runs, "stream '" + info.handle + "'");
  const Run *begin = plan.runs.data(), *end = begin + plan.runs.size();
  if (plan.toDevice)
    copyRuns(arena.get(), host, begin, end);
  else
    copyRunsBack(host, arena.get(), begin, end);
  if (s.callback) {
    if (!plan.toDevice)
      (*s.callback)->fetch(host);
    (*s.callback)->complete();
    if (plan.toDevice)
      prefetch(s, plan.bytes);
  } else {
    s.at += plan.bytes;
    if (s.end && s.at == s.end)
      s.at = s.begin;
    else if (!s.end)
      s.at = s.begin;
  }
}

void EngineImpl::readOffsets(const TransferPlan &plan) {
  const RemoteBufferInfo &info = *exe->remotes[plan.index];
  offsets.assign(plan.rows, 0);
  if (!plan.hasOffsets)
    return;
  if (reads)
    reads->read(plan.offsetRuns, "an offset of remote buffer '" + info.handle + "'");
  copyRunsBack(reinterpret_cast<std::uint8_t *>(offsets.data()), arena.get(),
               plan.offsetRuns.data(), plan.offsetRuns.data() + plan.offsetRuns.size());
  auto what = [&](std::uint64_t i) {
    return "remote buffer '" + info.handle + "'" +
           (plan.name.empty() ? "" : " in copy '" + plan.name + "'") + ": offset [" +
           std::to_string(i) + "] must ";
  };
  for (std::uint64_t i = 0; i < plan.rows; ++i) {
    if (offsets[i] < info.repeats)
      continue;
    const std::string got = plan.offsetsSigned
                                ? std::to_string(static_cast<std::int32_t>(offsets[i]))
                                : std::to_string(offsets[i]);
    throw errors::remote_row_out_of_range(what(i) + "be below the buffer's " +
                                          std::to_string(info.repeats) + " rows, got " + got);
  }
  if (plan.toDevice || plan.rows < 2)
    return;
  // Which of two stores to one row wins is not defined on a device.
  std::vector<std::uint32_t> &seen = written[plan.index];
  seen.resize(info.repeats, 0);
  if (++storeId == 0) {
    for (auto &w : written)
      std::fill(w.begin(), w.end(), 0);
    storeId = 1;
  }
  for (std::uint64_t i = 0; i < plan.rows; ++i) {
    if (seen[offsets[i]] == storeId)
      throw errors::remote_row_stored_twice(what(i) +
                                            "be another row than the rest of the store, got " +
                                            std::to_string(offsets[i]) + " again");
    seen[offsets[i]] = storeId;
  }
}

void EngineImpl::runRemote(const TransferPlan &plan) {
  readOffsets(plan);
  if (reads && plan.toDevice)
    reads->written(plan.runs);
  std::uint8_t *rows = remote[plan.index].get(), *base = arena.get();
  const Run *runs = plan.runs.data();
  // Large transfers are split over the threads; rows are independent (a store's rows are distinct).
  const std::size_t grain =
      std::max<std::uint64_t>(1, (1u << 18) / std::max<std::uint64_t>(1, plan.rowBytes));
  pool->run(plan.rows, grain, [&](std::size_t begin, std::size_t end) {
    for (std::size_t r = begin; r < end; ++r) {
      std::uint8_t *row = rows + static_cast<std::uint64_t>(offsets[r]) * plan.rowBytes;
      if (plan.rowEnd.empty()) {
        if (plan.toDevice)
          std::memcpy(base + runs[r].dst, row, plan.rowBytes);
        else
          std::memcpy(row, base + runs[r].dst, plan.rowBytes);
        continue;
      }
      const Run *from = runs + (r ? plan.rowEnd[r - 1] : 0), *to = runs + plan.rowEnd[r];
      if (plan.toDevice)
        copyRuns(base, row, from, to);
      else
        copyRunsBack(row, base, from, to);
    }
  });
}

void EngineImpl::print(const PrintPlan &plan) {
  std::string text = plan.title;
  if (plan.hasTensor && !exe->dry) { // in a dry run it holds nothing of meaning
    std::vector<std::uint8_t> packed(numElements(plan.shape) * typeSize(plan.type) + 1);
    copyRunsBack(packed.data(), arena.get(), plan.runs.data(), plan.runs.data() + plan.runs.size());
    text += (text.empty() ? "" : ": ") +
            formatTensor(packed.data(), plan.type, plan.shape, plan.format);
  }
  if (plan.isError)
    throw errors::program_aborted(text);
  std::cerr << text << "\n";
}

std::int64_t EngineImpl::readPredicate(const Step &s) {
  if (reads)
    reads->read(s.predicate, s.predicateBytes, "a branch or loop");
  const std::uint8_t *p = at(s.predicate);
  std::int32_t v = 0;
  if (s.predicateBytes == 1)
    v = *p;
  else if (s.predicateBytes == 2)
    v = static_cast<std::int32_t>(p[0] | p[1] << 8);
  else
    std::memcpy(&v, p, 4);
  return v;
}

std::uint64_t EngineImpl::cyclesSoFar() const {
  const sparq::emulator::DeviceModel model;
  std::vector<sparq::emulator::StepCount> steps;
  for (std::size_t i = 0; i < executions.size(); ++i) {
    if (!executions[i])
      continue;
    steps.push_back(exe->costs[i]);
    steps.back().executions = executions[i];
  }
  double seconds = 0;
  for (const sparq::emulator::ModelledTime &t : modelledTimes(model, steps))
    seconds += t.total();
  return static_cast<std::uint64_t>(seconds * model.clock);
}

// Whether the step runs other steps. A dry run always carries these out.
static bool holdsSteps(StepOp op) {
  switch (op) {
  case StepOp::Sequence:
  case StepOp::Repeat:
  case StepOp::While:
  case StepOp::If:
  case StepOp::Switch:
  case StepOp::Call:
    return true;
  case StepOp::Compute:
  case StepOp::Copy:
  case StepOp::StreamIn:
  case StepOp::StreamOut:
  case StepOp::RemoteRead:
  case StepOp::RemoteWrite:
  case StepOp::Sync:
  case StepOp::Poison:
  case StepOp::Print:
  case StepOp::Error:
  case StepOp::CycleStamp:
    return false;
  }
  throwUnknown("run: kind of step", op);
}

void EngineImpl::count(const Step &s) {
  if (s.cost == ~0u)
    return;
  ++executions[s.cost];
  profiled[s.cost] += profiles;
}

void EngineImpl::execute(const Step &s) {
  count(s);
  if (exe->dry && !s.controls && !holdsSteps(s.op))
    return;
  switch (s.op) {
  case StepOp::Sequence:
    for (const Step &c : s.children)
      execute(c);
    return;
  case StepOp::Compute: {
    const bool all = runComputeSet(exe->computeSets[s.index]);
    if (s.hasPredicate)
      *at(s.predicate) = all;
    if (reads && s.hasPredicate)
      reads->written(s.predicate, 1);
    return;
  }
  case StepOp::Copy:
    return runCopy(exe->copies[s.index]);
  case StepOp::StreamIn:
  case StepOp::StreamOut:
    return runStream(exe->transfers[s.index]);
  case StepOp::RemoteRead:
  case StepOp::RemoteWrite:
    return runRemote(exe->transfers[s.index]);
  case StepOp::Repeat:
    for (unsigned i = 0; i < s.count; ++i)
      execute(s.children[0]);
    return;
  case StepOp::While:
    for (;;) {
      execute(s.children[0]);
      if ((readPredicate(s) != 0) != s.flag)
        return;
      execute(s.children[1]);
      count(s); // all tiles are told again
    }
  case StepOp::If:
    return execute(s.children[readPredicate(s) ? 0 : 1]);
  case StepOp::Switch: {
    const std::int64_t control = readPredicate(s);
    for (std::size_t i = 0; i < s.cases.size(); ++i)
      if (s.cases[i] == control)
        return execute(s.children[i + 1]);
    if (s.checked)
      throw errors::switch_without_case("Switch: control must be one of its " +
                                        std::to_string(s.cases.size()) + " cases, got " +
                                        std::to_string(control));
    return execute(s.children[0]);
  }
  case StepOp::Call:
    return execute(exe->functions[s.index]);
  case StepOp::Sync:
    return;
  case StepOp::Poison: {
    for (const Span &p : exe->poisons[s.index]) {
      if (!exe->zeros)
        poison(at(p.at), p.type, p.bytes);
      if (reads)
        reads->undefined(p.at, p.bytes);
    }
    return;
  }
  case StepOp::Print:
    return print(exe->prints[s.index]);
  case StepOp::Error:
    if (!s.hasPredicate || readPredicate(s))
      print(exe->prints[s.index]);
    return;
  case StepOp::CycleStamp: {
    std::uint64_t cycles = cyclesSoFar(), since = 0;
    if (s.hasPredicate)
      std::memcpy(&since, at(s.predicate), 8);
    cycles -= since;
    std::memcpy(at(s.value), &cycles, 8); // low word first
    if (reads)
      reads->written(s.value, 8);
    return;
  }
  }
  throwUnknown("run: kind of step", s.op);
}

void EngineImpl::run(unsigned program) {
  checkLoaded("run");
  if (program >= exe->programs.size())
    throw errors::index_out_of_range("run: program must be below the engine's " +
                                     std::to_string(exe->programs.size()) + " programs, got " +
                                     std::to_string(program));
  ++hostCalls.runs;
  profiledRuns += profiles;
  std::fill(executions.begin(), executions.end(), 0);
  execute(exe->programs[program]);
}

} // namespace core
} // namespace poplar
