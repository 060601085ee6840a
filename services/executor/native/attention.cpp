// Attention over paged keys and values, in place, for ragged queries: which spans of which rows are computed by whom.
//
// A block is a few query tokens of one slice with the query heads of one key-value head: they share what is loaded. Its
// rows' spans (span.h) are joined in the order of keys, spans first into stretches of fixed length, then stretches: so
// the stretches of a few long sequences can be computed by several threads, and no result depends on whether they were.

#include <omp.h>

#include "span.h"
#include "threads.h"

namespace noria::NORIA_LEVEL {
namespace {

constexpr int64_t STRETCH = 4;      // spans that one thread joins
constexpr int64_t BLOCK_ROWS = 96;  // query rows that share a packed span, where there are so many

// Query tokens `token` … of a slice, or all heads of one token at once; of the stretches from `stretch` to `end`.
struct Task {
  int32_t slice, token, tokens, head, heads, stretch, end;
  int64_t part;  // index of the first row's partial state; -1: the output is written at once
};

struct Plan {
  int64_t tasks, parts, joins;
};

struct Step {
  const NoriaHeads& heads;
  const NoriaCache& cache;
  const NoriaSlices& slices;
  const NoriaPages& pages;

  int64_t group() const { return heads.heads / cache.kv_heads; }
  int64_t words() const { return (cache.head_dim * (heads.type == NORIA_BFLOAT16 ? 2 : 4) + 63) / 64 * 16; }
  int64_t width() const { return heads.type == NORIA_BFLOAT16 ? 2 * words() : words(); }
  int64_t head_bytes() const {
    return cache.head_dim * (cache.type == NORIA_FLOAT32 ? 4 : cache.type == NORIA_INT8 ? 1 : 2);
  }
  int64_t rows_max() const { return greater(greater(BLOCK_ROWS, group()), heads.heads); }
  int64_t block_tokens() const { return greater(1, BLOCK_ROWS / group()); }
  int64_t first_seen(int64_t position) const {
    return pages.window ? greater(0, position - pages.window + 1) : 0;
  }
};

// Calls each(slice, token, tokens, first stretch, end) for all blocks; those of several tokens first, from the back,
// where they see most.
template <class Each>
INLINE void blocks(const Step& step, Each each) {
  const int64_t most = step.block_tokens();
  for (int several = 1; several >= 0; --several)
    for (int64_t slice = 0; slice < step.slices.count; ++slice) {
      const int64_t length = step.slices.lengths[slice], start = step.slices.starts[slice];
      if ((length > 1) != bool(several)) continue;
      for (int64_t token = (length - 1) / most * most; token >= 0; token -= most) {
        const int64_t tokens = lesser(most, length - token);
        const int64_t first = step.first_seen(start + token) / (SPAN * STRETCH);
        each(slice, token, tokens, first, (start + token + tokens - 1) / (SPAN * STRETCH) + 1);
      }
    }
}

// Lists the tasks, and after them the joins of blocks whose stretches are computed apart. Lists nothing where tasks is null.
Plan plan(const Step& step, int64_t threads, Task* tasks) {
  int64_t count = 0;
  blocks(step, [&](int64_t, int64_t, int64_t, int64_t, int64_t) { ++count; });
  const int64_t kv_heads = step.cache.kv_heads;
  const bool together = count >= 8 * threads, apart = count * kv_heads < 4 * threads;
  Plan made = {0, 0, 0};
  blocks(step, [&](int64_t slice, int64_t token, int64_t tokens, int64_t stretch, int64_t end) {
    const int64_t heads = together && tokens == 1 ? kv_heads : 1;
    const bool split = apart && end - stretch > 1;
    for (int64_t head = 0; head < kv_heads; head += heads) {
      Task task = {int32_t(slice), int32_t(token), int32_t(tokens), int32_t(head), int32_t(heads),
                   int32_t(stretch), int32_t(end), -1};
      if (!split) {
        if (tasks) tasks[made.tasks] = task;
        ++made.tasks;
        continue;
      }
      for (int64_t at = stretch; at < end; ++at, ++made.tasks) {
        task.stretch = int32_t(at), task.end = int32_t(at + 1), task.part = made.parts;
        if (tasks) tasks[made.tasks] = task;
        made.parts += tokens * step.group();
      }
    }
  });
  if (made.parts) blocks(step, [&](int64_t slice, int64_t token, int64_t tokens, int64_t stretch, int64_t end) {
    if (end - stretch <= 1) return;
    for (int64_t head = 0; head < kv_heads; ++head, ++made.joins)
      if (tasks)
        tasks[made.tasks + made.joins] = {int32_t(slice), int32_t(token), int32_t(tokens), int32_t(head), 1,
                                          int32_t(stretch), int32_t(end), -1};
  });
  return made;
}

// A part of scratch for each purpose, in multiples of 64 bytes.
struct Carver {
  char* at;
  template <class T>
  T* take(int64_t count) {
    T* found = (T*)at;
    at += (count * int64_t(sizeof(T)) + 63) / 64 * 64;
    return found;
  }
};

// States of some rows: [rows] and [rows][width].
struct States {
  float *most, *weight, *output;
  static States take(Carver& carver, int64_t rows, int64_t width) {
    return {carver.take<float>(rows), carver.take<float>(rows), carver.take<float>(rows * width)};
  }
  States from(int64_t row, int64_t width) const { return {most + row, weight + row, output + row * width}; }
};

// What a thread works in.
struct Workspace {
  Packed packed;
  void* queries;
  void* weights;
  float *scores, *tile;
  States total, stretch;
  static Workspace take(Carver& carver, const Step& step) {
    const int64_t rows = step.rows_max(), width = step.width(), words = step.words();
    Workspace made;
    made.packed = {carver.take<int32_t>(SPAN * words), carver.take<int32_t>(SPAN * words), carver.take<float>(SPAN),
                   carver.take<float>(SPAN), words};
    made.queries = carver.take<float>(rows * width);
    made.weights = carver.take<float>(TILE_ROWS * SPAN);
    made.scores = carver.take<float>(TILE_ROWS * SPAN);
    made.tile = carver.take<float>(TILE_ROWS * width);
    made.total = States::take(carver, rows, width);
    made.stretch = States::take(carver, rows, width);
    return made;
  }
};

void find_places(const Step& step, int64_t slice, int64_t span, int64_t low, int64_t high, Places& places) {
  const NoriaCache& cache = step.cache;
  const int64_t size = cache.page_size, token_bytes = cache.kv_heads * step.head_bytes();
  const int32_t* table = step.pages.table + slice * step.pages.entries;
  places.low = low - span * SPAN, places.high = high - span * SPAN;
  for (int64_t page = low / size; page * size < high; ++page) {
    const int64_t entry = step.pages.ring ? page % step.pages.ring : page, base = table[entry] * cache.page_bytes;
    for (int64_t key = greater(low, page * size); key < lesser(high, (page + 1) * size); ++key) {
      places.numbers[key - span * SPAN] = base + (key - page * size) * token_bytes;
      if (cache.type == NORIA_INT8)
        places.scales[key - span * SPAN] = base + size * token_bytes + (key - page * size) * cache.kv_heads * 2;
    }
  }
}

template <class Numbers>
INLINE void pack(const NoriaCache& cache, const Places& places, int64_t head, Fetching& fetching, const Packed& to) {
  auto both = [&](auto number) __attribute__((always_inline)) {
    using T = decltype(number);
    pack_keys<Numbers, T>(cache, places, head, fetching, to);
    pack_values<Numbers, T>(cache, places, head, fetching, to);
  };
  if (cache.type == NORIA_FLOAT32) both(float());
  else if (cache.type == NORIA_BFLOAT16) both(bf16());
  else if (cache.type == NORIA_FLOAT16) both(half());
  else both(int8_t()), pack_scales(cache, places, head, to);
}

template <class Numbers>
struct Attention {
  using Number = typename Numbers::Number;
  const Step& step;

