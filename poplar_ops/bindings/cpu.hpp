// SPDX-License-Identifier: Apache-2.0
//
// The parts of the Python module sparq_ipu._cpu.
#pragma once

#include "floats.hpp"

#include <pybind11/pybind11.h>

#include <string>

// The type of that name; float16 is what is none of the others.
inline sparq::cpu::Float floatNamed(const std::string &dtype) {
  using sparq::cpu::Float;
  return dtype == "float32"    ? Float::float32
         : dtype == "bfloat16" ? Float::bfloat16
                               : Float::float16;
}

void bindCache(pybind11::module_ &m);   // KVCache
void bindDecoder(pybind11::module_ &m); // steps of a decoder and their products
void bindPrompt(pybind11::module_ &m);  // attention of a prompt
