// Attention of a few query rows over one span of keys: the arithmetic, in a fixed order for each query row.
//
// Keys and values of a span are first brought into the computing type and into the order that products want, unless the
// cache holds them so; then tiles of query rows pass over them. The score of a (query, key) is one sum along the
// head; a row's output is one sum along the span's keys. Neither depends on what else is in the tile, and a key that a
// row must not see counts with weight 0 exactly: what lies in such places of a page may be anything, so it is replaced
// before it is multiplied, unless pages are tiled, where it is finite.

#pragma once
#include "api.h"
#include "tile.h"

namespace noria::NORIA_LEVEL {
namespace {

constexpr int SPAN = 256;       // keys whose weights are taken at once; a span begins at a multiple of it
constexpr int TILES = SPAN / LANES;
constexpr int KEY_VECTORS = 4;  // vectors of keys that a tile takes at once
#if defined(NORIA_AVX512)
constexpr int TILE_ROWS = 6, VALUE_VECTORS = 4;
#else
constexpr int TILE_ROWS = 2, VALUE_VECTORS = 2;
#endif

// How numbers meet: STEP of them in one word.
struct Bf16Numbers {
  using Number = bf16;
  using Step = Ints;
  static constexpr int STEP = 2;
  INLINE Step every(const bf16* p) { return splat_word(p); }
  INLINE Step many(const void* p) { return load_ints(p); }
  INLINE Floats add(Floats c, Step one, Step other) { return dot_bf16(c, one, other); }
  INLINE Ints pack(const bf16* p) { return load_ints(p); }
  template <class T>
  INLINE Ints pack(const T* p) {
    return words(load(p), load(p + LANES));
  }
};

struct Float32Numbers {
  using Number = float;
  using Step = Floats;
  static constexpr int STEP = 1;
  INLINE Step every(const float* p) { return splat(*p); }
  INLINE Step many(const void* p) { return load((const float*)p); }
  INLINE Floats add(Floats c, Step one, Step other) { return multiply_add(one, other, c); }
  template <class T>
  INLINE Ints pack(const T* p) {
    return bits(load(p));
  }
};

// Where a span's keys lie: byte offsets of the key's first head in the layer's keys, and in its values; of int8 caches
// also those of the scales. Of tiled pages all keys of a tile are named, and a head's numbers are where `head_shift` says.
// Keys from `low` to before `high` are seen by at least one row of the block.
struct Places {
  int64_t numbers[SPAN], scales[SPAN];
  int64_t low, high;
};

// Memory for one head of a span in the order of products, all padded to whole vectors.
struct Packed {
  int32_t* keys;    // [SPAN / 16][steps of the head][16]
  int32_t* values;  // [SPAN / STEP][head in words]; bf16: pairs of keys, even numbers of 32 and then odd ones
  float* key_scales;
  float* value_scales;  // [SPAN], int8 only
  int64_t words;        // of a padded head
};

// One head of a span: its tiles of 16 keys, there or in the cache.
struct Span {
  const int32_t *keys[TILES], *values[TILES];
  const float *key_scales, *value_scales;
  int64_t words;
};

// How far a head's numbers are behind those of the first head.
INLINE int64_t head_shift(const NoriaCache& cache, int64_t head, int64_t head_bytes) {
  return head * head_bytes * (cache.tiled ? cache.page_size : 1);
}

template <class Numbers, class T>
INLINE Ints packed_chunk(const T* row, int64_t at, int64_t head_dim) {
  constexpr int WIDTH = LANES * Numbers::STEP;
  if (at + WIDTH <= head_dim) return Numbers::pack(row + at);
  T rest[WIDTH] = {};
  memcpy((void*)rest, (const void*)(row + at), (head_dim - at) * sizeof(T));
  return Numbers::pack(rest);
}

// Brings a head's keys and values of the span that comes next into the second-level cache, a few tokens at a time while
// this one is computed: waiting for memory took as long as computing, and what is asked for at once has to wait, too.
struct Fetching {
  static constexpr int64_t TIMES = 48, TILED_TIMES = 20;  // that `some` is called for a span of few rows
  const uint8_t *keys, *values;
  const int64_t *at, *end;  // places of the tokens that are left
  int64_t bytes, some_tokens;
  Fetching(const NoriaCache& cache, const Places& next, int64_t head, int64_t head_bytes)
      : keys(cache.keys + head_shift(cache, head, head_bytes)), values(cache.values + head_shift(cache, head, head_bytes)),
        at(next.numbers + next.low), end(next.numbers + next.high), bytes(head_bytes) {
    const int64_t times = cache.tiled ? TILED_TIMES : TIMES;
    some_tokens = (next.high - next.low + times - 1) / times;
  }
  void some() {
    for (const int64_t* stop = end - at < some_tokens ? end : at + some_tokens; at < stop; ++at)
      for (int64_t line = 0; line < bytes; line += 64) {
        __builtin_prefetch(keys + *at + line, 0, 2);
        __builtin_prefetch(values + *at + line, 0, 2);
      }
  }
};

template <class Numbers, class T>
void pack_keys(const NoriaCache& cache, const Places& places, int64_t head, Fetching& fetching, const Packed& to) {
  const int64_t head_bytes = cache.head_dim * sizeof(T), shift = head * head_bytes;
  constexpr int WIDTH = LANES * Numbers::STEP;
  for (int64_t block = places.low / LANES; block * LANES < places.high; ++block) {
    fetching.some();
    const T* rows[LANES];
    for (int i = 0; i < LANES; ++i) {
      const int64_t key = greater(places.low, lesser(places.high - 1, block * LANES + i));
      rows[i] = (const T*)(cache.keys + places.numbers[key] + shift);
    }
    for (int64_t word = 0; word < to.words; word += LANES) {
      Ints chunk[LANES];
#pragma GCC unroll 16
      for (int i = 0; i < LANES; ++i) chunk[i] = packed_chunk<Numbers>(rows[i], word * WIDTH / LANES, cache.head_dim);
      store_turned(to.keys + (block * to.words + word) * LANES, chunk);
    }
  }
}

template <class Numbers, class T>
void pack_values(const NoriaCache& cache, const Places& places, int64_t head, Fetching& fetching, const Packed& to) {
  const int64_t head_bytes = cache.head_dim * sizeof(T), shift = head * head_bytes;
  constexpr int WIDTH = LANES * Numbers::STEP;
  for (int64_t key = places.low - places.low % Numbers::STEP; key < places.high; key += Numbers::STEP) {
    if (key % LANES == 0) fetching.some();
    const T* rows[2];
    for (int i = 0; i < Numbers::STEP; ++i) {
      const bool seen = key + i >= places.low && key + i < places.high;
      rows[i] = seen ? (const T*)(cache.values + places.numbers[key + i] + shift) : nullptr;
    }
    int32_t* place = to.values + key / Numbers::STEP * to.words * Numbers::STEP;
    for (int64_t word = 0; word < to.words; word += LANES) {
      const int64_t at = word * WIDTH / LANES;
      const Ints one = rows[0] ? packed_chunk<Numbers>(rows[0], at, cache.head_dim) : splat(int32_t(0));
      if constexpr (Numbers::STEP == 1) {
        store_ints(place + word, one);
      } else {
        const Ints other = rows[1] ? packed_chunk<Numbers>(rows[1], at, cache.head_dim) : splat(int32_t(0));
        store_ints(place + 2 * word, even_pairs(one, other));
        store_ints(place + 2 * word + LANES, odd_pairs(one, other));
      }
    }
  }
}

INLINE void pack_scales(const NoriaCache& cache, const Places& places, int64_t head, const Packed& to) {
  for (int64_t key = 0; key < SPAN; ++key) {
    const bool seen = key >= places.low && key < places.high;
    const int64_t at = seen ? places.scales[key] + head * 2 : 0;
    to.key_scales[key] = seen ? to_float(*(const bf16*)(cache.keys + at)) : 0;
    to.value_scales[key] = seen ? to_float(*(const bf16*)(cache.values + at)) : 0;
  }
}

// What a span gives a row: sum of weights, their largest score, and output in the order of packed values.
struct State {
  float* most;
  float* weight;  // 0: no key was seen
  float* output;  // [padded head]
};

// Adds a later part to a row's state. The order of parts is that of their keys.
INLINE void join(float& most, float& weight, float* output, float part_most, float part_weight, const float* part,
                 int64_t width) {
  if (part_weight == 0) return;
  if (weight == 0) {
    most = part_most, weight = part_weight;
    memcpy(output, part, width * 4);
    return;
  }
  const float top = most > part_most ? most : part_most;
  const Floats kept = exponential(splat(most - top)), added = exponential(splat(part_most - top));
  for (int64_t i = 0; i < width; i += LANES)
    store(output + i, multiply_add(load(part + i), added, load(output + i) * kept));
  weight = weight * first(kept) + part_weight * first(added);
  most = top;
}

// A tile of query rows of one head over one packed span. low and high bound each row's keys within the span.
template <class Numbers, int ROWS>
struct SpanTile {
  using Number = typename Numbers::Number;
  using Step = typename Numbers::Step;

