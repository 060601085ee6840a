// Sixteen lanes on every processor: what the kernels are written in.
//
// Each file that includes this is compiled once per level (avx512, avx2, portable) with NORIA_LEVEL naming the level and
// one of NORIA_AVX512, NORIA_AVX2 or neither defined. A vector is one register, two, or four; the number of lanes is the
// same everywhere, so that layouts of packed weights and orders of summation do not depend on the level.
//
// Everything here has internal linkage, and no kernel may use a standard library template: a weak symbol that the linker
// takes from another level's object would run instructions that this processor lacks.
//
// What a level's header provides, for Floats and Ints of 16 lanes each:
//   + - * / and unary - on Floats, + - on Ints
//   splat(float), splat(int32_t)              all lanes the same
//   load(float*|bf16*|half*|int8_t*)          as Floats; load_ints(any*) 64 raw bytes, load_ints16(int16_t*) widened
//   store(float*|bf16*|half*, Floats)         rounds to nearest even; store_bytes(uint8_t*, Ints) lanes of 0..255
//   splat_word(any*)                          four raw bytes in each lane
//   low_nibbles(Ints), high_nibbles(Ints)     the lower and the upper four bits of each byte, as bytes
//   multiply_add(a, b, c)                     a * b + c, fused where the processor can
//   maximum, minimum, rounded, square_root
//   first_lanes(n, a, b)                      lanes below n of a, the others of b
//   floats(Ints), ints(Floats)                ints rounds to nearest even
//   scaled(x, n)                              x * 2^n for whole n; 0 where that underflows
//   sum, largest, smallest                    over the lanes, always in the same order: halves, quarters, ...
//   dot_bf16(c, a, b)                         c + products of the two bf16 in each lane of a and b, float32 sums
//   dot_int8(c, a, b)                         c + products of the four uint8 in a and int8 in b, exact
//   dot_bf16, dot_int8                        take raw lanes as load_ints and splat_word give them

#pragma once
#include <math.h>
#include <stdint.h>
#include <string.h>

#define INLINE static inline __attribute__((always_inline))

namespace noria::NORIA_LEVEL {
namespace {

enum class bf16 : uint16_t {};  // the upper half of a float32
enum class half : uint16_t {};  // IEEE binary16

constexpr int LANES = 16;

INLINE float to_float(float x) { return x; }
INLINE float to_float(bf16 x) {
  const uint32_t bits = uint32_t(x) << 16;
  float f;
  memcpy(&f, &bits, 4);
  return f;
}

INLINE bf16 to_bf16(float x) {
  uint32_t bits;
  memcpy(&bits, &x, 4);
  if ((bits & 0x7fffffff) > 0x7f800000) return bf16(0x7fc0);
  return bf16((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
INLINE float to_float(half x) {
  const uint32_t bits = uint32_t(x), sign = (bits & 0x8000) << 16, magnitude = bits & 0x7fff;
  uint32_t found = (magnitude << 13) + (112u << 23);
  if (magnitude >= 0x7c00) found += 112u << 23;
  float f;
  if (magnitude < 0x0400) {
    f = float(magnitude) * 0x1p-24f;
    memcpy(&found, &f, 4);
  }
  found |= sign;
  memcpy(&f, &found, 4);
  return f;
}
INLINE half to_half(float x) {
  uint32_t bits;
  memcpy(&bits, &x, 4);
  const uint32_t sign = bits >> 16 & 0x8000, magnitude = bits & 0x7fffffff;
  if (magnitude > 0x7f800000) return half(sign | 0x7e00);
  if (magnitude >= 0x477ff000) return half(sign | 0x7c00);
  if (magnitude < 0x38800000) {
    float f;
    memcpy(&f, &magnitude, 4);
    return half(sign | uint32_t(nearbyintf(f * 0x1p24f)));
  }
  return half(sign | (((magnitude + 0xfff + (magnitude >> 13 & 1)) >> 13) - (112u << 10)));
}

}  // namespace
}  // namespace noria::NORIA_LEVEL

#if defined(NORIA_AVX512)
#include "vector_avx512.h"
#elif defined(NORIA_AVX2)
#include "vector_avx2.h"
#else
#include "vector_portable.h"
#endif

namespace noria::NORIA_LEVEL {
namespace {

INLINE Floats absolute(Floats x) { return maximum(x, -x); }

// The first n numbers at p, n below LANES; the other lanes are `rest`.
template <class T>
INLINE Floats load_first(const T* p, int64_t n, float rest = 0) {
  T whole[LANES] = {};
  memcpy(whole, p, n * sizeof(T));
  return first_lanes(int(n), load(whole), splat(rest));
}

template <class T>
INLINE void store_first(T* p, int64_t n, Floats x) {
  T whole[LANES];
  store(whole, x);
  memcpy(p, whole, n * sizeof(T));
}

// e^x by Cephes' polynomial (Moshier), within 2 units in the last place; 0 below -87.3, for -inf too.
INLINE Floats exponential(Floats x) {
  const Floats least = splat(-87.3f);
  const Floats within = minimum(maximum(x, least), splat(88.3f));
  const Floats n = rounded(within * splat(1.44269504f));
  Floats r = multiply_add(n, splat(-0.693359375f), within);
  r = multiply_add(n, splat(2.12194440e-4f), r);
  Floats p = splat(1.9875691500e-4f);
  p = multiply_add(p, r, splat(1.3981999507e-3f));
  p = multiply_add(p, r, splat(8.3334519073e-3f));
  p = multiply_add(p, r, splat(4.1665795894e-2f));
  p = multiply_add(p, r, splat(1.6666665459e-1f));
  p = multiply_add(p, r, splat(5.0000001201e-1f));
  p = multiply_add(p, r, splat(1.f));
  p = multiply_add(p, r, splat(1.f));
  return zero_below(x, least, scaled(p, n));
}

}  // namespace
}  // namespace noria::NORIA_LEVEL
