// SPDX-License-Identifier: Apache-2.0
// Executable::serialize and deserialize: a compiled graph as bytes, with the codelet objects that
// it calls.
//
// A file is a line of text, the length and a checksum of what follows, and that: the sizes of the
// plan's classes, so that another build's file is refused; the codelet objects; the plan. Numbers
// are as this machine holds them.
#include <poplar/Engine.hpp>
#include <poplar/exceptions.hpp>

#include <array>
#include <cstring>
#include <fstream>
#include <istream>
#include <ostream>
#include <type_traits>

#include "engine_impl.hpp"

namespace poplar {
namespace core {

namespace {

using sparq::emulator::ExchangeCount;
using sparq::emulator::LinkCount;
using sparq::emulator::LocalCopy;
using sparq::emulator::MemoryCount;
using sparq::emulator::MemoryUse;
using sparq::emulator::StepCount;

constexpr char heading[] = "emulated Poplar executable, format 2\n";

[[noreturn]] void refuse(const std::string &why) { throw errors::bad_object("executable", why); }

// Writes what it is called with, or reads it. Each `auto &[...]` names every member: a new one does
// not compile until it is here too.
class Archive {
public:
  explicit Archive(std::string &out) : out_(&out) {}
  explicit Archive(const std::string &in) : in_(&in) {}

  bool writes() const { return out_ != nullptr; }
  /// Of the codelet objects, by name.
  std::unordered_map<std::string, const codelet_abi::Vertex *> vertices;

  template <class T>
  std::enable_if_t<std::is_arithmetic<T>::value || std::is_enum<T>::value> operator()(T &x) {
    bytes(&x, sizeof x);
  }
  void operator()(Type &type) {
    auto id = static_cast<unsigned char>(type.hash());
    (*this)(id);
    type = Type(id, nullptr);
  }
  void operator()(std::string &s) {
    s.resize(size(s.size()));
    bytes(&s[0], s.size());
  }
  template <class T> void operator()(std::vector<T> &v) {
    v.resize(size(v.size()));
    if constexpr (std::is_arithmetic<T>::value)
      bytes(v.data(), v.size() * sizeof(T));
    else
      for (T &x : v)
        (*this)(x);
  }
  template <class T> void operator()(std::map<std::string, T> &m) {
    const std::size_t n = size(m.size());
    auto next = m.begin();
    for (std::size_t i = 0; i != n; ++i) {
      std::string key = writes() ? next->first : "";
      (*this)(key);
      (*this)(writes() ? next++->second : m[key]);
    }
  }
  template <class T> void operator()(std::shared_ptr<const T> &p) {
    auto copy = p ? std::make_shared<T>(*p) : std::make_shared<T>();
    (*this)(*copy);
    if (!writes())
      p = copy;
  }

  void operator()(OptionFlags &x) {
    std::map<std::string, std::string> flags(x.begin(), x.end());
    (*this)(flags);
    x.clear();
    for (const auto &flag : flags)
      x.set(flag.first, flag.second);
  }
  void operator()(Target &x) {
    TargetInfo info = Access::info(x);
    auto &[type, system, arch, numIPUs, tilesPerIPU, workers, bytesPerTile, clock, exchange, copy,
           syncDelay, globalSync, options, hostStream] = info;
    all(type, system, arch, numIPUs, tilesPerIPU, workers, bytesPerTile, clock, exchange, copy,
        syncDelay, globalSync, options, hostStream);
    if (!writes())
      x = Access::makeTarget(info);
  }

