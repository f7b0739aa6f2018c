// SPDX-License-Identifier: Apache-2.0
#include "liveness.hpp"

#include <set>

namespace poplar {
namespace core {

void merge(std::vector<Extent> &extents) {
  std::sort(extents.begin(), extents.end(), [](const Extent &a, const Extent &b) {
    return a.var != b.var ? a.var < b.var : a.begin < b.begin;
  });
  std::size_t n = 0;
  for (const Extent &e : extents) {
    if (e.begin == e.end)
      continue;
    if (n == 0 || !extend(extents[n - 1], e))
      extents[n++] = e;
  }
  extents.resize(n);
}

namespace {

// Elements that no step and no tile's border tells apart are one atom. Those of a variable have
// consecutive numbers.
using Range = std::pair<unsigned, unsigned>;

struct Atom {
  unsigned tile;
  std::uint64_t bytes;
  VarId var;
};

// What a step does, first in elements, then in atoms.
struct StepUse {
  std::vector<Extent> reads, writes;
  std::vector<Range> readAtoms, writtenAtoms;
  std::vector<Range> startingAtoms; // written and not read: not live before
  const std::vector<std::pair<unsigned, std::uint64_t>> *temporaries = nullptr;
};

// A set of atoms with its bytes on each tile.
class Live {
public:
  Live(const std::vector<Atom> &atoms, unsigned tiles)
      : atoms_(&atoms), bits_(atoms.size(), 0), onTile_(tiles, 0) {}
  void add(const std::vector<Range> &ranges) {
    for (const Range &r : ranges)
      for (unsigned a = r.first; a < r.second; ++a)
        set(a, 1);
  }
  void add(const Live &other) {
    for (unsigned a = 0; a < bits_.size(); ++a)
      if (other.bits_[a])
        set(a, 1);
  }
  void remove(const std::vector<Range> &ranges) {
    for (const Range &r : ranges)
      for (unsigned a = r.first; a < r.second; ++a)
        set(a, 0);
  }
  bool contains(unsigned atom) const { return bits_[atom] != 0; }
  bool sameAs(const Live &other) const { return bits_ == other.bits_; }
  const std::vector<std::uint64_t> &onTile() const { return onTile_; }

private:
  void set(unsigned atom, char to) {
    if (bits_[atom] == to)
      return;
    bits_[atom] = to;
    const Atom &a = (*atoms_)[atom];
    if (a.tile == noTile)
      return;
    if (to)
      onTile_[a.tile] += a.bytes;
    else
      onTile_[a.tile] -= a.bytes;
  }

  const std::vector<Atom> *atoms_;
  std::vector<char> bits_;
  std::vector<std::uint64_t> onTile_;
};

class Liveness {
public:
  Liveness(const GraphImpl &graph, ArrayRef<program::Program> programs,
           const std::vector<ComputeSetUse> &computeSets, const std::vector<std::uint64_t> &always,
           sparq::emulator::MemoryCount &count)
      : g_(graph), computeSets_(computeSets), always_(always), count_(count) {
    for (const program::Program &p : programs)
      collect(p);
    for (const auto &h : g_.hostReads)
      add(hostReads_.reads, h.second);
    merge(hostReads_.reads);
    makeAtoms();
    Live between(atoms_, tiles()); // what some program, or the host, may read next
    between.add(hostReads_.readAtoms);
    for (Live before(between);; before = between) {
      for (const program::Program &p : programs) {
        Live live(before);
        pass(p, live, "");
        between.add(live);
      }
      if (between.sameAs(before))
        break;
    }
    recording_ = true;
    for (const program::Program &p : programs) {
      Live live(between);
      record(live, nullptr, "");
      pass(p, live, "");
    }
    nameAlwaysLive(between);
  }

private:
  unsigned tiles() const { return static_cast<unsigned>(always_.size()); }

  // ---- what each step reads and writes

  static void add(std::vector<Extent> &to, const Tensor &t) {
    if (t.valid())
      forEachRegion(Access::impl(t),
                    [&](VarId v, std::size_t b, std::size_t n) { to.push_back({v, b, b + n}); });
  }

