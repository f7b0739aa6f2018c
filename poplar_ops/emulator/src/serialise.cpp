// SPDX-License-Identifier: Apache-2.0
// Executables written to streams and read back: every field of a plan, and the codelet objects it calls into.
// The form is the emulator's own, for the machine and the version that wrote it.
#include <poplar/Engine.hpp>

#include <cstring>
#include <istream>
#include <ostream>
#include <type_traits>

#include "plan.hpp"
#include "random.hpp"

namespace poplar {
namespace core {
namespace {

constexpr char begin[] = "executable of the Poplar emulator, form 1\n";

struct Writer {
  static constexpr bool reads = false;
  std::ostream &stream;
  void raw(const void *p, std::size_t n) {
    stream.write(static_cast<const char *>(p), static_cast<std::streamsize>(n));
    if (!stream)
      throw runtime_error("serialize: the stream must take the executable, got a failure");
  }
};

struct Reader {
  static constexpr bool reads = true;
  std::istream &stream;
  std::set<std::string> *names = nullptr; // of the executable that is read
  std::map<std::string, const codelet_abi::Vertex *> codelets = {};
  void raw(void *p, std::size_t n) {
    stream.read(static_cast<char *>(p), static_cast<std::streamsize>(n));
    if (!stream)
      throw graph_object_load_error("executable", "it must be whole, got the end of the stream");
  }
};

// T is a plan's type, constant when it is written.
template <class T, class U>
using Only = std::enable_if_t<std::is_same<std::remove_const_t<T>, U>::value>;
template <class T> struct IsVector : std::false_type {};
template <class T> struct IsVector<std::vector<T>> : std::true_type {};

template <class A, class T> void item(A &a, T &t);
template <class A, class... Ts> void all(A &a, Ts &...items) { (item(a, items), ...); }

template <class A, class T> void sized(A &a, T &t) {
  std::uint64_t size = t.size();
  a.raw(&size, sizeof size);
  if constexpr (A::reads)
    t.resize(size);
}

template <class A, class T> Only<T, Type> fields(A &a, T &t) {
  codelet_abi::Element element = elementOf(t);
  item(a, element);
  if constexpr (A::reads)
    t = typeOf(element);
}
template <class A, class T> Only<T, OptionFlags> fields(A &a, T &t) {
  std::map<std::string, std::string> flags(t.begin(), t.end());
  item(a, flags);
  if constexpr (A::reads)
    for (const auto &flag : flags)
      t.set(flag.first, flag.second);
}
template <class A, class T> Only<T, Target> fields(A &a, T &t) {
  TargetInfo i;
  if constexpr (!A::reads)
    i = Access::info(t);
  all(a, i.type, i.system, i.arch, i.numIPUs, i.tilesPerIPU, i.numWorkerContexts, i.bytesPerTile,
      i.clock, i.exchangeBytesPerCycle, i.memcpyBytesPerCycle, i.minIPUSyncDelay,
      i.globalSyncCycles, i.options, i.hostStreamBytes);
  if constexpr (A::reads)
    t = Access::makeTarget(std::move(i));
}
// A name of a codelet object's own: it outlives the object here.
template <class A> void name(A &a, const char *const &text) {
  std::string s = A::reads ? "" : text;
  item(a, s);
  if constexpr (A::reads)
    const_cast<const char *&>(text) = a.names->insert(s).first->c_str();
}

template <class A, class T> Only<T, Run> fields(A &a, T &t) { a.raw(&t, sizeof t); }
template <class A, class T> Only<T, Relocation> fields(A &a, T &t) { a.raw(&t, sizeof t); }
template <class A, class T> Only<T, PrintTensorFmt> fields(A &a, T &t) { a.raw(&t, sizeof t); }
template <class A, class T> Only<T, Span> fields(A &a, T &t) { all(a, t.at, t.bytes, t.type); }
template <class A, class T> Only<T, InitialValues> fields(A &a, T &t) { all(a, t.begin, t.bytes); }
template <class A, class T> Only<T, VariablePlan> fields(A &a, T &t) {
  all(a, t.name, t.type, t.at, t.bytes, t.data, t.initial, t.controls);
}
template <class A, class T> Only<T, VertexPlan> fields(A &a, T &t) {
  std::string type = A::reads ? "" : t.name;
  all(a, type, t.state, t.calls, t.gathersEnd, t.scattersEnd, t.poisonsEnd, t.guardsEnd,
      t.writtenEnd, t.tile);
  if constexpr (A::reads) {
    const auto it = a.codelets.find(type);
    if (it == a.codelets.end())
      throw graph_object_load_error("executable",
                                    "it must have all its vertex types, got none '" + type + "'");
    t.name = it->second->name;
    t.run = it->second->run;
  }
}
template <class A, class T> Only<T, Guard> fields(A &a, T &t) {
  all(a, t.at, t.bytes);
  name(a, t.field);
}
template <class A, class T> Only<T, Written> fields(A &a, T &t) {
  all(a, t.at, t.bytes, t.type, t.direction, t.field);
}
template <class A, class T> Only<T, EdgeUse> fields(A &a, T &t) {
  all(a, t.vertex, t.field, t.direction, t.runs);
}
template <class A, class T> Only<T, ComputeSetPlan> fields(A &a, T &t) {
  all(a, t.name, t.vertices, t.asksWorker, t.gathers, t.scatters, t.poisons, t.guards, t.written,
      t.edges);
}
template <class A, class T> Only<T, CopyPlan> fields(A &a, T &t) {
  all(a, t.runs, t.staging, t.stagingBytes);
}
template <class A, class T> Only<T, TransferPlan> fields(A &a, T &t) {
  all(a, t.index, t.toDevice, t.bytes, t.rows, t.rowBytes, t.runs, t.rowEnd, t.hasOffsets,
      t.offsetRuns, t.offsetsSigned, t.name);
}
template <class A, class T> Only<T, Step> fields(A &a, T &t) {
  all(a, t.op, t.index, t.cost, t.count, t.flag, t.checked, t.hasPredicate, t.controls, t.predicate,
      t.predicateBytes, t.value, t.cases, t.children);
}
template <class A, class T> Only<T, PrintPlan> fields(A &a, T &t) {
  all(a, t.title, t.type, t.shape, t.format, t.runs, t.isError, t.hasTensor);
}
template <class A, class T> Only<T, HostTensorPlan> fields(A &a, T &t) {
  all(a, t.type, t.bytes, t.runs, t.controls);
}
template <class A, class T> Only<T, StreamInfo> fields(A &a, T &t) {
  all(a, t.handle, t.type, t.numElements, t.direction, t.mode, t.replication, t.index);
}
template <class A, class T> Only<T, RemoteBufferInfo> fields(A &a, T &t) {
  all(a, t.handle, t.type, t.numElements, t.repeats, t.rearrangeOnHost, t.optimiseMemory, t.index);
}
using sparq::emulator::ExchangeCount;
using sparq::emulator::LinkCount;
using sparq::emulator::MemoryCount;
using sparq::emulator::MemoryUse;
using sparq::emulator::StepCount;
template <class A, class T> Only<T, ExchangeCount> fields(A &a, T &t) { a.raw(&t, sizeof t); }
template <class A, class T> Only<T, LinkCount> fields(A &a, T &t) { a.raw(&t, sizeof t); }
template <class A, class T> Only<T, MemoryUse> fields(A &a, T &t) {
  all(a, t.name, t.bytes, t.ipu);
}
template <class A, class T> Only<T, StepCount> fields(A &a, T &t) {
  all(a, t.name, t.kind, t.executions, t.tileCycles, t.flops, t.vertices, t.verticesWithoutEstimate,
      t.vertexWithoutEstimate, t.exchanges, t.before, t.after, t.syncs, t.links, t.ipus, t.buffer,
      t.rows, t.bytes, t.packets);
}
template <class A, class T> Only<T, MemoryCount> fields(A &a, T &t) {
  all(a, t.tile, t.bytes, t.limit, t.variables, t.vertexState, t.temporaries, t.codeAndStacks,
      t.vertexCode, t.stacks, t.controlCode, t.exchangeCode, t.hostExchangeCode, t.largest,
      t.bytesPerTile, t.codePerTile, t.vertices, t.liveBytes, t.liveTile, t.liveStep, t.alwaysLive);
}

template <class A, class T, class M> void mapOf(A &a, M &m, T (*)(const std::string &)) {
  std::uint64_t size = m.size();
  item(a, size);
  if constexpr (A::reads) {
    for (; size--;) {
      std::string key;
      item(a, key);
      item(a, m[key]);
    }
  } else {
    for (auto &entry : m)
      all(a, entry.first, entry.second);
  }
}
template <class A, class T> Only<T, std::map<std::string, HostTensorPlan>> fields(A &a, T &t) {
  mapOf(a, t, static_cast<HostTensorPlan (*)(const std::string &)>(nullptr));
}
template <class A, class T> Only<T, std::map<std::string, std::string>> fields(A &a, T &t) {
  mapOf(a, t, static_cast<std::string (*)(const std::string &)>(nullptr));
}
template <class A, class T, class I> void shared(A &a, T &t, const I *) {
  if constexpr (A::reads) {
    auto info = std::make_shared<I>();
    fields(a, *info);
    t = std::move(info);
  } else {
    fields(a, *t);
  }
}
template <class A, class T> Only<T, std::shared_ptr<const StreamInfo>> fields(A &a, T &t) {
  shared(a, t, static_cast<const StreamInfo *>(nullptr));
}
template <class A, class T> Only<T, std::shared_ptr<const RemoteBufferInfo>> fields(A &a, T &t) {
  shared(a, t, static_cast<const RemoteBufferInfo *>(nullptr));
}
template <class A, class T> Only<T, std::shared_ptr<CodeletLibrary>> fields(A &a, T &t) {
  if constexpr (A::reads) {
    std::string path, object;
    all(a, path, object);
    t = loadCodelets(object, path,
                     [&a](const codelet_abi::Vertex &v, bool) { a.codelets[v.name] = &v; });
  } else {
    all(a, t->path, t->object);
  }
}

template <class A, class T> void item(A &a, T &t) {
  using U = std::remove_const_t<T>;
  if constexpr (std::is_arithmetic<U>::value || std::is_enum<U>::value) {
    a.raw(&t, sizeof t);
  } else if constexpr (std::is_same<U, std::string>::value) {
    sized(a, t);
    a.raw(t.empty() ? nullptr : const_cast<char *>(t.data()), t.size());
  } else if constexpr (IsVector<U>::value) {
    sized(a, t);
    for (auto &element : t)
      item(a, element);
  } else {
    fields(a, t);
  }
}

template <class A, class T> void executable(A &a, T &t) {
  all(a, t.target, t.replication, t.options, t.zeros, t.reportsReads, t.libraries, t.variables,
      t.stateAt, t.stateImage, t.relocations, t.arenaBytes, t.computeSets, t.copies, t.transfers,
      t.poisons, t.prints, t.functions, t.programs, t.streams, t.remotes, t.remoteIPUs,
      t.hostWrites, t.hostReads, t.costs, t.memory);
}

} // namespace
} // namespace core

void Executable::serialize(std::ostream &out) const {
  if (!impl)
    throw runtime_error("serialize: the executable must be compiled, got an empty one");
  if (impl->dry || impl->target.getTargetType() != TargetType::IPU)
    throw runtime_error("serialize: executables can be serialised for IPU targets only, got " +
                        (impl->dry ? "a dry run's" : toString(impl->target.getTargetType())));
  core::Writer a{out};
  a.raw(core::begin, sizeof core::begin);
  core::executable(a, *impl);
}

Executable Executable::deserialize(std::istream &in, bool) {
  core::Reader a{in};
  std::string start(sizeof core::begin, '\0');
  a.raw(&start[0], start.size());
  if (start.compare(0, start.size(), core::begin, sizeof core::begin) != 0)
    throw graph_object_load_error("executable",
                                  "it must be one that this version of the emulator wrote");
  auto impl = std::make_shared<core::ExecutableImpl>();
  a.names = &impl->names;
  for (const codelet_abi::Vertex *v : core::builtInVertices())
    a.codelets[v->name] = v;
  core::executable(a, *impl);
  return core::Access::makeExecutable(std::move(impl));
}

} // namespace poplar