  void operator()(Run &x) {
    auto &[dst, src, n, count, dstStep, srcStep] = x;
    all(dst, src, n, count, dstStep, srcStep);
  }
  void operator()(Span &x) {
    auto &[at, n, type] = x;
    all(at, n, type);
  }
  void operator()(InitialValues &x) {
    auto &[begin, values, times] = x;
    all(begin, values, times);
  }
  void operator()(VariablePlan &x) {
    auto &[name, type, at, n, data, initial, controls] = x;
    all(name, type, at, n, data, initial, controls);
  }
  void operator()(VertexPlan &x) {
    auto &[run, state, calls, gathers, scatters, poisons, guards, written, name, tile,
           showsEvents] = x;
    all(state, calls, gathers, scatters, poisons, guards, written, tile, showsEvents);
    std::string type = writes() ? name : "";
    (*this)(type);
    if (writes())
      return;
    const auto found = vertices.find(type);
    if (found == vertices.end())
      refuse("its codelets must have vertex type " + type + ", which they have not");
    run = found->second->run;
    name = found->second->name;
  }
  void operator()(Guard &x) {
    auto &[at, n, field, gathers, gathersEnd] = x;
    std::string name = writes() ? field : "";
    all(at, n, name, gathers, gathersEnd);
    if (!writes())
      field = names_->insert(name).first->c_str();
  }
  void operator()(Written &x) {
    auto &[at, n, type, direction, field] = x;
    all(at, n, type, direction, field);
  }
  void operator()(EdgeUse &x) {
    auto &[vertex, field, direction, runs] = x;
    all(vertex, field, direction, runs);
  }
  void operator()(ComputeSetPlan &x) {
    auto &[name, ofSet, asksWorker, gathers, scatters, poisons, guards, written, edges] = x;
    all(name, ofSet, asksWorker, gathers, scatters, poisons, guards, written, edges);
  }
  void operator()(CopyPlan &x) {
    auto &[runs, staging, stagingBytes] = x;
    all(runs, staging, stagingBytes);
  }
  void operator()(TransferPlan &x) {
    auto &[index, toDevice, n, rows, rowBytes, runs, rowEnd, hasOffsets, offsetRuns, offsetsSigned,
           name] = x;
    all(index, toDevice, n, rows, rowBytes, runs, rowEnd, hasOffsets, offsetRuns, offsetsSigned,
        name);
  }
  void operator()(Step &x) {
    auto &[op, index, cost, count, flag, checked, hasPredicate, controls, predicate, predicateBytes,
           value, cases, children] = x;
    all(op, index, cost, count, flag, checked, hasPredicate, controls, predicate, predicateBytes,
        value, cases, children);
  }
  void operator()(PrintTensorFmt &x) {
    auto &[threshold, edge, width, digits, format, separator, open, close] = x;
    all(threshold, edge, width, digits, format, separator, open, close);
  }
  void operator()(PrintPlan &x) {
    auto &[title, type, shape, format, runs, isError, hasTensor] = x;
    all(title, type, shape, format, runs, isError, hasTensor);
  }
  void operator()(HostTensorPlan &x) {
    auto &[type, n, runs, controls] = x;
    all(type, n, runs, controls);
  }
  void operator()(Relocation &x) {
    auto &[at, target] = x;
    all(at, target);
  }
  void operator()(StreamInfo &x) {
    auto &[handle, type, n, direction, mode, replication, index] = x;
    all(handle, type, n, direction, mode, replication, index);
  }
  void operator()(RemoteBufferInfo &x) {
    auto &[handle, type, n, repeats, rearrange, optimise, index] = x;
    all(handle, type, n, repeats, rearrange, optimise, index);
  }
  void operator()(ExchangeCount &x) {
    auto &[in, out, maxIn, maxOut, most, busyBytes, busyPieces] = x;
    all(in, out, maxIn, maxOut, most, busyBytes, busyPieces);
  }
  void operator()(LocalCopy &x) {
    auto &[elements, n] = x;
    all(elements, n);
  }
  void operator()(LinkCount &x) {
    auto &[n, most, exchanges, hops] = x;
    all(n, most, exchanges, hops);
  }
  void operator()(StepCount &x) {
    auto &[name, kind, executions, tileCycles, ofTiles, flops, n, without, firstWithout, exchanges,
           before, after, local, syncs, links, ipus, buffer, rows, moved, packets, beside] = x;
    all(name, kind, executions, tileCycles, ofTiles, flops, n, without, firstWithout, exchanges,
        before, after, local, syncs, links, ipus, buffer, rows, moved, packets, beside);
  }
  void operator()(MemoryUse &x) {
    auto &[name, n, ipu] = x;
    all(name, n, ipu);
  }
  void operator()(MemoryCount &x) {
    auto &[tile, n, limit, variables, state, temporaries, code, vertexCode, stacks, control,
           exchange, host, largest, perTile, codePerTile, ofGraph, live, liveTile, liveStep,
           alwaysLive] = x;
    all(tile, n, limit, variables, state, temporaries, code, vertexCode, stacks, control, exchange,
        host, largest, perTile, codePerTile, ofGraph, live, liveTile, liveStep, alwaysLive);
  }
  void operator()(ExecutableImpl &x) {
    auto &[target, replication, options, dry, zeros, reportsReads, libraries, names, variables,
           stateAt, stateImage, relocations, arenaBytes, computeSets, copies, transfers, poisons,
           prints, functions, programs, streams, remotes, remoteIPUs, hostWrites, hostReads, costs,
           memory] = x;
    (void)libraries; // the codelet objects, which come first
    names_ = &names; // which guards point to
    all(target, replication, options, dry, zeros, reportsReads, variables, stateAt, stateImage,
        relocations, arenaBytes, computeSets, copies, transfers, poisons, prints, functions,
        programs, streams, remotes, remoteIPUs, hostWrites, hostReads, costs, memory);
  }

