// SPDX-License-Identifier: Apache-2.0
//
// Python module sparq_ipu._core: conversion only. Arguments arrive checked by the Python package;
// the C++ below checks them again, but for the options of a device.
#include "core.hpp"
#include "sparq/step_names.hpp"

namespace py = pybind11;
using namespace py::literals;

namespace sparq {

// fp16 arrays cross as their bit patterns: pybind11 has no fp16 of its own.
std::uint16_t *halves(const py::array &array, const std::string &op, const char *argument,
                      bool writeable = false) {
  if (array.dtype().kind() != 'f' || array.dtype().itemsize() != 2)
    throw Error(op + ": " + argument + " must be float16, got " +
                std::string(py::str(array.dtype())));
  if ((array.flags() & py::array::c_style) == 0)
    throw Error(op + ": " + argument + " must be C-contiguous, got strides " +
                std::string(py::str(py::object(array.attr("strides")))));
  return static_cast<std::uint16_t *>(writeable ? const_cast<py::array &>(array).mutable_data()
                                                : const_cast<void *>(array.data()));
}

void expectShape(const py::array &array, const std::vector<py::ssize_t> &shape,
                 const std::string &op, const char *argument) {
  bool same = array.ndim() == static_cast<py::ssize_t>(shape.size());
  for (std::size_t i = 0; same && i != shape.size(); ++i)
    same = array.shape(static_cast<py::ssize_t>(i)) == shape[i];
  if (!same)
    throw Error(op + ": " + argument + " must have shape " +
                std::string(py::str(py::tuple(py::cast(shape)))) + ", got " +
                std::string(py::str(py::object(array.attr("shape")))));
}

py::array newHalves(const std::vector<py::ssize_t> &shape) {
  return py::array(py::dtype("float16"), shape);
}

using KeyAndValue = py::typing::Tuple<py::array, py::array>;

// Session with NumPy arrays; the GIL is released while the device works. Calls from several threads
// take turns.
class PySession : public EngineOwner {
public:
  // Of a step of window attention, by position; and of each batch element those that are
  // remembered.
  using Shares = py::array_t<std::uint32_t, py::array::c_style | py::array::forcecast>;
  PySession(const Shape &shape, const Programs &programs, const DeviceOptions &options, bool timed,
            bool stacked)
      : shape_(shape) {
    const py::gil_scoped_release release;
    session_ = std::make_unique<Session>(shape, programs, options, timed, stacked);
  }
  // What `call` returns, which is given the session, alone and without the GIL.
  template <class Call> auto locked(const Call &call) {
    const py::gil_scoped_release release;
    const std::lock_guard<std::mutex> lock(mutex_);
    return call(*session_);
  }
  void write(const py::array &key, const py::array &value, const std::vector<std::uint32_t> &counts,
             unsigned layer) {
    withTokens("append", key, value, -1,
               [&](Session &session, const std::uint16_t *k, const std::uint16_t *v, unsigned n) {
                 session.write(k, v, n, counts, layer);
               });
  }
  void append(const py::array &key, const py::array &value,
              const std::vector<std::uint32_t> &active, unsigned layer) {
    withTokens("append", key, value, 1,
               [&](Session &session, const std::uint16_t *k, const std::uint16_t *v, unsigned) {
                 session.append(k, v, active, layer);
               });
  }
  KeyAndValue read(unsigned nTokens, unsigned layer) {
    const std::vector<py::ssize_t> shape{shape_.batch, shape_.nKvHeads, nTokens, shape_.headDim};
    py::array key = newHalves(shape), value = newHalves(shape);
    std::uint16_t *k = halves(key, "read", "key", true), *v = halves(value, "read", "value", true);
    locked([&](Session &session) { session.read(k, v, nTokens, layer); });
    return py::make_tuple(key, value);
  }
  py::array attention(std::int64_t index, const py::array &query, unsigned layer) {
    return withQuery(index, query,
                     [&](Session &session, std::size_t which, const std::uint16_t *q,
                         std::uint16_t *out) { session.attention(which, q, out, layer); });
  }
  py::array attendAll(std::int64_t index, const py::array &query) {
    return withQuery(index, query,
                     [](Session &session, std::size_t which, const std::uint16_t *q,
                        std::uint16_t *out) { session.attendAll(which, q, out); });
  }
  std::vector<std::vector<py::array>> history(unsigned layer) {
    std::vector<std::vector<py::array>> history;
    for (const HostHistory::Steps &steps :
         locked([&](Session &session) { return session.history(layer); })) {
      history.emplace_back();
      for (const std::vector<std::uint32_t> &shares : steps)
        history.back().push_back(Shares(static_cast<py::ssize_t>(shares.size()), shares.data()));
    }
    return history;
  }
  void setHistory(const std::vector<std::vector<Shares>> &history, unsigned layer) {
    std::vector<HostHistory::Steps> all;
    for (const std::vector<Shares> &steps : history) {
      all.emplace_back();
      for (const Shares &shares : steps)
        all.back().emplace_back(shares.data(), shares.data() + shares.size());
    }
    locked([&](Session &session) { session.setHistory(all, layer); });
  }
  Session &session() { return *session_; }
  poplar::Engine &engine() override { return session_->engine(); }

private:
  // Runs `call` on the session with keys and values {batch, nKvHeads, nTokens, headDim}; nTokens
  // below 0: any number. It gets that too.
  template <class Call>
  void withTokens(const char *op, const py::array &key, const py::array &value, py::ssize_t nTokens,
                  const Call &call) {
    const py::ssize_t n = nTokens >= 0 ? nTokens : key.ndim() == 4 ? key.shape(2) : 0;
    const std::vector<py::ssize_t> expected{shape_.batch, shape_.nKvHeads, n, shape_.headDim};
    expectShape(key, expected, op, "key");
    expectShape(value, expected, op, "value");
    const std::uint16_t *k = halves(key, op, "key"), *v = halves(value, op, "value");
    locked([&](Session &session) { call(session, k, v, static_cast<unsigned>(n)); });
  }
  // The same with the query of an attention program, and what is to be its output.
  template <class Call>
  py::array withQuery(std::int64_t index, const py::array &query, const Call &call) {
    const char *const op = session_->program(index).kernel->op;
    const auto which = static_cast<std::size_t>(index);
    const std::vector<py::ssize_t> shape{shape_.batch, shape_.nHeads, shape_.headDim};
    expectShape(query, shape, op, "query");
    py::array output = newHalves(shape);
    const std::uint16_t *q = halves(query, op, "query");
    std::uint16_t *out = halves(output, op, "output", true);
    locked([&](Session &session) { call(session, which, q, out); });
    return output;
  }

