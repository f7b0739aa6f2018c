// SPDX-License-Identifier: Apache-2.0
#include "sparq/cache.hpp"
#include <cstdlib>
#include <dlfcn.h>
#include <fstream>
#include <vector>

namespace sparq {
namespace {

const char *const codeletFile = "sparq_codelets.gp";

// The directory of the library or module that this function is part of.
std::string ownDirectory() {
  Dl_info info{};
  if (dladdr(reinterpret_cast<const void *>(&addCodelets), &info) == 0 || info.dli_fname == nullptr)
    return ".";
  const std::string path = info.dli_fname;
  const std::size_t slash = path.rfind('/');
  return slash == std::string::npos ? "." : path.substr(0, slash);
}

} // namespace

std::string codeletsPath() {
  std::vector<std::string> tried;
  const char *const environment = std::getenv("SPARQ_CODELETS");
  const bool isNamed = environment && *environment;
  for (const std::string &candidate :
       {isNamed ? environment : ownDirectory(), std::string(isNamed ? "" : SPARQ_CODELETS_DIR)}) {
    if (candidate.empty())
      continue;
    const std::string path = candidate + "/" + codeletFile;
    if (std::ifstream(path).good())
      return path;
    tried.push_back(path);
  }
  std::string message = std::string("codelets: ") + codeletFile + " must exist; tried";
  for (std::size_t i = 0; i != tried.size(); ++i)
    message += (i ? ", " : " ") + tried[i];
  if (isNamed)
    message += ", which SPARQ_CODELETS names";
  throw Error(message);
}

void addCodelets(poplar::Graph &graph) {
  if (!graph.hasCodelet("sparq::Combine"))
    graph.addCodelets(codeletsPath());
}

} // namespace sparq
