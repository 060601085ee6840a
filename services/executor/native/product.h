// How every matrix product is cut into tasks, and how its results are stored.
//
// A tile is a few rows of x times a panel of weights, summed along all inputs in one fixed order: an output element is
// the same bits in any tile, among any number of rows, whoever computes it.

#pragma once
#include "api.h"
#include "threads.h"
#include "vector.h"

namespace noria::NORIA_LEVEL {

void product_int8(const NoriaLinear& linear, const void* x, void* y, int64_t y_type, int64_t rows, void* scratch,
                  int32_t threads);
void pack_int8(const NoriaLinear& linear, const void* source, NoriaType source_type, int64_t first, int64_t outputs,
               int32_t threads);

namespace {

constexpr int PANEL = 32;        // outputs in a panel
constexpr int STEP_BYTES = 128;  // of a panel for one step along the inputs
constexpr int GROUP = 32;        // inputs that share an int8 scale
constexpr int ROW_CHUNK = 96;    // rows that pass a panel before the next one: they stay in the second-level cache

// Vectors of a panel that a tile takes at once, and its rows at most: what the registers hold.
#if defined(NORIA_AVX512)
constexpr int WIDTH = 2, ROWS_MAX = 12, ROWS_MAX_INT8 = 6;
#elif defined(NORIA_AVX2)
constexpr int WIDTH = 1, ROWS_MAX = 6, ROWS_MAX_INT8 = 3;
#else
constexpr int WIDTH = 1, ROWS_MAX = 3, ROWS_MAX_INT8 = 2;
#endif
constexpr int PARTS_OF_PANEL = PANEL / (WIDTH * LANES);

INLINE int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
INLINE int64_t ceiling(int64_t a, int64_t b) { return (a + b - 1) / b; }

// y = x @ w.T by tiles: tile(rows as a constant, first row, first output).
template <int ROWS, class Tile>
INLINE void with_rows(int64_t rows, const Tile& tile, int64_t row, int64_t output) {
  if (rows == ROWS) return tile.template run<ROWS>(row, output);
  if constexpr (ROWS > 1) with_rows<ROWS - 1>(rows, tile, row, output);
}

template <int MOST, class Tile>
INLINE void tiles(int64_t rows, int64_t outputs, int32_t threads, const Tile& tile) {
  const int64_t chunks = ceiling(rows, ROW_CHUNK), panels = ceiling(outputs, PANEL);
  const int64_t at_once = panels < 32 ? 1 : least(8, panels / 16), groups = ceiling(panels, at_once);
  parallel(threads, chunks * groups, [=, &tile](int64_t task) __attribute__((always_inline)) {
    const int64_t chunk = task / groups, first = rows * chunk / chunks, end = rows * (chunk + 1) / chunks;
    const int64_t blocks = ceiling(end - first, MOST), panel_end = least(panels, (task % groups + 1) * at_once);
    for (int64_t panel = task % groups * at_once; panel < panel_end; ++panel)
      for (int part = 0; part < PARTS_OF_PANEL; ++part)
        for (int64_t block = 0; block < blocks; ++block) {
          const int64_t row = first + (end - first) * block / blocks;
          const int64_t count = first + (end - first) * (block + 1) / blocks - row;
          with_rows<MOST>(count, tile, row, panel * PANEL + part * WIDTH * LANES);
        }
  });
}

template <class Y>
INLINE void store_outputs(const NoriaLinear& linear, Y* y, int64_t row, int64_t output, Floats x) {
  const int64_t left = linear.outputs - output;
  if (left <= 0) return;
  if (linear.bias) x = x + load(linear.bias + output);
  Y* place = y + row * linear.outputs + output;
  if (left >= LANES) store(place, x);
  else store_first(place, left, x);
}

// So many outputs from `first` on, a panel at a time: body(first output, one past the last).
template <class Body>
INLINE void panels(int64_t first, int64_t outputs, int32_t threads, Body body) {
  const int64_t from = first / PANEL, end = first + outputs;
  parallel(threads, ceiling(end, PANEL) - from, [=](int64_t task) {
    const int64_t panel = (from + task) * PANEL;
    body(panel < first ? first : panel, least(end, panel + PANEL));
  });
}

}  // namespace
}  // namespace noria::NORIA_LEVEL
