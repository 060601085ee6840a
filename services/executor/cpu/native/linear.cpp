// Matrix products with float32 and bfloat16 weights, and the packing of all weights.

#include "product.h"

namespace noria::NORIA_LEVEL {
namespace {

// So many steps are summed as they come, then added to the total: in one sum over thousands, float32 loses a digit.
constexpr int64_t PART_STEPS = 256;

// One step along the inputs: numbers of x in every lane, and one such for each of a vector of outputs.
struct Float32 {
  using Number = float;
  using Step = Floats;
  static constexpr int INPUTS = 1;
  INLINE Step every(const float* x) { return splat(*x); }
  INLINE Step weights(const char* w) { return load((const float*)w); }
  INLINE Floats add(Floats c, Step x, Step w) { return multiply_add(x, w, c); }
};

struct Bfloat16 {
  using Number = bf16;
  using Step = Ints;
  static constexpr int INPUTS = 2;
  INLINE Step every(const bf16* x) { return splat_word(x); }
  INLINE Step weights(const char* w) { return load_ints(w); }
  INLINE Floats add(Floats c, Step x, Step w) { return dot_bf16(c, x, w); }
};

template <class Kind, class Y>
struct Tile {
  using Number = typename Kind::Number;
  const NoriaLinear& linear;
  const Number* x;
  Y* y;

  template <int ROWS>
  INLINE void step(Floats (&c)[ROWS][WIDTH], const Number* a, int64_t stride, const char* w) {
    typename Kind::Step weights[WIDTH];
#pragma GCC unroll 2
    for (int j = 0; j < WIDTH; ++j) weights[j] = Kind::weights(w + j * LANES * 4);
#pragma GCC unroll 12
    for (int m = 0; m < ROWS; ++m) {
      const auto number = Kind::every(a + m * stride);
#pragma GCC unroll 2
      for (int j = 0; j < WIDTH; ++j) c[m][j] = Kind::add(c[m][j], number, weights[j]);
    }
  }

  template <int ROWS>
  __attribute__((noinline)) void run(int64_t row, int64_t output, Ahead ahead) const {
    const int64_t inputs = linear.inputs, whole = inputs / Kind::INPUTS, steps = ceiling(inputs, Kind::INPUTS);
    const char* w = (const char*)linear.weights + output / PANEL * steps * STEP_BYTES + output % PANEL * 4;
    const Number* a = x + row * inputs;
    Floats total[ROWS][WIDTH];
    for (int64_t start = 0; start == 0 || start < steps; start += PART_STEPS) {
      Floats c[ROWS][WIDTH];
#pragma GCC unroll 12
      for (int m = 0; m < ROWS; ++m)
#pragma GCC unroll 2
        for (int j = 0; j < WIDTH; ++j) c[m][j] = splat(0.f);
      const int64_t end = least(whole, start + PART_STEPS);
      for (int64_t k = start; k < end; ++k, a += Kind::INPUTS, w += STEP_BYTES) {
        ahead.fetch(k);
        step<ROWS>(c, a, inputs, w);
      }
      if (whole < steps && start + PART_STEPS >= steps) {  // the last number has no partner
        Number last[ROWS][Kind::INPUTS] = {};
        for (int m = 0; m < ROWS; ++m) last[m][0] = a[m * inputs];
        step<ROWS>(c, last[0], Kind::INPUTS, w);
      }
#pragma GCC unroll 12
      for (int m = 0; m < ROWS; ++m)
#pragma GCC unroll 2
        for (int j = 0; j < WIDTH; ++j) total[m][j] = start == 0 ? c[m][j] : total[m][j] + c[m][j];
    }
    for (int m = 0; m < ROWS; ++m)
      for (int j = 0; j < WIDTH; ++j) store_outputs(linear, y, row + m, output + j * LANES, total[m][j]);
  }
};

template <class Kind>
void product(const NoriaLinear& linear, const void* x, void* y, int64_t y_type, int64_t rows, int32_t threads) {
  using Number = typename Kind::Number;
  const Number* numbers = (const Number*)x;
  const int64_t steps = ceiling(linear.inputs, Kind::INPUTS);
  if (y_type == NORIA_FLOAT32)
    tiles<ROWS_MAX>(rows, linear.outputs, threads, linear.weights, steps, STEP_BYTES,
                    Tile<Kind, float>{linear, numbers, (float*)y});
  else
    tiles<ROWS_MAX>(rows, linear.outputs, threads, linear.weights, steps, STEP_BYTES,
                    Tile<Kind, bf16>{linear, numbers, (bf16*)y});
}

INLINE void put(float* place, float number) { *place = number; }
INLINE void put(float* place, bf16 number) { *place = to_float(number); }
INLINE void put(bf16* place, bf16 number) { *place = number; }
INLINE void put(bf16* place, float number) { *place = to_bf16(number); }

template <class Number, class Source>
void pack_panels(const NoriaLinear& linear, const Source* source, int64_t first, int64_t outputs, int32_t threads) {
  constexpr int INPUTS = 4 / sizeof(Number);
  const int64_t inputs = linear.inputs, steps = ceiling(inputs, INPUTS);
  Number* weights = (Number*)linear.weights;
  panels(first, outputs, threads, [=](int64_t output, int64_t end) {
    for (; output < end; ++output)
      for (int64_t k = 0; k < inputs; ++k)
        put(weights + ((output / PANEL * steps + k / INPUTS) * PANEL + output % PANEL) * INPUTS + k % INPUTS,
            source[(output - first) * inputs + k]);
  });
}

template <class Number>
void pack_floats(const NoriaLinear& linear, const void* source, NoriaType type, int64_t first, int64_t outputs,
                 int32_t threads) {
  if (type == NORIA_FLOAT32) pack_panels<Number>(linear, (const float*)source, first, outputs, threads);
  else pack_panels<Number>(linear, (const bf16*)source, first, outputs, threads);
}

}  // namespace
}  // namespace noria::NORIA_LEVEL

using namespace noria::NORIA_LEVEL;

void NORIA_KERNEL(linear)(const NoriaLinear* linear, const void* x, void* y, int64_t y_type, int64_t rows, void* scratch,
                          int64_t threads) {
  const int32_t most = int32_t(threads);
  if (linear->type == NORIA_FLOAT32) product<Float32>(*linear, x, y, y_type, rows, most);
  else if (linear->type == NORIA_BFLOAT16) product<Bfloat16>(*linear, x, y, y_type, rows, most);
  else product_int8(*linear, x, y, y_type, rows, scratch, most);
}

void NORIA_KERNEL(pack)(const NoriaLinear* linear, const void* source, int64_t source_type, int64_t first,
                        int64_t outputs, int64_t threads) {
  const NoriaType type = NoriaType(source_type);
  if (linear->type == NORIA_FLOAT32) pack_floats<float>(*linear, source, type, first, outputs, int32_t(threads));
  else if (linear->type == NORIA_BFLOAT16) pack_floats<bf16>(*linear, source, type, first, outputs, int32_t(threads));
  else pack_int8(*linear, source, type, first, outputs, int32_t(threads));
}