  // Rows `row` … of a block's head over a packed span, joined to their states. position: of the block's first token.
  template <int ROWS>
  void tile(const Workspace& space, const Number* queries, int64_t row, int64_t position, int64_t span,
            const Places& places, Fetching& fetching, const States& states) const {
    using Tile = SpanTile<Numbers, ROWS>;
    const int64_t head_dim = step.cache.head_dim, width = step.width(), group = step.group();
    const int64_t steps = (head_dim + Numbers::STEP - 1) / Numbers::STEP;
    const bool scaled = step.cache.type == NORIA_INT8;
    int64_t low[ROWS], high[ROWS], end = 0;
    for (int i = 0; i < ROWS; ++i) {
      const int64_t sees = position + (row + i) / group;
      low[i] = greater(0, step.first_seen(sees) - span * SPAN), high[i] = lesser(SPAN, sees + 1 - span * SPAN);
      end = greater(end, high[i]);
    }
    if (end <= places.low) return;
    Number* weights = (Number*)space.weights;
    Tile::scores(queries, head_dim, space.packed, places.low, end, steps, space.scores);
    float most[ROWS], weight[ROWS];
    for (int i = 0; i < ROWS; ++i)
      weight[i] = weights_of(space.scores + i * SPAN, space.packed, scaled, float(step.heads.scale),
                             float(step.heads.cap), low[i], high[i], places.low, end, weights + i * SPAN, most[i]);
    int64_t at = 0;
    for (; at + VALUE_VECTORS * LANES <= width; at += VALUE_VECTORS * LANES)
      Tile::template weigh<VALUE_VECTORS>(weights, space.packed, places.low, end, at, width, fetching, space.tile);
    for (; at < width; at += LANES)
      Tile::template weigh<1>(weights, space.packed, places.low, end, at, width, fetching, space.tile);
    for (int i = 0; i < ROWS; ++i)
      join(states.most[i], states.weight[i], states.output + i * width, most[i], weight[i], space.tile + i * width,
           width);
  }

