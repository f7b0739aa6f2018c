// SPDX-License-Identifier: Apache-2.0
#pragma once

// printf for debugging codelets.
#include <cstdio>
using std::printf;
