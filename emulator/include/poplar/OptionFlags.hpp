// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <initializer_list>
#include <istream>
#include <map>
#include <string>
#include <utility>

#include "StringRef.hpp"

namespace poplar {

/// Options as pairs of strings.
class OptionFlags {
public:
  using OptionFlag = std::pair<const std::string, std::string>;
  using iterator = std::map<std::string, std::string>::const_iterator;
  using initializer_list = std::initializer_list<OptionFlag>;

  OptionFlags() = default;
  OptionFlags(initializer_list flags) { set(flags); }
  OptionFlags(const OptionFlags &) = default;
  OptionFlags(OptionFlags &&) = default;
  OptionFlags &operator=(const OptionFlags &) = default;
  OptionFlags &operator=(OptionFlags &&) = default;

  void set(initializer_list flags) {
    for (const auto &f : flags)
      flags_[f.first] = f.second;
  }
  void set(StringRef option, StringRef value) { flags_[option.str()] = value.str(); }
  /// Throws std::out_of_range if the option is not set.
  StringRef at(StringRef option) const { return flags_.at(option.str()); }
  iterator find(const StringRef option) const { return flags_.find(option.str()); }
  std::size_t size() const { return flags_.size(); }
  void clear() { flags_.clear(); }
  iterator begin() const { return flags_.begin(); }
  iterator end() const { return flags_.end(); }
  friend bool operator==(const OptionFlags &a, const OptionFlags &b) {
    return a.flags_ == b.flags_;
  }
  friend bool operator!=(const OptionFlags &a, const OptionFlags &b) { return !(a == b); }

private:
  std::map<std::string, std::string> flags_;
};

std::ostream &operator<<(std::ostream &os, const OptionFlags &flags);
/// Adds the members of a flat JSON object of strings, numbers and booleans; throws parse_error.
void readJSON(StringRef string, OptionFlags &flags);
void readJSON(std::istream &stream, OptionFlags &flags);
/// As readJSON from the environment variable, if it is set.
void readJSONFromEnv(StringRef name, OptionFlags &flags);

} // namespace poplar
