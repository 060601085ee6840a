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
constexpr int ROWS_APART = 12;   // rows at least that a thread has of its own rather than sharing them
constexpr int LINE = 64;         // bytes that memory gives at once
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

// Weights that are wanted next, brought into the second-level cache while a tile is computed: so many bytes of them for each
// of its steps or groups; none where 0.
struct Ahead {
  const char* at;
  int64_t bytes;
  void fetch(int64_t step) const {
    for (int64_t done = 0; done < bytes; done += LINE) __builtin_prefetch(at + step * bytes + done, 0, 2);
  }
};

// y = x @ w.T by tiles: tile(rows as a constant, first row, first output, what comes next).
template <int ROWS, class Tile>
INLINE void with_rows(int64_t rows, const Tile& tile, int64_t row, int64_t output, Ahead ahead) {
  if (rows == ROWS) return tile.template run<ROWS>(row, output, ahead);
  if constexpr (ROWS > 1) with_rows<ROWS - 1>(rows, tile, row, output, ahead);
}

// Where there are rows enough, each thread has its own, as it has in what comes between products.
INLINE int64_t row_chunks(int64_t rows, int64_t threads) {
  const int64_t chunks = ceiling(rows, ROW_CHUNK), apart = least(threads, rows / ROWS_APART);
  return apart > 1 ? ceiling(chunks, apart) * apart : chunks;
}

// Panels lie one after the other from `weights` on; along the inputs each is so many steps or groups of so many bytes.
template <int MOST, class Tile>
INLINE void tiles(int64_t rows, int64_t outputs, int32_t threads, const void* weights, int64_t steps, int64_t step_bytes,
                  const Tile& tile) {
  const int64_t chunks = row_chunks(rows, threads), panels = ceiling(outputs, PANEL);
  const int64_t at_once = panels < 32 ? 1 : least(8, panels / 16), groups = ceiling(panels, at_once);
  parallel(threads, chunks * groups, [=, &tile](int64_t task) __attribute__((always_inline)) {
    const int64_t chunk = task / groups, first = rows * chunk / chunks, end = rows * (chunk + 1) / chunks;
    const int64_t blocks = ceiling(end - first, MOST), panel_end = least(panels, (task % groups + 1) * at_once);
    // With one block, weights are read in one stream, which the processor sees by itself; with more it stops at each panel.
    const int64_t passes = blocks * PARTS_OF_PANEL, share = blocks > 1 ? ceiling(step_bytes, passes) : 0;
    for (int64_t panel = task % groups * at_once; panel < panel_end; ++panel) {
      Ahead ahead = {(const char*)weights + (panel + 1) % panels * steps * step_bytes, share};
      for (int part = 0; part < PARTS_OF_PANEL; ++part)
        for (int64_t block = 0; block < blocks; ++block, ahead.at += steps * share) {
          const int64_t row = first + (end - first) * block / blocks;
          const int64_t count = first + (end - first) * (block + 1) / blocks - row;
          with_rows<MOST>(count, tile, row, panel * PANEL + part * WIDTH * LANES, ahead);
        }
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
