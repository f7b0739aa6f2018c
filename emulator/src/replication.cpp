// SPDX-License-Identifier: Apache-2.0
#include "replication.hpp"

#include "elements.hpp"

namespace poplar {
namespace core {

using codelet_abi::Direction;

namespace {

// Follows, through programs in their order, which elements may differ between replicas. Whatever is
// computed from equal values is equal: vertices are taken to be functions of what they read.
class Replicas {
public:
  Replicas(const GraphImpl &graph, ArrayRef<program::Program> programs) : g_(graph) {
    // Programs run in any order, with writes of the host between them.
    ElementSet start = before(), grown = start;
    do {
      start = grown;
      for (const program::Program &p : programs) {
        differing_ = start;
        run(p);
        grown.add(differing_);
      }
    } while (!sameElements(grown, start));
  }

private:
  // Before any program runs.
  ElementSet before() {
    ElementSet s;
    for (VarId v = 0; v < g_.variables.size(); ++v) {
      const Variable &variable = g_.variables[v];
      if (variable.replicaIndex)
        s[v].add(0, 1, reason("the index of the replica"));
      if (variable.constant)
        continue;
      Elements &elements = s[v];
      elements.add(0, variable.numElements,
                   reason("variable '" + variable.name + "', which nothing has written"));
      for (const InitialValues &i : variable.initial)
        elements.remove(i.begin, i.begin + i.bytes.size() / typeSize(variable.type));
    }
    for (const auto &h : g_.hostWrites) {
      s.remove(h.second);
      s.add(h.second, reason("host write '" + h.first + "'"));
    }
    return s;
  }

  unsigned reason(const std::string &text) {
    const auto it = numbers_.emplace(text, static_cast<unsigned>(reasons_.size()));
    if (it.second)
      reasons_.push_back(text);
    return it.first->second;
  }

  // What a step makes of `t`: equal on all replicas, or differing for a reason. Where replicas have
  // parted, what any of them writes differs from what the others keep.
  void set(const Tensor &t, bool differs, unsigned why) {
    if (parted_) {
      differs = true;
      why = whyParted_;
    }
    differing_.remove(t);
    if (differs)
      differing_.add(t, why);
  }

  void run(const program::Program &program) {
    const std::shared_ptr<ProgramImpl> &impl = Access::impl(program);
    if (impl)
      runStep(*impl);
  }

  void runStep(const ProgramImpl &p) {
    unsigned why = 0;
    switch (p.kind) {
    case ProgramKind::Nothing:
    case ProgramKind::Sync:
    case ProgramKind::Print:
    case ProgramKind::Error:
    case ProgramKind::CopyToStream:
    case ProgramKind::CopyToRemote:
      return;
    case ProgramKind::Sequence:
      for (const program::Program &child : p.children)
        run(child);
      return;
    case ProgramKind::Execute:
      return runComputeSet(p);
    case ProgramKind::Call:
      return run(g_.functions[p.function.getId()]);
    case ProgramKind::CopyTensor:
      return runCopy(p);
    case ProgramKind::AssumeEqual:
      differing_.remove(p.src);
      return;
    case ProgramKind::CopyFromStream: {
      const StreamInfo &stream = Access::info(p.stream);
      return set(p.dst, stream.mode != ReplicatedStreamMode::BROADCAST,
                 reason("stream '" + stream.handle + "'"));
    }
    case ProgramKind::CopyFromRemote:
      return set(p.dst, true, reason("remote buffer '" + Access::info(p.remote).handle + "'"));
    case ProgramKind::WriteUndef:
      return set(p.dst, true, reason("WriteUndef of " + tensorName(p.dst)));
    case ProgramKind::CycleStamp:
      return set(p.dst, true, reason("a count of cycles"));
    case ProgramKind::Repeat:
      if (p.count != 0)
        loop([&] {
          run(p.children[0]);
          return differing_;
        });
      return;
    case ProgramKind::While:
      return loop([&] {
        run(p.children[0]);
        const ElementSet end = differing_;
        const bool parts = checkBranch(p, p.flag ? "RepeatWhileTrue" : "RepeatWhileFalse", why);
        inBranch(parts, why, [&] {
          run(p.children[1]);
          if (parts) // some replicas go round once more
            run(p.children[0]);
        });
        return parts ? united(differing_, end) : end;
      });
    case ProgramKind::If:
    case ProgramKind::Switch: {
      const bool parts = checkBranch(p, p.kind == ProgramKind::If ? "If" : "Switch", why);
      const ElementSet start = differing_;
      ElementSet after;
      for (const program::Program &child : p.children) {
        differing_ = start;
        inBranch(parts, why, [&] { run(child); });
        after.add(differing_);
      }
      differing_ = after;
      return;
    }
    }
    throwUnknown("replication: class of program", p.kind);
  }

  static ElementSet united(ElementSet a, const ElementSet &b) {
    a.add(b);
    return a;
  }

  // `pass` runs one pass of a loop, of which there may be any number, and returns what differs
  // where the loop ends with it.
  template <class Pass> void loop(Pass pass) {
    ElementSet start, end;
    do {
      start = differing_;
      end = pass();
      differing_.add(start);
    } while (!sameElements(differing_, start));
    differing_ = end;
  }