  // scores [ROWS][SPAN] = queries · keys, not yet scaled.
  INLINE void scores(const Number* queries, int64_t stride, const Span& span, int64_t low, int64_t high, int64_t steps,
                     Fetching& fetching, float* to) {
    constexpr int KEYS = KEY_VECTORS * LANES;
    for (int64_t key = low / KEYS * KEYS; key < high; key += KEYS) {
      fetching.some();
      Floats c[ROWS][KEY_VECTORS];
#pragma GCC unroll 6
      for (int row = 0; row < ROWS; ++row)
#pragma GCC unroll 4
        for (int j = 0; j < KEY_VECTORS; ++j) c[row][j] = splat(0.f);
      const int32_t* const* keys = span.keys + key / LANES;
      for (int64_t step = 0; step < steps; ++step) {
        Step k[KEY_VECTORS];
#pragma GCC unroll 4
        for (int j = 0; j < KEY_VECTORS; ++j) k[j] = Numbers::many(keys[j] + step * LANES);
#pragma GCC unroll 6
        for (int row = 0; row < ROWS; ++row) {
          const Step q = Numbers::every(queries + row * stride + step * Numbers::STEP);
#pragma GCC unroll 4
          for (int j = 0; j < KEY_VECTORS; ++j) c[row][j] = Numbers::add(c[row][j], q, k[j]);
        }
      }
#pragma GCC unroll 6
      for (int row = 0; row < ROWS; ++row)
#pragma GCC unroll 4
        for (int j = 0; j < KEY_VECTORS; ++j) store(to + row * SPAN + key + j * LANES, c[row][j]);
    }
  }