  void collect(const program::Program &program) {
    const std::shared_ptr<ProgramImpl> &impl = Access::impl(program);
    if (!impl || !collected_.insert(impl.get()).second)
      return;
    const ProgramImpl &p = *impl;
    StepUse use;
    switch (p.kind) {
    case ProgramKind::Sequence:
    case ProgramKind::Repeat:
    case ProgramKind::While:
    case ProgramKind::If:
    case ProgramKind::Switch:
      add(use.reads, p.predicate);
      for (const program::Program &child : p.children)
        collect(child);
      break;
    case ProgramKind::Call:
      return collect(g_.functions[p.function.getId()]);
    case ProgramKind::Execute: {
      const ComputeSetUse &cs = computeSets_[p.computeSet.getId()];
      use.reads = cs.reads;
      use.writes = cs.writes;
      use.temporaries = &cs.temporaries;
      add(use.writes, p.predicate);
      break;
    }
    case ProgramKind::CopyTensor:
    case ProgramKind::CopyFromStream:
    case ProgramKind::CopyToStream:
    case ProgramKind::CopyFromRemote:
    case ProgramKind::CopyToRemote:
    case ProgramKind::WriteUndef:
    case ProgramKind::Print:
    case ProgramKind::Error:
    case ProgramKind::CycleStamp:
      add(use.reads, p.src);
      add(use.reads, p.offset);
      add(use.reads, p.predicate);
      add(use.writes, p.dst);
      break;
    case ProgramKind::Sync:
    case ProgramKind::Nothing:
      return;
    }
    merge(use.reads);
    merge(use.writes);
    uses_.emplace(impl.get(), std::move(use));
  }

  // ---- atoms

  void makeAtoms() {
    std::vector<std::vector<std::size_t>> cuts(g_.variables.size());
    auto cut = [&](const std::vector<Extent> &extents) {
      for (const Extent &e : extents) {
        cuts[e.var].push_back(e.begin);
        cuts[e.var].push_back(e.end);
      }
    };
    for (const auto &use : uses_) {
      cut(use.second.reads);
      cut(use.second.writes);
    }
    cut(hostReads_.reads);
    begins_.resize(g_.variables.size());
    firstAtom_.resize(g_.variables.size());
    for (VarId v = 0; v < g_.variables.size(); ++v) {
      const Variable &variable = g_.variables[v];
      firstAtom_[v] = static_cast<unsigned>(atoms_.size());
      if (cuts[v].empty())
        continue; // no step uses it
      std::vector<std::size_t> &at = cuts[v];
      at.push_back(0);
      at.push_back(variable.numElements);
      for (const auto &part : variable.tiles.parts()) {
        at.push_back(part.first);
        at.push_back(part.second.end);
      }
      std::sort(at.begin(), at.end());
      at.erase(std::unique(at.begin(), at.end()), at.end());
      for (std::size_t i = 0; i + 1 < at.size(); ++i) {
        begins_[v].push_back(at[i]);
        variable.tiles.forEach(at[i], at[i] + 1, [&](std::size_t, std::size_t, unsigned tile) {
          atoms_.push_back({tile, (at[i + 1] - at[i]) * typeSize(variable.type), v});
        });
      }
    }
    for (auto &use : uses_)
      toAtoms(use.second);
    toAtoms(hostReads_);
  }

  // The atom that begins at an element, or the one behind the variable's last.
  unsigned atomAt(VarId v, std::size_t element) const {
    const std::vector<std::size_t> &begins = begins_[v];
    return firstAtom_[v] +
           static_cast<unsigned>(std::lower_bound(begins.begin(), begins.end(), element) -
                                 begins.begin());
  }

  void toAtoms(StepUse &use) const {
    for (const Extent &e : use.reads)
      use.readAtoms.emplace_back(atomAt(e.var, e.begin), atomAt(e.var, e.end));
    for (const Extent &e : use.writes)
      use.writtenAtoms.emplace_back(atomAt(e.var, e.begin), atomAt(e.var, e.end));
    auto read = use.readAtoms.begin(); // both in ascending order, as extents are
    for (Range w : use.writtenAtoms) {
      while (read != use.readAtoms.end() && read->second <= w.first)
        ++read;
      for (auto r = read; r != use.readAtoms.end() && r->first < w.second; ++r) {
        if (w.first < r->first)
          use.startingAtoms.emplace_back(w.first, r->first);
        w.first = std::max(w.first, r->second);
      }
      if (w.first < w.second)
        use.startingAtoms.push_back(w);
    }
  }

  // ---- backwards through programs

