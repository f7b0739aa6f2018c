// SPDX-License-Identifier: Apache-2.0
#pragma once

// float2, half4 and their like are types of the IPU's compiler.
// A codelet compiled for the host defines its own.
#include "HalfFloat.hpp"
