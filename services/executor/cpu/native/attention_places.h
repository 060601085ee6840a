// Where a span of a slice lies in the cache, and one head of it as products take it (span.h).

#pragma once
#include "attention_plan.h"

namespace noria::NORIA_LEVEL {
namespace {

void find_places(const Step& step, int64_t slice, int64_t span, int64_t low, int64_t high, Places& places) {
  const NoriaCache& cache = step.cache;
  const int64_t size = cache.page_size, token_bytes = step.head_bytes() * (cache.tiled ? 1 : cache.kv_heads);
  const int32_t* table = step.pages.table + slice * step.pages.entries;
  places.low = low - span * SPAN, places.high = high - span * SPAN;
  if (cache.tiled) low = low / LANES * LANES, high = (high + LANES - 1) / LANES * LANES;
  for (int64_t page = low / size; page * size < high; ++page) {
    const int64_t entry = step.pages.ring ? page % step.pages.ring : page, base = table[entry] * cache.page_bytes;
    for (int64_t key = greater(low, page * size); key < lesser(high, (page + 1) * size); ++key) {
      places.numbers[key - span * SPAN] = base + (key - page * size) * token_bytes;
      if (cache.type == NORIA_INT8)
        places.scales[key - span * SPAN] = base + size * token_bytes + (key - page * size) * cache.kv_heads * 2;
    }
  }
}

INLINE Span tiles_of(const NoriaCache& cache, const Places& places, int64_t head) {
  Span span = {};
  span.words = cache.head_dim / 2;
  const int64_t first = places.low / LANES, last = (places.high - 1) / LANES;
  for (int64_t tile = 0; tile < TILES; ++tile) {  // those that no row sees are computed and left out: any will do
    const int64_t at = places.numbers[lesser(greater(tile, first), last) * LANES] + head_shift(cache, head, 2 * cache.head_dim);
    span.keys[tile] = (const int32_t*)(cache.keys + at);
    span.values[tile] = (const int32_t*)(cache.values + at);
  }
  return span;
}

template <class Numbers>
INLINE Span pack(const NoriaCache& cache, const Places& places, int64_t head, Fetching& fetching, const Packed& to) {
  if (cache.tiled) return tiles_of(cache, places, head);
  auto both = [&](auto number) __attribute__((always_inline)) {
    using T = decltype(number);
    pack_keys<Numbers, T>(cache, places, head, fetching, to);
    pack_values<Numbers, T>(cache, places, head, fetching, to);
  };
  if (cache.type == NORIA_FLOAT32) both(float());
  else if (cache.type == NORIA_BFLOAT16) both(bf16());
  else if (cache.type == NORIA_FLOAT16) both(half());
  else both(int8_t()), pack_scales(cache, places, head, to);
  Span span = {{}, {}, to.key_scales, to.value_scales, to.words};
  for (int64_t tile = 0; tile < TILES; ++tile) {
    span.keys[tile] = to.keys + tile * LANES * to.words;
    span.values[tile] = to.values + tile * LANES * to.words;
  }
  return span;
}

}  // namespace
}  // namespace noria::NORIA_LEVEL
