// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace poplar {
enum class SyncType { INTERNAL, EXTERNAL, GLOBAL };
} // namespace poplar
