// SPDX-License-Identifier: Apache-2.0
//
// Stand-in for a part of PopART's interface. Here: operators before they are lowered.
#pragma once

#include "tensorindex.hpp"
#include <functional>
#include <memory>
#include <optional>
#include <tuple>

namespace popart {

class Graph;
class Ir;
class OpSerialiserBase;

struct OperatorIdentifier {
  OperatorIdentifier(const OpDomain &domain, const OpType &type, OpVersion version)
      : domain(domain), type(type), version(version) {}
  OpDomain domain;
  OpType type;
  OpVersion version;
  bool operator==(const OperatorIdentifier &o) const {
    return domain == o.domain && type == o.type && version == o.version;
  }
};

struct OperatorIdentifierLess {
  bool operator()(const OperatorIdentifier &a, const OperatorIdentifier &b) const {
    return std::tie(a.domain, a.type, a.version) < std::tie(b.domain, b.type, b.version);
  }
};

class Op {
public:
  struct Settings {
    std::reference_wrapper<Graph> graph;
    std::string name;
    std::optional<VGraphId> vgraphId;
  };

  Op(const OperatorIdentifier &opid, const Settings &settings)
      : input(std::make_unique<TensorIndexMap>()), output(std::make_unique<TensorIndexMap>()),
        opid(opid), settings(settings) {}
  // As PopART's: a copy has the attributes, but neither the tensors nor the id.
  Op(const Op &other) : Op(other.opid, other.settings) {}
  Op &operator=(const Op &) = delete;
  virtual ~Op() = default;

  virtual std::unique_ptr<Op> clone() const = 0;
  virtual void setup() {}
  virtual float getSubgraphValue() const = 0;
  float getHighSubgraphValue() const { return 1000.0f; }
  float getLowSubgraphValue() const { return 0.1f; }
  virtual bool hasSideEffect() const { return false; }
  virtual bool isOutlineable() const { return true; }
  virtual void appendOutlineAttributes(OpSerialiserBase &os) const;
  virtual void appendAttributes(OpSerialiserBase &os) const { appendOutlineAttributes(os); }

  Graph &getGraph() { return settings.graph.get(); }
  const Graph &getGraph() const { return settings.graph.get(); }
  const Ir &getIr() const;
  bool hasInput(InIndex index) const { return input->hasIndex(index); }
  const TensorInfo &inInfo(InIndex index) const { return input->tensor(index)->info; }
  TensorInfo &outInfo(OutIndex index) { return output->tensor(index)->info; }

  std::unique_ptr<TensorIndexMap> input, output;
  OpId id{-1};
  OperatorIdentifier opid;
  Settings settings;
};

} // namespace popart
