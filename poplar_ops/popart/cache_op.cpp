// SPDX-License-Identifier: Apache-2.0
#include "cache_op.hpp"
#include "sparq/cache.hpp"
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <limits>
#include <set>
#include <type_traits>

namespace sparq_popart {
namespace {

// Calls f(name, field) for each of them. A new field of CacheSpec or TierOptions gets its line
// here.
template <class Options, class F> void forEachOption(Options &&all, const F &f) {
  f("capacity", all.spec.capacity);
  f("index_bits", all.spec.indexBits);
  f("row_bits", all.spec.rowBits);
  f("index_components", all.spec.indexComponents);
  f("memory", all.memory);
  f("hot_rows", all.tiers.hotRows);
}

std::string text(unsigned value) { return std::to_string(value); }
template <class Named> std::string text(Named value) {
  return std::string("'") + sparq::nameOf(value) + "'";
}

sparq::Memory memoryNamed(const std::string &op, const std::string &name) {
  for (const sparq::Memory memory : {sparq::Memory::streaming, sparq::Memory::tiered})
    if (name == sparq::nameOf(memory))
      return memory;
  throw sparq::Error(op + ": memory must be 'streaming' or 'tiered', got '" + name + "'");
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

CacheOptions::CacheOptions(const popart::OpCreatorInfo &info) {
  using Int = popart::Attributes::Int;
  const std::string &op = info.opid.type;
  const popart::Attributes &given = info.attributes;
  forEachOption(*this, [&](const std::string &name, auto &field) {
    if constexpr (std::is_same_v<decltype(field), sparq::Memory &>) {
      field = memoryNamed(
          op, given.getAttribute<popart::Attributes::String>(name, sparq::nameOf(field)));
    } else {
      const std::int64_t number =
          name == "capacity" ? given.getAttribute<Int>(name) : given.getAttribute<Int>(name, field);
      field = sparq::toUnsigned(op.c_str(), name.c_str(), number,
                                name == "hot_rows" ? sparq::TierOptions::maxRows
                                                   : std::numeric_limits<std::uint32_t>::max());
    }
  });
}

void CacheOptions::check(const char *op) const {
  const bool tiered = memory == sparq::Memory::tiered;
  const auto refuse = [&](const std::string &rule, const std::string &got) {
    throw sparq::Error(std::string(op) + ": " + rule + ", got " + got);
  };
  if (!tiered && spec.rowBits != 16)
    refuse("row_bits must be 16 unless memory is 'tiered'", text(spec.rowBits));
  if (!tiered && spec.indexComponents != 0)
    refuse("index_components must be 0 unless memory is 'tiered'", text(spec.indexComponents));
  if (!tiered && tiers.hotRows != 0)
    refuse("memory must be 'tiered' where hot rows are asked for", text(memory));
  if (tiered && spec.indexBits == 16)
    refuse("index_bits must be 8, 4 or 2 where memory is 'tiered'", text(spec.indexBits));
}

void CacheOptions::checkTopK(const char *op, unsigned wanted) const {
  if (memory != sparq::Memory::tiered)
    return;
  const unsigned topK = std::min(wanted, spec.capacity);
  if (topK > sparq::TierOptions::maxRows)
    throw sparq::Error(std::string(op) + ": top_k must be at most " +
                       text(sparq::TierOptions::maxRows) + " where memory is 'tiered', got " +
                       text(topK));
  if (tiers.hotRows != 0 && tiers.hotRows < topK)
    throw sparq::Error(std::string(op) + ": hot_rows must be 0 or at least top_k=" + text(topK) +
                       ", got " + text(tiers.hotRows));
}

std::vector<std::pair<std::string, std::string>> CacheOptions::shown() const {
  std::vector<std::pair<std::string, std::string>> all;
  forEachOption(*this,
                [&](const char *name, const auto &value) { all.emplace_back(name, text(value)); });
  return all;
}

popart::OpDefinition::Attributes cacheAttributes(std::initializer_list<const char *> more) {
  popart::OpDefinition::Attributes all;
  const auto add = [&](const std::string &name) {
    all.emplace(name, popart::OpDefinition::Attribute("*"));
  };
  add("cache_name");
  for (const auto &option : CacheOptions().shown())
    add(option.first);
  for (const char *const name : more)
    add(name);
  return all;
}

CacheOp::CacheOp(const popart::OpCreatorInfo &info)
    : popart::Op(info.opid, info.settings),
      cacheName_(info.attributes.getAttribute<popart::Attributes::String>("cache_name")),
      options_(info) {
  shape_.batch = 0;
}

void CacheOp::appendOutlineAttributes(popart::OpSerialiserBase &os) const {
  popart::Op::appendOutlineAttributes(os);
  os.appendAttribute("cache_name", cacheName_);
  for (const auto &option : options_.shown())
    os.appendAttribute(option.first, option.second);
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
  sparq::Shape shape(options_.spec, sizes.count("n_heads") != 0 ? axis("n_heads") : 0);
  shape.batch = axis("batch");
  shape.nKvHeads = axis("n_kv_heads");
  shape.headDim = axis("head_dim");
  sparq::check(op, static_cast<const sparq::CacheSpec &>(shape));
  if (shape.nHeads != 0)
    sparq::checkHeads(op, shape, shape.nHeads);
  options_.check(op);
  shape_ = shape;
  for (const CacheOp *const other : ofCache())
    if (other != this && other->shape_.batch != 0)
      checkAgreement(*other);
  orderBehindOthers();
}

// Refuses session options that would change results or not compile.
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
  const auto agreeAs = [&](const std::string &argument, const std::string &a,
                           const std::string &b) {
    if (a != b)
      throw sparq::Error(opid.type + ": " + argument + " must be " + b +
                         " as in the other operators of cache '" + cacheName_ + "', got " + a);
  };
  const auto agree = [&](const char *argument, unsigned a, unsigned b) {
    agreeAs(argument, std::to_string(a), std::to_string(b));
  };
  agree("batch", mine.batch, theirs.batch);
  agree("n_kv_heads", mine.nKvHeads, theirs.nKvHeads);
  agree("head_dim", mine.headDim, theirs.headDim);
  const auto values = other.options_.shown();
  auto expected = values.begin();
  for (const auto &option : options_.shown())
    agreeAs(option.first, option.second, (expected++)->second);
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
