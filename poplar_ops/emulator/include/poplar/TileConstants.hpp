// SPDX-License-Identifier: Apache-2.0
#pragma once

#define CTXT_WORKERS 6
#define CTXT_SUPERVISOR 0
#define CTXT_TOTAL 7
