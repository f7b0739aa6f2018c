// SPDX-License-Identifier: Apache-2.0
//
// Rules for an operator's inputs: names, types and symbolic shapes. The table and the messages are
// those of python/sparq_ipu/poptorch/contract.py.
#pragma once

#include "popart_headers.hpp"
#include <map>
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

} // namespace sparq_popart
