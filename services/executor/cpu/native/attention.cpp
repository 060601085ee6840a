// Attention over paged keys and values, in place, for ragged queries: the spans of the rows that a plan's tasks name.

#include <omp.h>

#include "attention_places.h"
#include "attention_plan.h"
#include "attention_space.h"
#include "threads.h"

namespace noria::NORIA_LEVEL {
namespace {

template <class Numbers>
struct Attention {
  using Number = typename Numbers::Number;
  const Step& step;
  const Plan& plan;
  const States parts, commons;  // of stretches that are joined later, and of spans that sequences have in common

  // Rows `row` … of a block's head over a packed span, joined to their states. position: of the block's first token.
  template <int ROWS>
  void tile(const Workspace& space, const Span& packed, const Number* queries, int64_t row, int64_t position, int64_t span,
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
    Tile::scores(queries, head_dim, packed, places.low, end, steps, fetching, space.scores);
    float most[ROWS], weight[ROWS];
    for (int i = 0; i < ROWS; ++i)
      weight[i] = weights_of(space.scores + i * SPAN, packed, scaled, float(step.heads.scale),
                             float(step.heads.cap), low[i], high[i], places.low, end, weights + i * SPAN, most[i]);
    int64_t at = 0;
    for (; at + VALUE_VECTORS * LANES <= width; at += VALUE_VECTORS * LANES)
      Tile::template weigh<VALUE_VECTORS>(weights, packed, places.low, end, at, width, fetching, space.tile);
    for (; at < width; at += LANES)
      Tile::template weigh<1>(weights, packed, places.low, end, at, width, fetching, space.tile);
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

  // The first span that a task computes itself.
  int64_t first_span(const Task& task) const {
    const int64_t seen = step.first_seen(step.slices.starts[task.slice] + task.token) / SPAN;
    return greater(greater(task.stretch * STRETCH, seen), plan.prefixes[task.slice].spans);
  }

  // Tiles of rows over the packed span of one head.
  void tiles(const Workspace& space, const Span& packed, int64_t first, int64_t rows, int64_t position, int64_t span,
             const Places& places, Fetching& fetching, const States& states) const {
    const int64_t count = (rows + TILE_ROWS - 1) / TILE_ROWS;
    for (int64_t t = 0; t < count; ++t) {
      const int64_t row = rows * t / count;
      tile_of<TILE_ROWS>(rows * (t + 1) / count - row, space, packed,
                         (const Number*)space.queries + (first + row) * step.cache.head_dim, row, position, span, places,
                         fetching, states.from(first + row, step.width()));
    }
  }

  // following: the task that this thread computes next, most likely, or null.
  void stretch(const Task& task, int64_t number, const Task* following, const Workspace& space,
               const States& states) const {
    const int64_t rows = task.tokens * step.group(), position = step.slices.starts[task.slice] + task.token;
    const int64_t own = plan.prefixes[task.slice].spans;
    memset(states.weight, 0, task.heads * rows * sizeof(float));
    Places found[2], *places = found, *next = found + 1;
    places->low = places->high = next->low = next->high = 0;
    bool known = false;
    for (int64_t span = number * STRETCH; span < (number + 1) * STRETCH; ++span) {
      if (span < own) {
        join_common(task, span, states);
        continue;
      }
      if (!known && !find(task, span, *places)) continue;
      known = span + 1 < task.end * STRETCH && find(task, span + 1, *next);
      const bool over = !known && following;
      if (over) find(*following, first_span(*following), *next);
      else if (!known) next->low = next->high = 0;
      for (int64_t i = 0; i < task.heads; ++i) {
        const int64_t next_head = over ? following->head + lesser(i, following->heads - 1) : task.head + i;
        Fetching fetching(step.cache, *next, next_head, step.head_bytes());
        const Span packed = pack<Numbers>(step.cache, *places, task.head + i, fetching, space.packed);
        tiles(space, packed, i * rows, rows, position, span, *places, fetching, states);
      }
      Places* const last = places;
      places = next, next = last;
    }
  }

  States common_state(int64_t slice, int64_t span, int64_t head) const {
    const Prefix& prefix = plan.prefixes[slice];
    return commons.from(prefix.state + span * step.heads.heads + head * step.group(), step.width());
  }

  // One head of a span for all slices that have it in common.
  void run_common(const Common& common, int64_t head, const Workspace& space, const Number* queries) const {
    const int64_t group = step.group(), width = step.width(), size = group * step.cache.head_dim;
    const int32_t* members = plan.members + common.first;
    for (int64_t i = 0; i < common.members; ++i)
      memcpy((Number*)space.queries + i * size,
             queries + step.slices.rows[members[i]] * step.heads.heads * step.cache.head_dim + head * size,
             size * sizeof(Number));
    Places places, none;
    const int64_t begin = common.span * SPAN, rows = common.members * group;
    find_places(step, members[0], common.span, begin, begin + SPAN, places);
    none.low = none.high = 0;
    Fetching fetching(step.cache, none, 0, 0);
    const Span packed = pack<Numbers>(step.cache, places, head, fetching, space.packed);
    memset(space.total.weight, 0, rows * sizeof(float));
    tiles(space, packed, 0, rows, begin + SPAN, common.span, places, fetching, space.total);
    for (int64_t i = 0; i < common.members; ++i) {
      const States from = space.total.from(i * group, width), to = common_state(members[i], common.span, head);
      memcpy(to.most, from.most, group * sizeof(float));
      memcpy(to.weight, from.weight, group * sizeof(float));
      memcpy(to.output, from.output, group * width * sizeof(float));
    }
  }

  void join_common(const Task& task, int64_t span, const States& states) const {
    const States from = common_state(task.slice, span, task.head);
    join_rows(task.heads * step.group(), from, states);
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

  void run(const Task& task, const Task* following, const Workspace& space, const Number* queries,
           Number* output) const {
    const int64_t group = step.group(), rows = task.tokens * group, head_dim = step.cache.head_dim;
    for (int64_t i = 0; i < task.heads; ++i)
      for (int64_t token = 0; token < task.tokens; ++token) {
        const int64_t from = step.slices.rows[task.slice] + task.token + token;
        memcpy((Number*)space.queries + (i * rows + token * group) * head_dim,
               queries + (from * step.heads.heads + (task.head + i) * group) * head_dim, group * head_dim * sizeof(Number));
      }
    if (task.part >= 0) return stretch(task, task.stretch, following, space, parts.from(task.part, step.width()));
    stretch(task, task.stretch, following, space, space.total);
    for (int64_t number = task.stretch + 1; number < task.end; ++number) {
      stretch(task, number, following, space, space.stretch);
      join_rows(task.heads * rows, space.stretch, space.total);
    }
    finish(task, space.total, output);
  }

  void join_rows(int64_t rows, const States& part, const States& total) const {
    const int64_t width = step.width();
    for (int64_t i = 0; i < rows; ++i)
      join(total.most[i], total.weight[i], total.output + i * width, part.most[i], part.weight[i],
           part.output + i * width, width);
  }

  // Joins a block's stretches, which lie one after the other.
  void join_parts(const Task& task, Number* output) const {
    const int64_t rows = task.heads * task.tokens * step.group(), width = step.width();
    const States total = parts.from(task.part, width);
    for (int64_t number = 1; number < task.end - task.stretch; ++number)
      join_rows(rows, total.from(number * rows, width), total);
    finish(task, total, output);
  }

  // spaces: of each thread, after one another.
  void all(const void* queries, void* output, char* spaces, int64_t threads) const {
    Carver measure = {nullptr};
    Workspace::take(measure, step);
    const int64_t space_bytes = int64_t(measure.at), kv_heads = step.cache.kv_heads;
    auto own_space = [=] {
      Carver own = {spaces + omp_get_thread_num() * space_bytes};
      return Workspace::take(own, step);
    };
    if (plan.commons)
      parallel(int32_t(threads), plan.commons * kv_heads, [=](int64_t i) {
        run_common(plan.common[i / kv_heads], i % kv_heads, own_space(), (const Number*)queries);
      });
    parallel(int32_t(threads), plan.tasks, [=](int64_t i) {
      const Task* following = i + 1 < plan.tasks ? plan.task + i + 1 : nullptr;
      run(plan.task[i], following, own_space(), (const Number*)queries, (Number*)output);
    });
    if (plan.joins)
      parallel(int32_t(threads), plan.joins,
               [=](int64_t i) { join_parts(plan.task[plan.tasks + i], (Number*)output); });
  }
};

}  // namespace
}  // namespace noria::NORIA_LEVEL

using namespace noria::NORIA_LEVEL;

int64_t NORIA_KERNEL(attention_plan)(const NoriaHeads* heads, const NoriaCache* cache, const NoriaSlices* slices,
                                     const NoriaPages* pages, int64_t threads) {
  const Step step = {*heads, *cache, *slices, *pages};
  if (!pages->plan) return plan_bytes(step, threads);
  const Plan* plan = make_plan(step, threads, pages->plan);
  Carver carver = {nullptr};
  States::take(carver, plan->parts, step.width());
  States::take(carver, plan->states, step.width());
  for (int64_t i = 0; i < threads; ++i) Workspace::take(carver, step);
  return int64_t(carver.at);
}

void NORIA_KERNEL(attention)(const NoriaHeads* heads, const NoriaCache* cache, const NoriaSlices* slices,
                             const NoriaPages* pages, const void* queries, void* output, void* scratch, int64_t threads) {
  const Step step = {*heads, *cache, *slices, *pages};
  const Plan& plan = *(const Plan*)pages->plan;
  Carver carver = {(char*)scratch};
  const States parts = States::take(carver, plan.parts, step.width());
  const States commons = States::take(carver, plan.states, step.width());
  if (heads->type == NORIA_BFLOAT16) Attention<Bf16Numbers>{step, plan, parts, commons}.all(queries, output, carver.at, threads);
  else Attention<Float32Numbers>{step, plan, parts, commons}.all(queries, output, carver.at, threads);
}
