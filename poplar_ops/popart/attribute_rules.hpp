// SPDX-License-Identifier: Apache-2.0
// Checks of an operator's attributes that PopART does not make: it ignores unknown names, and reads
// a value of another type as 0 or as missing.
#pragma once

#include "popart_headers.hpp"
#include <memory>

namespace sparq_popart {

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
