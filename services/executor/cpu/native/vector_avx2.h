// Sixteen lanes in two registers: AVX2 with FMA and F16C. See vector.h.

#pragma once
#include <immintrin.h>

namespace noria::NORIA_LEVEL {
namespace {

struct Floats {
  __m256 low, high;
};
struct Ints {
  __m256i low, high;
};

INLINE Floats operator+(Floats a, Floats b) { return {_mm256_add_ps(a.low, b.low), _mm256_add_ps(a.high, b.high)}; }
INLINE Floats operator-(Floats a, Floats b) { return {_mm256_sub_ps(a.low, b.low), _mm256_sub_ps(a.high, b.high)}; }
INLINE Floats operator*(Floats a, Floats b) { return {_mm256_mul_ps(a.low, b.low), _mm256_mul_ps(a.high, b.high)}; }
INLINE Floats operator/(Floats a, Floats b) { return {_mm256_div_ps(a.low, b.low), _mm256_div_ps(a.high, b.high)}; }
INLINE Floats operator-(Floats a) {
  const __m256 sign = _mm256_set1_ps(-0.f);
  return {_mm256_xor_ps(a.low, sign), _mm256_xor_ps(a.high, sign)};
}
INLINE Ints operator+(Ints a, Ints b) { return {_mm256_add_epi32(a.low, b.low), _mm256_add_epi32(a.high, b.high)}; }
INLINE Ints operator-(Ints a, Ints b) { return {_mm256_sub_epi32(a.low, b.low), _mm256_sub_epi32(a.high, b.high)}; }

INLINE Floats splat(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
INLINE Ints splat(int32_t x) { return {_mm256_set1_epi32(x), _mm256_set1_epi32(x)}; }

INLINE Floats load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
INLINE __m256 load_octet(const bf16* p) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i*)p)), 16));
}
INLINE Floats load(const bf16* p) { return {load_octet(p), load_octet(p + 8)}; }
INLINE Floats load(const half* p) {
  return {_mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)p)), _mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)p + 1))};
}
INLINE __m256 load_octet(const int8_t* p) {
  return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i*)p)));
}
INLINE Floats load(const int8_t* p) { return {load_octet(p), load_octet(p + 8)}; }
INLINE Ints load_ints(const void* p) {
  return {_mm256_loadu_si256((const __m256i*)p), _mm256_loadu_si256((const __m256i*)p + 1)};
}
INLINE Ints load_ints16(const int16_t* p) {
  return {_mm256_cvtepi16_epi32(_mm_loadu_si128((const __m128i*)p)),
          _mm256_cvtepi16_epi32(_mm_loadu_si128((const __m128i*)p + 1))};
}
INLINE Ints low_nibbles(Ints x) {
  const __m256i lower = _mm256_set1_epi8(15);
  return {_mm256_and_si256(x.low, lower), _mm256_and_si256(x.high, lower)};
}
INLINE Ints high_nibbles(Ints x) { return low_nibbles({_mm256_srli_epi32(x.low, 4), _mm256_srli_epi32(x.high, 4)}); }
INLINE Ints splat_word(const void* p) {
  int32_t word;
  memcpy(&word, p, 4);
  return splat(word);
}

INLINE void store(float* p, Floats x) {
  _mm256_storeu_ps(p, x.low);
  _mm256_storeu_ps(p + 8, x.high);
}
INLINE __m256i upper_half(__m256 x) {
  const __m256i bits = _mm256_castps_si256(x);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  const __m256i up = _mm256_srli_epi32(_mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff))), 16);
  const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
  return _mm256_blendv_epi8(up, _mm256_set1_epi32(0x7fc0), nan);
}
INLINE void store(bf16* p, Floats x) {
  const __m256i packed = _mm256_packus_epi32(upper_half(x.low), upper_half(x.high));
  _mm256_storeu_si256((__m256i*)p, _mm256_permute4x64_epi64(packed, 0xd8));
}
INLINE void store(half* p, Floats x) {
  constexpr int nearest = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
  _mm_storeu_si128((__m128i*)p, _mm256_cvtps_ph(x.low, nearest));
  _mm_storeu_si128((__m128i*)p + 1, _mm256_cvtps_ph(x.high, nearest));
}
INLINE void store_bytes(uint8_t* p, Ints x) {
  const __m256i words = _mm256_permute4x64_epi64(_mm256_packus_epi32(x.low, x.high), 0xd8);
  const __m128i bytes = _mm_packus_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
  _mm_storeu_si128((__m128i*)p, bytes);
}

