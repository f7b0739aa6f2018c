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
  using String = std::string;

  template <class T> T getAttribute(const std::string &key) const {
    const auto found = all_.find(key);
    // PopART takes an empty string for a missing one.
    if (found == all_.end() || found->second == Value(String()))
      throw error("no attribute key " + key);
    return std::get<T>(found->second);
  }
  template <class T> T getAttribute(const std::string &key, const T &defaultValue) const {
    return all_.count(key) != 0 ? std::get<T>(all_.at(key)) : defaultValue;
  }
  using Value = std::variant<Int, String>;
  void set(const std::string &key, const Value &value) { all_[key] = value; }
  const std::map<std::string, Value> &all() const { return all_; }

private:
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
