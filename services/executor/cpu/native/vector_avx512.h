// Sixteen lanes in one register: AVX-512 F, BW, DQ and VL with VNNI and BF16. See vector.h.

#pragma once
#include <immintrin.h>

namespace noria::NORIA_LEVEL {
namespace {

typedef float Floats __attribute__((vector_size(64)));
typedef int32_t Ints __attribute__((vector_size(64)));

INLINE Floats splat(float x) { return (Floats)_mm512_set1_ps(x); }
INLINE Ints splat(int32_t x) { return (Ints)_mm512_set1_epi32(x); }

INLINE Floats load(const float* p) { return (Floats)_mm512_loadu_ps(p); }
INLINE Floats load(const bf16* p) {
  return (Floats)_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)p)), 16);
}
INLINE Floats load(const half* p) { return (Floats)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)p)); }
INLINE Floats load(const int8_t* p) {
  return (Floats)_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i*)p)));
}
INLINE Ints load_ints(const void* p) { return (Ints)_mm512_loadu_si512(p); }
INLINE Ints load_ints16(const int16_t* p) {
  return (Ints)_mm512_cvtepi16_epi32(_mm256_loadu_si256((const __m256i*)p));
}
INLINE Ints low_nibbles(Ints x) { return x & 0x0f0f0f0f; }
INLINE Ints high_nibbles(Ints x) { return (x >> 4) & 0x0f0f0f0f; }
INLINE Ints splat_word(const void* p) {
  int32_t word;
  memcpy(&word, p, 4);
  return splat(word);
}

INLINE void store(float* p, Floats x) { _mm512_storeu_ps(p, (__m512)x); }
INLINE void store(bf16* p, Floats x) { _mm256_storeu_si256((__m256i*)p, (__m256i)_mm512_cvtneps_pbh((__m512)x)); }
INLINE void store(half* p, Floats x) {
  _mm256_storeu_si256((__m256i*)p, _mm512_cvtps_ph((__m512)x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
INLINE void store_bytes(uint8_t* p, Ints x) { _mm_storeu_si128((__m128i*)p, _mm512_cvtepi32_epi8((__m512i)x)); }

INLINE Floats multiply_add(Floats a, Floats b, Floats c) {
  return (Floats)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
}
INLINE Floats maximum(Floats a, Floats b) { return (Floats)_mm512_max_ps((__m512)a, (__m512)b); }
INLINE Floats minimum(Floats a, Floats b) { return (Floats)_mm512_min_ps((__m512)a, (__m512)b); }
INLINE Floats rounded(Floats x) { return (Floats)_mm512_roundscale_ps((__m512)x, 0); }
INLINE Floats square_root(Floats x) { return (Floats)_mm512_sqrt_ps((__m512)x); }
INLINE Floats first_lanes(int n, Floats a, Floats b) {
  const __mmask16 mask = n >= LANES ? 0xffff : n <= 0 ? 0 : (1u << n) - 1;
  return (Floats)_mm512_mask_mov_ps((__m512)b, mask, (__m512)a);
}
INLINE Floats zero_below(Floats x, Floats limit, Floats value) {
  return (Floats)_mm512_maskz_mov_ps(_mm512_cmp_ps_mask((__m512)x, (__m512)limit, _CMP_NLT_UQ), (__m512)value);
}

INLINE Floats floats(Ints x) { return (Floats)_mm512_cvtepi32_ps((__m512i)x); }
INLINE Ints ints(Floats x) { return (Ints)_mm512_cvtps_epi32((__m512)x); }
INLINE Floats scaled(Floats x, Floats n) { return (Floats)_mm512_scalef_ps((__m512)x, (__m512)n); }

INLINE float sum(Floats x) { return _mm512_reduce_add_ps((__m512)x); }
INLINE float largest(Floats x) { return _mm512_reduce_max_ps((__m512)x); }
INLINE float smallest(Floats x) { return _mm512_reduce_min_ps((__m512)x); }

// Written out because gcc 12 moves accumulators to the stack around these two intrinsics: products took 1.5 times as long.
INLINE Floats dot_bf16(Floats c, Ints a, Ints b) {
  asm("vdpbf16ps %2, %1, %0" : "+v"(c) : "v"(a), "v"(b));
  return c;
}
INLINE Ints dot_int8(Ints c, Ints a, Ints b) {
  asm("vpdpbusd %2, %1, %0" : "+v"(c) : "v"(a), "v"(b));
  return c;
}

}  // namespace
}  // namespace noria::NORIA_LEVEL
