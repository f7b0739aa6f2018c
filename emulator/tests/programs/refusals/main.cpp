// SPDX-License-Identifier: Apache-2.0
// Programs that must be refused, one function each: refusals CODELETS.gp.
// A JSON line per case: the exception's type and message, or "accepted"; for the case and for its
// control without the defect.
#include <cstdlib>
#include <typeinfo>

#include <cxxabi.h>

#include "cases.hpp"

std::string codelets;

namespace {

std::string typeName(const std::exception &e) {
  int status = 0;
  char *name = abi::__cxa_demangle(typeid(e).name(), nullptr, nullptr, &status);
  std::string r = name ? name : typeid(e).name();
  std::free(name);
  return r;
}

std::string outcome(const Case &f, bool spoil) {
  try {
    f(spoil);
  } catch (const std::exception &e) {
    return "{\"type\":" + quoted(typeName(e)) + ",\"message\":" + quoted(e.what()) + "}";
  }
  return "\"accepted\"";
}

} // namespace

int main(int argc, char **argv) {
  if (argc != 2)
    return 2;
  codelets = argv[1];
  Cases cases;
  for (auto add : {mapping, fields, races, views, copies, remoteBuffers, streams, control, engine,
                   replication, ipus, codeletFiles})
    add(cases);
  for (const auto &c : cases.list)
    std::cout << "{\"case\":" << quoted(c.first) << ",\"refused\":" << outcome(c.second, true)
              << ",\"control\":" << outcome(c.second, false) << "}" << std::endl;
}
