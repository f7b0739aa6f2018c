// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "sparq/plan.hpp"

namespace sparq {

// Whether codes are taken out of their words once for all heads of a group (codelets/code_products.hpp).
bool scoredByGroup(const Plan &plan);

} // namespace sparq
