// SPDX-License-Identifier: Apache-2.0
// Engine::printProfileSummary: the sections of the SDK's summary, from counts and modelled times.
#include <sparq_emulator/Counters.hpp>
#include <sparq_emulator/DeviceModel.hpp>

#include <algorithm>
#include <array>
#include <iomanip>
#include <iostream>
#include <map>
#include <sstream>

#include "engine_impl.hpp"

namespace poplar {

namespace {

using sparq::emulator::DeviceModel;
using sparq::emulator::MemoryCount;
using sparq::emulator::MemoryUse;
using sparq::emulator::ModelledTime;
using sparq::emulator::StepCount;
using sparq::emulator::StepKind;

// 1234567 as 1,234,567.
std::string grouped(std::uint64_t n) {
  std::string r = std::to_string(n);
  for (std::size_t at = r.size(); at > 3;)
    r.insert(at -= 3, ",");
  return r;
}

std::string fixed(double x, int digits) {
  std::ostringstream s;
  s << std::fixed << std::setprecision(digits) << x;
  return s.str();
}

// "  Name:      value", values one below the other.
void line(std::ostream &os, const std::string &indent, const std::string &name, std::size_t width,
          const std::string &value) {
  os << indent << std::left << std::setw(static_cast<int>(width)) << name + ":" << std::right
     << value << "\n";
}

struct Options {
  bool executionSteps = false, varStorage = false, perIpuMemoryUsage = false;
};

Options optionsOf(const OptionFlags &flags) {
  Options r;
  bool ignored = false;
  const std::map<std::string, bool *> known = {{"showExecutionSteps", &r.executionSteps},
                                               {"showVarStorage", &r.varStorage},
                                               {"showPerIpuMemoryUsage", &r.perIpuMemoryUsage},
                                               {"showOptimizations", &ignored}}; // none is made
  for (const auto &flag : flags) {
    const auto found = known.find(flag.first);
    if (found == known.end()) {
      std::cerr << "emulator: warning: option '" << flag.first << "' = '" << flag.second
                << "' of printProfileSummary is not known here and has no effect\n";
      continue;
    }
    if (flag.second != "true" && flag.second != "false")
      throw errors::bad_engine_option("printProfileSummary: option " + flag.first +
                                      " must be true or false, got '" + flag.second + "'");
    *found->second = flag.second == "true";
  }
  return r;
}

const char *nameOf(TargetType type) {
  switch (type) {
  case TargetType::IPU:
    return "IPU (emulated)";
  case TargetType::IPU_MODEL:
    return "IPUModel";
  case TargetType::CPU:
    return "CPU";
  }
  core::throwUnknown("printProfileSummary: target", type);
}

void printTarget(std::ostream &os, const Target &target) {
  constexpr std::size_t width = 24;
  const std::uint64_t tiles = target.getNumTiles(), bytes = target.getBytesPerTile();
  os << "Target:\n";
  line(os, "  ", "Type", width, nameOf(target.getTargetType()));
  line(os, "  ", "Number of IPUs", width, grouped(target.getNumIPUs()));
  line(os, "  ", "Tiles per IPU", width, grouped(target.getTilesPerIPU()));
  line(os, "  ", "Total Tiles", width, grouped(tiles));
  line(os, "  ", "Memory Per-Tile", width, grouped(bytes) + " B");
  line(os, "  ", "Total Memory", width, grouped(tiles * bytes) + " B");
  line(os, "  ", "Clock Speed (approx)", width,
       fixed(target.getTileClockFrequency() / 1e6, 1) + " MHz");
}

// By type, in the order of their names.
std::map<std::string, std::uint64_t> verticesByType(const core::ExecutableImpl &exe) {
  std::map<std::string, std::uint64_t> r;
  for (const core::ComputeSetPlan &cs : exe.computeSets)
    for (const core::VertexPlan &v : cs.vertices)
      ++r[v.name];
  return r;
}

void printGraph(std::ostream &os, const core::ExecutableImpl &exe) {
  constexpr std::size_t width = 26;
  os << "\nGraph:\n";
  line(os, "  ", "Number of vertices", width, grouped(exe.memory.vertices));
  line(os, "  ", "Number of variables", width, grouped(exe.variables.size()));
  line(os, "  ", "Number of compute sets", width, grouped(exe.computeSets.size()));
  line(os, "  ", "Number of programs", width, grouped(exe.programs.size()));
  os << "  Vertices by type:\n";
  for (const auto &type : verticesByType(exe))
    os << "    " << std::setw(12) << grouped(type.second) << "  " << type.first << "\n";
}

void printUses(std::ostream &os, const std::vector<MemoryUse> &uses) {
  if (uses.empty())
    os << "    none\n";
  for (const MemoryUse &use : uses)
    os << "    " << std::setw(14) << grouped(use.bytes) << " B  " << use.name << "\n";
}

void printMemory(std::ostream &os, const core::ExecutableImpl &exe, const Options &options) {
  constexpr std::size_t width = 28;
  const MemoryCount &m = exe.memory;
  const auto bytes = [&](const std::string &name, std::uint64_t n) {
    line(os, "    ", name, width, grouped(n) + " B");
  };
  const auto sum = [&](std::size_t first, std::size_t end) {
    std::uint64_t r = 0;
    for (std::size_t tile = first; tile < std::min(end, m.bytesPerTile.size()); ++tile)
      r += m.bytesPerTile[tile];
    return r;
  };
  os << "\nMemory Usage:\n  Total for all IPUs: " << grouped(sum(0, m.bytesPerTile.size()))
     << " B at most, if all variables lived together\n";
  if (options.perIpuMemoryUsage)
    for (std::size_t ipu = 0; ipu < exe.target.getNumIPUs(); ++ipu) {
      const std::size_t first = ipu * exe.target.getTilesPerIPU();
      bytes("IPU " + std::to_string(ipu), sum(first, first + exe.target.getTilesPerIPU()));
    }
  os << "  Fullest tile, " << m.tile << ":\n";
  bytes("Variables", m.variables);
  bytes("Vertex state", m.vertexState);
  bytes("Temporaries", m.temporaries);
  bytes("Stacks", m.stacks);
  bytes("Vertex Code (est.)", m.vertexCode);
  bytes("Control Code (est.)", m.controlCode);
  bytes("Exchange Code (est.)", m.exchangeCode);
  bytes("Host Exchange Code (est.)", m.hostExchangeCode);
  line(os, "    ", "In all", width, grouped(m.bytes) + " of " + grouped(m.limit) + " B");
  os << "  Never less than " << grouped(m.liveBytes) << " B, which are live together on tile "
     << m.liveTile << " at " << (m.liveStep.empty() ? "the start" : "'" + m.liveStep + "'") << "\n";
  if (options.varStorage) {
    os << "  Largest on tile " << m.tile << ":\n";
    printUses(os, m.largest);
    os << "  Always live, on all tiles:\n";
    printUses(os, m.alwaysLive);
  }
}

void printExecution(std::ostream &os, const DeviceModel &model, const std::vector<StepCount> &steps,
                    std::uint64_t runs) {
  constexpr std::size_t width = 30;
  os << "\nExecution:\n";
  if (steps.empty()) {
    os << "  Nothing has run\n";
    return;
  }
  const ModelledTime t = modelledTime(model, steps);
  const double total = t.total();
  const auto cycles = [&](double seconds) {
    return grouped(static_cast<std::uint64_t>(seconds * model.clock + 0.5));
  };
  os << "  Of " << grouped(runs) << (runs == 1 ? " run\n" : " runs together\n");
  line(os, "  ", "Total cycles", width,
       cycles(total) + " (approx " + fixed(total * 1e6, 1) + " microseconds)");
  const std::array<std::pair<const char *, double>, 6> parts = {
      {{"Compute cycles", t.compute},
       {"IPU exchange cycles", t.exchange},
       {"Sync cycles", t.sync},
       {"Global exchange cycles", t.links},
       {"Streaming memory cycles", t.streaming},
       {"Host exchange cycles", t.hostStreams}}};
  for (const auto &part : parts)
    line(os, "  ", part.first, width,
         cycles(part.second) + " (" + fixed(total > 0 ? 100 * part.second / total : 0, 1) +
             "% of total)");
  std::uint64_t missing = 0;
  const StepCount *first = nullptr;
  for (const StepCount &s : steps) {
    missing += s.verticesWithoutEstimate;
    if (!first && s.verticesWithoutEstimate)
      first = &s;
  }
  if (first)
    os << "  Not among them: " << grouped(missing)
       << " vertices without a performance estimate, as " << first->vertexWithoutEstimate << " of '"
       << first->name << "'\n";
}

std::string headingOf(const StepCount &s) {
  const std::string name = s.name.empty() ? "<anonymous>" : s.name;
  switch (s.kind) {
  case StepKind::Compute:
    return "OnTileExecute: " + name;
  case StepKind::Copy:
    return "DoExchange: " + name;
  case StepKind::RemoteRead:
    return "RemoteBufferCopy (to the device): " + name;
  case StepKind::RemoteWrite:
    return "RemoteBufferCopy (from the device): " + name;
  case StepKind::StreamIn:
    return "StreamCopy (FromHost): " + name;
  case StepKind::StreamOut:
    return "StreamCopy (ToHost): " + name;
  case StepKind::Sync:
    return "Sync: " + name;
  case StepKind::Branch:
    return "Branch: " + name;
  }
  core::throwUnknown("printProfileSummary: kind of step", s.kind);
}

void printSteps(std::ostream &os, const DeviceModel &model, const std::vector<StepCount> &steps) {
  constexpr std::size_t width = 20;
  os << "\nProgram steps that ran, in order:\n";
  for (const StepCount &s : steps) {
    const double seconds = modelledTime(model, s).total();
    const double once = seconds / static_cast<double>(s.executions);
    os << "  " << headingOf(s) << "\n";
    line(os, "    ", "Cycles", width,
         grouped(static_cast<std::uint64_t>(once * model.clock + 0.5)) + " (" +
             fixed(once * 1e6, 3) + " us), times " + grouped(s.executions));
    if (s.kind == StepKind::Compute)
      line(os, "    ", "Vertices", width,
           grouped(s.vertices) + ", on the busiest tile " + grouped(s.tileCycles) + " cycles");
    if (s.before.bytesIn + s.after.bytesIn != 0)
      line(os, "    ", "Exchanged", width,
           grouped(s.before.bytesIn + s.after.bytesIn) + " B, on the busiest tile " +
               grouped(s.before.maxBytes + s.after.maxBytes) + " B");
    if (s.bytes)
      line(os, "    ", "Moved", width,
           grouped(s.bytes) + " B" + (s.buffer.empty() ? "" : " of '" + s.buffer + "'"));
  }
}

} // namespace

void Engine::printProfileSummary(std::ostream &os, const OptionFlags &flags) {
  const Options options = optionsOf(flags);
  const core::ExecutableImpl &exe = *core::Access::impl(*this).exe;
  const std::vector<StepCount> steps = sparq::emulator::allRuns(*this);
  const DeviceModel model;
  std::ostringstream text; // its formats stay here
  text << "Profile summary of the emulator: counts, and times modelled from them. Nothing here was "
          "measured.\n\n";
  printTarget(text, exe.target);
  printGraph(text, exe);
  printMemory(text, exe, options);
  printExecution(text, model, steps, core::Access::impl(*this).profiledRuns);
  if (options.executionSteps)
    printSteps(text, model, steps);
  os << text.str();
}

} // namespace poplar
