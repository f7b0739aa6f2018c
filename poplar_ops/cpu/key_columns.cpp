// SPDX-License-Identifier: Apache-2.0
#include "key_columns.hpp"

#ifdef SPARQ_X86
#include <emmintrin.h>
#endif

namespace sparq::cpu {
namespace {

// 8 rows of 8 components -> 8 columns of 8 positions.
void transpose8(const Half *rows, std::size_t rowStride, Half *columns, std::size_t columnStride) {
#ifdef SPARQ_X86
  __m128i r[8], s[8];
  for (unsigned i = 0; i < 8; ++i)
    r[i] = _mm_loadu_si128(reinterpret_cast<const __m128i *>(rows + i * rowStride));
  // Interleaving row i with row i + 4, three times, is a transposition.
  for (unsigned step = 0; step < 3; ++step) {
    for (unsigned i = 0; i < 4; ++i) {
      s[2 * i] = _mm_unpacklo_epi16(r[i], r[i + 4]);
      s[2 * i + 1] = _mm_unpackhi_epi16(r[i], r[i + 4]);
    }
    for (unsigned i = 0; i < 8; ++i)
      r[i] = s[i];
  }
  for (unsigned i = 0; i < 8; ++i)
    _mm_storeu_si128(reinterpret_cast<__m128i *>(columns + i * columnStride), r[i]);
#else
  for (unsigned i = 0; i < 8; ++i)
    for (unsigned j = 0; j < 8; ++j)
      columns[i * columnStride + j] = rows[j * rowStride + i];
#endif
}

} // namespace

void writeColumns(const Half *rows, std::size_t headDim, std::size_t nComponents, Half *columns,
                  std::size_t columnStride, std::size_t begin, std::size_t end) {
  for (std::size_t p = begin; p < end;) {
    const bool whole = p % 8 == 0 && p + 8 <= end;
    if (!whole) {
      const Half *row = rows + p * headDim;
      for (std::size_t c = 0; c < nComponents; ++c)
        columns[c * columnStride + p] = row[c];
      ++p;
      continue;
    }
    const std::size_t line = p / linePositions * linePositions + linePositions;
    const std::size_t stop = line < end ? line : end / 8 * 8;
    for (std::size_t c = 0; c < nComponents; c += 8)
      for (std::size_t at = p; at < stop; at += 8)
        transpose8(rows + at * headDim + c, headDim, columns + c * columnStride + at, columnStride);
    p = stop;
  }
}

} // namespace sparq::cpu
