// SPDX-License-Identifier: Apache-2.0
#pragma once

#define CTXT_WORKERS 6
#define CTXT_SUPERVISOR 0
#define CTXT_TOTAL 7

// Of a stride, in elements of 64 bits, in an instruction that loads or stores and moves on.
#define NUM_STRIDE_BITS 10
