// SPDX-License-Identifier: Apache-2.0
#include "links.hpp"

#include <algorithm>
#include <tuple>

namespace poplar {
namespace core {

namespace {

enum class Way { Rung, Across, Up, Down };

constexpr unsigned linksOf(Way way) { return way == Way::Rung ? 4 : 2; }

// Calls use(ipu, way) for every group of links that bytes from one IPU to another take.
template <class Use> void forEachHop(unsigned from, unsigned to, const Use &use) {
  if (from / 2 == to / 2) {
    use(from, Way::Rung);
    return;
  }
  unsigned at = from;
  if (at % 2 != to % 2) {
    use(at, Way::Across);
    at ^= 1u;
  }
  while (at != to) {
    const bool up = at < to;
    use(at, up ? Way::Up : Way::Down);
    at = up ? at + 2 : at - 2;
  }
}

} // namespace

void addLinkExchange(const IpuFlows &flows, unsigned numIPUs, sparq::emulator::LinkCount &count) {
  if (flows.empty())
    return;
  std::map<std::pair<unsigned, Way>, std::uint64_t> bytes;
  for (const auto &flow : flows) {
    count.bytes += flow.second;
    forEachHop(flow.first.first, flow.first.second,
               [&](unsigned ipu, Way way) { bytes[{ipu, way}] += flow.second; });
  }
  std::uint64_t busiest = 0;
  for (const auto &group : bytes) {
    const unsigned links = linksOf(group.first.second);
    busiest = std::max(busiest, (group.second + links - 1) / links);
  }
  count.maxBytes += busiest;
  ++count.exchanges;
  count.syncHops = 1 + numIPUs / 4;
}

} // namespace core
} // namespace poplar
