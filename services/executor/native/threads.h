// The one parallel loop. OpenMP's pool is torch's own when torch is loaded first, so that the two never compete.
//
// Tasks are taken one after the other by whichever thread is free, because a core may be shared with other processes. No
// kernel's result may depend on who computes a task or on how many threads there are.

#pragma once
#include <stdint.h>

#include "vector.h"

namespace noria::NORIA_LEVEL {
namespace {

template <class Body>
INLINE void parallel(int32_t threads, int64_t tasks, Body body) {
  if (threads <= 1 || tasks <= 1) {
    for (int64_t task = 0; task < tasks; ++task) body(task);
    return;
  }
  int64_t next = 0;
#pragma omp parallel num_threads(threads)
  for (;;) {
    const int64_t task = __atomic_fetch_add(&next, 1, __ATOMIC_RELAXED);
    if (task >= tasks) break;
    body(task);
  }
}

}  // namespace
}  // namespace noria::NORIA_LEVEL
