// SPDX-License-Identifier: Apache-2.0
#include "codelets/approx_scores.cycles.hpp"
#include "score_columns.hpp"
#include "sparq/step_names.hpp"
#include <poplar/Program.hpp>

namespace sparq {

using namespace poplar;
using namespace poplar::program;

namespace {

// Scores from key columns of fp16, of one round.
class ColumnScores {
public:
  ColumnScores(const Context &contextIn, const SparqSettings &settings, const Waves &wavesIn,
               const QueryComponents &qIn, const WaveIndex &waveIn, const Scores &scoresIn)
      : context(contextIn), graph(contextIn.graph), p(contextIn.placement()),
        layout(contextIn.layout()), waves(wavesIn), q(qIn), wave(waveIn), scores(scoresIn),
        g(contextIn.groupSize()), r(settings.rank) {}

  void addScores(const ComputeSet &cs, const Tensor &columns) const {
    for (unsigned slot = 0; slot != context.nSlots(); ++slot)
      for (unsigned part = 0; part != p.parts && waves.room(part) != 0; ++part)
        addVertex(graph, cs, "sparq::ApproxScores", context.tile(slot, part),
                  {{"wave", wave.on(slot, part)},
                   {"columns", columns[slot][part].flatten()},
                   {"selectedQuery", q.selectedQuery[slot][part]},
                   {"inverseTemperature", q.inverseTemperature[slot][part]},
                   {"scores", scores.weights[slot][part].flatten()}},
                  {{"groupSize", g},
                   {"rank", r},
                   {"length", waves.length},
                   {"nPositions", waves.room(part)},
                   {"partPositions", waves.partPositions()}},
                  cycles::approxScores(waves.room(part), g, r));
  }

  void addTailScores(const ComputeSet &cs, const ScoredTail &tail) const {
    for (unsigned slot = 0; slot != context.nSlots(); ++slot)
      for (unsigned i = 0; i != layout.nTailParts(); ++i) {
        const unsigned part = layout.tailFirst + i;
        addVertex(graph, cs, "sparq::TailScores", context.tile(slot, part),
                  {{"tail", tail.columns[slot][i].flatten()},
                   {"components", q.components[slot][part]},
                   {"selectedQuery", q.selectedQuery[slot][part]},
                   {"inverseTemperature", q.inverseTemperature[slot][part]},
                   {"scores", scores.weights[slot][part].flatten()}},
                  {{"groupSize", g},
                   {"rank", r},
                   {"tailLength", waves.tailLength},
                   {"tailBegin", waves.nWaves * waves.length},
                   {"partPositions", waves.partPositions()}},
                  cycles::tailScores(waves.tailLength, g, r));
      }
  }

private:
  const Context &context;
  Graph &graph;
  const Placement &p;
  const CacheLayout &layout;
  const Waves &waves;
  const QueryComponents &q;
  const WaveIndex &wave;
  const Scores &scores;
  const unsigned g, r;
};

} // namespace

void KeyColumns::score(const Context &context, const SparqSettings &settings, const Waves &waves,
                       const QueryComponents &q, const Scores &scores) const {
  const WaveIndex wave = context.waveIndex(waves.nWaves);
  const CacheLayout &layout = context.layout();
  const bool quantised = layout.quantised(), beside = tailBeside(layout, waves);
  const ColumnRows rows(context, waves, wave, q.components);
  const Tensor columns = context.begin(rows.createColumns()); // a part may have room for more
  const TailColumns tail(*this, context);
  Sequence body({}, {context.dc, "wave"});
  const Context inner = context.within(body);
  rows.addOffsets(inner.execute(steps::columnOffsets));
  rows.read(buffer_, body, steps::readKeyColumns);
  // Behind the waves, but for the steps of the tail that run beside the only one.
  Sequence behind({}, {context.dc, "tail"});
  const Context last = context.within(beside ? body : behind);
  Moves spread, gather, openBlock;
  rows.spread(spread, columns);
  tail.gather(beside ? spread : gather);
  spread.copy(inner, {context.dc, steps::spreadColumns});
  if (!beside)
    gather.copy(context.within(behind), {context.dc, "gather_tail"});
  if (quantised) {
    tail.gatherOpenBlock(openBlock);
    openBlock.copy(last, {context.dc, "gather_open_block"});
  }
  const auto forTail = [&](const ComputeSet &ofWave, const char *name) {
    return beside ? ofWave : last.execute(name);
  };
  if (quantised) {
    const IndexScores index(context, settings, waves, q, scores);
    const ComputeSet coefficients = inner.execute(steps::blockCoefficients);
    index.addCoefficients(coefficients, columns);
    index.addTailCoefficients(forTail(coefficients, steps::tailCoefficients), tail.tail());
    const ComputeSet score = inner.execute(steps::approxScores);
    index.addScores(score, wave, columns);
    index.addTailScores(forTail(score, steps::tailScores), tail.tail());
  } else {
    const ColumnScores fp16(context, settings, waves, q, wave, scores);
    const ComputeSet score = inner.execute(steps::approxScores);
    fp16.addScores(score, columns);
    fp16.addTailScores(forTail(score, steps::tailScores), tail.tail());
  }
  addWaveLoop(context, waves, wave, body);
  context.program.add(behind);
}

} // namespace sparq
