// SPDX-License-Identifier: Apache-2.0
//
// Integer dot products of codes and coefficients, AVX2 and AVX-512. The bytes of several components
// are interleaved (8 bits: of two, widened to 16 bits; else of four), so that each lane of 32 bits
// has the codes of one position, or of two or four, and is multiplied with the coefficients of a
// word.
#pragma once

#include "coded_cells.hpp"

#ifdef SPARQ_AVX512 // with VNNI
using Codes = __m512i;

inline Codes loadCodes(const unsigned char *from) { return _mm512_loadu_si512(from); }
inline Codes low8(Codes a, Codes b) { return _mm512_unpacklo_epi8(a, b); }
inline Codes high8(Codes a, Codes b) { return _mm512_unpackhi_epi8(a, b); }
inline Codes low16(Codes a, Codes b) { return _mm512_unpacklo_epi16(a, b); }
inline Codes high16(Codes a, Codes b) { return _mm512_unpackhi_epi16(a, b); }
inline Vec toFloat(Codes x) { return _mm512_cvtepi32_ps(x); }
inline Codes addTotals(Codes a, Codes b) { return _mm512_add_epi32(a, b); }

inline Codes maskBytes(Codes x, int mask) {
  return _mm512_and_si512(x, _mm512_set1_epi8(static_cast<char>(mask)));
}
// The codes of each byte, such that takeApart makes of their sums those of the codes. Sums of 32
// bits have room for whole bytes: each code comes with those above it in its byte, whose sums are
// subtracted at the end. That is one AND for a vector of codes, and none for the first.
template <unsigned bits> inline void codesOf(Codes x, Codes *codes) {
  for (unsigned n = 0; n < codesOfByte(bits); ++n)
    codes[n] = n == 0 ? x : maskBytes(x, 0xFF << (bits * n));
}
template <unsigned bits> inline void takeApart(Codes *sums) {
  for (unsigned n = 0; n < codesOfByte(bits); ++n) {
    if (n + 1 < codesOfByte(bits))
      sums[n] = _mm512_sub_epi32(sums[n], sums[n + 1]);
    if (n > 0)
      sums[n] = _mm512_srai_epi32(sums[n], bits * n);
  }
}
// Words of four components that may be added before widenQuads.
constexpr unsigned quadsTogether = ~0u;
inline Codes addQuads(Codes sum, Codes codes, Codes words) {
  return _mm512_dpbusd_epi32(sum, codes, words);
}
inline Codes widenQuads(Codes sum) { return sum; }
inline Codes addPairs(Codes sum, Codes codes, Codes words) {
  return _mm512_dpwssd_epi32(sum, codes, words);
}

inline Codes broadcastWord(const void *from) {
  int word;
  __builtin_memcpy(&word, from, sizeof(word));
  return _mm512_set1_epi32(word);
}

// Of sixteen numbers of 32 bits, by block: those of the blocks that a vector of codes covers.
template <unsigned bits> inline Codes spread(const void *sixteen, unsigned block) {
  if (bits == 8)
    return broadcastWord(static_cast<const char *>(sixteen) + block * 4);
  const Codes behind = bits == 4 ? _mm512_set_epi32(1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0)
                                 : _mm512_set_epi32(3, 3, 3, 3, 2, 2, 2, 2, 1, 1, 1, 1, 0, 0, 0, 0);
  return _mm512_permutexvar_epi32(
      _mm512_add_epi32(_mm512_set1_epi32(static_cast<int>(block)), behind),
      _mm512_loadu_si512(sixteen));
}

// 2 bits: of four sums of a vector of codes, whose quarters are four blocks, sixteen positions of
// each block.
inline void byBlock(Codes *sums) {
  const Codes ab = _mm512_shuffle_i32x4(sums[0], sums[1], 0x44),
              cd = _mm512_shuffle_i32x4(sums[2], sums[3], 0x44),
              ef = _mm512_shuffle_i32x4(sums[0], sums[1], 0xEE),
              gh = _mm512_shuffle_i32x4(sums[2], sums[3], 0xEE);
  sums[0] = _mm512_shuffle_i32x4(ab, cd, 0x88);
  sums[1] = _mm512_shuffle_i32x4(ab, cd, 0xDD);
  sums[2] = _mm512_shuffle_i32x4(ef, gh, 0x88);
  sums[3] = _mm512_shuffle_i32x4(ef, gh, 0xDD);
}