  // Turns what is live behind a program into what is live before it.
  void pass(const program::Program &program, Live &live, const std::string &parent) {
    const std::shared_ptr<ProgramImpl> &impl = Access::impl(program);
    if (!impl)
      return;
    const ProgramImpl &p = *impl;
    const std::string &name = p.name.empty() ? parent : p.name;
    switch (p.kind) {
    case ProgramKind::Sequence:
      for (std::size_t i = p.children.size(); i-- > 0;)
        pass(p.children[i], live, name);
      return;
    case ProgramKind::Call:
      return pass(g_.functions[p.function.getId()], live, name);
    case ProgramKind::Repeat:
      if (p.count > 1)
        passRepeat(p, live, name);
      else if (p.count == 1)
        pass(p.children[0], live, name);
      return;
    case ProgramKind::While:
      return passWhile(p, live, name);
    case ProgramKind::If:
    case ProgramKind::Switch: {
      Live before(atoms_, tiles());
      for (const program::Program &child : p.children) {
        Live branch(live);
        pass(child, branch, name);
        before.add(branch);
      }
      before.add(uses_.at(&p).readAtoms);
      live = std::move(before);
      return;
    }
    case ProgramKind::Execute:
    case ProgramKind::CopyTensor:
    case ProgramKind::CopyFromStream:
    case ProgramKind::CopyToStream:
    case ProgramKind::CopyFromRemote:
    case ProgramKind::CopyToRemote:
    case ProgramKind::WriteUndef:
    case ProgramKind::Print:
    case ProgramKind::Error:
    case ProgramKind::CycleStamp:
      return passStep(p, live, name);
    case ProgramKind::Sync:
    case ProgramKind::Nothing:
      return;
    }
    throwUnknown("liveness: class of program", p.kind);
  }

  // Calls `round`, from what is live behind a round to what is live before it, until what is live
  // behind the last is live behind each.
  template <class Round> void settle(Live &behind, Round round) {
    const bool recording = recording_;
    recording_ = false;
    for (;;) {
      Live all(behind), before(behind);
      round(before);
      all.add(before);
      if (all.sameAs(behind))
        break;
      behind = std::move(all);
    }
    recording_ = recording;
  }

  void passRepeat(const ProgramImpl &p, Live &live, const std::string &name) {
    settle(live, [&](Live &round) { pass(p.children[0], round, name); });
    pass(p.children[0], live, name);
  }

  // The condition runs once more than the body: it is what the loop begins and ends with.
  void passWhile(const ProgramImpl &p, Live &live, const std::string &name) {
    live.add(uses_.at(&p).readAtoms);
    settle(live, [&](Live &round) {
      pass(p.children[0], round, name);
      pass(p.children[1], round, name);
    });
    pass(p.children[0], live, name);
    if (recording_) {
      Live body(live);
      pass(p.children[1], body, name);
    }
  }

  void passStep(const ProgramImpl &p, Live &live, const std::string &name) {
    const StepUse &use = uses_.at(&p);
    live.add(use.writtenAtoms);
    live.add(use.readAtoms);
    record(live, use.temporaries,
           p.kind == ProgramKind::Execute && p.name.empty() &&
                   !g_.computeSets[p.computeSet.getId()].name.empty()
               ? g_.computeSets[p.computeSet.getId()].name
               : name);
    live.remove(use.startingAtoms);
  }

  // ---- figures

  void record(const Live &live, const std::vector<std::pair<unsigned, std::uint64_t>> *temporaries,
              const std::string &step) {
    if (!recording_)
      return;
    std::vector<std::uint64_t> bytes(live.onTile());
    if (temporaries)
      for (const auto &t : *temporaries)
        bytes[t.first] += t.second;
    for (unsigned t = 0; t < bytes.size(); ++t)
      if (bytes[t] + always_[t] > count_.liveBytes) {
        count_.liveBytes = bytes[t] + always_[t];
        count_.liveTile = t;
        count_.liveStep = step;
      }
  }

  void nameAlwaysLive(const Live &between) {
    std::map<VarId, std::uint64_t> bytes;
    for (unsigned a = 0; a < atoms_.size(); ++a)
      if (between.contains(a) && !g_.variables[atoms_[a].var].constant)
        bytes[atoms_[a].var] += atoms_[a].bytes;
    for (const auto &v : bytes)
      count_.alwaysLive.push_back({g_.variables[v.first].name, v.second});
    std::stable_sort(count_.alwaysLive.begin(), count_.alwaysLive.end(),
                     [](const auto &a, const auto &b) { return a.bytes > b.bytes; });
  }

  const GraphImpl &g_;
  const std::vector<ComputeSetUse> &computeSets_;
  const std::vector<std::uint64_t> &always_;
  sparq::emulator::MemoryCount &count_;
  std::set<const ProgramImpl *> collected_;
  std::map<const ProgramImpl *, StepUse> uses_;
  StepUse hostReads_;
  std::vector<Atom> atoms_;
  std::vector<unsigned> firstAtom_;              // by variable
  std::vector<std::vector<std::size_t>> begins_; // by variable: where its atoms begin
  bool recording_ = false;
};

} // namespace

void countLive(const GraphImpl &graph, ArrayRef<program::Program> programs,
               const std::vector<ComputeSetUse> &computeSets,
               const std::vector<std::uint64_t> &always, sparq::emulator::MemoryCount &count) {
  Liveness(graph, programs, computeSets, always, count);
}

} // namespace core
} // namespace poplar
