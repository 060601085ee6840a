// From a product's queries, keys and values to rotated queries and a written cache: one token after the other.
//
// The cache's formats are those of page_formats.py and tiled_pages.py: pages written here and there may be read by either.

#include "api.h"
#include "threads.h"
#include "tile.h"

namespace noria::NORIA_LEVEL {
namespace {

constexpr int64_t HEAD_MAX = 1024;
constexpr int64_t SMALL = 1 << 14;  // numbers that one thread is done with before another would have woken up

INLINE float largest_number(float) { return 0x1.fffffep127f; }
INLINE float largest_number(bf16) { return 0x1.fep127f; }
INLINE float largest_number(half) { return 65504.f; }

// Calls vectors(at, n) with n = 16 lanes for whole vectors and fewer for the last.
template <class Body>
INLINE void each_part(int64_t width, Body body) {
  for (int64_t at = 0; at < width; at += LANES) body(at, lesser(LANES, width - at));
}

template <class T>
INLINE Floats load_part(const T* p, int64_t n) { return n == LANES ? load(p) : load_first(p, n); }
template <class T>
INLINE void store_part(T* p, int64_t n, Floats x) {
  if (n == LANES) store(p, x);
  else store_first(p, n, x);
}

INLINE void normed(float* head, const float* weight, double epsilon, int64_t size) {
  Floats squares = splat(0.f);
  each_part(size, [&](int64_t at, int64_t n) {
    const Floats x = load_part(head + at, n);
    squares = multiply_add(x, x, squares);
  });
  const Floats scale = splat(1 / sqrtf(sum(squares) / float(size) + float(epsilon)));
  each_part(size, [&](int64_t at, int64_t n) {
    store_part(head + at, n, load_part(head + at, n) * scale * load_part(weight + at, n));
  });
}

INLINE void rotated(float* head, const float* rotation, int64_t size) {
  const int64_t middle = size / 2;
  each_part(middle, [&](int64_t at, int64_t n) {
    const Floats one = load_part(head + at, n), other = load_part(head + middle + at, n);
    const Floats cosine = load_part(rotation + at, n), sine = load_part(rotation + middle + at, n);
    store_part(head + at, n, one * cosine - other * sine);
    store_part(head + middle + at, n, other * cosine + one * sine);
  });
}

// Sums and differences of lanes HALF apart: the sum where the lower lane is, the difference where the upper.
template <int HALF>
INLINE Floats paired(Floats x, int64_t size) {
  if (size % (2 * HALF)) return x;
  float signs[LANES];
  for (int i = 0; i < LANES; ++i) signs[i] = i & HALF ? -1 : 1;
  return multiply_add(x, load(signs), swapped<HALF>(x));
}

// A head times a normalised Hadamard matrix, blockwise where its size is no power of two (page_formats.py's spread). Whole
// vectors are computed: there is room behind the head.
INLINE void spread(float* head, int64_t size) {
  for (int64_t at = 0; at < size; at += LANES)
    store(head + at, paired<8>(paired<4>(paired<2>(paired<1>(load(head + at), size), size), size), size));
  int64_t half_size = lesser(size & -size, LANES);
  for (; size % (2 * half_size) == 0; half_size *= 2)
    for (int64_t block = 0; block < size; block += 2 * half_size)
      for (int64_t i = block; i < block + half_size; i += LANES) {
        const Floats one = load(head + i), other = load(head + half_size + i);
        store(head + i, one + other);
        store(head + half_size + i, one - other);
      }
  const Floats root = splat(sqrtf(float(half_size)));
  for (int64_t at = 0; at < size; at += LANES) store(head + at, load(head + at) / root);
}

// The cache holds finite numbers only: what a diseased request leaves in a page must not reach the next one.
INLINE void made_finite(float* head, int64_t size) {
  Floats strange = splat(0.f);
  each_part(size, [&](int64_t at, int64_t n) {
    const Floats x = load_part(head + at, n);
    strange = strange + (x - x);
  });
  if (sum(strange) == 0) return;
  for (int64_t i = 0; i < size; ++i)
    head[i] = head[i] != head[i] ? 0 : fminf(fmaxf(head[i], -largest_number(0.f)), largest_number(0.f));
}

template <class T>
INLINE void write(const NoriaCache& cache, uint8_t* page, int64_t place, int64_t head, float* numbers, T) {
  const int64_t size = cache.head_dim;
  made_finite(numbers, size);
  T* to = (T*)page + (place * cache.kv_heads + head) * size;
  const Floats most = splat(largest_number(T()));
  each_part(size, [&](int64_t at, int64_t n) {
    store_part(to + at, n, minimum(maximum(load_part(numbers + at, n), -most), most));
  });
}

// A head's numbers as a bfloat16 cache has them; returns where they begin in a tiled page.
INLINE bf16* halves(const NoriaCache& cache, uint8_t* page, int64_t head, float* numbers, bf16* to) {
  NoriaCache one = cache;
  one.kv_heads = 1;
  write(one, (uint8_t*)to, 0, 0, numbers, bf16());
  return (bf16*)page + head * cache.page_size * cache.head_dim;
}

INLINE void write_key_tile(const NoriaCache& cache, uint8_t* page, int64_t place, int64_t head, float* numbers) {
  bf16 found[HEAD_MAX];
  bf16* to = halves(cache, page, head, numbers, found) + place / LANES * LANES * cache.head_dim + place % LANES * 2;
  for (int64_t i = 0; i < cache.head_dim; i += 2) memcpy(to + i * LANES, found + i, 4);
}

INLINE void write_value_tile(const NoriaCache& cache, uint8_t* page, int64_t place, int64_t head, float* numbers) {
  bf16 found[HEAD_MAX];
  bf16* to = halves(cache, page, head, numbers, found) + place / 2 * 2 * cache.head_dim + place % 2;
  for (int64_t chunk = 0; chunk < cache.head_dim; chunk += 2 * LANES)
    store_apart(to + 2 * chunk, load_ints(found + chunk));
}

INLINE void write(const NoriaCache& cache, uint8_t* page, int64_t place, int64_t head, float* numbers, int8_t) {
  const int64_t size = cache.head_dim;
  made_finite(numbers, size);
  Floats most = splat(0.f);
  each_part(size, [&](int64_t at, int64_t n) { most = maximum(most, absolute(load_part(numbers + at, n))); });
  const bf16 scale = to_bf16(largest(most) / 127);
  const float divisor = to_float(scale);
  const Floats by = splat(divisor > 0 ? divisor : 1.f), bound = splat(127.f);
  int8_t* to = (int8_t*)page + (place * cache.kv_heads + head) * size;
  each_part(size, [&](int64_t at, int64_t n) {
    const Floats whole = minimum(maximum(rounded(load_part(numbers + at, n) / by), -bound), bound);
    uint8_t bytes[LANES];
    store_bytes(bytes, ints(whole + splat(128.f)));
    for (int64_t i = 0; i < n; ++i) to[at + i] = int8_t(bytes[i] - 128);
  });
  bf16* scales = (bf16*)(page + cache.page_size * cache.kv_heads * size);
  scales[place * cache.kv_heads + head] = scale;
}

// The first token from i on that begins a tile of the cache: two threads that write into one wait for each other.
INLINE int64_t tile_start(const NoriaCache& cache, const int64_t* slots, int64_t i, int64_t count) {
  if (!cache.tiled || i == 0 || i >= count) return lesser(i, count);
  while (i < count && slots[i] % LANES && slots[i] == slots[i - 1] + 1) ++i;
  return i;
}

struct Rotation {
  const NoriaHeads& heads;
  const NoriaCache& cache;
  const float *query_norm, *key_norm;
  double epsilon;

