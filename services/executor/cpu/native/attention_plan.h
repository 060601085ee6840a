// Who computes what of a step's attention: made once for the layers of a group, before the first of them.
//
// A block is a few query tokens of one slice with the query heads of one key-value head, or with all of them: they share
// what is loaded. Its rows' spans (span.h) are joined in the order of keys, spans first into stretches of fixed length,
// then stretches: so the stretches of a few long sequences can be computed by several threads. Spans that lie in the same
// pages for several sequences are computed for all of their rows at once, before everything else, and joined where the
// row's own would be. No result depends on any of this.

#pragma once
#include <string.h>

#include "api.h"
#include "span.h"

namespace noria::NORIA_LEVEL {
namespace {

constexpr int64_t STRETCH = 4;      // spans that one thread joins
constexpr int64_t BLOCK_ROWS = 96;  // query rows that share a packed span, where there are so many

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

// Query tokens `token` … of a slice with one head's or all heads' rows; of the stretches from `stretch` to `end`.
struct Task {
  int32_t slice, token, tokens, head, heads, stretch, end;
  int64_t part;  // index of the first row's partial state; -1: the output is written at once
};

// A span that several slices of one token have in common: `members` of the plan's list from `first` on.
struct Common {
  int32_t span, first, members;
};

// What a slice has in common: so many spans from the first one on; state of its first span's first row. The states of a
// span's rows lie side by side, those of the next span behind them.
struct Prefix {
  int64_t spans, state;
};

struct Plan {
  int64_t tasks, joins, parts, commons, states;
  const Task* task;  // then the joins of blocks whose stretches are computed apart
  const Common* common;
  const int32_t* members;
  const Prefix* prefixes;
};

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

// Whether a slice is of one token that sees the whole span, in pages that no token of this step is written to.
INLINE bool sees_whole(const Step& step, int64_t slice, int64_t span) {
  return step.slices.lengths[slice] == 1 && !step.pages.window && !step.pages.ring &&
         step.slices.starts[slice] >= (span + 1) * SPAN;
}

INLINE bool same_pages(const Step& step, int64_t one, int64_t other, int64_t span) {
  const int64_t size = step.cache.page_size, first = span * SPAN / size, last = ((span + 1) * SPAN - 1) / size;
  const int32_t* pages = step.pages.table + one * step.pages.entries + first;
  const int32_t* others = step.pages.table + other * step.pages.entries + first;
  return *pages == *others && memcmp(pages, others, (last - first + 1) * sizeof(int32_t)) == 0;
}

// How many spans, from the first one on, a slice has in common with at least one other.
INLINE int64_t common_spans(const Step& step, int64_t slice) {
  for (int64_t span = 0;; ++span) {
    if (!sees_whole(step, slice, span)) return span;
    int64_t other = 0;
    while (other < step.slices.count &&
           (other == slice || !sees_whole(step, other, span) || !same_pages(step, slice, other, span)))
      ++other;
    if (other == step.slices.count) return span;
  }
}

// Lists each group of slices that have a span in common, as many at a time as share a packed span.
INLINE void list_commons(const Step& step, const Prefix* prefixes, Common* commons, int32_t* members, Plan& made) {
  int64_t listed = 0;
  for (int64_t slice = 0; slice < step.slices.count; ++slice)
    for (int64_t span = 0; span < prefixes[slice].spans; ++span) {
      auto with = [&](int64_t other) { return prefixes[other].spans > span && same_pages(step, slice, other, span); };
      int64_t other = 0;
      while (!with(other)) ++other;
      if (other < slice) continue;  // that one listed the group
      for (; other < step.slices.count; ++other) {
        if (!with(other)) continue;
        Common* last = made.commons ? commons + made.commons - 1 : nullptr;
        if (other == slice || last->members == step.block_tokens()) {
          last = commons + made.commons++;
          *last = {int32_t(span), int32_t(listed), 0};
        }
        members[listed++] = int32_t(other);
        ++last->members;
      }
    }
}

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

// Lists the tasks, and after them the joins. Counts only where tasks is null.
//
// Long sequences are cut into stretches where there are few of them. A task has all heads of a token, which lie side by
// side in memory, where that still leaves enough for all threads.
INLINE void list_tasks(const Step& step, int64_t threads, Task* tasks, Plan& made) {
  const int64_t kv_heads = step.cache.kv_heads;
  int64_t count = 0, stretches = 0;
  blocks(step, [&](int64_t, int64_t, int64_t tokens, int64_t stretch, int64_t end) {
    ++count;
    if (tokens == 1) stretches += end - stretch;
  });
  const bool few = count < 8 * threads, together = (few ? stretches : count) >= 8 * threads;
  auto heads_of = [=](int64_t tokens) { return together && tokens == 1 ? kv_heads : 1; };
  auto is_cut = [=](int64_t tokens, int64_t stretch, int64_t end) {
    return end - stretch > 1 && (tokens == 1 ? few : count * kv_heads < 4 * threads);
  };
  made.tasks = made.joins = made.parts = 0;
  blocks(step, [&](int64_t slice, int64_t token, int64_t tokens, int64_t stretch, int64_t end) {
    const int64_t heads = heads_of(tokens);
    const bool cut = is_cut(tokens, stretch, end);
    for (int64_t head = 0; head < kv_heads; head += heads)
      for (int64_t at = stretch; at < end; at = cut ? at + 1 : end, ++made.tasks) {
        if (tasks)
          tasks[made.tasks] = {int32_t(slice), int32_t(token), int32_t(tokens), int32_t(head), int32_t(heads),
                               int32_t(at), int32_t(cut ? at + 1 : end), cut ? made.parts : -1};
        if (cut) made.parts += heads * tokens * step.group();
      }
  });
  int64_t part = 0;
  if (made.parts) blocks(step, [&](int64_t slice, int64_t token, int64_t tokens, int64_t stretch, int64_t end) {
    if (!is_cut(tokens, stretch, end)) return;
    const int64_t heads = heads_of(tokens);
    for (int64_t head = 0; head < kv_heads; head += heads, ++made.joins) {
      if (tasks)
        tasks[made.tasks + made.joins] = {int32_t(slice), int32_t(token), int32_t(tokens), int32_t(head),
                                          int32_t(heads), int32_t(stretch), int32_t(end), part};
      part += (end - stretch) * heads * tokens * step.group();
    }
  });
}

// Makes a plan in memory of `plan_bytes`.
INLINE const Plan* make_plan(const Step& step, int64_t threads, void* memory) {
  Carver carver = {(char*)memory};
  Plan* made = carver.take<Plan>(1);
  Prefix* prefixes = carver.take<Prefix>(step.slices.count);
  *made = {};
  int64_t spans = 0;
  for (int64_t slice = 0; slice < step.slices.count; ++slice) {
    prefixes[slice] = {common_spans(step, slice), spans * step.heads.heads};
    spans += prefixes[slice].spans;
  }
  made->states = spans * step.heads.heads;
  Common* commons = carver.take<Common>(spans);
  int32_t* members = carver.take<int32_t>(spans);
  list_commons(step, prefixes, commons, members, *made);
  Task* tasks = (Task*)carver.at;
  list_tasks(step, threads, tasks, *made);
  made->task = tasks, made->common = commons, made->members = members, made->prefixes = prefixes;
  return made;
}

INLINE int64_t plan_bytes(const Step& step, int64_t threads) {
  Carver carver = {nullptr};
  carver.take<Plan>(1);
  carver.take<Prefix>(step.slices.count);
  int64_t spans = 0;
  for (int64_t slice = 0; slice < step.slices.count; ++slice) spans += common_spans(step, slice);
  carver.take<Common>(spans);
  carver.take<int32_t>(spans);
  Plan sizes;
  list_tasks(step, threads, nullptr, sizes);
  carver.take<Task>(sizes.tasks + sizes.joins);
  return int64_t(carver.at);
}

}  // namespace
}  // namespace noria::NORIA_LEVEL