// Stores the scores of one sum; returns those that were stored, some perhaps twice. 4 bits: the
// upper half is of the next block, if n is 2.
template <unsigned bits> inline Vec putScores(float *to, Vec scores, unsigned n) {
  if (bits == 8) {
    store(to, scores);
    return scores;
  }
  const __m256 first = _mm512_castps512_ps256(scores);
  _mm256_storeu_ps(to, first);
  if (n == 1)
    return _mm512_insertf32x8(scores, first, 1);
  _mm256_storeu_ps(to + blockSize, _mm512_extractf32x8_ps(scores, 1));
  return scores;
}
#else // AVX2
using Codes = __m256i;

inline Codes loadCodes(const unsigned char *from) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i *>(from));
}
inline Codes low8(Codes a, Codes b) { return _mm256_unpacklo_epi8(a, b); }
inline Codes high8(Codes a, Codes b) { return _mm256_unpackhi_epi8(a, b); }
inline Codes low16(Codes a, Codes b) { return _mm256_unpacklo_epi16(a, b); }
inline Codes high16(Codes a, Codes b) { return _mm256_unpackhi_epi16(a, b); }

inline Codes maskBytes(Codes x, int mask) {
  return _mm256_and_si256(x, _mm256_set1_epi8(static_cast<char>(mask)));
}
// The codes of each byte, such that takeApart makes of their sums those of the codes. Of 2 bits the
// second and the fourth count four times: that is a shift less for every vector of codes.
template <unsigned bits> inline void codesOf(Codes x, Codes *codes) {
  const Codes upper = _mm256_srli_epi16(x, 4);
  if (bits == 4) {
    codes[0] = maskBytes(x, 15);
    codes[1] = maskBytes(upper, 15);
  } else {
    for (unsigned n = 0; n < codesOfByte(bits); ++n)
      codes[n] = maskBytes(n < 2 ? x : upper, n % 2 ? 12 : 3);
  }
}
template <unsigned bits> inline void takeApart(Codes *sums) {
  if (bits == 2)
    for (unsigned n = 1; n < codesOfByte(bits); n += 2)
      sums[n] = _mm256_srai_epi32(sums[n], 2);
}
inline Vec toFloat(Codes x) { return _mm256_cvtepi32_ps(x); }
inline Codes addTotals(Codes a, Codes b) { return _mm256_add_epi32(a, b); }

// Words of four components that may be added before widenQuads: one adds at most 2 * 15 * 127 to
// 16 bits.
constexpr unsigned quadsTogether = 8;
inline Codes addQuads(Codes sum, Codes codes, Codes words) {
  return _mm256_add_epi16(sum, _mm256_maddubs_epi16(codes, words));
}
inline Codes widenQuads(Codes sum) { return _mm256_madd_epi16(sum, _mm256_set1_epi16(1)); }
inline Codes addPairs(Codes sum, Codes codes, Codes words) {
  return _mm256_add_epi32(sum, _mm256_madd_epi16(codes, words));
}

inline Codes broadcastWord(const void *from) {
  int word;
  __builtin_memcpy(&word, from, sizeof(word));
  return _mm256_set1_epi32(word);
}

// Of sixteen numbers of 32 bits, by block: those of the blocks that a vector of codes covers. With
// 2 bits these are two, and the number after the last of sixteen is read for a block that is not
// there.
template <unsigned bits> inline Codes spread(const void *sixteen, unsigned block) {
  if (bits == 2) {
    long long two;
    __builtin_memcpy(&two, static_cast<const char *>(sixteen) + block * 4, sizeof(two));
    return _mm256_permutevar8x32_epi32(_mm256_set1_epi64x(two),
                                       _mm256_set_epi32(1, 1, 1, 1, 0, 0, 0, 0));
  }
  return broadcastWord(static_cast<const char *>(sixteen) + block * 4);
}

// 2 bits: of four sums of a vector of codes, whose halves are two blocks, sixteen positions of the
// first block and then of the second.
inline void byBlock(Codes *sums) {
  const Codes first = _mm256_permute2x128_si256(sums[0], sums[1], 0x20),
              third = _mm256_permute2x128_si256(sums[0], sums[1], 0x31);
  sums[1] = _mm256_permute2x128_si256(sums[2], sums[3], 0x20);
  sums[3] = _mm256_permute2x128_si256(sums[2], sums[3], 0x31);
  sums[0] = first;
  sums[2] = third;
}

