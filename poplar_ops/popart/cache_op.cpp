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

CacheOp::CacheOp(const popart::OperatorIdentifier &opid, const popart::Op::Settings &settings,
                 std::string cacheName, std::int64_t capacity)
    : popart::Op(opid, settings), cacheName_(std::move(cacheName)), capacity_(capacity) {
  shape_.batch = 0;
}

void CacheOp::appendOutlineAttributes(popart::OpSerialiserBase &os) const {
  popart::Op::appendOutlineAttributes(os);
  os.appendAttribute("cache_name", cacheName_);
  os.appendAttribute("capacity", capacity_);
}

void CacheOp::appendAttributes(popart::OpSerialiserBase &os) const {
  popart::Op::appendAttributes(os);
  os.appendAttribute("codelets", codeletsHash());
}

std::vector<const CacheOp *> CacheOp::ofCache() const {
  std::vector<const CacheOp *> found;
  for (const popart::Op *const op : getIr().getAllOps()) {
    const auto *const other = dynamic_cast<const CacheOp *>(op);
    if (other != nullptr && other->cacheName_ == cacheName_)
      found.push_back(other);
  }
  return found;
}

void CacheOp::join(const sparq::Shape &shape) {
  sparq::Shape checked = shape;
  if (checked.nHeads == 0)
    checked.nHeads = checked.nKvHeads;
  sparq::check(opid.type.c_str(), checked);
  shape_ = shape;
  for (const CacheOp *const other : ofCache())
    if (other != this && other->shape_.batch != 0)
      checkAgreement(*other);
  orderBehindOthers();
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
  agree("capacity", mine.capacity, theirs.capacity);
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
