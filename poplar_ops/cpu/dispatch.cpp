// SPDX-License-Identifier: Apache-2.0
#include "dispatch.hpp"

#include <stdexcept>

#ifdef SPARQ_X86
#include <cpuid.h>
#endif

namespace sparq::cpu {
namespace {

std::vector<const Kernels *> findKernels() {
  std::vector<const Kernels *> found;
#ifdef SPARQ_X86
  unsigned a = 0, b = 0, c = 0, d = 0;
  const bool f16c = __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
  // These ask the processor and whether the system saves the registers.
  const bool avx2 = f16c && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") &&
                      __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
                      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512vnni");
  if (avx512)
    found.push_back(&avx512vnniKernels);
  if (avx2)
    found.push_back(&avx2Kernels);
#endif
  found.push_back(&portableKernels);
  return found;
}

} // namespace

const std::vector<const Kernels *> &availableKernels() {
  static const std::vector<const Kernels *> found = findKernels();
  return found;
}

const Kernels &kernelsNamed(const std::string &op, const std::string &name) {
  if (name == "auto")
    return *availableKernels().front();
  std::string names = "'auto'";
  for (const Kernels *kernels : availableKernels()) {
    if (name == kernels->name)
      return *kernels;
    names += std::string(", '") + kernels->name + "'";
  }
  throw std::invalid_argument(op + ": isa must be one of [" + names + "], got '" + name + "'");
}

} // namespace sparq::cpu
