# SPDX-License-Identifier: Apache-2.0
# The toolkit: headers, libpoplar, popc and a CMake package in one folder, laid out as the SDK is, so that programs
# written for the SDK build with their own build lines.
#
#   <prefix>/include       poplar/, sparq_emulator/, ipudef.h and others that codelets include
#   <prefix>/lib           libpoplar, cmake/poplar
#   <prefix>/lib/absent    empty libraries under the names of those that are not here
#   <prefix>/bin/popc      for this folder's popc/
#   <prefix>/enable.sh     sets PATH, CPATH, LIBRARY_PATH, LD_LIBRARY_PATH, CMAKE_PREFIX_PATH

# The same objects as the emulator's library, linked once more: under the SDK's name, and always shared.
add_library(poplar_toolkit SHARED $<TARGET_OBJECTS:poplar_emulator>)
set_target_properties(poplar_toolkit PROPERTIES OUTPUT_NAME poplar LINKER_LANGUAGE CXX
  LIBRARY_OUTPUT_DIRECTORY ${CMAKE_CURRENT_BINARY_DIR}/toolkit/lib)
target_link_libraries(poplar_toolkit PRIVATE Threads::Threads ${CMAKE_DL_LIBS})
if(SPARQ_SANITIZE)
  target_link_options(poplar_toolkit PRIVATE ${SPARQ_SANITIZE_FLAGS})
endif()

configure_file(${CMAKE_CURRENT_LIST_DIR}/popc.in ${CMAKE_CURRENT_BINARY_DIR}/toolkit/bin/popc @ONLY)

# Alone, the prefix is the toolkit. A project that this one is a part of says in which folder it goes, or leaves it out.
if(CMAKE_SOURCE_DIR STREQUAL CMAKE_CURRENT_SOURCE_DIR)
  set(SPARQ_TOOLKIT_FOLDER "")
elseif(NOT DEFINED SPARQ_TOOLKIT_FOLDER)
  return()
endif()
install(DIRECTORY include/ DESTINATION ${SPARQ_TOOLKIT_FOLDER}include)
install(DIRECTORY popc/ DESTINATION ${SPARQ_TOOLKIT_FOLDER}popc PATTERN "__pycache__" EXCLUDE)
install(TARGETS poplar_toolkit DESTINATION ${SPARQ_TOOLKIT_FOLDER}lib)
install(PROGRAMS ${CMAKE_CURRENT_BINARY_DIR}/toolkit/bin/popc DESTINATION ${SPARQ_TOOLKIT_FOLDER}bin)
# Build lines name libraries of the SDK that a program does not use. Empty ones, which the linker finds last:
# what does use them fails with "undefined reference".
if(NOT APPLE)
  foreach(absent gcl gcl_ct popfloat poplin popnn popops poprand popsolver popsparse poputil pvti)
    set(archive ${CMAKE_CURRENT_BINARY_DIR}/toolkit/absent/lib${absent}.a)
    file(WRITE ${archive} "!<arch>\n")
    install(FILES ${archive} DESTINATION ${SPARQ_TOOLKIT_FOLDER}lib/absent)
  endforeach()
endif()
string(REGEX REPLACE "/$" "" toolkit_root "${SPARQ_TOOLKIT_FOLDER}")
if(toolkit_root STREQUAL "")
  set(toolkit_root .)
endif()
install(FILES toolkit/enable.sh DESTINATION ${toolkit_root})
install(FILES toolkit/poplar-config.cmake toolkit/poplar-config-version.cmake
  DESTINATION ${SPARQ_TOOLKIT_FOLDER}lib/cmake/poplar)
