// SPDX-License-Identifier: Apache-2.0
#include "cache_op.hpp"
#include "sparq/cache.hpp"
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <set>

namespace sparq_popart {
namespace {

// Calls f(name, field, optional) for what attributes say of a cache; the rest follows from the
// inputs. A new option of CacheSpec gets its line here.
template <class Spec, class F> void forEachOption(Spec &&spec, const F &f) {
  f("capacity", spec.capacity, false);
  f("index_bits", spec.indexBits, true);
}

// FNV-1a of the codelets that the program will be built from.
std::string codeletsHash() {
  static const std::string hash = [] {
    std::ifstream file(sparq::codeletsPath(), std::ios::binary);
    std::uint64_t h = 0xcbf29ce484222325u;
    for (std::istreambuf_iterator<char> c(file), end; c != end; ++c)
      h = (h ^ static_cast<unsigned char>(*c)) * 0x100000001b3u;
    char text[17];
    std::snprintf(text, sizeof(text), "%016llx", static_cast<unsigned long long>(h));
    return std::string(text);
  }();
  return hash;
}

// Whether data or an earlier constraint makes `to` come after `from`.
bool comesAfter(popart::Op *from, const popart::Op *to) {
  std::set<popart::OpId> seen{from->id};
  std::vector<popart::Op *> open{from};
  while (!open.empty()) {
    popart::Op *const op = open.back();
    open.pop_back();
    std::vector<popart::Op *> next = op->getGraph().topoCons->getAfters(op);
    for (popart::Tensor *const tensor : op->output->tensors())
      for (popart::Op *const consumer : tensor->consumers.getOps())
        next.push_back(consumer);
    for (popart::Op *const after : next) {
      if (after == to)
        return true;
      if (seen.insert(after->id).second)
        open.push_back(after);
    }
  }
  return false;
}

} // namespace

popart::OpDefinition::Attributes cacheAttributes(std::initializer_list<const char *> more) {
  popart::OpDefinition::Attributes all;
  const auto add = [&](const char *name, unsigned, bool) {
    all.emplace(name, popart::OpDefinition::Attribute("*"));
  };
  add("cache_name", 0, false);
  forEachOption(sparq::CacheSpec(), add);
  for (const char *const name : more)
    add(name, 0, false);
  return all;
}

CacheOp::CacheOp(const popart::OpCreatorInfo &info)
    : popart::Op(info.opid, info.settings),
      cacheName_(info.attributes.getAttribute<popart::Attributes::String>("cache_name")) {
  forEachOption(spec_, [&](const char *name, unsigned &field, bool optional) {
    using popart::Attributes;
    const Attributes &given = info.attributes;
    field = sparq::toUnsigned(opid.type.c_str(), name,
                              optional ? given.getAttribute<Attributes::Int>(name, field)
                                       : given.getAttribute<Attributes::Int>(name));
  });
  shape_.batch = 0;
}

void CacheOp::appendOutlineAttributes(popart::OpSerialiserBase &os) const {
  popart::Op::appendOutlineAttributes(os);
  os.appendAttribute("cache_name", cacheName_);
  forEachOption(spec_,
                [&](const char *name, unsigned value, bool) { os.appendAttribute(name, value); });
}

void CacheOp::appendAttributes(popart::OpSerialiserBase &os) const {
  popart::Op::appendAttributes(os);
  os.appendAttribute("codelets", codeletsHash());
}

std::vector<const CacheOp *> CacheOp::ofModel() const {
  std::vector<const CacheOp *> found;
  for (const popart::Op *const op : getIr().getAllOps())
    if (const auto *const other = dynamic_cast<const CacheOp *>(op))
      found.push_back(other);
  return found;
}

std::vector<const CacheOp *> CacheOp::ofCache() const {
  std::vector<const CacheOp *> found;
  for (const CacheOp *const other : ofModel())
    if (other->cacheName_ == cacheName_)
      found.push_back(other);
  return found;
}

void CacheOp::join(const Sizes &sizes) {
  checkSession();
  const char *const op = opid.type.c_str();
  const auto axis = [&](const char *name) { return sparq::toUnsigned(op, name, sizes.at(name)); };
  sparq::Shape shape(spec_, sizes.count("n_heads") != 0 ? axis("n_heads") : 0);
  shape.batch = axis("batch");
  shape.nKvHeads = axis("n_kv_heads");
  shape.headDim = axis("head_dim");
  sparq::check(op, static_cast<const sparq::CacheSpec &>(shape));
  if (shape.nHeads != 0)
    sparq::checkHeads(op, shape, shape.nHeads);
  shape_ = shape;
  for (const CacheOp *const other : ofCache())
    if (other != this && other->shape_.batch != 0)
      checkAgreement(*other);
  orderBehindOthers();
}

// What a session may not ask for: it would change results, or not compile.
void CacheOp::checkSession() const {
  const popart::SessionOptions &session = getIr().getSessionOptions();
  if (session.enableStochasticRounding)
    throw sparq::Error(opid.type + ": enableStochasticRounding must be false, got true: the " +
                       "operators' roundings to float16 would be random");
  const std::int64_t replicas = session.getGlobalReplicationFactor();
  if (replicas != 1)
    throw sparq::Error(opid.type + ": the replication factor must be 1, got " +
                       std::to_string(replicas) + ": programs branch on lengths, and replicas " +
                       "would part at copies of streaming memory");
}

void CacheOp::checkAgreement(const CacheOp &other) const {
  const sparq::Shape &mine = shape_, &theirs = other.shape_;
  const auto agree = [&](const char *argument, unsigned a, unsigned b) {
    if (a != b)
      throw sparq::Error(opid.type + ": " + argument + " must be " + std::to_string(b) +
                         " as in the other operators of cache '" + cacheName_ + "', got " +
                         std::to_string(a));
  };
  agree("batch", mine.batch, theirs.batch);
  agree("n_kv_heads", mine.nKvHeads, theirs.nKvHeads);
  agree("head_dim", mine.headDim, theirs.headDim);
  std::vector<unsigned> options;
  forEachOption(other.spec_, [&](const char *, unsigned value, bool) { options.push_back(value); });
  auto expected = options.begin();
  forEachOption(spec_,
                [&](const char *name, unsigned value, bool) { agree(name, value, *expected++); });
  if (mine.nHeads != 0 && theirs.nHeads != 0)
    agree("n_heads", mine.nHeads, theirs.nHeads);
}

void CacheOp::orderBehindOthers() {
  popart::Graph &graph = getGraph();
  for (const auto &entry : graph.getOps()) {
    auto *const other = dynamic_cast<CacheOp *>(entry.second.get());
    if (other == nullptr || other == this || other->cacheName_ != cacheName_ || other->id > id)
      continue;
    if (!graph.topoCons->contains(other, this) && !comesAfter(this, other))
      graph.topoCons->insert(other, this);
  }
}

} // namespace sparq_popart
