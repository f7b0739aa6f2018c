# SPDX-License-Identifier: Apache-2.0
# Source this file: `. <prefix>/enable.sh`. Compilers, linkers, CMake and the shell then find the toolkit.
_sparq_toolkit=${_sparq_toolkit:-$(cd "$(dirname "${BASH_SOURCE:-$0}")" && pwd)}
export POPLAR_SDK_ENABLED="$_sparq_toolkit"
export PATH="$_sparq_toolkit/bin${PATH:+:$PATH}"
export CPATH="$_sparq_toolkit/include${CPATH:+:$CPATH}"
export LIBRARY_PATH="$_sparq_toolkit/lib${LIBRARY_PATH:+:$LIBRARY_PATH}:$_sparq_toolkit/lib/absent"
export LD_LIBRARY_PATH="$_sparq_toolkit/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
export CMAKE_PREFIX_PATH="$_sparq_toolkit${CMAKE_PREFIX_PATH:+:$CMAKE_PREFIX_PATH}"
unset _sparq_toolkit