  template <int ROWS, class... Rest>
  void tile_of(int64_t rows, Rest&&... rest) const {
    if (rows == ROWS) return tile<ROWS>(rest...);
    if constexpr (ROWS > 1) tile_of<ROWS - 1>(rows, rest...);
  }

  // The places of a span as a task's tokens see it; false where they see nothing of it.
  bool find(const Task& task, int64_t span, Places& places) const {
    const int64_t position = step.slices.starts[task.slice] + task.token, last = position + task.tokens;
    const int64_t low = greater(step.first_seen(position), span * SPAN), high = lesser(last, (span + 1) * SPAN);
    places.low = places.high = 0;
    if (low < high) find_places(step, task.slice, span, low, high, places);
    return low < high;
  }

  int64_t first_span(const Task& task) const {
    return greater(task.stretch * STRETCH, step.first_seen(step.slices.starts[task.slice] + task.token) / SPAN);
  }

  // following: the task that this thread computes next, most likely, or null.
  void stretch(const Task& task, int64_t number, const Task* following, const Workspace& space,
               const States& states) const {
    const int64_t rows = task.tokens * step.group(), width = step.width(), head_dim = step.cache.head_dim;
    const int64_t position = step.slices.starts[task.slice] + task.token;
    const int64_t tiles = (rows + TILE_ROWS - 1) / TILE_ROWS;
    memset(states.weight, 0, task.heads * rows * sizeof(float));
    Places found[2], *places = found, *next = found + 1;
    bool known = false;
    for (int64_t span = number * STRETCH; span < (number + 1) * STRETCH; ++span) {
      if (!known && !find(task, span, *places)) continue;
      known = span + 1 < task.end * STRETCH && find(task, span + 1, *next);
      const bool over = !known && following;
      if (over) find(*following, first_span(*following), *next);
      for (int64_t i = 0; i < task.heads; ++i) {
        const int64_t next_head = over ? following->head + lesser(i, following->heads - 1) : task.head + i;
        Fetching fetching(step.cache, *next, next_head, step.head_bytes());
        pack<Numbers>(step.cache, *places, task.head + i, fetching, space.packed);
        for (int64_t t = 0; t < tiles; ++t) {
          const int64_t row = rows * t / tiles, count = rows * (t + 1) / tiles - row;
          tile_of<TILE_ROWS>(count, space, (const Number*)space.queries + (i * rows + row) * head_dim, row, position,
                             span, *places, fetching, states.from(i * rows + row, width));
        }
      }
      Places* const last = places;
      places = next, next = last;
    }
  }

  void finish(const Task& task, const States& states, Number* output) const {
    const int64_t group = step.group(), rows = task.tokens * group, width = step.width(), head_dim = step.cache.head_dim;
    const int64_t first_row = step.slices.rows[task.slice] + task.token;
    for (int64_t i = 0; i < task.heads * rows; ++i) {
      const int64_t token = i % rows / group, head = (task.head + i / rows) * group + i % group;
      Number* place = output + ((first_row + token) * step.heads.heads + head) * head_dim;
      const Floats share = splat(1 / states.weight[i]);
      const float* from = states.output + i * width;
      constexpr int64_t CHUNK = LANES * Numbers::STEP;
      for (int64_t at = 0; at < head_dim; at += CHUNK) {
        Number chunk[CHUNK];
        Number* to = at + CHUNK <= head_dim ? place + at : chunk;
        if constexpr (Numbers::STEP == 2) store_alternating(to, load(from + at) * share, load(from + at + LANES) * share);
        else store(to, load(from + at) * share);
        if (to == chunk) memcpy((void*)(place + at), (const void*)chunk, (head_dim - at) * sizeof(Number));
      }
    }
  }

