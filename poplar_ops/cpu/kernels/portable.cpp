// SPDX-License-Identifier: Apache-2.0
//
// The kernels for any machine: the compiler's vectors of four lanes.
#include "table.hpp"

namespace sparq {
namespace cpu {
namespace portable {
namespace {

#include "all.hpp"

} // namespace
} // namespace portable

const Kernels portableKernels = SPARQ_KERNELS(portable);

} // namespace cpu
} // namespace sparq
