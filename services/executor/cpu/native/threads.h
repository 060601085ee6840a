// The one parallel loop. OpenMP's pool is torch's own when torch is loaded first, so that the two never compete.
//
// Each thread begins with a share of its own: the same rows or weights in one loop after the other, which are in its caches
// then. Between cores whose third-level caches differ, fetching what the other one wrote made products of 140 rows a third
// slower. Who is done takes what is left of others' shares, because a core may be shared with other processes. No kernel's
// result may depend on who computes a task or on how many threads there are.
//
// A loop ends when its tasks are done, whether every thread has come or not: a thread that does not get a core just now holds
// nobody up, unless it is amid a task. OpenMP's own loops wait for all. Where other processes want the cores, that costs
// a turn of the system's scheduler for each loop, of which a step has hundreds: a step took twenty times as long.

#pragma once
#include <omp.h>
#include <sched.h>
#include <stdint.h>

#include "vector.h"

namespace noria::NORIA_LEVEL {

constexpr int SHARES_MAX = 64;
constexpr int PAUSES_MAX = 2000;  // some tens of microseconds, as long as what comes between two loops

// Waiting for another thread: briefly for nothing, then by letting others have the core, of whom that thread may be one.
struct Patience {
  int pauses = 0;
  void wait() {
    if (pauses >= PAUSES_MAX) return void(sched_yield());
    ++pauses;
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
  }
};

// Threads that wait for loops of the first one among them. Whoever takes a task knows that the loop it belongs to is not over.
class Team {
 public:
  explicit Team(int32_t threads) : count(threads < SHARES_MAX ? threads : SHARES_MAX) {}

  // The first thread: all tasks, with whoever else is there.
  void run(int64_t tasks, void (*task_of)(const void*, int64_t), const void* of) {
    call = task_of, body = of;
    __atomic_store_n(&open, tasks, __ATOMIC_RELAXED);
    for (int32_t i = 0; i < count; ++i) {
      const int64_t begin = tasks * i / count;
      shares[i].end = tasks * (i + 1) / count;
      __atomic_store_n(&shares[i].left, shares[i].end - begin, __ATOMIC_RELEASE);
    }
    __atomic_fetch_add(&loops, 1, __ATOMIC_RELEASE);
    work(0);
    for (Patience patience; __atomic_load_n(&open, __ATOMIC_ACQUIRE);) patience.wait();
  }

  // Any other thread: helps until there are no more loops.
  void serve(int32_t own) {
    Patience patience;
    for (int32_t known = 0;;) {
      const int32_t now = __atomic_load_n(&loops, __ATOMIC_ACQUIRE);
      if (now < 0) return;
      if (now == known) {
        patience.wait();
        continue;
      }
      known = now;
      patience = {};
      work(own);
    }
  }

  void dismiss() { __atomic_store_n(&loops, -1, __ATOMIC_RELEASE); }

 private:
  // The tasks before `end` of which so many are left; below 0 when threads have asked in vain.
  struct alignas(64) Share {
    int64_t left = 0, end = 0;
  };

  Share shares[SHARES_MAX];
  alignas(64) int64_t open = 0;  // tasks that are not done
  alignas(64) int32_t loops = 0;
  const int32_t count;
  void (*call)(const void*, int64_t) = nullptr;
  const void* body = nullptr;

  void work(int32_t own) {
    int64_t done = 0;
    for (int32_t i = 0; i < count; ++i) {
      Share& share = shares[(own + i) % count];
      int64_t left;
      while ((left = __atomic_fetch_sub(&share.left, 1, __ATOMIC_ACQUIRE)) > 0) call(body, share.end - left), ++done;
    }
    if (done) __atomic_fetch_sub(&open, done, __ATOMIC_RELEASE);
  }
};

extern __thread Team* present_team;  // where this thread is the first of one

namespace {

// Calls work(), whose loops all go to one team.
template <class Work>
INLINE void in_team(int64_t threads, const Work& work) {
  if (threads <= 1 || present_team) return work();
  Team team{int32_t(threads)};
#pragma omp parallel num_threads(int32_t(threads))
  if (omp_get_thread_num()) {
    team.serve(omp_get_thread_num());
  } else {
    present_team = &team;
    work();
    present_team = nullptr;
    team.dismiss();
  }
}

template <class Body>
INLINE void parallel(int32_t threads, int64_t tasks, Body body) {
  if (threads <= 1 || tasks <= 1) {
    for (int64_t task = 0; task < tasks; ++task) body(task);
    return;
  }
  in_team(threads, [&] {
    present_team->run(tasks, [](const void* of, int64_t task) { (*(const Body*)of)(task); }, &body);
  });
}

}  // namespace
}  // namespace noria::NORIA_LEVEL