  // output [ROWS][padded head] = weights · values for VECTORS vectors of the head from `at`.
  template <int VECTORS>
  INLINE void weigh(const Number* weights, const Span& span, int64_t low, int64_t high, int64_t at,
                           int64_t width, Fetching& fetching, float* output) {
    Floats c[ROWS][VECTORS];
#pragma GCC unroll 6
    for (int row = 0; row < ROWS; ++row)
#pragma GCC unroll 4
      for (int j = 0; j < VECTORS; ++j) c[row][j] = splat(0.f);
    for (int64_t key = low - low % Numbers::STEP; key < high; key += Numbers::STEP) {
      if (key % LANES == 0) fetching.some();
      const int32_t* values = span.values[key / LANES] + key % LANES * span.words + at;
      Step v[VECTORS];
#pragma GCC unroll 4
      for (int j = 0; j < VECTORS; ++j) v[j] = Numbers::many(values + j * LANES);
#pragma GCC unroll 6
      for (int row = 0; row < ROWS; ++row) {
        const Step p = Numbers::every(weights + row * SPAN + key);
#pragma GCC unroll 4
        for (int j = 0; j < VECTORS; ++j) c[row][j] = Numbers::add(c[row][j], p, v[j]);
      }
    }
#pragma GCC unroll 6
    for (int row = 0; row < ROWS; ++row)
#pragma GCC unroll 4
      for (int j = 0; j < VECTORS; ++j) store(output + row * width + at + j * LANES, c[row][j]);
  }
};

INLINE Floats bounded(Floats x, float cap) {  // cap * tanh(x / cap)
  const Floats twice = exponential(x * splat(2 / cap));
  return splat(cap) - splat(2 * cap) / (twice + splat(1.f));
}

INLINE Floats scaled_scores(const float* scores, const Span& span, bool scaled, float scale, float cap, int64_t key) {
  Floats x = load(scores + key) * splat(scale);
  if (scaled) x = x * load(span.key_scales + key);
  return cap == 0 ? x : bounded(x, cap);
}

// Turns a row's scores into weights in place of `weights`; keys outside low … high weigh 0. from and to bound what is
// written. Returns the sum of weights; most is the largest score.
template <class Number>
INLINE float weights_of(float* scores, const Span& span, bool scaled, float scale, float cap, int64_t low, int64_t high,
                        int64_t from, int64_t to, Number* weights, float& most) {
  const Floats hidden = splat(-INFINITY);
  Floats top = hidden;
  for (int64_t key = from / LANES * LANES; key < to; key += LANES) {
    Floats x = scaled_scores(scores, span, scaled, scale, cap, key);
    x = first_lanes(int(high - key), x, hidden);
    x = first_lanes(int(low - key), hidden, x);
    top = maximum(top, x);
    store(scores + key, x);
  }
  most = low < high ? largest(top) : 0;
  Floats total = splat(0.f);
  for (int64_t key = from / LANES * LANES; key < to; key += LANES) {
    const Floats weight = exponential(load(scores + key) - splat(most));
    total = total + weight;
    store(weights + key, scaled ? weight * load(span.value_scales + key) : weight);
  }
  return low < high ? sum(total) : 0;
}

}  // namespace
}  // namespace noria::NORIA_LEVEL
