// SPDX-License-Identifier: Apache-2.0
#pragma once

// Codelets of PopLibs include this and name nothing of it: what else it has in the SDK is not
// known.
