// SPDX-License-Identifier: Apache-2.0
#pragma once

// `rptsize_t`, the type of a count that the hardware's loops take.
#include <ipudef.h>
