// The one parallel loop. OpenMP's pool is torch's own when torch is loaded first, so that the two never compete.
//
// Each thread begins with a share of its own: the same rows or weights in one loop after the other, which are in its caches
// then. Between cores whose third-level caches differ, fetching what the other one wrote made products of 140 rows a third
// slower. Who is done takes what is left of others' shares, because a core may be shared with other processes. No kernel's
// result may depend on who computes a task or on how many threads there are.

#pragma once
#include <omp.h>
#include <stdint.h>

#include "vector.h"

namespace noria::NORIA_LEVEL {
namespace {

constexpr int SHARES_MAX = 64;

// Tasks from `next` to before `end`, taken one by one by whoever asks.
struct alignas(64) Share {
  int64_t next, end;
};

template <class Body>
INLINE void parallel(int32_t threads, int64_t tasks, Body body) {
  if (threads <= 1 || tasks <= 1) {
    for (int64_t task = 0; task < tasks; ++task) body(task);
    return;
  }
  const int32_t count = threads < SHARES_MAX ? threads : SHARES_MAX;
  Share shares[SHARES_MAX];
  for (int32_t i = 0; i < count; ++i) shares[i] = {tasks * i / count, tasks * (i + 1) / count};
#pragma omp parallel num_threads(threads)
  for (int32_t i = 0, own = omp_get_thread_num(); i < count; ++i) {
    Share& share = shares[(own + i) % count];
    for (;;) {
      const int64_t task = __atomic_fetch_add(&share.next, 1, __ATOMIC_RELAXED);
      if (task >= share.end) break;
      body(task);
    }
  }
}

}  // namespace
}  // namespace noria::NORIA_LEVEL
