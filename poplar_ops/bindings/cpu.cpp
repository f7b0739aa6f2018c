// SPDX-License-Identifier: Apache-2.0
//
// The Python module sparq_ipu._cpu.
#include "cpu.hpp"
#include "convert.hpp"
#include "dispatch.hpp"
#include "stream_sum.hpp"
#include "thread_pool.hpp"

#include <pybind11/stl.h>

namespace py = pybind11;
using namespace py::literals;
using namespace sparq::cpu;

PYBIND11_MODULE(_cpu, m) {
  m.doc() = "CPU kernels of sparq-ipu.";
  sparq::translateErrors();

  m.def("available_isas", [] {
    std::vector<std::string> names;
    for (const Kernels *kernels : availableKernels())
      names.push_back(kernels->name);
    return names;
  });
  m.def("default_threads", &defaultThreads);
  m.def("use_openmp", &useOpenmp,
        "Run calls on the threads of the OpenMP runtime that is in the process; False: none is.");

  bindCache(m);
  bindDecoder(m);
  bindPrompt(m);

  py::class_<StreamSum>(m, "StreamSum")
      .def(py::init<std::int64_t, std::int64_t, const std::string &>(), "n_bytes"_a, py::kw_only(),
           "n_threads"_a = 0, "isa"_a = "auto")
      .def("run", &StreamSum::run, "offset"_a, "n_bytes"_a,
           py::call_guard<py::gil_scoped_release>());
}
