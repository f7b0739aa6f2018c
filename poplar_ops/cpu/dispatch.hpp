// SPDX-License-Identifier: Apache-2.0
//
// Which kernels this machine can run. All of them give the same bits; they differ in speed.
#pragma once

#include "kernels/table.hpp"

#include <string>
#include <vector>

namespace sparq::cpu {

// Kernels that can run here, fastest first; "portable" is always among them.
const std::vector<const Kernels *> &availableKernels();

// The kernels of that name; "auto" is the fastest. Throws Error for a name that is
// unknown or can not run here.
const Kernels &kernelsNamed(const std::string &op, const std::string &name);

} // namespace sparq::cpu
