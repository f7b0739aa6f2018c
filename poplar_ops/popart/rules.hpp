// SPDX-License-Identifier: Apache-2.0
//
// Rules for an operator's inputs: names, types and symbolic shapes. The table and the messages are
// those of python/sparq_ipu/poptorch/contract.py. And checks of attributes that PopART does not
// make: it ignores unknown names, and reads a value of another type as 0 or as missing.
#pragma once

#include "popart_headers.hpp"
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace sparq_popart {

struct TensorRule {
  const char *name;
  popart::DataType type;
  std::vector<const char *> axes;
};

using Sizes = std::map<std::string, std::int64_t>;

// The size of every axis. The last `nOptional` inputs may be missing. Throws sparq::Error for a
// wrong type, or where the axes do not fit together.
Sizes checkInputs(const popart::Op &op, const std::vector<TensorRule> &rules, unsigned nOptional);

// Throws sparq::Error unless the attributes belong to the definition and have its types. PopART's
// own names begin with "__". 0.0, "" and an empty list cannot be told from 0.
void checkAttributes(const popart::OpCreatorInfo &info,
                     const popart::OpDefinition::Attributes &known);

// Registers an operator of one definition, made when its attributes have passed.
template <class Op>
popart::OpCreator<Op> creator(const popart::OperatorIdentifier &id,
                              const popart::OpDefinition &definition) {
  return popart::OpCreator<Op>(
      popart::OpDefinitions{{id, definition}},
      [known = definition.attributes](
          const popart::OpCreatorInfo &info) -> std::unique_ptr<popart::Op> {
        checkAttributes(info, known);
        return std::make_unique<Op>(info);
      },
      true);
}

} // namespace sparq_popart
