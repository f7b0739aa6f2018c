// SPDX-License-Identifier: Apache-2.0
#include <sparq_emulator/DeviceModel.hpp>

#include <algorithm>
#include <cmath>

namespace sparq {
namespace emulator {

namespace {

std::uint64_t transferCycles(const DeviceModel &m, const ExchangeCount &e) {
  return static_cast<std::uint64_t>(std::ceil(m.transferCycles(e.busyBytes, e.busyPieces)));
}

std::uint64_t exchangeCycles(const DeviceModel &m, const StepCount &s) {
  return s.exchanges * m.exchangeFixedCycles + transferCycles(m, s.before) +
         transferCycles(m, s.after) +
         static_cast<std::uint64_t>(std::ceil(m.localCycles(s.localCopy)));
}

std::uint64_t computeCycles(const DeviceModel &m, const StepCount &s) {
  return s.kind == StepKind::Compute ? s.tileCycles + m.computeSetFixedCycles : 0;
}

} // namespace

double DeviceModel::transferCycles(std::uint64_t bytes, std::uint64_t pieces) const {
  return std::ceil(static_cast<double>(bytes) / exchangeBytesPerCycle) +
         exchangePieceCycles * static_cast<double>(pieces);
}

double DeviceModel::localCycles(const LocalCopy &c) const {
  return localElementCycles * static_cast<double>(c.elements) +
         static_cast<double>(c.bytes) / localBytesPerCycle;
}

std::uint64_t DeviceModel::cycles(const StepCount &s) const {
  return computeCycles(*this, s) + exchangeCycles(*this, s) + s.syncs * syncCycles;
}

double DeviceModel::sharedRows(std::uint64_t bytes, std::uint64_t rows) const {
  if (rows <= 1 || rows >= tiles)
    return 0;
  const double rowBytes = static_cast<double>(bytes) / static_cast<double>(rows);
  return sharedRowPenalty * std::min(1.0, rowBytes / sharedRowKneeBytes) *
         std::sqrt(1 - static_cast<double>(rows) / tiles);
}

double DeviceModel::streamingSeconds(std::uint64_t bytes, std::uint64_t packets,
                                     std::uint64_t rows) const {
  return (static_cast<double>(bytes) * (1 + sharedRows(bytes, rows)) +
          packetOverheadBytes * static_cast<double>(packets)) /
             streamingBytesPerSecond +
         remoteCopySeconds;
}

ModelledTime modelledTime(const DeviceModel &m, const StepCount &s) {
  const double n = static_cast<double>(s.executions);
  ModelledTime t;
  t.compute = n * static_cast<double>(computeCycles(m, s)) / m.clock;
  t.exchange = n * static_cast<double>(exchangeCycles(m, s)) / m.clock;
  t.sync = n * static_cast<double>(s.syncs * m.syncCycles) / m.clock;
  // There and back, each time.
  t.links = n * (static_cast<double>(s.links.maxBytes) / m.linkBytesPerSecond +
                 s.links.exchanges * 2.0 * s.links.syncHops * m.linkHopSeconds);
  switch (s.kind) {
  case StepKind::Compute:
  case StepKind::Copy:
  case StepKind::Sync:
  case StepKind::Branch:
    break;
  case StepKind::RemoteRead:
  case StepKind::RemoteWrite:
    t.streaming = n * m.streamingSeconds(s.bytes, s.packets, s.rows);
    break;
  case StepKind::StreamIn:
  case StepKind::StreamOut:
    t.hostStreams = n * static_cast<double>(s.bytes) / m.hostStreamBytesPerSecond;
    break;
  }
  return t;
}

static void accumulate(ModelledTime &a, const ModelledTime &b) {
  a.compute += b.compute;
  a.exchange += b.exchange;
  a.sync += b.sync;
  a.streaming += b.streaming;
  a.hostStreams += b.hostStreams;
  a.links += b.links;
}

static ModelledTime longerBy(const ModelledTime &a, const ModelledTime &b) {
  ModelledTime t;
  t.compute = a.compute - b.compute;
  t.exchange = a.exchange - b.exchange;
  t.sync = a.sync - b.sync;
  t.streaming = a.streaming - b.streaming;
  t.hostStreams = a.hostStreams - b.hostStreams;
  t.links = a.links - b.links;
  return t;
}

std::vector<ModelledTime> modelledTimes(const DeviceModel &m, const std::vector<StepCount> &steps) {
  std::vector<ModelledTime> r;
  ModelledTime longest; // of those at once
  for (const StepCount &s : steps) {
    const ModelledTime t = modelledTime(m, s);
    if (!s.beside) {
      longest = t;
      r.push_back(t);
    } else if (t.total() > longest.total()) {
      r.push_back(longerBy(t, longest));
      longest = t;
    } else {
      r.emplace_back();
    }
  }
  return r;
}

ModelledTime modelledTime(const DeviceModel &m, const std::vector<StepCount> &steps) {
  ModelledTime all;
  for (const ModelledTime &t : modelledTimes(m, steps))
    accumulate(all, t);
  return all;
}

std::vector<ModelledTime> modelledTimeByIPU(const DeviceModel &m,
                                            const std::vector<StepCount> &steps) {
  std::vector<ModelledTime> r;
  for (const StepCount &s : steps) {
    const ModelledTime t = modelledTime(m, s);
    for (const unsigned ipu : s.ipus) {
      if (r.size() <= ipu)
        r.resize(ipu + 1);
      accumulate(r[ipu], t);
    }
  }
  return r;
}

std::map<std::string, ModelledTime>
modelledTimeByStage(const DeviceModel &m, const std::vector<StepCount> &steps, unsigned depth) {
  std::map<std::string, ModelledTime> r;
  const std::vector<ModelledTime> times = modelledTimes(m, steps);
  for (std::size_t i = 0; i < steps.size(); ++i) {
    const std::string &name = steps[i].name;
    std::size_t end = 0;
    for (unsigned d = 0; d < depth && end != std::string::npos; ++d)
      end = name.find('/', end + (d ? 1 : 0));
    accumulate(r[name.substr(0, end)], times[i]);
  }
  return r;
}

} // namespace emulator
} // namespace sparq