  std::mutex mutex_; // taken without the GIL only, which its holder may wait for
  Shape shape_;
  std::unique_ptr<Session> session_;
};

} // namespace sparq

bool py::detail::type_caster<sparq::Attention>::load(handle source, bool) {
  constexpr bool convert = false;
  make_caster<std::string> kernel;
  if (!hasattr(source, "kernel") || !hasattr(source, "settings") ||
      !kernel.load(source.attr("kernel"), convert))
    return false;
  value.kernel = &sparq::kernelNamed("session", cast_op<std::string &>(kernel));
  const object given = source.attr("settings");
  const auto read = [&](auto &settings) {
    make_caster<std::decay_t<decltype(settings)>> caster;
    if (!caster.load(given, convert))
      return false;
    settings = cast_op<decltype(settings)>(caster);
    return true;
  };
  const sparq::Takes takes = value.kernel->takes;
  const bool sparq = takes == sparq::Takes::sparq, window = takes == sparq::Takes::window;
  if (sparq ? read(value.settings) : window ? read(value.window) : given.is_none())
    return true;
  if (!given.is_none() && !read(value.settings) && !read(value.window))
    return false; // of another type
  throw sparq::Error("session: settings of " + std::string(value.kernel->name) + " must be " +
                     (sparq    ? "SparqSettings"
                      : window ? "WindowSettings"
                               : "None") +
                     ", got " + std::string(str(given)));
}

bool py::detail::type_caster<sparq::DeviceOptions>::load(handle source, bool) {
  AttributeReader from(source, "DeviceOptions");
  std::string split;
  from.read("n_tiles", value.nTiles);
  from.read("n_ipus", value.nIpus);
  from.read("split", split);
  from.read("hot_rows", value.tiers.hotRows);
  if (!from.complete())
    return false;
  value.split = split == "layers" ? sparq::Split::layers : sparq::Split::heads;
  return true;
}

namespace sparq {

std::unique_ptr<PySession> makeSession(const CacheSpec &cache, unsigned nHeads,
                                       const std::vector<Attention> &attention,
                                       const std::optional<DeviceOptions> &given,
                                       const std::string &device, unsigned nLayers, bool append,
                                       bool timed, bool stacked, bool mayWiden) {
  DeviceOptions options = given.value_or(DeviceOptions{});
  options.device = device;
  Programs programs;
  programs.attention = attention;
  programs.nLayers = nLayers;
  programs.append = append;
  programs.mayWiden = mayWiden;
  return std::make_unique<PySession>(Shape(cache, nHeads), programs, options, timed, stacked);
}

// A method of Session, as one of PySession.
template <class Result, class... Arguments> auto locked(Result (Session::*method)(Arguments...)) {
  return [method](PySession &own, Arguments... arguments) {
    return own.locked([&](Session &session) { return (session.*method)(arguments...); });
  };
}
template <class Result, class... Arguments>
auto locked(Result (Session::*method)(Arguments...) const) {
  return [method](PySession &own, Arguments... arguments) {
    return own.locked([&](const Session &session) { return (session.*method)(arguments...); });
  };
}

} // namespace sparq

