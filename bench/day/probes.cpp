// SPDX-License-Identifier: Apache-2.0
//
// Small programs that each do one thing of which the device model has a rule, often, between two
// readings of a tile's cycle counter. rules.py sets what a device takes for it beside the rule. A
// part of sparq_ipu._core, which wheels for other machines leave out (SPARQ_PROBES).
#include "codelets/cache.cycles.hpp"
#include "codelets/scores.cycles.hpp"
#include "timed.hpp"
#include "vertex.hpp"
#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <numeric>

namespace sparq {
namespace {

using namespace poplar;
using namespace poplar::program;

constexpr std::size_t wordBytes = 4;

using Sizes = std::map<std::string, unsigned>;

// What a probe adds to a graph of one IPU or several.
struct ProbeGraph {
  Graph &graph;
  const Sizes &sizes;
  Sequence body;                                     // timed
  std::vector<std::function<void(Engine &)>> onLoad; // before it runs

  unsigned size(const char *name) const { return sizes.at(name); }
  unsigned nTiles() const { return graph.getTarget().getNumTiles(); }
};

Tensor onTile(ProbeGraph &to, const Type &type, const std::vector<std::size_t> &shape,
              unsigned tile, const std::string &name) {
  const Tensor tensor = to.graph.addVariable(type, shape, name);
  to.graph.setTileMapping(tensor, tile);
  return tensor;
}

// {nTiles, words}, a row on each tile of a range.
Tensor onTiles(ProbeGraph &to, std::size_t words, unsigned first, unsigned end,
               const std::string &name) {
  const Tensor tensor = to.graph.addVariable(UNSIGNED_INT, {end - first, words}, name);
  for (unsigned tile = first; tile != end; ++tile)
    to.graph.setTileMapping(tensor[tile - first], tile);
  return tensor;
}

void setWords(ProbeGraph &to, const Tensor &tensor, unsigned value) {
  to.graph.setInitialValue(tensor,
                           ArrayRef<unsigned>(std::vector<unsigned>(tensor.numElements(), value)));
}

// A vertex on each tile that does next to nothing.
ComputeSet emptySet(ProbeGraph &to) {
  const Tensor counters = onTiles(to, 1, 0, to.nTiles(), "counters");
  setWords(to, counters, 0);
  const ComputeSet cs = to.graph.addComputeSet("empty");
  for (unsigned tile = 0; tile != to.nTiles(); ++tile)
    addVertex(to.graph, cs, "sparq::NextBlock", tile, cycles::nextBlock(),
              "position"_f = counters[tile][0]);
  return cs;
}

void computeSets(ProbeGraph &to) {
  const ComputeSet cs = emptySet(to);
  for (unsigned i = 0; i != to.size("n"); ++i)
    to.body.add(Execute(cs, {"compute_set"}));
}

void syncs(ProbeGraph &to) {
  for (unsigned i = 0; i != to.size("n"); ++i)
    to.body.add(Sync(SyncType::INTERNAL, {"sync"}));
}

// Of a copy the program has one, whose code may be large.
Program often(const ProbeGraph &to, const Program &copy) {
  return Repeat(to.size("n"), copy, {"often"});
}

void repeats(ProbeGraph &to) {
  to.body.add(Repeat(to.size("n"), Execute(emptySet(to), {"compute_set"}), {"repeat"}));
}

// With nothing to do, whichever way it goes.
void branches(ProbeGraph &to) {
  const Tensor taken = onTile(to, BOOL, {}, to.nTiles() - 1, "taken");
  to.graph.setInitialValue(taken, to.size("taken") != 0);
  for (unsigned i = 0; i != to.size("n"); ++i)
    to.body.add(If(taken, Sequence(), Sequence(), {"if"}));
}

// Passes of a loop without a body: what decides whether there is another.
void loops(ProbeGraph &to) {
  const unsigned tile = to.nTiles() - 1;
  const Tensor longest = onTile(to, UNSIGNED_INT, {6}, tile, "longest"),
               wave = onTile(to, UNSIGNED_INT, {}, tile, "wave"),
               more = onTile(to, BOOL, {}, tile, "more");
  setWords(to, longest, to.size("n"));
  const Tensor before = to.graph.addConstant(UNSIGNED_INT, {}, ~0u, {"before"});
  to.graph.setTileMapping(before, tile);
  const ComputeSet cs = to.graph.addComputeSet("next");
  addVertex(to.graph, cs, "sparq::NextWave", tile, cycles::nextWave(), "longest"_f = longest,
            "wave"_f = wave, "more"_f = more, "stride"_f = 1u);
  to.body.add(Copy(before, wave, false, {"start"}));
  to.body.add(
      RepeatWhileTrue(Sequence({Execute(cs, {"next"})}), more, Sequence(), {"repeat_while_true"}));
}

// Every tile gets `bytes`, in so many pieces that neither lie side by side where they come from nor
// may be joined on their way; from the next tile, or from as many as there are pieces.
void exchanges(ProbeGraph &to) {
  const unsigned pieces = to.size("pieces"), senders = to.size("senders");
  const std::size_t words = to.size("bytes") / wordBytes, width = words / pieces;
  if (width == 0 || width * pieces * wordBytes != to.size("bytes"))
    throw Error("probe: bytes must be a multiple of 4 * pieces=" + std::to_string(pieces) +
                ", got " + std::to_string(to.size("bytes")));
  const unsigned nTiles = to.nTiles();
  const Tensor source = onTiles(to, 2 * words, 0, nTiles, "source"),
               target = onTiles(to, words, 0, nTiles, "target");
  setWords(to, source, 1);
  std::vector<Tensor> from;
  for (unsigned tile = 0; tile != nTiles; ++tile)
    for (unsigned piece = 0; piece != pieces; ++piece)
      from.push_back(source[(tile + 1 + piece % senders) % nTiles].slice(2 * piece * width,
                                                                         (2 * piece + 1) * width));
  to.body.add(often(to, Copy(concat(from), target.flatten(), false, {"exchange"})));
}

// Every tile puts `bytes` of its own side by side, of so many pieces.
void localCopies(ProbeGraph &to) {
  const unsigned pieces = to.size("pieces");
  const std::size_t width = to.size("bytes") / wordBytes / pieces;
  if (width == 0 || width * pieces * wordBytes != to.size("bytes"))
    throw Error("probe: bytes must be a multiple of 4 * pieces=" + std::to_string(pieces) +
                ", got " + std::to_string(to.size("bytes")));
  const Tensor source = onTiles(to, 2 * width * pieces, 0, to.nTiles(), "source"),
               target = onTiles(to, width * pieces, 0, to.nTiles(), "target");
  setWords(to, source, 1);
  const Tensor every = source.reshape({to.nTiles(), pieces, 2, width});
  to.body.add(often(to, Copy(every.slice(0, 1, 2).flatten(), target.flatten(), false, {"local"})));
}

void broadcasts(ProbeGraph &to) {
  const std::size_t words = to.size("bytes") / wordBytes;
  const Tensor source = onTile(to, UNSIGNED_INT, {1, words}, 0, "source"),
               target = onTiles(to, words, 0, to.nTiles(), "target");
  setWords(to, source, 1);
  to.body.add(often(to, Copy(source.broadcast(to.nTiles(), 0), target, false, {"broadcast"})));
}

// From each tile of the first IPU to the same one of the second.
void linkCopies(ProbeGraph &to) {
  if (to.graph.getTarget().getNumIPUs() < 2)
    throw Error("probe: n_ipus must be at least 2 for link, got 1");
  const unsigned tiles = to.graph.getTarget().getTilesPerIPU();
  const std::size_t words = to.size("bytes") / wordBytes;
  const Tensor source = onTiles(to, words, 0, tiles, "source"),
               target = onTiles(to, words, tiles, 2 * tiles, "target");
  setWords(to, source, 1);
  to.body.add(often(to, Copy(source, target, false, {"link"})));
}

// Rows of a remote buffer of each IPU, in no order, to or from its first `tiles` tiles (0: all).
// The copies of several IPUs follow each other.
void remoteCopies(ProbeGraph &to, bool read) {
  const unsigned nIpus = to.graph.getTarget().getNumIPUs(),
                 tilesPerIpu = to.graph.getTarget().getTilesPerIPU(), nRows = to.size("rows");
  const std::size_t words = to.size("row_bytes") / wordBytes;
  const unsigned tiles =
      to.size("tiles") == 0 ? tilesPerIpu : std::min(to.size("tiles"), tilesPerIpu);
  const unsigned each = (nRows + tiles - 1) / tiles;
  unsigned stride = nRows * 5 / 8 + 1; // from a row to the next
  while (std::gcd(stride, nRows) != 1) // then none comes twice
    ++stride;
  Sequence copies;
  for (unsigned ipu = 0; ipu != nIpus; ++ipu) {
    const std::string name = "rows" + std::to_string(ipu);
    const RemoteBuffer buffer = to.graph.addRemoteBuffer(name, UNSIGNED_INT, words, nRows);
    const Tensor landing = to.graph.addVariable(UNSIGNED_INT, {nRows, words}, name),
                 offsets = to.graph.addVariable(UNSIGNED_INT, {nRows}, name + "/offsets");
    for (unsigned first = 0, tile = ipu * tilesPerIpu; first < nRows; first += each, ++tile)
      for (const Tensor &t : {landing, offsets})
        to.graph.setTileMapping(t.slice(first, std::min(first + each, nRows)), tile);
    std::vector<unsigned> row(nRows);
    for (unsigned i = 0; i != nRows; ++i)
      row[i] = static_cast<unsigned>(std::uint64_t(i) * stride % nRows);
    to.graph.setInitialValue(offsets, ArrayRef<unsigned>(row));
    setWords(to, landing, 1);
    copies.add(read ? Copy(buffer, landing, offsets, {"remote_read"})
                    : Copy(landing, buffer, offsets, {"remote_write"}));
  }
  to.body.add(often(to, copies));
}

// Between the host and all tiles.
void hostCopies(ProbeGraph &to, bool write) {
  const std::size_t words = (to.size("bytes") / wordBytes / to.nTiles() + 1) * to.nTiles();
  const Tensor tensor = onTiles(to, words / to.nTiles(), 0, to.nTiles(), "tensor");
  setWords(to, tensor, 1);
  const auto data = std::make_shared<std::vector<unsigned>>(words);
  const DataStream stream = write ? to.graph.addHostToDeviceFIFO("host", UNSIGNED_INT, words)
                                  : to.graph.addDeviceToHostFIFO("host", UNSIGNED_INT, words);
  to.onLoad.push_back([data](Engine &engine) {
    engine.connectStream("host", data->data(), data->data() + data->size());
  });
  to.body.add(often(to, write ? Copy(stream, tensor.flatten(), false, {"host_write"})
                              : Copy(tensor.flatten(), stream, false, {"host_read"})));
}

struct Kind {
  const char *name;
  std::vector<const char *> sizes;
  std::function<void(ProbeGraph &)> add;
};

// `n`: how often, one after the other.
const std::vector<Kind> &kinds() {
  static const std::vector<Kind> all{
      {"nothing", {}, [](ProbeGraph &) {}},
      {"compute_set", {"n"}, computeSets},
      {"sync", {"n"}, syncs},
      {"repeat", {"n"}, repeats},
      {"if", {"n", "taken"}, branches},
      {"repeat_while_true", {"n"}, loops},
      {"exchange", {"n", "bytes", "pieces", "senders"}, exchanges},
      {"broadcast", {"n", "bytes"}, broadcasts},
      {"local_copy", {"n", "bytes", "pieces"}, localCopies},
      {"link", {"n", "bytes"}, linkCopies},
      {"remote_read",
       {"n", "rows", "row_bytes", "tiles"},
       [](ProbeGraph &to) { remoteCopies(to, true); }},
      {"remote_write",
       {"n", "rows", "row_bytes", "tiles"},
       [](ProbeGraph &to) { remoteCopies(to, false); }},
      {"host_write", {"n", "bytes"}, [](ProbeGraph &to) { hostCopies(to, true); }},
      {"host_read", {"n", "bytes"}, [](ProbeGraph &to) { hostCopies(to, false); }},
  };
  return all;
}

// Throws Error for another kind, and for sizes that are not its own or out of range.
void addProbe(const std::string &kind, ProbeGraph &to) {
  std::string names;
  for (const Kind &known : kinds()) {
    if (known.name != kind) {
      names += (names.empty() ? "" : ", ") + std::string(known.name);
      continue;
    }
    std::string wanted, given;
    std::vector<std::string> sorted(known.sizes.begin(), known.sizes.end());
    std::sort(sorted.begin(), sorted.end());
    for (const std::string &name : sorted)
      wanted += " " + name;
    for (const auto &[name, value] : to.sizes) {
      given += " " + name;
      if (value == 0 && name != "tiles" && name != "taken")
        throw Error("probe: " + name + " must be at least 1, got 0");
    }
    if (wanted != given)
      throw Error("probe: sizes of " + kind + " must be" + wanted + ", got" + given);
    known.add(to);
    return;
  }
  throw Error("probe: kind must be one of " + names + ", got " + kind);
}

class Probe final : public Timed {
public:
  Probe(const std::string &kind, const Sizes &sizes, const DeviceOptions &options)
      : Timed(options) {
    const pybind11::gil_scoped_release release;
    ProbeGraph probe{graph_, sizes, {}, {}};
    addProbe(kind, probe);
    load(probe.body);
    onLoad_ = std::move(probe.onLoad);
    for (const auto &prepare : onLoad_)
      prepare(*engine_);
  }

private:
  std::vector<std::function<void(Engine &)>> onLoad_; // with the memory that streams use
};

} // namespace

void bindProbes(pybind11::module_ &module) {
  namespace py = pybind11;
  py::class_<Probe, Timed>(module, "Probe")
      .def(py::init([](const std::string &kind, const Sizes &sizes,
                       const std::optional<DeviceOptions> &options, const std::string &device) {
             DeviceOptions made = options.value_or(DeviceOptions{});
             made.device = device;
             return std::make_unique<Probe>(kind, sizes, made);
           }),
           py::arg("kind"), py::arg("sizes"), py::kw_only(), py::arg("options") = py::none(),
           py::arg("device") = "emulator");
}

} // namespace sparq
