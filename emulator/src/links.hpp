// SPDX-License-Identifier: Apache-2.0
// Links between IPUs: which of them a step's bytes take.
//
// IPUs form a ladder, two to a rung, as PopLibs sets up its model of several IPUs: four links join
// the two of a rung for what they send each other, two carry what goes on from there, and two lead
// up and two down to the next IPU of the same side. What goes to the other side crosses first.
#pragma once

#include <sparq_emulator/Counters.hpp>

#include <cstdint>
#include <map>
#include <utility>

namespace poplar {
namespace core {

/// Bytes by sending and receiving IPU.
using IpuFlows = std::map<std::pair<unsigned, unsigned>, std::uint64_t>;

/// Adds an exchange of these bytes to the count.
void addLinkExchange(const IpuFlows &flows, unsigned numIPUs, sparq::emulator::LinkCount &count);

} // namespace core
} // namespace poplar
