// What sampling needs beyond vector.h: sums in float64, which lanes pass a limit, and only those.
//
//   at_least(a, b)        a bit for each lane, the first one lowest, of a >= b; no number passes none
//   pack(p, x, lanes)     the lanes of x whose bits are set, one after the other, to float* or int32_t*; what follows them in
//                         the room of a whole vector means nothing; returns how many
//   ascending(first)      Ints first, first + 1, ...
//   Doubles               sixteen sums; add(sums, x) adds each lane of x, sum(sums) joins them in halves, quarters, ...

#pragma once
#include "vector.h"

namespace noria::NORIA_LEVEL {
namespace {

#if defined(NORIA_AVX512)

INLINE uint32_t at_least(Floats a, Floats b) { return _mm512_cmp_ps_mask((__m512)a, (__m512)b, _CMP_GE_OQ); }

INLINE int pack(float* p, Floats x, uint32_t lanes) {
  _mm512_storeu_ps(p, _mm512_maskz_compress_ps(lanes, (__m512)x));
  return __builtin_popcount(lanes);
}
INLINE int pack(int32_t* p, Ints x, uint32_t lanes) {
  _mm512_storeu_si512(p, _mm512_maskz_compress_epi32(lanes, (__m512i)x));
  return __builtin_popcount(lanes);
}
INLINE Ints ascending(int32_t first) {
  return splat(first) + (Ints)_mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
}

struct Doubles {
  __m512d low = _mm512_setzero_pd(), high = _mm512_setzero_pd();
};
INLINE void add(Doubles& sums, Floats x) {
  sums.low = _mm512_add_pd(sums.low, _mm512_cvtps_pd(_mm512_castps512_ps256((__m512)x)));
  sums.high = _mm512_add_pd(sums.high, _mm512_cvtps_pd(_mm512_extractf32x8_ps((__m512)x, 1)));
}
INLINE void store(double* p, const Doubles& sums) {
  _mm512_storeu_pd(p, sums.low);
  _mm512_storeu_pd(p + 8, sums.high);
}

#elif defined(NORIA_AVX2)

INLINE uint32_t at_least(Floats a, Floats b) {
  const int low = _mm256_movemask_ps(_mm256_cmp_ps(a.low, b.low, _CMP_GE_OQ));
  return low | _mm256_movemask_ps(_mm256_cmp_ps(a.high, b.high, _CMP_GE_OQ)) << 8;
}

struct Doubles {
  __m256d part[4] = {};
};
INLINE void add(Doubles& sums, Floats x) {
  sums.part[0] = _mm256_add_pd(sums.part[0], _mm256_cvtps_pd(_mm256_castps256_ps128(x.low)));
  sums.part[1] = _mm256_add_pd(sums.part[1], _mm256_cvtps_pd(_mm256_extractf128_ps(x.low, 1)));
  sums.part[2] = _mm256_add_pd(sums.part[2], _mm256_cvtps_pd(_mm256_castps256_ps128(x.high)));
  sums.part[3] = _mm256_add_pd(sums.part[3], _mm256_cvtps_pd(_mm256_extractf128_ps(x.high, 1)));
}
INLINE void store(double* p, const Doubles& sums) {
  for (int i = 0; i < 4; ++i) _mm256_storeu_pd(p + 4 * i, sums.part[i]);
}

#else

INLINE uint32_t at_least(Floats a, Floats b) {
  uint32_t found = 0;
  for (int i = 0; i < PARTS; ++i) {
    const FourInts bits = (a.part[i] >= b.part[i]) & FourInts{1, 2, 4, 8};
    found |= uint32_t(bits[0] | bits[1] | bits[2] | bits[3]) << 4 * i;
  }
  return found;
}

struct Doubles {
  double lane[LANES] = {};
};
INLINE void add(Doubles& sums, Floats x) {
  float lanes[LANES];
  store(lanes, x);
  for (int i = 0; i < LANES; ++i) sums.lane[i] += lanes[i];
}
INLINE void store(double* p, const Doubles& sums) { memcpy(p, sums.lane, sizeof sums.lane); }

#endif

#if !defined(NORIA_AVX512)

template <class Lanes, class T>
INLINE int packed(T* p, Lanes x, uint32_t lanes) {
  if (!lanes) return 0;
  T all[LANES];
  memcpy(all, &x, sizeof all);
  int count = 0;
  for (int lane = 0; lane < LANES; ++lane) {
    p[count] = all[lane];
    count += lanes >> lane & 1;
  }
  return count;
}
INLINE int pack(float* p, Floats x, uint32_t lanes) { return packed(p, x, lanes); }
INLINE int pack(int32_t* p, Ints x, uint32_t lanes) { return packed(p, x, lanes); }
INLINE Ints ascending(int32_t first) {
  int32_t lanes[LANES];
  for (int lane = 0; lane < LANES; ++lane) lanes[lane] = first + lane;
  return load_ints(lanes);
}

#endif

INLINE double sum(const Doubles& sums) {
  double lanes[LANES];
  store(lanes, sums);
  for (int count = LANES / 2; count; count /= 2)
    for (int i = 0; i < count; ++i) lanes[i] += lanes[i + count];
  return lanes[0];
}

}  // namespace
}  // namespace noria::NORIA_LEVEL
