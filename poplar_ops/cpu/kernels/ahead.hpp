// SPDX-License-Identifier: Apache-2.0
//
// Fetching of columns into L2, ahead of their use: the memory then works while the processor does
// something else. A core has fewer such requests in flight than its hardware prefetchers manage for
// long streams (20 against 28 GB/s on a Zen 4 core), so they are for the times when there are none.

// Columns that are read side by side.
constexpr unsigned columnsTogether = 8;

// Asks for the next n lines, or a few more.
inline void fetch(Ahead &a, std::size_t n) {
  constexpr std::size_t line = 32; // positions
  constexpr int read = 0, intoL2 = 2;
  for (std::size_t asked = 0; asked < n && a.runBegin < a.end;) {
    const unsigned left = a.rank - a.column, some = left < columnsTogether ? left : columnsTogether;
    for (unsigned j = 0; j < some; ++j)
      __builtin_prefetch(a.columns[a.column + j] + a.position, read, intoL2);
    asked += some;
    a.lines += some;
    a.position += line;
    const std::size_t stop = a.end - a.runBegin < a.run ? a.end : a.runBegin + a.run;
    if (a.position < stop)
      continue;
    a.column += some;
    if (a.column == a.rank) {
      a.column = 0;
      a.runBegin = stop;
    }
    a.position = a.runBegin;
  }
}

// The same, of columns that are not yet being read: no more than L2 has room for.
inline void fetchEarly(Ahead *a, std::size_t n) {
  if (a && a->lines < a->most)
    fetch(*a, n);
}

// Asks for the rows of the next n entries.
inline void fetchRows(RowsAhead *a, std::size_t n) {
  if (!a)
    return;
  constexpr unsigned line = 32; // components
  constexpr int read = 0, intoL2 = 2;
  const std::size_t end = a->count - a->next < n ? a->count : a->next + n;
  for (; a->next < end; ++a->next) {
    const std::size_t row = a->index[a->next] * std::size_t(a->headDim);
    for (unsigned c = 0; c < a->headDim; c += line) {
      __builtin_prefetch(a->keyRows + row + c, read, intoL2);
      __builtin_prefetch(a->valueRows + row + c, read, intoL2);
    }
  }
}