INLINE Floats multiply_add(Floats a, Floats b, Floats c) {
  return {_mm256_fmadd_ps(a.low, b.low, c.low), _mm256_fmadd_ps(a.high, b.high, c.high)};
}
INLINE Floats maximum(Floats a, Floats b) { return {_mm256_max_ps(a.low, b.low), _mm256_max_ps(a.high, b.high)}; }
INLINE Floats minimum(Floats a, Floats b) { return {_mm256_min_ps(a.low, b.low), _mm256_min_ps(a.high, b.high)}; }
INLINE Floats rounded(Floats x) {
  constexpr int nearest = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
  return {_mm256_round_ps(x.low, nearest), _mm256_round_ps(x.high, nearest)};
}
INLINE Floats square_root(Floats x) { return {_mm256_sqrt_ps(x.low), _mm256_sqrt_ps(x.high)}; }
INLINE Floats first_lanes(int n, Floats a, Floats b) {
  const __m256i count = _mm256_set1_epi32(n);
  const __m256 low = _mm256_castsi256_ps(_mm256_cmpgt_epi32(count, _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7)));
  const __m256 high = _mm256_castsi256_ps(_mm256_cmpgt_epi32(count, _mm256_setr_epi32(8, 9, 10, 11, 12, 13, 14, 15)));
  return {_mm256_blendv_ps(b.low, a.low, low), _mm256_blendv_ps(b.high, a.high, high)};
}
INLINE Floats zero_below(Floats x, Floats limit, Floats value) {
  return {_mm256_and_ps(value.low, _mm256_cmp_ps(x.low, limit.low, _CMP_NLT_UQ)),
          _mm256_and_ps(value.high, _mm256_cmp_ps(x.high, limit.high, _CMP_NLT_UQ))};
}

INLINE Floats floats(Ints x) { return {_mm256_cvtepi32_ps(x.low), _mm256_cvtepi32_ps(x.high)}; }
INLINE Ints ints(Floats x) { return {_mm256_cvtps_epi32(x.low), _mm256_cvtps_epi32(x.high)}; }
INLINE __m256 power_of_two(__m256 n) {
  const __m256i exponent = _mm256_max_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), __m256i{});
  return _mm256_castsi256_ps(_mm256_slli_epi32(exponent, 23));
}
INLINE Floats scaled(Floats x, Floats n) { return x * Floats{power_of_two(n.low), power_of_two(n.high)}; }

template <class Join>
INLINE float joined(Floats x, Join join) {
  const __m256 eight = join(x.low, x.high);
  __m128 four = _mm_movehl_ps(_mm_setzero_ps(), _mm_setzero_ps());
  four = _mm256_castps256_ps128(join(eight, _mm256_permute2f128_ps(eight, eight, 1)));
  four = _mm256_castps256_ps128(join(_mm256_castps128_ps256(four), _mm256_castps128_ps256(_mm_movehl_ps(four, four))));
  const __m128 other = _mm_shuffle_ps(four, four, 1);
  return _mm256_cvtss_f32(join(_mm256_castps128_ps256(four), _mm256_castps128_ps256(other)));
}
INLINE float sum(Floats x) {
  return joined(x, [](__m256 a, __m256 b) __attribute__((always_inline)) { return _mm256_add_ps(a, b); });
}
INLINE float largest(Floats x) {
  return joined(x, [](__m256 a, __m256 b) __attribute__((always_inline)) { return _mm256_max_ps(a, b); });
}
INLINE float smallest(Floats x) {
  return joined(x, [](__m256 a, __m256 b) __attribute__((always_inline)) { return _mm256_min_ps(a, b); });
}

INLINE __m256 dot_octet(__m256 c, __m256i a, __m256i b) {
  const __m256i upper = _mm256_set1_epi32(int(0xffff0000));
  c = _mm256_fmadd_ps(_mm256_castsi256_ps(_mm256_and_si256(a, upper)),
                      _mm256_castsi256_ps(_mm256_and_si256(b, upper)), c);
  return _mm256_fmadd_ps(_mm256_castsi256_ps(_mm256_slli_epi32(a, 16)), _mm256_castsi256_ps(_mm256_slli_epi32(b, 16)), c);
}
INLINE Floats dot_bf16(Floats c, Ints a, Ints b) {
  return {dot_octet(c.low, a.low, b.low), dot_octet(c.high, a.high, b.high)};
}
// Sums of two products in 16 bits would saturate, so that even and odd bytes are multiplied as 16-bit numbers.
INLINE __m256i dot_octet(__m256i c, __m256i a, __m256i b) {
  const __m256i even = _mm256_madd_epi16(_mm256_and_si256(a, _mm256_set1_epi16(255)),
                                         _mm256_srai_epi16(_mm256_slli_epi16(b, 8), 8));
  const __m256i odd = _mm256_madd_epi16(_mm256_srli_epi16(a, 8), _mm256_srai_epi16(b, 8));
  return _mm256_add_epi32(c, _mm256_add_epi32(even, odd));
}
INLINE Ints dot_int8(Ints c, Ints a, Ints b) {
  return {dot_octet(c.low, a.low, b.low), dot_octet(c.high, a.high, b.high)};
}

}  // namespace
}  // namespace noria::NORIA_LEVEL
