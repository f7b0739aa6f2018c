// SPDX-License-Identifier: Apache-2.0
#include "key_index.hpp"
#include "arith/key_index.hpp"
#include "vertex_cycles.hpp"

namespace sparq {

using namespace poplar;

IndexScores::IndexScores(const Context &contextIn, const SparqSettings &settings,
                         const Waves &wavesIn, const QueryComponents &qIn, const Scores &scoresIn)
    : context(contextIn), layout(contextIn.layout()), waves(wavesIn), q(qIn), scores(scoresIn),
      g(contextIn.groupSize()), r(settings.rank), bits(layout.indexBits),
      limit(static_cast<float>(coefficientLimit(bits, r))),
      ofWave(createCoefficients(waves.length, "")),
      ofTail(createCoefficients(waves.tailLength, "tail_")) {}

IndexScores::Coefficients IndexScores::createCoefficients(unsigned length,
                                                          const std::string &name) const {
  const std::size_t nBlocks = length / blockSize;
  const auto create = [&](const Type &type, std::vector<std::size_t> shape, const char *what) {
    return context.perPart(type, shape, (name + what).c_str());
  };
  return {create(INT, {nBlocks, g, r}, "coefficients"), create(FLOAT, {nBlocks, g}, "units"),
          create(FLOAT, {nBlocks, g}, "offsets")};
}

void IndexScores::addCoefficients(const ComputeSet &cs, const Tensor &columns) const {
  for (unsigned slot = 0; slot != context.nSlots(); ++slot)
    for (unsigned part = 0; part != context.parts() && waves.room(part) != 0; ++part) {
      const unsigned nBlocks = waves.room(part) / blockSize;
      addVertex(context.graph, cs, "sparq::BlockCoefficients", context.tile(slot, part),
                {{"columns", columns[slot][part].flatten()},
                 {"selectedQuery", q.selectedQuery[slot][part]},
                 {"coefficients", ofWave.coefficients[slot][part].flatten()},
                 {"units", ofWave.units[slot][part].flatten()},
                 {"offsets", ofWave.offsets[slot][part].flatten()}},
                {{"groupSize", g},
                 {"rank", r},
                 {"indexBits", bits},
                 {"columnWords", columnWords(waves.length)},
                 {"nBlocks", nBlocks},
                 {"limit", limit}},
                coefficientCycles(nBlocks));
    }
}

void IndexScores::addScores(const ComputeSet &cs, const WaveIndex &wave,
                            const Tensor &columns) const {
  for (unsigned slot = 0; slot != context.nSlots(); ++slot)
    for (unsigned part = 0; part != context.parts() && waves.room(part) != 0; ++part) {
      const unsigned nBlocks = waves.room(part) / blockSize;
      addVertex(context.graph, cs, "sparq::IndexScores", context.tile(slot, part),
                {{"wave", wave.on(slot, part)},
                 {"columns", columns[slot][part].flatten()},
                 {"coefficients", ofWave.coefficients[slot][part].flatten()},
                 {"units", ofWave.units[slot][part].flatten()},
                 {"offsets", ofWave.offsets[slot][part].flatten()},
                 {"inverseTemperature", q.inverseTemperature[slot][part]},
                 {"scores", scores.weights[slot][part].flatten()}},
                {{"groupSize", g},
                 {"rank", r},
                 {"indexBits", bits},
                 {"columnWords", columnWords(waves.length)},
                 {"nBlocks", nBlocks},
                 {"length", waves.length},
                 {"partPositions", waves.partPositions()}},
                scoreCycles(nBlocks));
    }
}

void IndexScores::addTailCoefficients(const ComputeSet &cs, const ScoredTail &tail) const {
  for (unsigned slot = 0; slot != context.nSlots(); ++slot)
    for (unsigned i = 0; i != layout.nTailParts(); ++i) {
      const unsigned part = layout.tailFirst + i;
      addVertex(context.graph, cs, "sparq::TailCoefficients", context.tile(slot, part),
                {{"filled", context.filled(slot, part)},
                 {"tailIndex", tail.index[slot][i].flatten()},
                 {"components", q.components[slot][part]},
                 {"selectedQuery", q.selectedQuery[slot][part]},
                 {"coefficients", ofTail.coefficients[slot][part].flatten()},
                 {"units", ofTail.units[slot][part].flatten()},
                 {"offsets", ofTail.offsets[slot][part].flatten()}},
                {{"groupSize", g},
                 {"rank", r},
                 {"indexBits", bits},
                 {"columnWords", columnWords(waves.tailLength)},
                 {"piece", i},
                 {"tailLength", waves.tailLength},
                 {"chunk", layout.chunk},
                 {"limit", limit}},
                coefficientCycles(waves.tailLength / blockSize));
    }
}

void IndexScores::addTailScores(const ComputeSet &cs, const ScoredTail &tail) const {
  for (unsigned slot = 0; slot != context.nSlots(); ++slot)
    for (unsigned i = 0; i != layout.nTailParts(); ++i) {
      const unsigned part = layout.tailFirst + i;
      addVertex(context.graph, cs, "sparq::TailIndexScores", context.tile(slot, part),
                {{"filled", context.filled(slot, part)},
                 {"tailIndex", tail.index[slot][i].flatten()},
                 {"tail", tail.columns[slot][i].flatten()},
                 {"components", q.components[slot][part]},
                 {"selectedQuery", q.selectedQuery[slot][part]},
                 {"coefficients", ofTail.coefficients[slot][part].flatten()},
                 {"units", ofTail.units[slot][part].flatten()},
                 {"offsets", ofTail.offsets[slot][part].flatten()},
                 {"inverseTemperature", q.inverseTemperature[slot][part]},
                 {"scores", scores.weights[slot][part].flatten()}},
                {{"groupSize", g},
                 {"rank", r},
                 {"indexBits", bits},
                 {"columnWords", columnWords(waves.tailLength)},
                 {"piece", i},
                 {"tailLength", waves.tailLength},
                 {"chunk", layout.chunk},
                 {"tailBegin", waves.nWaves * waves.length},
                 {"partPositions", waves.partPositions()}},
                // A full piece has no open block; one that is not full has a block less to decode,
                // which costs about as much as the open block in its place.
                scoreCycles(waves.tailLength / blockSize));
    }
}

unsigned IndexScores::columnWords(unsigned positions) const {
  return static_cast<unsigned>(layout.columnElements(positions));
}

std::uint64_t IndexScores::coefficientCycles(unsigned nBlocks) const {
  return cycles::blockCoefficients(nBlocks, g, r);
}

std::uint64_t IndexScores::scoreCycles(unsigned nBlocks) const {
  return cycles::indexScores(nBlocks, g, r, bits);
}

} // namespace sparq
