// SPDX-License-Identifier: Apache-2.0
// A run as a timeline, in the JSON format of Chrome's trace viewer, which Perfetto reads too.
#include <sparq_emulator/Trace.hpp>

#include <poplar/ProfileValue.hpp>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <sstream>

#include <unistd.h>

#include "compiler.hpp"
#include "engine_impl.hpp"

namespace sparq {
namespace emulator {

namespace {

std::atomic<bool> tilesAreRecorded{false};

constexpr unsigned nBusiest = 4, stepsLane = 1, firstTileLane = 10;

// A lane for what a step's time is made of, in the order in which a step spends it.
struct Lane {
  unsigned id;
  const char *name;
  double ModelledTime::*seconds;
};
constexpr std::array<Lane, 6> lanes{{{2, "sync", &ModelledTime::sync},
                                     {3, "exchange", &ModelledTime::exchange},
                                     {4, "compute", &ModelledTime::compute},
                                     {5, "streaming memory", &ModelledTime::streaming},
                                     {6, "host streams", &ModelledTime::hostStreams},
                                     {7, "links", &ModelledTime::links}}};

std::string number(double value) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.17g", value);
  return text;
}

std::string quoted(const std::string &text) {
  std::ostringstream out;
  poplar::serializeToJSON(out, poplar::ProfileValue(text));
  return out.str();
}

class Events {
public:
  explicit Events(unsigned processIn) : process(processIn) {}

  void name(const char *what, unsigned lane, const std::string &value) {
    begin("M", what, lane) << ",\"args\":{\"name\":" << quoted(value) << "}}";
    if (lane != 0) // viewers sort lanes by name otherwise
      begin("M", "thread_sort_index", lane) << ",\"args\":{\"sort_index\":" << lane << "}}";
  }
  // From `at` on, in microseconds.
  void span(const std::string &step, unsigned lane, double at, double length,
            const std::string &more) {
    begin("X", step, lane) << ",\"ts\":" << number(at) << ",\"dur\":" << number(length)
                           << ",\"args\":{" << more << "}}";
  }
  std::string text() const { return out.str(); }

private:
  std::ostream &begin(const char *phase, const std::string &event, unsigned lane) {
    out << (first ? "" : ",\n") << "{\"ph\":\"" << phase << "\",\"name\":" << quoted(event)
        << ",\"pid\":" << process << ",\"tid\":" << lane;
    first = false;
    return out;
  }
  const unsigned process;
  std::ostringstream out;
  bool first = true;
};

std::string about(const StepCount &s) {
  std::ostringstream r;
  r << "\"kind\":\"" << toString(s.kind) << "\",\"executions\":" << s.executions
    << ",\"cycles_of_busiest_tile\":" << s.tileCycles << ",\"vertices\":" << s.vertices
    << ",\"syncs\":" << s.syncs << ",\"exchange_bytes\":" << s.before.bytesIn + s.after.bytesIn
    << ",\"streamed_bytes\":" << s.bytes << ",\"packets\":" << s.packets;
  return r.str();
}

} // namespace

void recordTiles(bool on) { tilesAreRecorded = on; }
bool recordsTiles() { return tilesAreRecorded; }

std::vector<std::uint64_t> cyclesOfTiles(const std::vector<StepCount> &steps) {
  std::vector<std::uint64_t> r;
  for (const StepCount &s : steps) {
    r.resize(std::max(r.size(), s.cyclesOfTiles.size()));
    for (std::size_t t = 0; t != s.cyclesOfTiles.size(); ++t)
      r[t] += s.executions * s.cyclesOfTiles[t];
  }
  return r;
}

std::string traceEvents(const std::vector<StepCount> &steps, const DeviceModel &model,
                        const std::string &name, unsigned process) {
  const std::vector<ModelledTime> times = modelledTimes(model, steps);
  const std::vector<std::uint64_t> cycles = cyclesOfTiles(steps);
  std::vector<unsigned> busiest(cycles.size());
  for (unsigned t = 0; t != busiest.size(); ++t)
    busiest[t] = t;
  std::stable_sort(busiest.begin(), busiest.end(),
                   [&](unsigned a, unsigned b) { return cycles[a] > cycles[b]; });
  busiest.resize(std::min<std::size_t>(busiest.size(), nBusiest));
  Events events(process);
  events.name("process_name", 0, name + " (modelled)");
  events.name("thread_name", stepsLane, "steps");
  for (const Lane &lane : lanes)
    events.name("thread_name", lane.id, lane.name);
  for (unsigned i = 0; i != busiest.size(); ++i)
    events.name("thread_name", firstTileLane + i, "tile " + std::to_string(busiest[i]));
  double now = 0;
  for (std::size_t i = 0; i != steps.size(); ++i) {
    const StepCount &s = steps[i];
    events.span(s.name, stepsLane, now, times[i].total() * 1e6, about(s));
    for (const Lane &lane : lanes) {
      const double length = times[i].*lane.seconds * 1e6;
      if (length == 0)
        continue;
      events.span(s.name, lane.id, now, length, "");
      if (lane.seconds == &ModelledTime::compute)
        for (unsigned b = 0; b != busiest.size(); ++b)
          if (busiest[b] < s.cyclesOfTiles.size() && s.cyclesOfTiles[busiest[b]] != 0) {
            const std::uint64_t own = s.executions * s.cyclesOfTiles[busiest[b]];
            events.span(s.name, firstTileLane + b, now, double(own) / model.clock * 1e6,
                        "\"cycles\":" + std::to_string(own));
          }
      now += length;
    }
  }
  return events.text();
}

void writeTrace(std::ostream &os, const std::vector<StepCount> &steps, const DeviceModel &model,
                const std::string &name) {
  os << "{\"displayTimeUnit\":\"ns\",\"traceEvents\":[\n"
     << traceEvents(steps, model, name) << "\n]}\n";
}

} // namespace emulator
} // namespace sparq

