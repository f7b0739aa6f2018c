// SPDX-License-Identifier: Apache-2.0
#include "arith/half_bits.hpp"
#include "codelets/cache.cycles.hpp"
#include "rows.hpp"

namespace sparq {

namespace {

// Components [begin, end) are on part `slice` of a slot.
struct Slice {
  unsigned begin, end;
  Slice(const Placement &p, unsigned slice, unsigned headDim)
      : begin(slice * p.width), end(std::min(begin + p.width, headDim)) {}
};

class HostValueSum final : public HostStore {
public:
  HostValueSum(const HostSite &site, const Tensor &sum)
      : write_(site.writable(sum, "/value_sum")), read_(site.readable(sum, "/value_sum")) {}

  void write(Engine &engine, HostTokens &tokens) override {
    const unsigned d = tokens.shape.headDim;
    std::vector<float> sum(read_.size());
    read_.read(engine, sum.data());
    for (unsigned task = 0; task != tokens.shape.nTasks(); ++task)
      for (unsigned i = 0; i != tokens.countOf(task); ++i) // ascending, one addition a position
        for (unsigned c = 0; c != d; ++c)
          sum[std::size_t(task) * d + c] += widen(tokens.values[tokens.at(task, i) + c]);
    write_.write(engine, sum.data());
  }
  void reset(Engine &engine) override {
    write_.write(engine, std::vector<float>(write_.size(), 0.0f).data());
  }

private:
  HostTensor write_, read_;
};

} // namespace

ValueSum::ValueSum(Graph &graph, const Cache &cache, bool)
    : state_(addLayered(graph, cache, FLOAT, cache.layout().headDim, cache.plan.placement.width, 1,
                        "value_sum")),
      sum_(state_.state.squeeze({2})) {}

void ValueSum::addAppend(const Append &step, const ComputeSet &cs, unsigned task) const {
  const Placement &p = step.cache.plan.placement;
  for (unsigned part = 0; part != p.nSlices; ++part) {
    const Slice c(p, part, step.cache.layout().headDim);
    addVertex(step.graph, cs, "sparq::AppendSum", p.tile(task % p.slots, part),
              cycles::appendSum(c.end - c.begin), "active"_f = step.active[task],
              "value"_f = step.values[task].slice(c.begin, c.end),
              "valueSum"_f = sum_[task].slice(c.begin, c.end), "width"_f = c.end - c.begin);
  }
}

void ValueSum::fill(FillStep &step) const {
  const Placement &p = step.placement();
  if (!step.keep)
    step.keep = step.execute("fill_sums");
  for (unsigned i = 0; i != step.nTasks; ++i)
    for (unsigned part = 0; part != p.nSlices; ++part) {
      const Slice c(p, part, step.layout().headDim);
      addVertex(step.graph, *step.keep, "sparq::FillSum", p.tile(step.slot(i), part),
                cycles::fillSum(step.n(), c.end - c.begin), "held"_f = step.held,
                "values"_f = step.values[i].slice(c.begin, c.end, 1),
                "valueSum"_f = sum_[step.firstTask + i].slice(c.begin, c.end),
                "first"_f = step.begin, "n"_f = step.n(), "width"_f = c.end - c.begin);
    }
}

std::shared_ptr<HostStore> ValueSum::host(const HostSite &site) const {
  return std::make_shared<HostValueSum>(site, sum_);
}

} // namespace sparq
