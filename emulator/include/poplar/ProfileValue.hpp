// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <ostream>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "StringRef.hpp"

namespace poplar {

class OptionFlags;

/// A tree of strings, numbers, booleans, lists and maps, as in JSON.
/// What it holds is shared between copies and never changes.
class ProfileValue {
public:
  using Boolean = bool;
  using Number = double;
  using String = std::string;
  using Vector = std::vector<ProfileValue>;
  using Map = std::map<std::string, ProfileValue>;
  enum class Type { BOOL_, STRING, NUMBER, VECTOR, MAP };
  struct Storage {
    Type type = Type::MAP;
    Boolean boolean = false;
    Number number = 0;
    String string;
    std::shared_ptr<const Vector> vector;
    std::shared_ptr<const Map> map;
  };

  /// An empty map.
  ProfileValue();
  ProfileValue(String init);
  ProfileValue(Vector init);
  ProfileValue(Map init);
  ProfileValue(Number init);
  ProfileValue(Boolean init);
  ProfileValue(const char *init) : ProfileValue(String(init)) {}
  ProfileValue(StringRef init) : ProfileValue(init.str()) {}
  template <class T, typename = typename std::enable_if<std::is_integral<T>::value>::type>
  ProfileValue(T init) : ProfileValue(static_cast<Number>(init)) {}
  ProfileValue(const ProfileValue &) = default;
  ProfileValue(ProfileValue &&) = default;
  ProfileValue &operator=(const ProfileValue &) = default;
  ProfileValue &operator=(ProfileValue &&) = default;

  Type type() const { return storage_.type; }
  // Each throws poplar_error where the value is of another type.
  const String &asString() const;
  Boolean asBool() const;
  std::int64_t asInt() const;
  std::uint64_t asUint() const;
  Number asDouble() const;
  const Map &asMap() const;
  const Vector &asVector() const;
  /// The value of a map's key; throws index_error if the key is missing.
  const ProfileValue &operator[](StringRef key) const;
  const ProfileValue &operator[](const char *key) const { return (*this)[StringRef(key)]; }
  /// An element of a list; throws index_error.
  const ProfileValue &operator[](std::size_t i) const;
  const ProfileValue &operator[](int i) const { return (*this)[static_cast<std::size_t>(i)]; }
  /// Null if the key is missing.
  const ProfileValue *getOrNull(StringRef key) const;
  std::vector<std::uint64_t> toUintVector() const;
  /// Elements of a list or map.
  std::size_t size() const;
  Number sumDouble() const;
  std::int64_t sumInt() const;
  std::uint64_t sumUint() const;
  std::int64_t sum2DInt() const;
  std::uint64_t sum2DUint() const;
  friend bool operator==(const ProfileValue &a, const ProfileValue &b);
  friend bool operator!=(const ProfileValue &a, const ProfileValue &b) { return !(a == b); }

private:
  void check(Type wanted, const char *op) const;
  Storage storage_;
};

/// The flags as a map of strings.
ProfileValue getAsProfileValue(const OptionFlags &flags);
/// Writes JSON.
void serializeToJSON(std::ostream &out, const ProfileValue &value, bool prettyPrint = false);
std::ostream &operator<<(std::ostream &os, const ProfileValue &value);

} // namespace poplar
