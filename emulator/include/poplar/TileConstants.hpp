// SPDX-License-Identifier: Apache-2.0
#pragma once

#define CTXT_WORKERS 6
#define CTXT_SUPERVISOR 0
#define CTXT_TOTAL 7

// Bits of a stride (in 64-bit elements) in an instruction that loads or stores and increments the
// address.
#define NUM_STRIDE_BITS 10