  template <class Body> void inBranch(bool parts, unsigned why, Body body) {
    const bool parted = parted_;
    const unsigned whyParted = whyParted_;
    if (parts && !parted) {
      parted_ = true;
      whyParted_ = why;
    }
    body();
    parted_ = parted;
    whyParted_ = whyParted;
  }

  void runComputeSet(const ProgramImpl &p) {
    bool anyDiffers = false;
    unsigned whyAny = 0;
    // Vertices of a compute set do not see one another: all read first.
    std::vector<std::pair<const VertexRecord *, std::pair<bool, unsigned>>> results;
    for (vertex_id id : g_.computeSets[p.computeSet.getId()].vertices) {
      const VertexRecord &v = g_.vertices[id];
      bool differs = false;
      unsigned why = 0;
      for (const FieldRecord &f : v.fields)
        if (f.info->direction == Direction::Input || f.info->direction == Direction::InOut)
          for (const Tensor &t : f.edges)
            differs = differs || differing_.find(t, why);
      results.emplace_back(&v, std::make_pair(differs, why));
      if (differs && !anyDiffers)
        whyAny = why;
      anyDiffers = anyDiffers || differs;
    }
    for (const auto &r : results)
      for (const FieldRecord &f : r.first->fields)
        if (f.info->direction == Direction::Output || f.info->direction == Direction::InOut)
          for (const Tensor &t : f.edges)
            set(t, r.second.first, r.second.second);
    if (p.predicate.valid())
      set(p.predicate, anyDiffers, whyAny);
  }

  void runCopy(const ProgramImpl &p) {
    const ElementSet before = differing_;
    set(p.dst, false, 0);
    if (parted_)
      return;
    forEachPair(p.src, p.dst,
                [&](VarId from, std::size_t a, VarId to, std::size_t b, std::size_t n) {
                  const auto source = before.variables().find(from);
                  if (source == before.variables().end())
                    return;
                  const Elements &elements = source->second;
                  for (auto it = elements.find(a, a + n);
                       it != elements.parts().end() && it->first < a + n; ++it)
                    differing_[to].add(b + std::max(a, it->first) - a,
                                       b + std::min(a + n, it->second.end) - a, it->second.why);
                });
  }

  // Whether replicas may part at a branch; refuses those after which they would have to meet.
  bool checkBranch(const ProgramImpl &p, const char *op, unsigned &why) {
    if (!differing_.find(p.predicate, why))
      return false;
    for (const program::Program &child : p.children) {
      const std::string meeting = meetingIn(child);
      if (!meeting.empty())
        throw graph_replication_error(
            std::string(op) + (p.name.empty() ? "" : " '" + p.name + "'") + ": " +
            (p.kind == ProgramKind::Switch ? "control" : "predicate") +
            " must be the same on all " + std::to_string(g_.replication) +
            " replicas, for they meet inside at " + meeting + "; got " + tensorName(p.predicate) +
            ", which depends on " + reasons_[why]);
    }
    return true;
  }

  // The first step in which all replicas must take part, or nothing.
  std::string meetingIn(const program::Program &program) const {
    const std::shared_ptr<ProgramImpl> &impl = Access::impl(program);
    if (!impl)
      return "";
    const ProgramImpl &p = *impl;
    const std::string name = p.name.empty() ? "" : " '" + p.name + "'";
    switch (p.kind) {
    case ProgramKind::CopyFromStream:
    case ProgramKind::CopyToStream:
      return "copy" + name + " of stream '" + Access::info(p.stream).handle + "'";
    case ProgramKind::CopyFromRemote:
    case ProgramKind::CopyToRemote:
      return "copy" + name + " of remote buffer '" + Access::info(p.remote).handle + "'";
    case ProgramKind::CopyTensor:
      return p.ofAllReplicas ? "copy" + name + " between replicas" : "";
    case ProgramKind::Sync:
      return p.ofAllReplicas ? "sync" + name : "";
    case ProgramKind::Print:
      return "print" + name + " of " + tensorName(p.src);
    case ProgramKind::Call:
      return meetingIn(g_.functions[p.function.getId()]);
    case ProgramKind::Sequence:
    case ProgramKind::Repeat:
    case ProgramKind::While:
    case ProgramKind::If:
    case ProgramKind::Switch:
      for (const program::Program &child : p.children) {
        const std::string meeting = meetingIn(child);
        if (!meeting.empty())
          return meeting;
      }
      return "";
    case ProgramKind::Execute:
    case ProgramKind::WriteUndef:
    case ProgramKind::AssumeEqual:
    case ProgramKind::Error: // stops the program
    case ProgramKind::CycleStamp:
    case ProgramKind::Nothing:
      return "";
    }
    throwUnknown("replication: class of program", p.kind);
  }

  const GraphImpl &g_;
  ElementSet differing_;
  bool parted_ = false; // in a branch that not all replicas take
  unsigned whyParted_ = 0;
  std::vector<std::string> reasons_;
  std::map<std::string, unsigned> numbers_; // of reasons
};

} // namespace

void checkReplicas(const GraphImpl &graph, ArrayRef<program::Program> programs) {
  if (graph.replication > 1)
    Replicas(graph, programs);
}

} // namespace core
} // namespace poplar
