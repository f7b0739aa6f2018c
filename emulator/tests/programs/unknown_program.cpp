// SPDX-License-Identifier: Apache-2.0
// A program of a class that the emulator does not know, compiled for a real run and for a dry one.
// One JSON object of the exceptions' messages.
// Includes headers of the emulator's sources: no public class can make such a program.
#include <core.hpp>
#include <program_impl.hpp>
#include <sparq_emulator/Counters.hpp>

#include "util.hpp"

using namespace poplar;
using namespace poplar::program;

namespace {

std::string message(const Graph &graph, const Program &program) {
  try {
    Engine engine(graph, program);
  } catch (const poplar_error &error) {
    return error.what();
  }
  return "accepted";
}

} // namespace

int main() {
  const Device device = emulatedDevice(1);
  const Graph graph(device);
  auto forged = std::make_shared<core::ProgramImpl>();
  forged->kind = static_cast<core::ProgramKind>(99);
  Program program;
  core::Access::setImpl(program, std::move(forged));
  const Sequence around{Repeat(2, program)};
  std::cout << "{\"real\":" << quoted(message(graph, around));
  const sparq::emulator::DryRun scope;
  std::cout << ",\"dry\":" << quoted(message(graph, around)) << "}\n";
}