  // One token: qkv [(heads + 2 kv_heads) * head size] and where it is written.
  template <class T, class Number>
  void token(const float* qkv, const float* rotation, int64_t slot, Number* queries) const {
    const int64_t size = cache.head_dim, kv_heads = cache.kv_heads;
    const int64_t page = slot / cache.page_size * cache.page_bytes, place = slot % cache.page_size;
    constexpr bool turned = sizeof(T) == 1;
    float head[HEAD_MAX + LANES];
    memset(head + size, 0, LANES * sizeof(float));
    for (int64_t i = 0; i < heads.heads + kv_heads; ++i, qkv += size) {
      const bool key = i >= heads.heads;
      memcpy(head, qkv, size * sizeof(float));
      if (query_norm) normed(head, key ? key_norm : query_norm, epsilon, size);
      rotated(head, rotation, size);
      if (turned) spread(head, size);
      if (key && cache.tiled) write_key_tile(cache, cache.keys + page, place, i - heads.heads, head);
      else if (key) write(cache, cache.keys + page, place, i - heads.heads, head, T());
      else each_part(size, [&](int64_t at, int64_t n) { store_part(queries + i * size + at, n, load_part(head + at, n)); });
    }
    for (int64_t i = 0; i < kv_heads; ++i, qkv += size) {
      memcpy(head, qkv, size * sizeof(float));
      if (cache.tiled) write_value_tile(cache, cache.values + page, place, i, head);
      else write(cache, cache.values + page, place, i, head, T());
    }
  }

  template <class T, class Number>
  void tokens(const float* qkv, const int64_t* positions, const int64_t* slots, const float* rotations, Number* queries,
              int64_t count, int64_t threads) const {
    const int64_t size = cache.head_dim, width = (heads.heads + 2 * cache.kv_heads) * size;
    if (count * width <= SMALL) threads = 1;
    const int64_t at_once = greater(1, SMALL / 4 / width);
    parallel(int32_t(threads), (count + at_once - 1) / at_once, [=](int64_t task) {
      const int64_t end = tile_start(cache, slots, (task + 1) * at_once, count);
      for (int64_t i = tile_start(cache, slots, task * at_once, count); i < end; ++i)
        token<T>(qkv + i * width, rotations + positions[i] * size, slots[i], queries + i * heads.heads * size);
    });
  }
};

}  // namespace
}  // namespace noria::NORIA_LEVEL

using namespace noria::NORIA_LEVEL;

void NORIA_KERNEL(rotate_write)(const NoriaHeads* heads, const NoriaCache* cache, const float* qkv,
                                const int64_t* positions, const int64_t* write_slots, const float* rotations,
                                const float* query_norm, const float* key_norm, double epsilon, void* queries,
                                int64_t tokens, int64_t threads) {
  const Rotation rotation = {*heads, *cache, query_norm, key_norm, epsilon};
  auto as = [&](auto number, auto stored) {
    rotation.tokens<decltype(stored)>(qkv, positions, write_slots, rotations, (decltype(number)*)queries, tokens, threads);
  };
  auto of = [&](auto number) {
    if (cache->type == NORIA_FLOAT32) as(number, float());
    else if (cache->type == NORIA_BFLOAT16) as(number, bf16());
    else if (cache->type == NORIA_FLOAT16) as(number, half());
    else as(number, int8_t());
  };
  if (heads->type == NORIA_BFLOAT16) of(bf16());
  else of(float());
}
