/* SPDX-License-Identifier: Apache-2.0
 * Reads a conformance vector (docs/vectors.md) and computes each dense attention of it again, up to the first
 * reorder: cc -O2 -ffp-contract=off dense.c -lm -o dense && ./dense v1/appends_index16.vec */
#include <math.h>
#include <stdint.h>
#include <stdio.h>
static union { char bytes[1 << 20]; int32_t ints[1 << 18]; uint16_t halves[1 << 19]; } data; /* of a record */
static float rows[2][1 << 17]; /* keys, values: [batch][n_kv_heads][capacity][head_dim] */
static float widen(uint16_t h) {
  const int m = h & 1023, e = h >> 10 & 31;
  return (h >> 15 ? -1.0f : 1.0f) * (e ? ldexpf(1024.0f + m, e - 25) : ldexpf(m, -24));
}
static uint16_t narrow(float x) { /* E1: saturates; to the nearest, ties to even */
  const float a = fminf(fabsf(x), 65504);
  const int e = a < 0x1p-14f ? -13 : ilogbf(a) + 1;
  return (uint16_t)((signbit(x) ? 0x8000 : 0) | (((e + 13) << 10) + (int)lrintf(ldexpf(a, 11 - e))));
}
static float weight(float x) { /* E5 */
  const float y = x > -0x1p-25f ? 0 : x, n = (y * 0x1.715476p+0f + 0x1.8p+23f) - 0x1.8p+23f;
  const float r = (y - n * 0x1.63p-1f) - n * -0x1.bd0106p-13f;
  const float p = (((0x1.6d4352p-10f * r + 0x1.120b96p-7f) * r + 0x1.5554e8p-5f) * r + 0x1.5554dcp-3f) * r + 0.5f;
  return x < -54 ? 0 : ldexpf(1 + (r + (r * r) * p), (int)n);
}
static float lane_sum(const float *x, int n) { /* E3 */
  float s[8] = {0};
  for (int i = 0; i < n; ++i) s[i % 8] += x[i];
  return ((s[0] + s[4]) + (s[2] + s[6])) + ((s[1] + s[5]) + (s[3] + s[7]));
}
static int differs(const uint16_t *q, const float *k, const float *v, int n, int d, const uint16_t *expected) {
  float w[2048], x[256], most = -INFINITY, all = 0;
  for (int p = 0; p < n; most = fmaxf(most, w[p++])) {
    for (int c = 0; c < d; ++c) x[c] = widen(q[c]) * k[p * d + c];
    w[p] = lane_sum(x, d) * (float)(1 / sqrt(d));
  }
  for (int p = 0; p < n; ++p) w[p] = weight(w[p] - most);
  for (int p = 0; p < n; p += 64) all += lane_sum(w + p, n - p < 64 ? n - p : 64);
  for (int c = 0; c < d; ++c) {
    float sum = 0, part = 0; /* of a block of 64 positions */
    for (int from = 0; from < n; from += 64, sum += part, part = 0)
      for (int p = from; p < n && p < from + 64; ++p) part += w[p] * v[p * d + c];
    if (narrow((fabsf(sum) < 0x1p-48f ? 0 : sum) / all) != expected[c]) return 1;
  }
  return 0;
}
int main(int argc, char **argv) {
  int32_t w[10], of[10], held[64] = {0}, n = 0, wrong = 0; /* w: kind, bytes of the arrays, numbers */
  FILE *f = argc == 2 ? fopen(argv[1], "rb") : NULL;
  if (!f || fread(of, 4, 10, f) != 10 || of[0] != 0x51525053 || of[2] != 1 || of[9] != 16) return 2;
  const int batch = of[3], d = of[6], room = of[7] * d, t = batch * of[4], m = batch * of[5], g = of[5] / of[4];
  while (fread(w, 4, 10, f) == 10 && fread(data.bytes, 1, (size_t)w[1], f) == (size_t)w[1] && w[0] != 3) {
    for (int i = 0; i < 2 * t && w[0] == 1; ++i)
      for (int b = i / of[4] % batch, c = 0; c < data.ints[b] * d; ++c)
        rows[i / t][i % t * room + held[b] * d + c] = widen(data.halves[2 * batch + i * w[2] * d + c]);
    for (int b = 0; b < batch && w[0] < 5; ++b)
      held[b] = w[0] == 4 ? 0 : (w[0] == 1 ? held[b] : 0) + data.ints[b];
    for (int i = 0, j = 0; i < m && w[0] == 6; j = ++i / g * room, ++n)
      wrong += differs(data.halves + i * d, rows[0] + j, rows[1] + j, held[i / of[5]], d, data.halves + (m + i) * d);
  }
  return printf("%d heads, %d of them differ\n", n, wrong), wrong || !n;
}