// Stores the scores of one sum and returns them.
template <unsigned bits> inline Vec putScores(float *to, Vec scores, unsigned) {
  store(to, scores);
  return scores;
}
#endif

constexpr unsigned codeBytes = sizeof(Codes);

// Blocks that one vector of codes covers, where it covers more than one.
constexpr unsigned stepBlocks(unsigned bits) {
  return codeBytes * 8 / bits / blockSize > 1 ? codeBytes * 8 / bits / blockSize : 1;
}

// Sums that live in registers at the same time.
constexpr unsigned mostSums = codeBytes == 64 ? 16 : 8;

// Vectors of interleaved codes that a vector of each component of a word makes. One has a sum for
// each code of a byte.
constexpr unsigned interleaved = 4;

// `n` of these, 1 or 2, from `first` on, of one half: out[i] in lanes of 32 bits.
template <unsigned bits, unsigned first, unsigned n>
inline void interleave(const unsigned char *const *rows, std::size_t at, Codes *out) {
  static_assert(first / 2 == (first + n - 1) / 2, "of one half");
  constexpr bool low = first < 2;
  const Codes a = loadCodes(rows[0] + at), b = loadCodes(rows[1] + at);
  const Codes ab = low ? low8(a, b) : high8(a, b);
  if (bits == 8) {
    out[0] = first % 2 ? high8(ab, Codes{}) : low8(ab, Codes{});
    if (n == 2)
      out[n - 1] = high8(ab, Codes{});
  } else {
    const Codes c = loadCodes(rows[2] + at), d = loadCodes(rows[3] + at);
    const Codes cd = low ? low8(c, d) : high8(c, d);
    out[0] = first % 2 ? high16(ab, cd) : low16(ab, cd);
    if (n == 2)
      out[n - 1] = high16(ab, cd);
  }
}

// These for H heads, which have S sums each. Where there is no VNNI, sums of a few words are kept
// in lanes of 16 bits. `done` is told how many of a pass are done.
template <unsigned bits, unsigned H, unsigned first, unsigned n, unsigned S, class Done>
inline void addWord(const unsigned char *const *rows, std::size_t at, const Codes *coefficients,
                    Codes (*sums)[S], unsigned before, const Done &done) {
  constexpr unsigned each = codesOfByte(bits);
  Codes vectors[n];
  interleave<bits, first, n>(rows, at, vectors);
  for (unsigned i = 0; i < n; ++i) {
    const unsigned sum = (before + i) * each;
    if constexpr (bits == 8) {
      for (unsigned h = 0; h < H; ++h)
        sums[h][sum] = addPairs(sums[h][sum], vectors[i], coefficients[h]);
    } else {
      Codes codes[each];
      codesOf<bits>(vectors[i], codes);
      for (unsigned h = 0; h < H; ++h)
        for (unsigned k = 0; k < each; ++k)
          sums[h][sum + k] = addQuads(sums[h][sum + k], codes[k], coefficients[h]);
    }
    done(before + i + 1);
  }
}

// The dot products of the vector of codes at byte `at`, `count` interleaved ones (1, 2 or 4) from
// `first` on.
template <unsigned bits, unsigned H, unsigned first, unsigned count>
inline void dotCodes(const CodesOfCell &cell, unsigned at, unsigned block,
                     Codes (*total)[count * codesOfByte(bits)]) {
  constexpr unsigned each = componentsOfWord(bits), S = count * codesOfByte(bits);
  constexpr unsigned most = bits == 8 ? ~0u : quadsTogether;
  // Some of the next cell is asked for at each word: in each pass over them, and as often as there
  // are parts to be asked for.
  constexpr unsigned passes = interleaved / count,
                     vectors = cellBlocks * (blockSize * bits / 8) / codeBytes,
                     wanted = visitsOfRow(bits) * each / vectors,
                     fetches = wanted > passes ? wanted : passes, ofPass = fetches / passes,
                     visits = vectors * fetches / each;
  const unsigned visited = (at / codeBytes * fetches + first / count * ofPass) * cell.nWords;
  for (unsigned h = 0; h < H; ++h)
    for (unsigned s = 0; s < S; ++s)
      total[h][s] = Codes{};
  for (unsigned begin = 0; begin < cell.nWords;) {
    const unsigned end = cell.nWords - begin < most ? cell.nWords : begin + most;
    Codes sums[H][S];
    for (unsigned h = 0; h < H; ++h)
      for (unsigned s = 0; s < S; ++s)
        sums[h][s] = Codes{};
#pragma GCC unroll 2
    for (unsigned word = begin; word < end; ++word) {
      const unsigned char *const *const rows = cell.rows + word * each;
      Codes coefficients[H];
      for (unsigned h = 0; h < H; ++h)
        coefficients[h] = spread<bits>(cell.words + (word * H + h) * cellBlocks, block);
      const auto done = [&](unsigned n) {
        if (n * ofPass % count == 0)
          cell.next.visit<bits, visits>(visited + word * ofPass + n * ofPass / count - 1);
      };
      addWord<bits, H, first, (count < 2 ? count : 2)>(rows, at, coefficients, sums, 0, done);
      if constexpr (count == 4)
        addWord<bits, H, first + 2, 2>(rows, at, coefficients, sums, 2, done);
    }
    for (unsigned h = 0; h < H; ++h)
      for (unsigned s = 0; s < S; ++s)
        total[h][s] = addTotals(total[h][s], bits == 8 ? sums[h][s] : widenQuads(sums[h][s]));
    begin = end;
  }
}

