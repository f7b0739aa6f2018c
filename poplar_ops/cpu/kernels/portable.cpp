// SPDX-License-Identifier: Apache-2.0
//
// The kernels for any machine: the compiler's vectors of four lanes.
#include "instruction_set.hpp"

const sparq::cpu::Kernels sparq::cpu::portableKernels = tableOf("portable");
