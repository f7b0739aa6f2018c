// SPDX-License-Identifier: Apache-2.0
#pragma once

// Declares the stack a function needs; nothing to do on the host.
#define DEF_STACK_USAGE(size, function)