namespace poplar {
namespace core {

std::string traceDirectory(const OptionFlags &options) {
  OptionFlags all = options;
  readJSONFromEnv("POPLAR_ENGINE_OPTIONS", all);
  const auto found = all.find(traceOption);
  if (found == all.end() || found->second == "false")
    return "";
  std::error_code error;
  std::filesystem::create_directories(found->second, error);
  if (error || access(found->second.c_str(), W_OK | X_OK) != 0)
    throw errors::bad_engine_option(std::string("engine option ") + traceOption +
                                    " must be a directory that can be written, got '" +
                                    found->second + "'");
  return found->second;
}

// Every engine of a process writes a file of its own: trace.json, trace_1.json and so on.
static void writeTraceFile(const EngineImpl &engine, const std::string &directory) {
  static std::atomic<unsigned> written{0};
  const unsigned n = written++;
  const std::filesystem::path path =
      std::filesystem::path(directory) /
      (n == 0 ? "trace.json" : "trace_" + std::to_string(n) + ".json");
  std::ofstream file(path);
  std::vector<sparq::emulator::StepCount> steps;
  for (std::size_t i = 0; i != engine.profiled.size(); ++i)
    if (engine.profiled[i] != 0) {
      steps.push_back(engine.exe->costs[i]);
      steps.back().executions = engine.profiled[i];
    }
  sparq::emulator::DeviceModel model;
  model.tiles = engine.exe->target.getTilesPerIPU();
  sparq::emulator::writeTrace(file, steps, model, "engine " + std::to_string(n));
  if (!file)
    std::cerr << "emulator: warning: " << traceOption << ": cannot write " << path << "\n";
}

EngineImpl::~EngineImpl() {
  try {
    const std::string directory = traceDirectory(options);
    if (!directory.empty() && profiledRuns != 0)
      writeTraceFile(*this, directory);
  } catch (const std::exception &error) {
    std::cerr << "emulator: warning: " << traceOption << ": " << error.what() << "\n";
  }
}

} // namespace core
} // namespace poplar
