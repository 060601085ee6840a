// Sixteen lanes in plain C++, four at a time as every common processor can. See vector.h.

#pragma once

namespace noria::NORIA_LEVEL {
namespace {

typedef float FourFloats __attribute__((vector_size(16)));
typedef int32_t FourInts __attribute__((vector_size(16)));
typedef int16_t EightShorts __attribute__((vector_size(16)));
typedef uint16_t EightUnsigned __attribute__((vector_size(16)));

constexpr int PARTS = 4;

struct Floats {
  FourFloats part[PARTS];
};
struct Ints {
  FourInts part[PARTS];
};

#define NORIA_EACH(Result, expression)                                        \
  Result r;                                                                   \
  _Pragma("GCC unroll 4") for (int i = 0; i < PARTS; ++i) r.part[i] = (expression); \
  return r

INLINE Floats operator+(Floats a, Floats b) { NORIA_EACH(Floats, a.part[i] + b.part[i]); }
INLINE Floats operator-(Floats a, Floats b) { NORIA_EACH(Floats, a.part[i] - b.part[i]); }
INLINE Floats operator*(Floats a, Floats b) { NORIA_EACH(Floats, a.part[i] * b.part[i]); }
INLINE Floats operator/(Floats a, Floats b) { NORIA_EACH(Floats, a.part[i] / b.part[i]); }
INLINE Floats operator-(Floats a) { NORIA_EACH(Floats, -a.part[i]); }
INLINE Ints operator+(Ints a, Ints b) { NORIA_EACH(Ints, a.part[i] + b.part[i]); }
INLINE Ints operator-(Ints a, Ints b) { NORIA_EACH(Ints, a.part[i] - b.part[i]); }

INLINE Floats splat(float x) { NORIA_EACH(Floats, (FourFloats{x, x, x, x})); }
INLINE Ints splat(int32_t x) { NORIA_EACH(Ints, (FourInts{x, x, x, x})); }

INLINE Floats load(const float* p) {
  Floats r;
  memcpy(&r, p, sizeof r);
  return r;
}
INLINE Floats load(const bf16* p) {
  uint32_t bits[LANES];
  for (int i = 0; i < LANES; ++i) bits[i] = uint32_t(p[i]) << 16;
  Floats r;
  memcpy(&r, bits, sizeof r);
  return r;
}
INLINE Floats load(const half* p) {
  float lanes[LANES];
  for (int i = 0; i < LANES; ++i) lanes[i] = to_float(p[i]);
  return load(lanes);
}
INLINE Floats load(const int8_t* p) {
  float lanes[LANES];
  for (int i = 0; i < LANES; ++i) lanes[i] = p[i];
  return load(lanes);
}
INLINE Ints load_ints(const void* p) {
  Ints r;
  memcpy(&r, p, sizeof r);
  return r;
}
INLINE Ints load_ints16(const int16_t* p) {
  int32_t lanes[LANES];
  for (int i = 0; i < LANES; ++i) lanes[i] = p[i];
  return load_ints(lanes);
}
INLINE Ints low_nibbles(Ints x) { NORIA_EACH(Ints, x.part[i] & 0x0f0f0f0f); }
INLINE Ints high_nibbles(Ints x) { NORIA_EACH(Ints, (x.part[i] >> 4) & 0x0f0f0f0f); }
INLINE Ints splat_word(const void* p) {
  int32_t word;
  memcpy(&word, p, 4);
  return splat(word);
}

INLINE void store(float* p, Floats x) { memcpy(p, &x, sizeof x); }
INLINE void store(bf16* p, Floats x) {
  uint32_t bits[LANES];
  memcpy(bits, &x, sizeof x);
  for (int i = 0; i < LANES; ++i) {
    const bool nan = (bits[i] & 0x7fffffff) > 0x7f800000;
    p[i] = bf16(nan ? 0x7fc0 : (bits[i] + 0x7fff + (bits[i] >> 16 & 1)) >> 16);
  }
}
INLINE void store(half* p, Floats x) {
  float lanes[LANES];
  memcpy(lanes, &x, sizeof x);
  for (int i = 0; i < LANES; ++i) p[i] = to_half(lanes[i]);
}
INLINE void store_bytes(uint8_t* p, Ints x) {
  int32_t lanes[LANES];
  memcpy(lanes, &x, sizeof x);
  for (int i = 0; i < LANES; ++i) p[i] = uint8_t(lanes[i]);
}

INLINE Floats multiply_add(Floats a, Floats b, Floats c) { return a * b + c; }
INLINE Floats maximum(Floats a, Floats b) { NORIA_EACH(Floats, a.part[i] > b.part[i] ? a.part[i] : b.part[i]); }
INLINE Floats minimum(Floats a, Floats b) { NORIA_EACH(Floats, a.part[i] < b.part[i] ? a.part[i] : b.part[i]); }
// Above 2^22 the addition would lose whole numbers, which callers do not need: they round small numbers only.
INLINE Floats rounded(Floats x) {
  const Floats shift = splat(12582912.f);
  return (x + shift) - shift;
}
INLINE Floats square_root(Floats x) {
  float lanes[LANES];
  store(lanes, x);
  for (int i = 0; i < LANES; ++i) lanes[i] = sqrtf(lanes[i]);
  return load(lanes);
}
INLINE Floats first_lanes(int n, Floats a, Floats b) {
  const FourInts count = {n, n, n, n}, first = {0, 1, 2, 3};
  NORIA_EACH(Floats, first + 4 * i < count ? a.part[i] : b.part[i]);
}
INLINE Floats zero_below(Floats x, Floats limit, Floats value) {
  NORIA_EACH(Floats, x.part[i] < limit.part[i] ? FourFloats{} : value.part[i]);
}

INLINE Floats floats(Ints x) { NORIA_EACH(Floats, __builtin_convertvector(x.part[i], FourFloats)); }
INLINE Ints ints(Floats x) {
  const Floats whole = rounded(x);
  NORIA_EACH(Ints, __builtin_convertvector(whole.part[i], FourInts));
}
INLINE Floats scaled(Floats x, Floats n) {
  Ints exponent = ints(n) + splat(127);
  Floats power;
#pragma GCC unroll 4
  for (int i = 0; i < PARTS; ++i) {
    exponent.part[i] = exponent.part[i] > 0 ? exponent.part[i] : FourInts{};
    power.part[i] = (FourFloats)(exponent.part[i] << 23);
  }
  return x * power;
}

template <class Join>
INLINE float joined(Floats x, Join join) {
  float lanes[LANES];
  store(lanes, x);
  for (int count = LANES / 2; count; count /= 2)
    for (int i = 0; i < count; ++i) lanes[i] = join(lanes[i], lanes[i + count]);
  return lanes[0];
}
INLINE float sum(Floats x) {
  return joined(x, [](float a, float b) { return a + b; });
}
INLINE float largest(Floats x) {
  return joined(x, [](float a, float b) { return a > b ? a : b; });
}
INLINE float smallest(Floats x) {
  return joined(x, [](float a, float b) { return a < b ? a : b; });
}

INLINE Floats dot_bf16(Floats c, Ints a, Ints b) {
  const FourInts upper = FourInts{} + int32_t(0xffff0000);
  NORIA_EACH(Floats, c.part[i] + (FourFloats)(a.part[i] & upper) * (FourFloats)(b.part[i] & upper) +
                         (FourFloats)(a.part[i] << 16) * (FourFloats)(b.part[i] << 16));
}
// In 16 bits, where each product fits though not the sum of two: every processor multiplies those at once.
INLINE FourInts dot_four(FourInts c, FourInts a, FourInts b) {
  const EightShorts left = (EightShorts)a, right = (EightShorts)b;
  const FourInts even = (FourInts)((left & 255) * ((right << 8) >> 8));
  const FourInts odd = (FourInts)((EightShorts)((EightUnsigned)left >> 8) * (right >> 8));
  return c + (even << 16 >> 16) + (even >> 16) + (odd << 16 >> 16) + (odd >> 16);
}
INLINE Ints dot_int8(Ints c, Ints a, Ints b) { NORIA_EACH(Ints, dot_four(c.part[i], a.part[i], b.part[i])); }

#undef NORIA_EACH

}  // namespace
}  // namespace noria::NORIA_LEVEL
