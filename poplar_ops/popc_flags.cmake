# SPDX-License-Identifier: Apache-2.0
# How a popc is told a compiler's flag. Versions may take it as it is, or behind -X.

# Adds to `result` the first spelling with which this popc compiles a file; else warns with `otherwise`.
function(sparq_popc_flag popc folder flag otherwise result)
  file(WRITE ${folder}/flag.cpp "#include <poplar/Vertex.hpp>\nclass Nothing : public poplar::Vertex {\npublic:\n  poplar::Output<float> out;\n  bool compute() {\n    *out = 0;\n    return true;\n  }\n};\n")
  foreach(spelling "${flag}" "-X${flag}" "-X ${flag}")
    separate_arguments(words UNIX_COMMAND "${spelling}")
    execute_process(COMMAND ${popc} ${words} --target ipu2 ${folder}/flag.cpp -o ${folder}/flag.gp
      RESULT_VARIABLE status OUTPUT_VARIABLE said ERROR_VARIABLE said)
    if(status EQUAL 0)
      set(${result} ${${result}} ${words} PARENT_SCOPE)
      return()
    endif()
  endforeach()
  message(WARNING "sparq-ipu: popc takes ${flag} in no spelling; ${otherwise}. It said:\n${said}")
endfunction()
