// SPDX-License-Identifier: Apache-2.0
// All that control flow may depend on, run for real and dry: dry_run_control CODELETS.gp.
// A JSON line per case: how often each step ran, or the message of the exception.
#include <poplar/CycleCount.hpp>
#include <sparq_emulator/Counters.hpp>

#include <functional>
#include <memory>

#include "util.hpp"

using namespace poplar;
using namespace poplar::program;

namespace {

// A graph whose steps "yes" and "no" show which way control flow went.
struct Bench {
  Device device = emulatedDevice(2);
  Graph graph{device};
  Sequence program;

  explicit Bench(const std::string &codelets) { graph.addCodelets(codelets); }
  Tensor scalar(const Type &type, const char *name) {
    Tensor t = graph.addVariable(type, {}, name);
    graph.setTileMapping(t, 0);
    return t;
  }
  template <class T> Tensor scalar(const Type &type, const char *name, T value) {
    Tensor t = scalar(type, name);
    graph.setInitialValue(t, value);
    return t;
  }
  ComputeSet add(const char *name, const char *vertex, const char *state, unsigned value,
                 ArrayRef<Graph::ConnectionDesc> edges) {
    ComputeSet cs = graph.addComputeSet(name);
    VertexRef v = graph.addVertex(cs, vertex, edges);
    graph.setInitialValue(v[state], value);
    graph.setTileMapping(v, 0);
    graph.setPerfEstimate(v, 30);
    return cs;
  }
  Execute count(const char *name) {
    return Execute(
        add(name, "test::Count", "step", 1, {{"counter", scalar(UNSIGNED_INT, name, 0u)}}));
  }
  ComputeSet below(const Tensor &value, unsigned limit, const Tensor &flag) {
    return add("below", "test::Below", "limit", limit, {{"value", value}, {"below", flag}});
  }
  If branch(const Tensor &flag) { return If(flag, count("yes"), count("no")); }
};

using Case = std::function<void(Bench &)>;

std::vector<std::pair<std::string, Case>> cases() {
  std::vector<std::pair<std::string, Case>> c;
  c.emplace_back("never_written", [](Bench &b) {
    // First, and large: memory that the system hands out is 0, unlike an undefined bool.
    b.graph.addVariable(FLOAT, {100000}, VariableMappingMethod::LINEAR, "large");
    b.program.add(b.branch(b.scalar(BOOL, "flag")));
  });
  for (unsigned value : {9u, 10u}) {
    c.emplace_back("reported_" + std::to_string(value), [=](Bench &b) { // what compute() returned
      Tensor reported = b.scalar(BOOL, "reported", value > 9), other = b.scalar(BOOL, "other");
      Tensor i = b.scalar(UNSIGNED_INT, "i", 0u), from = b.scalar(UNSIGNED_INT, "from", value);
      b.program.add(Copy(from, i));
      b.program.add(Execute(b.below(i, 10, other), reported));
      b.program.add(b.branch(reported));
    });
    c.emplace_back("switch_" + std::to_string(value), [=](Bench &b) {
      Tensor control = b.scalar(UNSIGNED_INT, "control", value);
      b.program.add(Switch(control, {{9, b.count("yes")}}, b.count("no")));
    });
  }
  c.emplace_back("cycle_stamp", [](Bench &b) {
    Tensor more = b.scalar(BOOL, "more"), stamp = b.scalar(UNSIGNED_INT, "stamp");
    Sequence condition;
    Tensor now = cycleStamp(b.graph, condition, 0, SyncType::INTERNAL);
    condition.add(Copy(now[0], stamp));
    condition.add(Execute(b.below(stamp, 5000, more)));
    b.program.add(RepeatWhileTrue(condition, more, b.count("yes")));
  });
  c.emplace_back("cycle_count", [](Bench &b) { // the difference of two stamps
    b.program.add(b.count("before"));
    Sequence timed{b.count("timed")};
    Tensor cycles = cycleCount(b.graph, timed, 0, SyncType::INTERNAL);
    Tensor more = b.scalar(BOOL, "more");
    b.program.add(timed);
    b.program.add(Execute(b.below(cycles[0], 500, more))); // one step's cycles, not two steps'
    b.program.add(b.branch(more));
  });
  c.emplace_back("write_undef", [](Bench &b) {
    Tensor flag = b.scalar(BOOL, "flag", false);
    b.program.add(WriteUndef(flag));
    b.program.add(b.branch(flag));
  });
  c.emplace_back("beside_remote", [](Bench &b) { // a vertex of the same set that nothing depends on
    RemoteBuffer remote = b.graph.addRemoteBuffer("rows", UNSIGNED_INT, 1);
    Tensor row = b.scalar(UNSIGNED_INT, "row"), more = b.scalar(BOOL, "more");
    Tensor i = b.scalar(UNSIGNED_INT, "i", 9u);
    ComputeSet both = b.below(i, 10, more);
    VertexRef other = b.graph.addVertex(both, "test::Below",
                                        {{"value", row}, {"below", b.scalar(BOOL, "other")}});
    b.graph.setInitialValue(other["limit"], 10u);
    b.graph.setTileMapping(other, 0);
    b.graph.setPerfEstimate(other, 30);
    b.program.add(Copy(remote, row.reshape({1}), "load"));
    b.program.add(Execute(both));
    b.program.add(b.branch(more));
  });
  c.emplace_back("reported_from_remote", [](Bench &b) {
    RemoteBuffer remote = b.graph.addRemoteBuffer("rows", UNSIGNED_INT, 1);
    Tensor i = b.scalar(UNSIGNED_INT, "i"), reported = b.scalar(BOOL, "reported");
    b.program.add(Copy(remote, i.reshape({1}), "load"));
    b.program.add(Execute(b.below(i, 10, b.scalar(BOOL, "other")), reported));
    b.program.add(b.branch(reported));
  });
  c.emplace_back("error", [](Bench &b) {
    Tensor seen = b.scalar(UNSIGNED_INT, "seen", 17u);
    b.program.add(If(b.scalar(BOOL, "flag", true), ErrorProgram("reached", seen), b.count("no")));
  });
  c.emplace_back("error_not_reached", [](Bench &b) {
    b.program.add(If(b.scalar(BOOL, "flag", false), Abort(std::string("reached")), b.count("no")));
  });
  c.emplace_back("abort_on_condition", [](Bench &b) {
    b.program.add(AbortOnCondition(b.scalar(BOOL, "flag", true), std::string("it holds")));
    b.program.add(b.count("after"));
  });
  return c;
}

std::string outcome(const std::string &codelets, const Case &build, bool dry) {
  try {
    Bench b(codelets);
    build(b);
    const std::unique_ptr<sparq::emulator::DryRun> scope(dry ? new sparq::emulator::DryRun
                                                             : nullptr);
    Engine engine(b.graph, b.program);
    engine.loadAndRun(b.device);
    std::string counts;
    for (const auto &step : sparq::emulator::lastRun(engine))
      counts +=
          (counts.empty() ? "" : ",") + quoted(step.name) + ":" + std::to_string(step.executions);
    return "{" + counts + "}";
  } catch (const poplar_error &error) {
    return quoted(error.what());
  }
}

} // namespace

int main(int argc, char **argv) {
  if (argc != 2)
    return 2;
  for (const auto &c : cases()) {
    const std::string dry = outcome(argv[1], c.second, true); // no real run left its results behind
    std::cout << "{\"case\":" << quoted(c.first) << ",\"dry\":" << dry
              << ",\"real\":" << outcome(argv[1], c.second, false) << "}" << std::endl;
  }
}
