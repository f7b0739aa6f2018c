// SPDX-License-Identifier: Apache-2.0
// Tensors of a graph written to a stream, without what they hold: types, shapes and tiles. The
// forms are the emulator's own.
#include <poplar/Graph.hpp>
#include <poplar/ProfileValue.hpp>

#include <istream>
#include <limits>
#include <ostream>

#include "core.hpp"

namespace poplar {

namespace {

constexpr char heading[] = "tensors of the Poplar emulator, form 1";

ProfileValue describe(const Graph &graph, const Tensor &t) {
  ProfileValue::Vector shape, mapping;
  for (std::size_t n : t.shape())
    shape.push_back(ProfileValue(n));
  const auto tiles = graph.getTileMapping(t, false);
  for (std::size_t tile = 0; tile < tiles.size(); ++tile)
    for (const Interval &i : tiles[tile])
      mapping.push_back(ProfileValue::Map{{"tile", ProfileValue(tile)},
                                          {"begin", ProfileValue(i.begin())},
                                          {"end", ProfileValue(i.end())}});
  return ProfileValue::Map{{"type", t.elementType().toString()},
                           {"shape", ProfileValue(std::move(shape))},
                           {"mapping", ProfileValue(std::move(mapping))}};
}

std::size_t number(std::istream &in, std::size_t limit) {
  std::size_t n = 0;
  if (!(in >> n) || n > limit)
    throw errors::bad_object("tensors", "they must be whole, got no number where one is due");
  return n;
}

} // namespace

void Graph::serializeTensors(std::ostream &out, ArrayRef<Tensor> tensors,
                             SerializationFormat format) const {
  if (format == SerializationFormat::JSON) {
    ProfileValue::Vector described;
    for (const Tensor &t : tensors)
      described.push_back(describe(*this, t));
    serializeToJSON(out, ProfileValue(std::move(described)), true);
    return;
  }
  out << heading << "\n" << tensors.size() << "\n";
  for (const Tensor &t : tensors) {
    out << static_cast<unsigned>(core::elementOf(t.elementType())) << " " << t.rank();
    for (std::size_t n : t.shape())
      out << " " << n;
    std::size_t parts = 0;
    const auto tiles = getTileMapping(t, false);
    for (const auto &intervals : tiles)
      parts += intervals.size();
    out << "\n" << parts << "\n";
    for (std::size_t tile = 0; tile < tiles.size(); ++tile)
      for (const Interval &i : tiles[tile])
        out << tile << " " << i.begin() << " " << i.end() << "\n";
  }
}

std::vector<Tensor> Graph::deserializeTensors(std::istream &in, SerializationFormat format) {
  if (format != SerializationFormat::Binary)
    throw errors::bad_object("tensors", "their format must be Binary, got JSON");
  std::string line;
  if (!std::getline(in, line) || line != heading)
    throw errors::bad_object("tensors", "they must be what this version of the emulator wrote");
  constexpr std::size_t any = std::numeric_limits<std::size_t>::max();
  std::vector<Tensor> tensors(number(in, 1u << 20));
  for (Tensor &t : tensors) {
    const Type type = core::typeOf(static_cast<codelet_abi::Element>(
        number(in, static_cast<unsigned>(codelet_abi::Element::Float))));
    std::vector<std::size_t> shape(number(in, 1u << 10));
    for (std::size_t &n : shape)
      n = number(in, any);
    t = addVariable(type, shape);
    const Tensor flat = t.flatten();
    for (std::size_t parts = number(in, any); parts > 0; --parts) {
      const std::size_t tile = number(in, target.getNumTiles() - 1);
      const std::size_t begin = number(in, any), end = number(in, any);
      setTileMapping(flat.slice(begin, end), static_cast<unsigned>(tile));
    }
  }
  return tensors;
}

} // namespace poplar
