// SPDX-License-Identifier: Apache-2.0
//
// Stand-in for a part of PopART's interface. Here: how operators are registered and made.
#pragma once

#include "op.hpp"
#include <variant>

namespace popart {

class Attributes {
public:
  using Int = std::int64_t;
  using Ints = std::vector<std::int64_t>;
  using Float = float;
  using String = std::string;
  using Value = std::variant<Int, Ints, Float, String>;

  // As PopART: a value of another type reads as 0 or as empty, an empty string as a missing one.
  template <class T> T getAttribute(const std::string &key) const {
    const auto found = all_.find(key);
    const T value = getAttribute<T>(key, T());
    if (found == all_.end() || (std::is_same<T, String>::value && value == T()))
      throw error("no attribute key " + key);
    return value;
  }
  template <class T> T getAttribute(const std::string &key, const T &defaultValue) const {
    const auto found = all_.find(key);
    if (found == all_.end())
      return defaultValue;
    const T *const held = std::get_if<T>(&found->second);
    const T value = held != nullptr ? *held : T();
    return std::is_same<T, String>::value && value == T() ? defaultValue : value;
  }
  const std::vector<std::string> &getNames() const { return names_; }
  void set(const std::string &key, const Value &value) {
    if (all_.count(key) == 0)
      names_.push_back(key);
    all_[key] = value;
  }

private:
  std::vector<std::string> names_;
  std::map<std::string, Value> all_;
};

class OpDefinition {
public:
  using DataTypes = std::vector<DataType>;
  struct Input {
    std::string name;
    DataTypes supportedTensors;
  };
  struct Output {
    std::string name;
    DataTypes supportedTensors;
  };
  struct Attribute {
    Attribute(std::string regex) : supportedValuesRegex(std::move(regex)) {}
    std::string supportedValuesRegex;
  };
  using Inputs = std::vector<Input>;
  using Outputs = std::vector<Output>;
  using Attributes = std::map<std::string, Attribute>;

  OpDefinition(Inputs inputs, Outputs outputs, Attributes attributes)
      : inputs(std::move(inputs)), outputs(std::move(outputs)), attributes(std::move(attributes)) {}

  Inputs inputs;
  Outputs outputs;
  Attributes attributes;
};

using OpDefinitions = std::map<OperatorIdentifier, OpDefinition, OperatorIdentifierLess>;

class OpCreatorInfo {
public:
  const OperatorIdentifier &opid;
  const Op::Settings &settings;
  const Attributes &attributes;
};

class OpManager {
public:
  using OpFactoryFunc = std::function<std::unique_ptr<Op>(const OpCreatorInfo &)>;
  struct OpInfo {
    OpDefinition definition;
    OpFactoryFunc factory;
  };
  static std::map<OperatorIdentifier, OpInfo, OperatorIdentifierLess> &all() {
    static std::map<OperatorIdentifier, OpInfo, OperatorIdentifierLess> registered;
    return registered;
  }
};

template <class OP> class OpCreator {
public:
  OpCreator(const OpDefinitions &definitions, OpManager::OpFactoryFunc factory, bool = true) {
    for (const auto &definition : definitions)
      OpManager::all().emplace(definition.first, OpManager::OpInfo{definition.second, factory});
  }
};

} // namespace popart
