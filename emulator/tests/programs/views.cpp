// SPDX-License-Identifier: Apache-2.0
// Reads one chain of view operations a line and applies it to a variable that counts 0, 1, 2 ...
// Prints the shape of the view and its elements: as a copy out of it sees them, and the variables
// after a copy into it.
#include <sstream>

#include "util.hpp"

using namespace poplar;
using namespace poplar::program;

namespace {

std::vector<std::size_t> readSizes(std::istream &is) {
  std::size_t n = 0;
  is >> n;
  std::vector<std::size_t> r(n);
  for (std::size_t &x : r)
    is >> x;
  return r;
}

std::vector<unsigned> readUnsigned(std::istream &is) {
  const std::vector<std::size_t> v = readSizes(is);
  return std::vector<unsigned>(v.begin(), v.end());
}

Tensor apply(const Tensor &t, const Tensor &other, const std::string &op, std::istream &is) {
  auto number = [&] {
    std::size_t n = 0;
    is >> n;
    return n;
  };
  auto dim = [&] { return static_cast<unsigned>(number()); };
  if (op == "slice") {
    const std::size_t begin = number(), end = number();
    return t.slice(begin, end, dim());
  }
  if (op == "index")
    return t[number()];
  if (op == "flatten")
    return t.flatten();
  if (op == "reshape")
    return t.reshape(readSizes(is));
  if (op == "dimShuffle")
    return t.dimShuffle(readUnsigned(is));
  if (op == "dimRoll") {
    const unsigned from = dim();
    return t.dimRoll(from, dim());
  }
  if (op == "expand")
    return t.expand({number()});
  if (op == "squeeze")
    return t.squeeze({number()});
  if (op == "subSample") {
    const unsigned stride = dim();
    return t.subSample(stride, dim());
  }
  if (op == "upsample") {
    const unsigned scale = dim();
    return t.upsample(scale, dim(), UpsampleMethod::REPEAT);
  }
  if (op == "broadcast") {
    const unsigned n = dim();
    return t.broadcast(n, dim());
  }
  if (op == "reverse")
    return t.reverse(dim());
  if (op == "concatSelf")
    return concat(t, t, dim());
  if (op == "concatFront") { // with part of itself: fragments
    const unsigned d = dim();
    return concat(t.slice(0, (t.dim(d) + 1) / 2, d), t, d);
  }
  if (op == "concatOther")
    return concat(t, other.slice(0, t.numElements()).reshape(t.shape()), dim());
  if (op == "slices") { // two intervals of a dimension, swapped
    const unsigned d = dim();
    const std::size_t h = t.dim(d) / 2;
    return concat(t.slices({Interval(h, t.dim(d)), Interval(0, h)}, d), d);
  }
  throw std::runtime_error("unknown operation " + op);
}

void runMapping(std::istream &is) {
  std::size_t n = 0, begin = 0, end = 0;
  unsigned tile = 0;
  is >> n;
  Device device = emulatedDevice(8);
  Graph graph(device);
  Tensor t = graph.addVariable(INT, {n}, "t");
  while (is >> begin >> end >> tile)
    graph.setTileMapping(t.slice(begin, end), tile);
  std::vector<int> tiles(n, -1);
  std::size_t intervals = 0;
  bool complete = false;
  const auto mapping = graph.getTileMapping(t, &complete);
  for (std::size_t k = 0; k < mapping.size(); ++k)
    for (const Interval &i : mapping[k]) {
      ++intervals;
      for (std::size_t e = i.begin(); e < i.end(); ++e)
        tiles[e] = static_cast<int>(k);
    }
  std::cout << "{\"tiles\":" << jsonList(tiles) << ",\"intervals\":" << intervals
            << ",\"complete\":" << (complete ? "true" : "false") << "}" << std::endl;
}

// Of each element of the flattened view, where in its variable it is.
std::vector<std::size_t> addresses(const Tensor &t) {
  std::vector<std::size_t> r;
  for (const VariableInterval &v : t.getVarRegions())
    for (std::size_t i = v.interval.begin(); i < v.interval.end(); ++i)
      r.push_back(i);
  return r;
}

// The tile of each element of the flattened view.
std::vector<unsigned> tilesOf(const Graph &graph, const Tensor &t) {
  std::vector<unsigned> r(t.numElements());
  const auto mapping = graph.getTileMapping(t);
  for (unsigned tile = 0; tile < mapping.size(); ++tile)
    for (const Interval &i : mapping[tile])
      std::fill(r.begin() + i.begin(), r.begin() + i.end(), tile);
  return r;
}

// Clones by each method, and two at a time with what is on one tile together.
std::string clones(Graph &graph, const Tensor &view) {
  std::ostringstream os;
  const std::pair<const char *, TensorCloneMethod> methods[] = {
      {"new", TensorCloneMethod::CREATE_NEW_ORDER},
      {"order", TensorCloneMethod::PRESERVE_ORDER_UNLESS_ALIASES},
      {"all", TensorCloneMethod::PRESERVE_ORDER_AND_ALIASES},
      {"gather", TensorCloneMethod::GATHER_AND_PRESERVE_TILE_ORDER_AND_ALIASES}};
  bool likewise = true;
  for (const auto &m : methods) {
    const Tensor c = graph.clone(FLOAT, view, "clone", m.second);
    likewise = likewise && c.elementType() == FLOAT && c.shape() == view.shape() &&
               tilesOf(graph, c) == tilesOf(graph, view);
    os << ",\"" << m.first << "\":" << jsonList(addresses(c));
  }
  const Tensor two =
      graph.cloneN(view, 2, "two", methods[3].second,
                   TensorCloneDuplicationMethod::DUPLICATE_BY_TILE_CONTIGUOUS_REGION);
  for (unsigned i = 0; i < 2; ++i) {
    likewise = likewise && two[i].shape() == view.shape() &&
               tilesOf(graph, two[i]) == tilesOf(graph, view);
    os << ",\"two" << i << "\":" << jsonList(addresses(two[i]));
  }
  os << ",\"tiles\":" << jsonList(tilesOf(graph, view))
     << ",\"likewise\":" << (likewise ? "true" : "false");
  return os.str();
}

void run(const std::string &line) {
  std::istringstream is(line);
  if (line.compare(0, 4, "map ") == 0) {
    is.ignore(4);
    return runMapping(is);
  }
  const std::vector<std::size_t> shape = readSizes(is);
  Device device = emulatedDevice(5);
  Graph graph(device);
  Tensor base = graph.addVariable(INT, shape, VariableMappingMethod::LINEAR, "base");
  Tensor other = graph.addVariable(INT, {4096}, VariableMappingMethod::LINEAR, "other");
  std::vector<int> count(base.numElements()), otherCount(4096);
  for (std::size_t i = 0; i < count.size(); ++i)
    count[i] = static_cast<int>(i);
  for (std::size_t i = 0; i < otherCount.size(); ++i)
    otherCount[i] = static_cast<int>(100000 + i);
  graph.setInitialValue<int>(base, count);
  graph.setInitialValue<int>(other, otherCount);

  Tensor view = base;
  for (std::string op; is >> op;)
    view = apply(view, other, op, is);

  Tensor out = graph.addVariable(INT, view.shape(), VariableMappingMethod::LINEAR, "out");
  graph.createHostRead("out", out);
  graph.createHostRead("view", view);
  graph.createHostRead("base", base);
  const bool writeable = view.isParallelWriteable();
  Sequence prog{Copy(view, out)};
  Sequence back;
  if (writeable) {
    Tensor in = graph.addVariable(INT, view.shape(), VariableMappingMethod::LINEAR, "in");
    std::vector<int> negative(view.numElements());
    for (std::size_t i = 0; i < negative.size(); ++i)
      negative[i] = -1 - static_cast<int>(i);
    graph.setInitialValue<int>(in, negative);
    back.add(Copy(in, view));
  }
  Engine engine(graph, {prog, back});
  engine.load(device);
  engine.run(0);
  const auto copied = readTensor<int>(engine, "out", view.numElements());
  const auto read = readTensor<int>(engine, "view", view.numElements());
  engine.run(1);
  const auto after = readTensor<int>(engine, "base", base.numElements());

  std::size_t mapped = 0; // elements by the intervals of the mapping: must cover the view once
  for (const auto &tile : graph.getTileMapping(view))
    for (const Interval &i : tile)
      mapped += i.size();
  std::size_t inRegions = 0;
  std::vector<std::size_t> aliases, bounds;
  for (const auto &r :
       graph.getSortedContiguousRegions(view, {Interval(0, view.numElements())}, false, &aliases))
    for (const Interval &i : r) {
      inRegions += i.size();
      bounds.insert(bounds.end(), {i.begin(), i.end()});
    }
  std::cout << "{\"shape\":" << jsonList(view.shape()) << ",\"copied\":" << jsonList(copied)
            << ",\"read\":" << jsonList(read) << ",\"writeable\":" << (writeable ? "true" : "false")
            << ",\"base\":" << jsonList(after) << ",\"mapped\":" << mapped
            << ",\"sorted\":" << inRegions << ",\"bounds\":" << jsonList(bounds)
            << ",\"aliases\":" << jsonList(aliases)
            << ",\"regions\":" << view.getContiguousRegions().size() << clones(graph, view) << "}"
            << std::endl;
}

} // namespace

int main() {
  for (std::string line; std::getline(std::cin, line);) {
    try {
      run(line);
    } catch (const std::exception &e) {
      std::cout << "{\"error\":" << quoted(e.what()) << "}" << std::endl;
    }
  }
}
