// SPDX-License-Identifier: Apache-2.0
// Functions that are built into the IPU's compiler, so codelets use them without a header: those
// with a plain meaning, for scalars. popc includes this file before every source.
#pragma once

#include <cmath>
#include <cstdint>

#include <poplar/HalfFloat.hpp>

#include "codelet_abi.hpp"

// Set when the object is loaded, and part of it only where a codelet asks.
extern "C" __attribute__((visibility("default"))) codelet_abi::WorkerFunction poplar_codelet_worker;

inline unsigned __builtin_ipu_get_tile_id() { return poplar_codelet_worker()->tile; }
inline unsigned __builtin_ipu_get_worker_id() { return poplar_codelet_worker()->id; }

// The two words of the tile's cycle counter.
inline unsigned __builtin_ipu_get_scount_l() {
  return static_cast<unsigned>(poplar_codelet_worker()->cycles());
}
inline unsigned __builtin_ipu_get_scount_u() {
  return static_cast<unsigned>(poplar_codelet_worker()->cycles() >> 32);
}

#ifdef SPARQ_FLOATING_POINT_EVENTS
// Tells popc of each object that it is made so.
[[gnu::used]] static const auto *const poplar_codelet_shows_events =
    &poplar::half_bits::poplar_codelet_half_overflow;
#endif

namespace ipu_builtins {

inline std::uint64_t rotated(std::uint64_t x, unsigned by) { return (x << by) | (x >> (64 - by)); }

// xoroshiro128aox, of which a device takes every other number.
inline std::uint64_t random64() {
  std::uint64_t *s = poplar_codelet_worker()->generator, result = 0;
  for (int i = 0; i < 2; ++i) {
    const std::uint64_t either = s[0] ^ s[1], both = s[0] & s[1];
    if (i == 0)
      result = either ^ (rotated(both, 1) | rotated(both, 2));
    s[0] = rotated(s[0], 55) ^ either ^ (either << 14);
    s[1] = rotated(either, 36);
  }
  return result;
}

} // namespace ipu_builtins

// A tile's registers are not here: codelets may name these, and do not link where something calls
// them.
extern "C" __attribute__((visibility("hidden"))) void __builtin_ipu_put(std::uint32_t value,
                                                                        unsigned char number);
extern "C" __attribute__((visibility("hidden"))) void __builtin_ipu_uput(std::uint32_t value,
                                                                         unsigned char number);

inline std::uint32_t __builtin_ipu_urand32() {
  return static_cast<std::uint32_t>(ipu_builtins::random64());
}
inline std::uint64_t __builtin_ipu_urand64() { return ipu_builtins::random64(); }
// From -0.5 to 0.5.
inline float __builtin_ipu_urand_f32() {
  return static_cast<float>(__builtin_ipu_urand32() * 0x1p-32 - 0.5);
}
inline half __builtin_ipu_urand_f16() { return static_cast<half>(__builtin_ipu_urand_f32()); }

inline float __builtin_ipu_f16tof32(half a) { return a; }
inline half __builtin_ipu_f32tof16(float a) { return static_cast<half>(a); }
inline float __builtin_ipu_max(float a, float b) { return std::fmax(a, b); }
inline float __builtin_ipu_min(float a, float b) { return std::fmin(a, b); }
inline float __builtin_ipu_exp(float a) { return std::exp(a); }
inline float __builtin_ipu_exp2(float a) { return std::exp2(a); }
inline float __builtin_ipu_ln(float a) { return std::log(a); }
inline float __builtin_ipu_log2(float a) { return std::log2(a); }
inline float __builtin_ipu_tanh(float a) { return std::tanh(a); }
// 0 where exp(-a) is infinite: an instruction does not overflow on its way.
inline float __builtin_ipu_sigm(float a) {
  return a < -0x1.62e42ep+6f ? 0.0f : 1.0f / (1.0f + std::exp(-a));
}
inline bool __builtin_ipu_isnan(float a) { return std::isnan(a); }
inline bool __builtin_ipu_isinf(float a) { return std::isinf(a); }
inline bool __builtin_ipu_isfinite(float a) { return std::isfinite(a); }
