// SPDX-License-Identifier: Apache-2.0
#include "key_index.hpp"
#include "arith/key_index.hpp"
#include "codelets/key_index.cycles.hpp"

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
    for (unsigned part = 0; part != context.parts() && waves.room(part) != 0; ++part)
      coefficientVertex(cs, "sparq::BlockCoefficients", slot, part, ofWave, waves.length,
                        waves.room(part), {{"columns", columns[slot][part].flatten()}},
                        {{"nBlocks", waves.room(part) / blockSize}});
}

void IndexScores::addScores(const ComputeSet &cs, const WaveIndex &wave,
                            const Tensor &columns) const {
  for (unsigned slot = 0; slot != context.nSlots(); ++slot)
    for (unsigned part = 0; part != context.parts() && waves.room(part) != 0; ++part)
      scoreVertex(cs, "sparq::IndexScores", slot, part, ofWave, waves.length, waves.room(part),
                  {{"wave", wave.on(slot, part)}, {"columns", columns[slot][part].flatten()}},
                  {{"nBlocks", waves.room(part) / blockSize}, {"length", waves.length}});
}

void IndexScores::addTailCoefficients(const ComputeSet &cs, const ScoredTail &tail) const {
  for (unsigned slot = 0; slot != context.nSlots(); ++slot)
    for (unsigned i = 0; i != layout.nTailParts(); ++i) {
      const unsigned part = layout.tailFirst + i;
      coefficientVertex(cs, "sparq::TailCoefficients", slot, part, ofTail, waves.tailLength,
                        waves.tailLength,
                        {{"filled", context.filled(slot, part)},
                         {"tailIndex", tail.index[slot][i].flatten()},
                         {"components", q.components[slot][part]}},
                        {{"piece", i}, {"tailLength", waves.tailLength}, {"chunk", layout.chunk}});
    }
}

// A full piece has no open block; one that is not full has a block less to decode, which costs
// about as much as the open block in its place.
void IndexScores::addTailScores(const ComputeSet &cs, const ScoredTail &tail) const {
  for (unsigned slot = 0; slot != context.nSlots(); ++slot)
    for (unsigned i = 0; i != layout.nTailParts(); ++i) {
      const unsigned part = layout.tailFirst + i;
      scoreVertex(cs, "sparq::TailIndexScores", slot, part, ofTail, waves.tailLength,
                  waves.tailLength,
                  {{"filled", context.filled(slot, part)},
                   {"tailIndex", tail.index[slot][i].flatten()},
                   {"tail", tail.columns[slot][i].flatten()},
                   {"components", q.components[slot][part]},
                   {"selectedQuery", q.selectedQuery[slot][part]}},
                  {{"piece", i},
                   {"tailLength", waves.tailLength},
                   {"chunk", layout.chunk},
                   {"tailBegin", waves.nWaves * waves.length}});
    }
}

void IndexScores::coefficientVertex(const ComputeSet &cs, const char *type, unsigned slot,
                                    unsigned part, const Coefficients &of, unsigned length,
                                    unsigned positions, std::vector<Edge> edges,
                                    std::vector<Setting> settings) const {
  edges.insert(edges.end(), {{"selectedQuery", q.selectedQuery[slot][part]},
                             {"coefficients", of.coefficients[slot][part].flatten()},
                             {"units", of.units[slot][part].flatten()},
                             {"offsets", of.offsets[slot][part].flatten()}});
  settings.insert(settings.end(), {{"groupSize", g},
                                   {"rank", r},
                                   {"indexBits", bits},
                                   {"columnWords", columnWords(length)},
                                   {"limit", limit}});
  addVertex(context.graph, cs, type, context.tile(slot, part), edges, settings,
            cycles::blockCoefficients(positions / blockSize, g, r));
}

void IndexScores::scoreVertex(const ComputeSet &cs, const char *type, unsigned slot, unsigned part,
                              const Coefficients &of, unsigned length, unsigned positions,
                              std::vector<Edge> edges, std::vector<Setting> settings) const {
  edges.insert(edges.end(), {{"coefficients", of.coefficients[slot][part].flatten()},
                             {"units", of.units[slot][part].flatten()},
                             {"offsets", of.offsets[slot][part].flatten()},
                             {"inverseTemperature", q.inverseTemperature[slot][part]},
                             {"scores", scores.weights[slot][part].flatten()}});
  settings.insert(settings.end(), {{"groupSize", g},
                                   {"rank", r},
                                   {"indexBits", bits},
                                   {"columnWords", columnWords(length)},
                                   {"partPositions", waves.partPositions()}});
  addVertex(context.graph, cs, type, context.tile(slot, part), edges, settings,
            cycles::indexScores(positions / blockSize, g, r, bits));
}

unsigned IndexScores::columnWords(unsigned positions) const {
  return static_cast<unsigned>(layout.columnElements(positions));
}

} // namespace sparq
