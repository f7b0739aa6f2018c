// SPDX-License-Identifier: Apache-2.0
#include "core.hpp"

namespace sparq {

void bindEmulator(pybind11::module_ &module) { module.attr("has_emulator") = false; }

} // namespace sparq
