# SPDX-License-Identifier: Apache-2.0
# How a popc is told that a * b + c stays two operations. Versions may take a compiler's flag as it is, or behind -X.
# One that takes neither is left with the pragma of codelets/lanes.hpp, which says the same.

# Sets `result` to the first spelling with which this popc compiles a file, or to nothing.
function(sparq_contract_off popc folder result)
  file(WRITE ${folder}/contract_off.cpp "#include <poplar/Vertex.hpp>\nclass Nothing : public poplar::Vertex {\npublic:\n  poplar::Output<float> out;\n  bool compute() {\n    *out = 0;\n    return true;\n  }\n};\n")
  foreach(spelling "-ffp-contract=off" "-X-ffp-contract=off" "-X -ffp-contract=off")
    separate_arguments(words UNIX_COMMAND "${spelling}")
    execute_process(COMMAND ${popc} ${words} --target ipu2 ${folder}/contract_off.cpp -o ${folder}/contract_off.gp
      RESULT_VARIABLE status OUTPUT_VARIABLE said ERROR_VARIABLE said)
    if(status EQUAL 0)
      set(${result} ${words} PARENT_SCOPE)
      return()
    endif()
  endforeach()
  message(WARNING "sparq-ipu: popc takes -ffp-contract=off in no spelling; the pragma in lanes.hpp has to do. It said:\n${said}")
  set(${result} "" PARENT_SCOPE)
endfunction()
