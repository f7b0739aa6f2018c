// SPDX-License-Identifier: Apache-2.0
//
// Softmax over positions that are spread over tiles (contract E5): exact maximum, weights, sums by
// blocks of 64, left fold of the block sums.
#include "segments.hpp"

namespace sparq {

// Largest score of each head among this part's positions. The fours of a head are dealt to nPieces
// partial results; these, of all heads, are shared out over the workers. More make the work even,
// fewer leave less to whoever takes the largest of all.
struct PartialMax : poplar::MultiVertex {
  poplar::Input<unsigned> filled;
  FloatsIn scores;  // [groupSize][partPositions]
  FloatsOut maxima; // [nPieces][groupSize]
  unsigned nPieces, groupSize, partPositions;
  unsigned part, stride, length, nWaves, tailLength, tailFirst, chunk;

  void compute(unsigned worker) {
    const Segments segments(part, stride, length, nWaves, tailLength, tailFirst, chunk, *filled);
    unsigned piece = 0;
    for (unsigned h = worker;; h += numWorkers()) {
      for (; h >= groupSize; h -= groupSize)
        ++piece;
      if (piece >= nPieces)
        return;
      maxima[piece * groupSize + h] = ofPiece(segments, &scores[h * partPositions], piece);
    }
  }

private:
  float ofPiece(const Segments &segments, const float *ofHead, unsigned piece) const {
    Quad four = Quad{} + lowest;
    float rest = lowest; // of what fills no four
    for (unsigned s = 0; s != segments.count(); ++s) {
      const float *score = ofHead + segments.local(s);
      const unsigned n = segments.valid(s, *filled);
      unsigned p = piece * quadSize;
      for (; p + quadSize <= n; p += nPieces * quadSize)
        four = larger(load<Quad>(score + p), four);
      for (; p < n; ++p)
        rest = larger(score[p], rest);
    }
    return larger(largestOf(four), rest);
  }
};

// Largest of many partial results, one for each worker: whoever uses them takes the largest of six.
// Every worker has a run of `each` results, an even number: loops that go by ones cost nothing.
struct ReduceMax : poplar::MultiVertex {
  FloatsIn maxima;   // [nPartials][groupSize]
  FloatsOut maximum; // [6][groupSize]
  unsigned nPartials, groupSize, each;

  void compute(unsigned worker) {
    const unsigned heads = groupSize, begin = minimum(worker * each, nPartials),
                   n = minimum(begin + each, nPartials) - begin;
    const float *const own = &maxima[begin * heads];
    float *const to = &maximum[worker * heads];
    if (heads == 1) {
      const float of = largestOf(ofRun<Pair>(own, n / pairSize));
      *to = n % pairSize != 0 ? larger(of, own[n - 1]) : of;
    } else if (heads == quadSize) {
      store(to, ofRun<Quad>(own, n));
    } else if (heads % pairSize == 0) {
      for (unsigned h = 0; h != heads; h += pairSize)
        store(to + h, ofColumns(own + h, n, heads));
    } else {
      for (unsigned h = 0; h != heads; ++h) {
        const float *at = own + h;
        float largest = lowest;
        for (unsigned left = n; left != 0; --left, at += heads)
          largest = larger(*at, largest);
        to[h] = largest;
      }
    }
  }

private:
  // Of n vectors behind one another, two to a pass.
  template <class V> static V ofRun(const float *at, unsigned n) {
    constexpr unsigned size = sizeof(V) / sizeof(float);
    V even = V{} + lowest, odd = even;
    for (unsigned left = n / 2; left != 0; --left, at += 2 * size) {
      even = larger(load<V>(at), even);
      odd = larger(load<V>(at + size), odd);
    }
    if (n % 2 != 0)
      even = larger(load<V>(at), even);
    return larger(even, odd);
  }
  static Pair ofColumns(const float *at, unsigned n, unsigned step) {
    Pair largest = Pair{} + lowest;
    for (unsigned left = n; left != 0; --left, at += step)
      largest = larger(load<Pair>(at), largest);
    return largest;
  }
};

// scores -> weights in place, 0 where there is no position.
struct SoftmaxWeights : poplar::MultiVertex {
  poplar::Input<unsigned> filled;
  FloatsIn maximum;    // [6][groupSize]
  FloatsInOut weights; // [groupSize][partPositions]: scores in, weights out
  unsigned groupSize, partPositions, part, stride, length, nWaves, tailLength, tailFirst, chunk;

  void compute(unsigned worker) {
    const Segments segments(part, stride, length, nWaves, tailLength, tailFirst, chunk, *filled);
    // Fours of all heads shared out: of each segment a worker goes on where it is after the last
    // one.
    unsigned p = worker * quadSize;
    for (unsigned h = 0; h != groupSize; ++h) {
      const float m = largestOfSix(&maximum[h], groupSize);
      for (unsigned s = 0; s != segments.count(); ++s) {
        float *const weight = &weights[h * partPositions + segments.local(s)];
        const unsigned n = segments.valid(s, *filled), room = segments.room(s);
        for (; p < room; p += numWorkers() * quadSize) {
          if (p + quadSize <= n)
            store(weight + p, softmaxWeight(load<Quad>(weight + p) - m));
          else if (p >= n)
            store(weight + p, Quad{});
          else
            for (unsigned i = p; i != p + quadSize; ++i)
              weight[i] = i < n ? softmaxWeight(weight[i] - m) : 0.0f;
        }
        p -= room;
      }
    }
  }
};

// The lane sum of each block of 64 weights.
struct BlockSums : poplar::MultiVertex {
  FloatsIn weights;    // [nBlocks][64]
  FloatsOut blockSums; // [nBlocks]
  unsigned nBlocks;

  void compute(unsigned worker) {
    for (unsigned b = worker; b < nBlocks; b += numWorkers()) {
      Lanes sum{};
      for (unsigned p = 0; p != blockSize; p += nLanes)
        sum += loadLanes(&weights[b * blockSize + p]);
      blockSums[b] = treeSum(sum);
    }
  }
};

// Left fold of block sums, ascending by position, heads shared out over the workers.
struct FoldSums : poplar::MultiVertex {
  FloatsIn blockSums; // [groupSize][nBlocks], ascending by position
  FloatsOut sums;     // [groupSize]
  unsigned nBlocks, groupSize;

  void compute(unsigned worker) {
    for (unsigned h = worker; h < groupSize; h += numWorkers()) {
      const float *block = &blockSums[h * nBlocks];
      sums[h] = h * nBlocks % pairSize == 0 ? ofPairs(block) : ofOnes(block, nBlocks);
    }
  }

private:
  static float ofOnes(const float *block, unsigned n) {
    float sum = 0.0f;
    for (; n != 0; --n)
      sum += *block++;
    return sum;
  }
  // Two in one access, four to a pass, which has a price of its own.
  float ofPairs(const float *block) const {
    float sum = 0.0f;
    for (unsigned n = nBlocks / quadSize; n != 0; --n, block += quadSize) {
      const Pair first = load<Pair>(block), second = load<Pair>(block + pairSize);
      sum = (((sum + first[0]) + first[1]) + second[0]) + second[1];
    }
    for (unsigned n = nBlocks % quadSize; n != 0; --n)
      sum += *block++;
    return sum;
  }
};

} // namespace sparq
