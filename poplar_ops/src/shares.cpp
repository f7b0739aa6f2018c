// SPDX-License-Identifier: Apache-2.0
#include "sparq/device_options.hpp"
#include <string>

namespace sparq {

namespace {

unsigned gcd(unsigned a, unsigned b) { return b == 0 ? a : gcd(b, a % b); }

} // namespace

Split splitNamed(const char *op, const std::string &name) {
  if (name != "layers" && name != "heads")
    throw Error(std::string(op) + ": split must be 'layers' or 'heads', got '" + name + "'");
  return name == "layers" ? Split::layers : Split::heads;
}

std::vector<Share> shareOut(const Shape &shape, unsigned nLayers, unsigned nIpus, Split split) {
  const auto refuse = [nIpus](const std::string &rule) {
    throw Error("plan: n_ipus must " + rule + ", got " + std::to_string(nIpus));
  };
  if (nIpus < 1 || nIpus > maxIpus)
    refuse("be in [1, " + std::to_string(maxIpus) + "]");
  if ((nIpus & (nIpus - 1)) != 0)
    refuse("be a power of two up to " + std::to_string(maxIpus));
  std::vector<Share> shares(nIpus);
  if (split == Split::layers) {
    if (nIpus != 1 && nLayers < nIpus)
      refuse("be at most n_layers=" + std::to_string(nLayers) + " where layers are split");
    // Layer l is on IPU l * nIpus / nLayers.
    const auto first = [&](unsigned ipu) { return (ipu * nLayers + nIpus - 1) / nIpus; };
    for (unsigned ipu = 0; ipu != nIpus; ++ipu)
      shares[ipu] = {shape, first(ipu), first(ipu + 1) - first(ipu), 0, 0};
    return shares;
  }
  const unsigned heads = gcd(nIpus, shape.nKvHeads), rows = nIpus / heads;
  if (shape.batch % rows != 0)
    refuse("split n_kv_heads=" + std::to_string(shape.nKvHeads) +
           ", then batch=" + std::to_string(shape.batch) + ", evenly");
  Shape part = shape;
  part.batch /= rows;
  part.nKvHeads /= heads;
  part.nHeads /= heads;
  for (unsigned ipu = 0; ipu != nIpus; ++ipu)
    shares[ipu] = {part, 0, nLayers, ipu / heads * part.batch, ipu % heads * part.nKvHeads};
  return shares;
}

} // namespace sparq
