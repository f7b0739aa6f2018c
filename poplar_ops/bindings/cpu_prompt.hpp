// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pybind11/pybind11.h>

namespace sparq {

void bindPromptAttention(pybind11::module_ &m);

} // namespace sparq
