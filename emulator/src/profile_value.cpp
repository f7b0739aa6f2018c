// SPDX-License-Identifier: Apache-2.0
// Trees of values, and the codes of errors.
#include <poplar/ProfileValue.hpp>

#include <poplar/ErrorCode.hpp>
#include <poplar/OptionFlags.hpp>

#include <cstdio>
#include <sstream>

#include "errors.hpp"

namespace poplar {

ProfileValue::ProfileValue() : ProfileValue(Map()) {}
ProfileValue::ProfileValue(String init) {
  storage_.type = Type::STRING;
  storage_.string = std::move(init);
}
ProfileValue::ProfileValue(Vector init) {
  storage_.type = Type::VECTOR;
  storage_.vector = std::make_shared<const Vector>(std::move(init));
}
ProfileValue::ProfileValue(Map init) {
  storage_.type = Type::MAP;
  storage_.map = std::make_shared<const Map>(std::move(init));
}
ProfileValue::ProfileValue(Number init) {
  storage_.type = Type::NUMBER;
  storage_.number = init;
}
ProfileValue::ProfileValue(Boolean init) {
  storage_.type = Type::BOOL_;
  storage_.boolean = init;
}

void ProfileValue::check(Type wanted, const char *op) const {
  static const char *const names[] = {"boolean", "string", "number", "list", "map"};
  if (storage_.type != wanted)
    throw errors::bad_argument(std::string("ProfileValue::") + op + ": the value must be a " +
                               names[static_cast<int>(wanted)] + ", got a " +
                               names[static_cast<int>(storage_.type)]);
}

const ProfileValue::String &ProfileValue::asString() const {
  check(Type::STRING, "asString");
  return storage_.string;
}
bool ProfileValue::asBool() const {
  check(Type::BOOL_, "asBool");
  return storage_.boolean;
}
std::int64_t ProfileValue::asInt() const { return static_cast<std::int64_t>(asDouble()); }
std::uint64_t ProfileValue::asUint() const { return static_cast<std::uint64_t>(asDouble()); }
double ProfileValue::asDouble() const {
  check(Type::NUMBER, "asDouble");
  return storage_.number;
}
const ProfileValue::Map &ProfileValue::asMap() const {
  check(Type::MAP, "asMap");
  return *storage_.map;
}
const ProfileValue::Vector &ProfileValue::asVector() const {
  check(Type::VECTOR, "asVector");
  return *storage_.vector;
}

const ProfileValue &ProfileValue::operator[](StringRef key) const {
  const ProfileValue *found = getOrNull(key);
  if (!found)
    throw errors::index_out_of_range("ProfileValue: key must be one of the map's " +
                                     std::to_string(size()) + ", got '" + key.str() + "'");
  return *found;
}
const ProfileValue &ProfileValue::operator[](std::size_t i) const {
  const Vector &v = asVector();
  if (i >= v.size())
    throw errors::index_out_of_range("ProfileValue: index must be below " +
                                     std::to_string(v.size()) + ", got " + std::to_string(i));
  return v[i];
}
const ProfileValue *ProfileValue::getOrNull(StringRef key) const {
  const Map &m = asMap();
  const auto it = m.find(key.str());
  return it == m.end() ? nullptr : &it->second;
}

std::vector<std::uint64_t> ProfileValue::toUintVector() const {
  std::vector<std::uint64_t> r;
  for (const ProfileValue &v : asVector())
    r.push_back(v.asUint());
  return r;
}
std::size_t ProfileValue::size() const {
  return storage_.type == Type::MAP ? storage_.map->size() : asVector().size();
}
double ProfileValue::sumDouble() const {
  double r = 0;
  for (const ProfileValue &v : asVector())
    r += v.asDouble();
  return r;
}
std::int64_t ProfileValue::sumInt() const { return static_cast<std::int64_t>(sumDouble()); }
std::uint64_t ProfileValue::sumUint() const { return static_cast<std::uint64_t>(sumDouble()); }
std::int64_t ProfileValue::sum2DInt() const {
  std::int64_t r = 0;
  for (const ProfileValue &v : asVector())
    r += v.sumInt();
  return r;
}
std::uint64_t ProfileValue::sum2DUint() const { return static_cast<std::uint64_t>(sum2DInt()); }

bool operator==(const ProfileValue &a, const ProfileValue &b) {
  if (a.type() != b.type())
    return false;
  switch (a.type()) {
  case ProfileValue::Type::BOOL_:
    return a.asBool() == b.asBool();
  case ProfileValue::Type::STRING:
    return a.asString() == b.asString();
  case ProfileValue::Type::NUMBER:
    return a.asDouble() == b.asDouble();
  case ProfileValue::Type::VECTOR:
    return a.asVector() == b.asVector();
  case ProfileValue::Type::MAP:
    return a.asMap() == b.asMap();
  }
  return false;
}

ProfileValue getAsProfileValue(const OptionFlags &flags) {
  ProfileValue::Map m;
  for (const auto &f : flags)
    m.insert({f.first, ProfileValue(f.second)});
  return m;
}

namespace {

void writeString(std::ostream &out, const std::string &s) {
  out << '"';
  for (const char c : s) {
    if (c == '"' || c == '\\')
      out << '\\' << c;
    else if (static_cast<unsigned char>(c) < 32) {
      char code[8];
      std::snprintf(code, sizeof code, "\\u%04x", static_cast<unsigned>(c));
      out << code;
    } else
      out << c;
  }
  out << '"';
}

void write(std::ostream &out, const ProfileValue &v, const std::string &newLine) {
  const std::string inner = newLine.empty() ? "" : newLine + "  ";
  const char *separator = "";
  switch (v.type()) {
  case ProfileValue::Type::BOOL_:
    out << (v.asBool() ? "true" : "false");
    return;
  case ProfileValue::Type::STRING:
    writeString(out, v.asString());
    return;
  case ProfileValue::Type::NUMBER: {
    std::ostringstream s;
    s.precision(17);
    s << v.asDouble();
    out << s.str();
    return;
  }
  case ProfileValue::Type::VECTOR:
    out << '[';
    for (const ProfileValue &x : v.asVector()) {
      out << separator << inner;
      write(out, x, inner);
      separator = ",";
    }
    out << (v.size() ? newLine : "") << ']';
    return;
  case ProfileValue::Type::MAP:
    out << '{';
    for (const auto &x : v.asMap()) {
      out << separator << inner;
      writeString(out, x.first);
      out << ':';
      write(out, x.second, inner);
      separator = ",";
    }
    out << (v.size() ? newLine : "") << '}';
    return;
  }
}

const char *const codeNames[] = {"NONE",
                                 "UNKNOWN",
                                 "TRAP",
                                 "FLOATING_POINT_INVALID_OPERATION",
                                 "FLOATING_POINT_DIVIDE_BY_ZERO",
                                 "FLOATING_POINT_OVERFLOW",
                                 "TILE_MEMORY_BANK_CONFLICT",
                                 "INVALID_EXCHANGE_CONFIGURATION",
                                 "INVALID_ADDRESS",
                                 "INVALID_OPERAND",
                                 "INVALID_PROGRAM_COUNTER",
                                 "INVALID_INSTRUCTION",
                                 "EXCHANGE_ERROR",
                                 "MEMORY_ERROR",
                                 "IPUSOFTERR",
                                 "LINK_DOWN",
                                 "HOST_LINK_DOWN",
                                 "HOST_SYNC_TIMEOUT",
                                 "IPU_MEMORY_FAILURE"};

} // namespace

void serializeToJSON(std::ostream &out, const ProfileValue &value, bool prettyPrint) {
  write(out, value, prettyPrint ? "\n" : "");
}
std::ostream &operator<<(std::ostream &os, const ProfileValue &value) {
  serializeToJSON(os, value);
  return os;
}

std::string errorCodeToString(ErrorCode code) { return codeNames[static_cast<int>(code)]; }
ErrorCode errorCodeFromString(StringRef name) {
  for (std::size_t i = 0; i < sizeof codeNames / sizeof *codeNames; ++i)
    if (name == codeNames[i])
      return static_cast<ErrorCode>(i);
  throw errors::bad_argument("errorCodeFromString: name must be one of the codes', got '" +
                             name.str() + "'");
}

} // namespace poplar