PYBIND11_MODULE(_core, m) {
  using namespace sparq;
  m.doc() = "Attention programs on an IPU or its emulator.";
  translateErrors();
  py::class_<EngineOwner>(m, "EngineOwner");
  py::class_<PySession, EngineOwner>(m, "Session")
      .def(py::init(&makeSession), "cache"_a, "n_heads"_a, py::kw_only(),
           "attention"_a = py::tuple(), "options"_a = py::none(), "device"_a = "emulator",
           "n_layers"_a = 1u, "append"_a = true, "timed"_a = false, "stacked"_a = false,
           "may_widen"_a = true)
      .def("write", &PySession::write, "key"_a, "value"_a, "counts"_a, "layer"_a = 0u)
      .def("append", &PySession::append, "key"_a, "value"_a, "active"_a, "layer"_a = 0u)
      .def("read", &PySession::read, "n_tokens"_a, "layer"_a = 0u)
      .def("reset", locked(&Session::reset), "layer"_a = 0u)
      .def_property_readonly("n_layers", locked(&Session::nLayers))
      .def_property_readonly("n_ipus", locked(&Session::nIpus))
      .def("lengths", locked(&Session::lengths), "layer"_a = 0u)
      .def("misses", locked(&Session::misses),
           "Of a cache in three tiers: rows of each KV head that the last attention call fetched.")
      .def("forget_hot", locked(&Session::forgetHot),
           "Of a cache in three tiers: no row is hot any more.")
      .def("cycles", locked(&Session::cycles),
           "Tile cycles of the last attention call, as the device counted them.")
      .def_property_readonly("clock_hz", locked(&Session::clock), "Tile cycles in a second.")
      .def_property_readonly("n_recent", locked(&Session::nRecent),
                             "Steps that window attention remembers, 0 without it.")
      .def_property_readonly("wide_rows", locked(&Session::wideRows),
                             "Whether keys and values are in SRAM in fp32.")
      .def("history", &PySession::history, "layer"_a = 0u,
           "Of each batch element the shares of its steps, the oldest first.")
      .def("set_history", &PySession::setHistory, "steps"_a, "layer"_a = 0u)
      .def_property_readonly(
          "streaming_memory_bytes",
          [](PySession &session) {
            std::vector<std::uint64_t> bytes;
            for (unsigned ipu = 0; ipu != session.session().nIpus(); ++ipu)
              bytes.push_back(session.session().streamingBytes(ipu));
            return bytes;
          },
          "Of the cache, on each IPU.")
      .def_property_readonly("extended_memory", locked(&Session::extendedMemory),
                             "Whether the engine was made with the option target.extendedMemory.")
      .def("attention", &PySession::attention, "index"_a, "query"_a, "layer"_a = 0u,
           "Runs one of the attention programs that the session was made with, by its place in the "
           "list.")
      .def("attend_all", &PySession::attendAll, "index"_a, "query"_a,
           "All layers in one launch, each with the output of the one before as its query.");
  m.def(
      "kernels",
      [] {
        py::typing::List<NamedValues> all;
        for (const Kernel *const kernel : kernels())
          all.append(py::dict("name"_a = kernel->name, "op"_a = kernel->op,
                              "memory"_a = nameOf(kernel->memory),
                              "takes"_a = nameOf(kernel->takes)));
        return all;
      },
      "The kernels of this build, as sparq_ipu.kernels describes them.");
  m.def(
      "stages",
      [] {
        std::map<std::string, std::vector<std::string>> all;
        for (const steps::Stage &stage : steps::stages())
          all[stage.label] = {stage.names.begin(), stage.names.end()};
        return all;
      },
      "Names of steps by the stage of attention that they belong to.");
  m.def(
      "steps_of_several_ipus",
      [] {
        return NamedValues(
            py::dict("agreed"_a = steps::agreed, "switch"_a = steps::switchOfAll,
                     "before_agreed"_a = steps::planWaves,
                     "branches_by_number"_a = py::tuple(py::cast(steps::branchesByNumber()))));
      },
      "Names of the steps by which plans of several IPUs are added up.");
  m.def("device_unavailable", &deviceUnavailable, "device"_a,
        "Why a device can not be opened; empty if it can.");
  bindVertices(m);
#ifdef SPARQ_PROBES
  bindProbes(m);
#endif
  bindEmulator(m);
}
