// What attention needs beside vector.h: turning tiles round, swapping lanes, and pairing 16-bit halves of two rows.

#pragma once
#include "vector.h"

namespace noria::NORIA_LEVEL {
namespace {

INLINE int64_t lesser(int64_t a, int64_t b) { return a < b ? a : b; }
INLINE int64_t greater(int64_t a, int64_t b) { return a > b ? a : b; }

// The first lane.
INLINE float first(Floats x) {
  float found;
  memcpy(&found, &x, 4);
  return found;
}

INLINE Ints bits(Floats x) {
  Ints found;
  memcpy(&found, &x, sizeof found);
  return found;
}

INLINE void store_ints(void* p, Ints x) { memcpy(p, &x, sizeof x); }

#if defined(NORIA_AVX512)

// Lane i takes lane i ^ HALF.
template <int HALF>
INLINE Floats swapped(Floats x) {
  const Ints lanes = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  return (Floats)_mm512_permutexvar_ps((__m512i)(lanes ^ HALF), (__m512)x);
}

// Rows of 16 words become columns, 16 words apart: to[word * 16 + row].
INLINE void store_turned(int32_t* to, const Ints (&rows)[LANES]) {
  __m512i a[16], b[16];
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) {
    a[2 * i] = _mm512_unpacklo_epi32((__m512i)rows[2 * i], (__m512i)rows[2 * i + 1]);
    a[2 * i + 1] = _mm512_unpackhi_epi32((__m512i)rows[2 * i], (__m512i)rows[2 * i + 1]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    b[4 * i] = _mm512_unpacklo_epi64(a[4 * i], a[4 * i + 2]);
    b[4 * i + 1] = _mm512_unpackhi_epi64(a[4 * i], a[4 * i + 2]);
    b[4 * i + 2] = _mm512_unpacklo_epi64(a[4 * i + 1], a[4 * i + 3]);
    b[4 * i + 3] = _mm512_unpackhi_epi64(a[4 * i + 1], a[4 * i + 3]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    a[i] = _mm512_shuffle_i32x4(b[i], b[4 + i], 0x88);
    a[4 + i] = _mm512_shuffle_i32x4(b[i], b[4 + i], 0xdd);
    a[8 + i] = _mm512_shuffle_i32x4(b[8 + i], b[12 + i], 0x88);
    a[12 + i] = _mm512_shuffle_i32x4(b[8 + i], b[12 + i], 0xdd);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    _mm512_storeu_si512(to + 16 * i, _mm512_shuffle_i32x4(a[i], a[8 + i], 0x88));
    _mm512_storeu_si512(to + 16 * (4 + i), _mm512_shuffle_i32x4(a[4 + i], a[12 + i], 0x88));
    _mm512_storeu_si512(to + 16 * (8 + i), _mm512_shuffle_i32x4(a[i], a[8 + i], 0xdd));
    _mm512_storeu_si512(to + 16 * (12 + i), _mm512_shuffle_i32x4(a[4 + i], a[12 + i], 0xdd));
  }
}

// Thirty-two bf16 of two vectors, one after the other.
INLINE Ints words(Floats low, Floats high) {
  return (Ints)_mm512_cvtne2ps_pbh((__m512)high, (__m512)low);
}
// (a[0], b[0]), (a[2], b[2]), ... and (a[1], b[1]), (a[3], b[3]), ... of rows of 32 halves.
INLINE Ints even_pairs(Ints a, Ints b) { return (a & 0xffff) | (b << 16); }
INLINE Ints odd_pairs(Ints a, Ints b) {
  return (Ints)_mm512_srli_epi32((__m512i)a, 16) | (b & int32_t(0xffff0000));
}
// The 32 halves of a vector to every second place: the even ones from p on, then the odd ones.
INLINE void store_apart(bf16* p, Ints halves) {
  _mm512_mask_storeu_epi16(p, 0x55555555, (__m512i)halves);
  _mm512_mask_storeu_epi16(p + 2 * LANES, 0x55555555, _mm512_srli_epi32((__m512i)halves, 16));
}
// The bf16 numbers even[0], odd[0], even[1], ...
INLINE void store_alternating(bf16* p, Floats even, Floats odd) {
  const __m512i low = _mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh((__m512)even));
  const __m512i high = _mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh((__m512)odd));
  _mm512_storeu_si512(p, _mm512_or_si512(low, _mm512_slli_epi32(high, 16)));
}

#else

template <int HALF>
INLINE Floats swapped(Floats x) {
  float from[LANES], to[LANES];
  store(from, x);
  for (int i = 0; i < LANES; ++i) to[i] = from[i ^ HALF];
  return load(to);
}

INLINE void store_turned(int32_t* to, const Ints (&rows)[LANES]) {
  for (int row = 0; row < LANES; ++row) {
    int32_t from[LANES];
    store_ints(from, rows[row]);
    for (int word = 0; word < LANES; ++word) to[word * LANES + row] = from[word];
  }
}

INLINE Ints words(Floats low, Floats high) {
  bf16 found[2 * LANES];
  store(found, low);
  store(found + LANES, high);
  return load_ints(found);
}

template <int ODD>
INLINE Ints pairs(Ints a, Ints b) {
  uint16_t one[2 * LANES], other[2 * LANES], found[2 * LANES];
  store_ints(one, a);
  store_ints(other, b);
  for (int i = 0; i < LANES; ++i) {
    found[2 * i] = one[2 * i + ODD];
    found[2 * i + 1] = other[2 * i + ODD];
  }
  return load_ints(found);
}
INLINE Ints even_pairs(Ints a, Ints b) { return pairs<0>(a, b); }
INLINE Ints odd_pairs(Ints a, Ints b) { return pairs<1>(a, b); }

INLINE void store_apart(bf16* p, Ints halves) {
  bf16 from[2 * LANES];
  store_ints(from, halves);
  for (int i = 0; i < LANES; ++i) {
    p[2 * i] = from[2 * i];
    p[2 * LANES + 2 * i] = from[2 * i + 1];
  }
}

INLINE void store_alternating(bf16* p, Floats even, Floats odd) {
  bf16 one[LANES], other[LANES];
  store(one, even);
  store(other, odd);
  for (int i = 0; i < LANES; ++i) {
    p[2 * i] = one[i];
    p[2 * i + 1] = other[i];
  }
}

#endif

}  // namespace
}  // namespace noria::NORIA_LEVEL
