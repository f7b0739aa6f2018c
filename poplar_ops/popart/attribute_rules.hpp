// SPDX-License-Identifier: Apache-2.0
//
// What PopART does not check of an operator's attributes: it passes over names that an operator
// does not know, and reads a value of another type as 0 or as missing.
#pragma once

#include "popart_headers.hpp"
#include <memory>

namespace sparq_popart {

// Throws sparq::Error unless the attributes given are among those of the definition, and of their
// types. PopART's own names begin with "__". Of another type, 0, "" and an empty list can not be
// told from 0.
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
