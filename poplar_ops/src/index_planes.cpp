// SPDX-License-Identifier: Apache-2.0
//
// SparQ with a key index in planes of bits (docs/exactness.md E12): the planes that a query reads, and scores from
// them. What was read is made into records, so that all else is as with an index of which all bits are read.
#include "arith/scale.hpp"
#include "codelets/index_planes.cycles.hpp"
#include "score_columns.hpp"
#include "stores/key_planes.hpp"

namespace sparq {

using namespace poplar;
using namespace poplar::program;

namespace {

// {slots, parts, n} UNSIGNED_INT: the planes that are read, ascending; and of each component how many.
Tensor planesOf(const Context &context, const SparqSettings &settings) {
  return context.perPart(UNSIGNED_INT, {context.plan().shape.planesRead(settings.rank)}, "planes");
}
Tensor depthsOf(const Context &context, const SparqSettings &settings) {
  return context.perPart(UNSIGNED_INT, {settings.rank}, "depths");
}

} // namespace

void KeyPlanes::selectComponents(const Context &context, const SparqSettings &settings,
                                 const QueryComponents &q) const {
  const unsigned d = context.headDim(), g = context.groupSize(), r = settings.rank,
                 bits = context.layout().indexBits, last = context.parts() - 1,
                 nPlanes = context.plan().shape.planesRead(r);
  const auto forParts = [&](const char *name, const auto &add) {
    const ComputeSet cs = context.execute(name);
    for (unsigned slot = 0; slot != context.nSlots(); ++slot)
      for (unsigned part = 0; part != context.parts(); ++part)
        add(cs, slot, part);
  };
  addMagnitudes(context, q, context.parts());
  forParts("plane_weights", [&](const ComputeSet &cs, unsigned slot, unsigned part) {
    addVertex(context.graph, cs, "sparq::PlaneWeights", context.tile(slot, part),
              {{"filled", context.filled(slot, part)},
               {"widest", widest()[context.task(slot)]},
               {"weights", q.magnitudes[slot][part]}},
              {{"headDim", d}}, cycles::planeWeights(d));
  });
  rankComponents(context, settings, q);
  const Tensor merits = context.perPart(FLOAT, {std::size_t(r) * bits}, "plane_merits"),
               selected = createRanks(context, r * bits, "selected_planes");
  forParts("plane_merits", [&](const ComputeSet &cs, unsigned slot, unsigned part) {
    addVertex(context.graph, cs, "sparq::PlaneMerits", context.tile(slot, part),
              {{"weights", q.magnitudes[slot][part]},
               {"offered", q.selected[slot]},
               {"components", q.components[slot][part]},
               {"merits", merits[slot][part]}},
              {{"headDim", d}, {"rank", r}, {"indexBits", bits}}, cycles::planeMerits(d, r, bits));
  });
  addRanks(context, context.execute("plane_ranks"), merits, selected, nPlanes);
  const Tensor planes = planesOf(context, settings), depths = depthsOf(context, settings);
  forParts("plane_list", [&](const ComputeSet &cs, unsigned slot, unsigned part) {
    addVertex(context.graph, cs, "sparq::PlaneList", context.tile(slot, part),
              {{"query", q.query[slot][part]},
               {"components", q.components[slot][part]},
               {"selected", selected[slot]},
               {"magnitudeSums", q.magnitudeSums[slot][last]},
               {"planes", planes[slot][part]},
               {"depths", depths[slot][part]},
               {"selectedQuery", q.selectedQuery[slot][part]},
               {"inverseTemperature", q.inverseTemperature[slot][part]}},
              {{"groupSize", g},
               {"headDim", d},
               {"rank", r},
               {"indexBits", bits},
               {"nPlanes", nPlanes},
               {"scale", attentionScale(d)}},
              cycles::planeList(g, r, bits, nPlanes));
  });
}

void KeyPlanes::score(const Context &context, const SparqSettings &settings, const Waves &waves,
                      const QueryComponents &q, const Scores &scores) const {
  const WaveIndex wave = context.waveIndex(waves.nWaves);
  const CacheLayout &layout = context.layout();
  const unsigned bits = layout.indexBits, r = settings.rank;
  const bool beside = tailBeside(layout, waves);
  const auto rows = [&](const char *name, const Tensor &numbers, const RemoteBuffer &buffer,
                        unsigned ofComponent) {
    const PlaneRows of{layout, ofComponent};
    return ColumnRows(context, waves, wave,
                      {name, UNSIGNED_INT, numbers, of.ofTask(), of.ofLayer(context.cache),
                       buffer.numElements() / (layout.chunk / block)});
  };
  const Tensor depths = depthsOf(context, settings);
  const ColumnRows planeRows = rows("plane_columns", planesOf(context, settings), planes_, bits),
                   stepRows = rows("step_columns", q.components, steps_, 1);
  const Tensor planes = context.begin(planeRows.createColumns()), // a part may have room for more
      steps = context.begin(stepRows.createColumns()),
               columns = context.begin(context.perPart(
                   UNSIGNED_INT, {r, layout.columnElements(waves.length)}, "columns"));
  const TailColumns tail(*this, context);
  Sequence body({}, {context.dc, "wave"});
  const Context inner = context.within(body);
  const ComputeSet offsets = inner.execute("column_offsets");
  planeRows.addOffsets(offsets);
  stepRows.addOffsets(offsets);
  planeRows.read(planes_, body, "read_key_planes");
  stepRows.read(steps_, body, "read_key_steps");
  // Behind the waves, but for the steps of the tail that run beside the only one.
  Sequence behind({}, {context.dc, "tail"});
  const Context last = context.within(beside ? body : behind);
  Moves spread, gather, openBlock;
  planeRows.spread(spread, planes);
  stepRows.spread(spread, steps);
  tail.gather(beside ? spread : gather);
  spread.copy(inner, {context.dc, "spread_columns"});
  if (!beside)
    gather.copy(context.within(behind), {context.dc, "gather_tail"});
  tail.gatherOpenBlock(openBlock);
  openBlock.copy(last, {context.dc, "gather_open_block"});
  const auto forTail = [&](const ComputeSet &ofWave, const char *name) {
    return beside ? ofWave : last.execute(name);
  };
  const ComputeSet join = inner.execute("join_planes"), mask = forTail(join, "mask_tail");
  for (unsigned slot = 0; slot != context.nSlots(); ++slot) {
    for (unsigned part = 0; part != context.parts() && waves.room(part) != 0; ++part) {
      const unsigned nBlocks = waves.room(part) / block;
      addVertex(context.graph, join, "sparq::JoinPlanes", context.tile(slot, part),
                {{"planes", planes[slot][part].flatten()},
                 {"steps", steps[slot][part].flatten()},
                 {"depths", depths[slot][part]},
                 {"columns", columns[slot][part].flatten()}},
                {{"rank", r},
                 {"indexBits", bits},
                 {"columnWords", static_cast<unsigned>(columns.dim(3))},
                 {"nBlocks", nBlocks},
                 {"length", waves.length}},
                cycles::joinPlanes(nBlocks, r, bits, static_cast<double>(planes.dim(2))));
    }
    for (unsigned i = 0; i != layout.nTailParts(); ++i) {
      const unsigned part = layout.tailFirst + i;
      const Tensor &index = tail.tail().index;
      addVertex(context.graph, mask, "sparq::MaskTail", context.tile(slot, part),
                {{"filled", context.filled(slot, part)},
                 {"components", q.components[slot][part]},
                 {"depths", depths[slot][part]},
                 {"tailIndex", index[slot][i].flatten()}},
                {{"rank", r},
                 {"indexBits", bits},
                 {"columnWords", static_cast<unsigned>(index.dim(3))},
                 {"piece", i},
                 {"tailLength", waves.tailLength},
                 {"chunk", layout.chunk}},
                cycles::maskTail(waves.tailLength / block, r, bits));
    }
  }
  const IndexScores index(context, settings, waves, q, scores);
  const ComputeSet coefficients = inner.execute("block_coefficients");
  index.addCoefficients(coefficients, columns);
  index.addTailCoefficients(forTail(coefficients, "tail_coefficients"), tail.tail());
  const ComputeSet middles = inner.execute("block_middles");
  index.addMiddles(middles, depths);
  index.addTailMiddles(forTail(middles, "tail_middles"), depths);
  const ComputeSet score = inner.execute("approx_scores");
  index.addScores(score, wave, columns);
  index.addTailScores(forTail(score, "tail_scores"), tail.tail());
  addWaveLoop(context, waves, wave, body);
  context.program.add(behind);
}

} // namespace sparq