  template <class... T> void all(T &...x) { ((*this)(x), ...); }

private:
  void bytes(void *p, std::size_t n) {
    if (out_) {
      out_->append(static_cast<const char *>(p), n);
      return;
    }
    if (n > in_->size() - at_)
      refuse("it must be whole, it ends too early");
    if (n)
      std::memcpy(p, in_->data() + at_, n);
    at_ += n;
  }
  std::size_t size(std::size_t n) {
    std::uint64_t written = n;
    (*this)(written);
    return written;
  }
  std::string *out_ = nullptr;
  const std::string *in_ = nullptr;
  std::size_t at_ = 0;
  std::set<std::string> *names_ = nullptr; // of the executable
};

// Of the classes whose members it writes: they differ between builds with other members.
std::vector<std::uint64_t> sizes() {
  return {sizeof(ExecutableImpl),  sizeof(TargetInfo), sizeof(VariablePlan), sizeof(VertexPlan),
          sizeof(ComputeSetPlan),  sizeof(CopyPlan),   sizeof(TransferPlan), sizeof(Step),
          sizeof(PrintPlan),       sizeof(StepCount),  sizeof(MemoryCount),  sizeof(StreamInfo),
          sizeof(RemoteBufferInfo)};
}

// FNV-1a.
std::uint64_t checksum(const std::string &s) {
  std::uint64_t r = 0xcbf29ce484222325;
  for (const char c : s)
    r = (r ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return r;
}

template <class T> T readNumber(std::istream &in) {
  T x{};
  in.read(reinterpret_cast<char *>(&x), sizeof x);
  return x;
}

} // namespace

std::string serialized(const ExecutableImpl &exe) {
  std::string content;
  Archive archive(content);
  std::vector<std::uint64_t> ofClasses = sizes();
  std::vector<std::string> names, objects;
  for (const auto &library : exe.libraries) {
    names.push_back(library->path);
    objects.push_back(library->object);
  }
  archive.all(ofClasses, names, objects, const_cast<ExecutableImpl &>(exe));
  const std::array<std::uint64_t, 2> header = {content.size(), checksum(content)};
  return heading + std::string(reinterpret_cast<const char *>(header.data()), sizeof header) +
         content;
}

std::shared_ptr<ExecutableImpl> deserialized(std::istream &in) {
  std::string first(sizeof heading - 1, '\0');
  in.read(&first[0], static_cast<std::streamsize>(first.size()));
  if (!in || first != heading)
    refuse("it must begin with '" + std::string(heading, sizeof heading - 2) + "'");
  const auto length = readNumber<std::uint64_t>(in), expected = readNumber<std::uint64_t>(in);
  std::string content;
  std::array<char, 1 << 16> piece;
  while (in && content.size() < length) {
    in.read(piece.data(), static_cast<std::streamsize>(
                              std::min<std::uint64_t>(piece.size(), length - content.size())));
    content.append(piece.data(), static_cast<std::size_t>(in.gcount()));
  }
  if (content.size() != length)
    refuse("it must have " + std::to_string(length) + " bytes behind its heading, got " +
           std::to_string(content.size()));
  if (checksum(content) != expected)
    refuse("its checksum must be that of its content, it is not");
  const std::string &input = content;
  Archive archive(input);
  std::vector<std::uint64_t> ofClasses;
  std::vector<std::string> names, objects;
  archive(ofClasses);
  if (ofClasses != sizes())
    refuse("it must come from this build of the emulator, it comes from another");
  archive.all(names, objects);
  GraphImpl graph; // what knows how to load codelets
  addRuntimeVertices(graph);
  for (std::size_t i = 0; i != names.size(); ++i)
    loadObjectOfBytes(graph, objects[i], names[i]);
  archive.vertices = graph.codelets;
  for (const auto &builtIn : {builtInVertices(), floatingPointVertices()})
    for (const codelet_abi::Vertex *v : builtIn)
      archive.vertices[v->name] = v;
  auto exe = std::make_shared<ExecutableImpl>();
  archive(*exe);
  exe->libraries = graph.libraries;
  return exe;
}

void write(std::ostream &out, const ExecutableImpl &exe) {
  if (exe.target.getTargetType() != TargetType::IPU)
    throw errors::not_serialisable(
        "serialize: executables can be serialised for IPU targets only, got " +
        toString(exe.target.getTargetType()));
  const std::string text = serialized(exe);
  out.write(text.data(), static_cast<std::streamsize>(text.size()));
}

} // namespace core

void Executable::serialize(std::ostream &out) const { core::write(out, *impl); }

void Engine::serializeExecutable(std::ostream &out) const { core::write(out, *impl->exe); }

Executable Executable::deserialize(std::istream &in, bool) {
  return core::Access::makeExecutable(core::deserialized(in));
}

} // namespace poplar