// `n` blocks (the last step of a cell may have fewer than stepBlocks) from `block`, H heads.
template <unsigned bits, unsigned H, unsigned first, unsigned count>
inline void scoreVectors(const CodesOfCell &cell, CellOfHead *heads, unsigned block, unsigned n,
                         unsigned part) {
  constexpr unsigned each = codesOfByte(bits), S = count * each;
  Codes total[H][S];
  dotCodes<bits, H, first, count>(cell, block * (blockSize * bits / 8) + part * codeBytes, block,
                                  total);
#pragma GCC unroll 4
  for (unsigned h = 0; h < H; ++h) {
    if constexpr (bits != 8)
      for (unsigned s = 0; s < S; s += each)
        takeApart<bits>(total[h] + s);
    CellOfHead &head = heads[h];
    const Vec factor = broadcast(head.invTau);
    if constexpr (bits == 2) {
      // A vector of codes has sixteen positions of each block.
      constexpr unsigned ofBlock = each / stepBlocks(bits);
      for (unsigned s = 0; s < S; s += each)
        byBlock(total[h] + s);
      for (unsigned b = 0; b < stepBlocks(bits) && b < n; ++b) {
        const Vec unit = broadcast(head.unit[block + b]),
                  offset = broadcast(head.offset[block + b]);
        for (unsigned s = 0; s < count * ofBlock; ++s) {
          const Codes sums = total[h][s / ofBlock * each + b * ofBlock + s % ofBlock];
          const Vec product = unit * toFloat(sums);
          const Vec score = (product + offset) * factor;
          store(head.scores + (block + b) * blockSize + first * 16 + s * width, score);
          head.peak = maximum(score, head.peak);
        }
      }
    } else {
      const Vec unit = bitcast<Vec>(spread<bits>(head.unit, block)),
                offset = bitcast<Vec>(spread<bits>(head.offset, block));
      for (unsigned s = 0; s < S; ++s) {
        const Vec product = unit * toFloat(total[h][s]);
        const Vec score = (product + offset) * factor;
        // 4 bits: sum s has 8 positions of each block; 8 bits: 16 of one, or the part's 8 of these.
        const unsigned position = (first * each + s) * (bits == 4 ? 8 : 16) + part * 8;
        head.peak = maximum(putScores<bits>(head.scores + block * blockSize + position, score, n),
                            head.peak);
      }
    }
  }
}

// As many vectors at a time as there are registers for their sums.
template <unsigned bits, unsigned H, unsigned first = 0>
inline void scoreFrom(const CodesOfCell &cell, CellOfHead *heads, unsigned block, unsigned n,
                      unsigned part) {
  constexpr unsigned most = mostSums / (H * codesOfByte(bits)), count = most >= 4   ? 4
                                                                        : most >= 2 ? 2
                                                                                    : 1;
  scoreVectors<bits, H, first, count>(cell, heads, block, n, part);
  if constexpr (first + count < interleaved)
    scoreFrom<bits, H, first + count>(cell, heads, block, n, part);
}

template <unsigned bits, unsigned H>
inline void scoreBlocks(const CodesOfCell &cell, CellOfHead *heads, unsigned block, unsigned n) {
  constexpr unsigned parts = blockSize * bits / 8 > codeBytes ? 2 : 1; // vectors of a block
  for (unsigned part = 0; part < parts; ++part)
    scoreFrom<bits, H>(cell, heads, block, n, part);
}
