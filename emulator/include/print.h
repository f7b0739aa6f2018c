// SPDX-License-Identifier: Apache-2.0
#pragma once

// printf for debugging codelets, in C++ and C.
#include <stdio.h>
