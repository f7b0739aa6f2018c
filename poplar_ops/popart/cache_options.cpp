// SPDX-License-Identifier: Apache-2.0
#include "cache_op.hpp"
#include <limits>

namespace sparq_popart {
namespace {

struct Option {
  const char *name;
  bool optional = true;
  std::uint32_t most = std::numeric_limits<std::uint32_t>::max(); // of a number
};

// Calls f(option, field) for each of them. A new field of CacheSpec or TierOptions gets its line
// here.
template <class Options, class F> void forEachOption(Options &&all, const F &f) {
  f(Option{"capacity", false}, all.spec.capacity);
  f(Option{"index_bits"}, all.spec.indexBits);
  f(Option{"row_bits"}, all.spec.rowBits);
  f(Option{"index_components"}, all.spec.indexComponents);
  f(Option{"memory"}, all.memory);
  f(Option{"hot_rows", true, sparq::TierOptions::maxRows}, all.tiers.hotRows);
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

// Reads an attribute into the field of its option.
class Reader {
public:
  explicit Reader(const popart::OpCreatorInfo &info)
      : op_(info.opid.type), given_(info.attributes) {}

  void operator()(const Option &option, unsigned &field) const {
    const std::int64_t number = option.optional ? given_.getAttribute<Int>(option.name, field)
                                                : given_.getAttribute<Int>(option.name);
    field = sparq::toUnsigned(op_.c_str(), option.name, number, option.most);
  }
  void operator()(const Option &option, sparq::Memory &field) const {
    field = memoryNamed(op_, name(option, sparq::nameOf(field)));
  }

private:
  using Int = popart::Attributes::Int;

  std::string name(const Option &option, const std::string &otherwise) const {
    return given_.getAttribute<popart::Attributes::String>(option.name, otherwise);
  }

  const std::string &op_;
  const popart::Attributes &given_;
};

} // namespace

CacheOptions::CacheOptions(const popart::OpCreatorInfo &info) {
  forEachOption(*this, Reader(info));
}

void CacheOptions::check(const char *op, const sparq::CacheSpec &shape) const {
  sparq::checkOfTiers(op, shape, memory);
  CacheOptions without = *this;
  without.tiers = {};
  if (memory == sparq::Memory::tiered)
    sparq::checkTiers(op, shape, tiers);
  else if (!(*this == without))
    throw sparq::Error(std::string(op) +
                       ": memory must be 'tiered' where hot rows are asked for, got " +
                       text(memory));
}

std::vector<std::pair<std::string, std::string>> CacheOptions::shown() const {
  std::vector<std::pair<std::string, std::string>> all;
  forEachOption(*this, [&](const Option &option, const auto &value) {
    all.emplace_back(option.name, text(value));
  });
  return all;
}

} // namespace sparq_popart
