// What happens to each row between two products: embedding, norms, gates. A row is computed by one thread.

#include "api.h"
#include "threads.h"
#include "tile.h"

namespace noria::NORIA_LEVEL {
namespace {

constexpr int64_t SMALL = 1 << 14;  // numbers that one thread is done with before another would have woken up

// Calls body(row) for all rows, on several threads where it pays.
template <class Body>
INLINE void each_row(int64_t threads, int64_t rows, int64_t width, Body body) {
  if (rows * width <= SMALL) threads = 1;
  const int64_t at_once = greater(1, SMALL / 4 / width), tasks = (rows + at_once - 1) / at_once;
  parallel(int32_t(threads), tasks, [=](int64_t task) {
    for (int64_t row = task * at_once; row < lesser(rows, (task + 1) * at_once); ++row) body(row);
  });
}

// Calls whole(at) for the row's vectors and rest(at, left) for what is left of it.
template <class Whole, class Rest>
INLINE void each_vector(int64_t width, Whole whole, Rest rest) {
  int64_t at = 0;
  for (; at + LANES <= width; at += LANES) whole(at);
  if (at < width) rest(at, width - at);
}

INLINE Floats inverse_root(Floats squares, int64_t width, double epsilon) {
  return splat(1 / sqrtf(sum(squares) / float(width) + float(epsilon)));
}

template <class Y>
void norm_rows(float* residual, const float* x, const float* weight, double epsilon, const int64_t* picked, Y* y,
               int64_t rows, int64_t width, int64_t threads) {
  each_row(threads, rows, width, [=](int64_t row) {
    const int64_t from = picked ? picked[row] : row;
    float* total = residual + from * width;
    const float* added = x ? x + from * width : nullptr;
    Y* to = y + row * width;
    auto whole = [=](int64_t at) { return added ? load(total + at) + load(added + at) : load(total + at); };
    auto rest = [=](int64_t at, int64_t left) {
      const Floats found = load_first(total + at, left);
      return added ? found + load_first(added + at, left) : found;
    };
    Floats squares = splat(0.f);
    each_vector(width, [&](int64_t at) {
      const Floats number = whole(at);
      squares = multiply_add(number, number, squares);
    }, [&](int64_t at, int64_t left) {
      const Floats number = rest(at, left);
      squares = multiply_add(number, number, squares);
    });
    const Floats scale = inverse_root(squares, width, epsilon);
    each_vector(width, [&](int64_t at) {
      const Floats number = whole(at);
      if (added && !picked) store(total + at, number);
      store(to + at, number * scale * load(weight + at));
    }, [&](int64_t at, int64_t left) {
      const Floats number = rest(at, left);
      if (added && !picked) store_first(total + at, left, number);
      store_first(to + at, left, number * scale * load_first(weight + at, left));
    });
  });
}

INLINE Floats silu(Floats x) { return x / (splat(1.f) + exponential(-x)); }

// x / 2 * (1 + tanh(t)) with t = sqrt(2 / pi) * (x + 0.044715 x^3), which is x / (1 + e^(-2t)).
INLINE Floats gelu(Floats x) {
  const Floats cubic = multiply_add(x * x * x, splat(0.044715f), x);
  return x / (splat(1.f) + exponential(cubic * splat(-1.5957691216f)));
}

template <class Y, class Activation>
void gate_rows(const float* x, Y* y, int64_t rows, int64_t width, int64_t threads, Activation activation) {
  each_row(threads, rows, width, [=](int64_t row) {
    const float *gate = x + row * 2 * width, *up = gate + width;
    Y* to = y + row * width;
    each_vector(width, [=](int64_t at) { store(to + at, activation(load(gate + at)) * load(up + at)); },
                [=](int64_t at, int64_t left) {
                  store_first(to + at, left, activation(load_first(gate + at, left)) * load_first(up + at, left));
                });
  });
}

template <class Y>
void gate(const float* x, int64_t tanh, Y* y, int64_t rows, int64_t width, int64_t threads) {
  if (tanh) gate_rows(x, y, rows, width, threads, [](Floats v) { return gelu(v); });
  else gate_rows(x, y, rows, width, threads, [](Floats v) { return silu(v); });
}

template <class T>
void embed_rows(const T* table, const int64_t* ids, double scale, float* x, int64_t rows, int64_t width, int64_t threads) {
  const Floats factor = splat(float(scale));
  each_row(threads, rows, width, [=](int64_t row) {
    const T* from = table + ids[row] * width;
    float* to = x + row * width;
    each_vector(width, [=](int64_t at) { store(to + at, load(from + at) * factor); },
                [=](int64_t at, int64_t left) { store_first(to + at, left, load_first(from + at, left) * factor); });
  });
}

}  // namespace
}  // namespace noria::NORIA_LEVEL

using namespace noria::NORIA_LEVEL;

void NORIA_KERNEL(embed)(const void* table, int64_t type, const int64_t* ids, double scale, float* x, int64_t rows,
                         int64_t width, int64_t threads) {
  if (type == NORIA_BFLOAT16) embed_rows((const bf16*)table, ids, scale, x, rows, width, threads);
  else embed_rows((const float*)table, ids, scale, x, rows, width, threads);
}

void NORIA_KERNEL(add_norm)(float* residual, const float* x, const float* weight, double epsilon, const int64_t* picked,
                            void* y, int64_t type, int64_t rows, int64_t width, int64_t threads) {
  if (type == NORIA_BFLOAT16) norm_rows(residual, x, weight, epsilon, picked, (bf16*)y, rows, width, threads);
  else norm_rows(residual, x, weight, epsilon, picked, (float*)y, rows, width, threads);
}

void NORIA_KERNEL(norm)(float* x, const float* weight, double epsilon, int64_t rows, int64_t width, int64_t threads) {
  norm_rows(x, nullptr, weight, epsilon, nullptr, x, rows, width, threads);
}

void NORIA_KERNEL(gated)(const float* x, int64_t gelu, void* y, int64_t type, int64_t rows, int64_t width, int64_t threads) {
  if (type == NORIA_BFLOAT16) gate(x, gelu, (bf16*)y, rows, width, threads);
  else gate(x, gelu, (float*)y, rows, width, threads);
}
