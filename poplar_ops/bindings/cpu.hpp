// SPDX-License-Identifier: Apache-2.0
//
// The parts of the Python module sparq_ipu._cpu.
#pragma once

#include <pybind11/pybind11.h>

void bindCache(pybind11::module_ &m);   // KVCache
void bindDecoder(pybind11::module_ &m); // steps of a decoder and their products