  void run(const Task& task, const Task* following, const Workspace& space, const States& parts, const Number* queries,
           Number* output) const {
    const int64_t group = step.group(), rows = task.tokens * group, width = step.width(), head_dim = step.cache.head_dim;
    for (int64_t i = 0; i < task.heads; ++i)
      for (int64_t token = 0; token < task.tokens; ++token) {
        const int64_t from = step.slices.rows[task.slice] + task.token + token;
        memcpy((Number*)space.queries + (i * rows + token * group) * head_dim,
               queries + (from * step.heads.heads + (task.head + i) * group) * head_dim, group * head_dim * sizeof(Number));
      }
    if (task.part >= 0) return stretch(task, task.stretch, following, space, parts.from(task.part, width));
    stretch(task, task.stretch, following, space, space.total);
    for (int64_t number = task.stretch + 1; number < task.end; ++number) {
      stretch(task, number, following, space, space.stretch);
      add(task, space.stretch, space.total);
    }
    finish(task, space.total, output);
  }

  void add(const Task& task, const States& part, const States& total) const {
    const int64_t width = step.width();
    for (int64_t i = 0; i < task.heads * task.tokens * step.group(); ++i)
      join(total.most[i], total.weight[i], total.output + i * width, part.most[i], part.weight[i],
           part.output + i * width, width);
  }

  // Joins a block's stretches, which lie one after the other from the state `part` on.
  void join_parts(const Task& task, const States& parts, Number* output) const {
    const int64_t rows = task.tokens * step.group(), width = step.width();
    for (int64_t number = task.stretch + 1; number < task.end; ++number)
      add(task, parts.from((number - task.stretch) * rows, width), parts);
    finish(task, parts, output);
  }

  void all(const void* queries, void* output, void* scratch, int64_t threads) const {
    Carver carver = {(char*)scratch};
    const Plan sizes = plan(step, threads, nullptr);
    Task* tasks = carver.take<Task>(sizes.tasks + sizes.joins);
    plan(step, threads, tasks);
    const States parts = States::take(carver, sizes.parts, step.width());
    char* const spaces = carver.at;
    Carver measure = {nullptr};
    Workspace::take(measure, step);
    const int64_t space_bytes = int64_t(measure.at);
    parallel(int32_t(threads), sizes.tasks, [=](int64_t i) {
      Carver own = {spaces + omp_get_thread_num() * space_bytes};
      const Task* following = i + 1 < sizes.tasks ? tasks + i + 1 : nullptr;
      run(tasks[i], following, Workspace::take(own, step), parts, (const Number*)queries, (Number*)output);
    });
    if (!sizes.joins) return;
    int64_t part = 0;
    for (int64_t i = 0; i < sizes.joins; ++i) {
      Task& task = tasks[sizes.tasks + i];
      task.part = part;
      part += (task.end - task.stretch) * task.tokens * step.group();
    }
    parallel(int32_t(threads), sizes.joins, [=](int64_t i) {
      const Task& task = tasks[sizes.tasks + i];
      join_parts(task, parts.from(task.part, step.width()), (Number*)output);
    });
  }
};

}  // namespace
}  // namespace noria::NORIA_LEVEL

using namespace noria::NORIA_LEVEL;

int64_t NORIA_KERNEL(attention_scratch)(const NoriaHeads* heads, const NoriaCache* cache, const NoriaSlices* slices,
                                        const NoriaPages* pages, int64_t threads) {
  const Step step = {*heads, *cache, *slices, *pages};
  const Plan sizes = plan(step, threads, nullptr);
  Carver carver = {nullptr};
  carver.take<Task>(sizes.tasks + sizes.joins);
  States::take(carver, sizes.parts, step.width());
  for (int64_t i = 0; i < threads; ++i) Workspace::take(carver, step);
  return int64_t(carver.at);
}

void NORIA_KERNEL(attention)(const NoriaHeads* heads, const NoriaCache* cache, const NoriaSlices* slices,
                             const NoriaPages* pages, const void* queries, void* output, void* scratch, int64_t threads) {
  const Step step = {*heads, *cache, *slices, *pages};
  if (heads->type == NORIA_BFLOAT16) Attention<Bf16Numbers>{step}.all(queries, output, scratch, threads);
  else Attention<Float32Numbers>{step}.all(queries, output, scratch, threads);
}
