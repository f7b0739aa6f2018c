# SPDX-License-Identifier: Apache-2.0
# find_package(poplar): the target `poplar` (also poplar::poplar), and popc_bin, as the SDK has them.
# poplar_IS_EMULATOR tells that this is the emulator.
get_filename_component(_poplar_prefix "${CMAKE_CURRENT_LIST_DIR}/../../.." ABSOLUTE)
set(poplar_IS_EMULATOR TRUE)
set(POPC_EXECUTABLE ${_poplar_prefix}/bin/popc)
if(NOT TARGET poplar)
  file(GLOB _poplar_library ${_poplar_prefix}/lib/libpoplar.so ${_poplar_prefix}/lib/libpoplar.dylib)
  add_library(poplar SHARED IMPORTED)
  set_target_properties(poplar PROPERTIES IMPORTED_LOCATION "${_poplar_library}"
    INTERFACE_INCLUDE_DIRECTORIES ${_poplar_prefix}/include)
  if(NOT CMAKE_VERSION VERSION_LESS 3.18)
    set_target_properties(poplar PROPERTIES IMPORTED_GLOBAL TRUE)
    add_library(poplar::poplar ALIAS poplar)
  endif()
  add_executable(popc_bin IMPORTED)
  set_target_properties(popc_bin PROPERTIES IMPORTED_LOCATION ${POPC_EXECUTABLE})
endif()
unset(_poplar_prefix)
unset(_poplar_library)
