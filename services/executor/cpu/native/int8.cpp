// Matrix products with int8 weights: groups of 32 inputs with a scale each, on both sides.
//
// Weights are symmetric, w = scale * q with q in -127..127 (as GGUF's Q8_0 has them), or have offsets, w = scale * q +
// offset, where they come from a file that has (blocks.h); those of four bits are kept in four, since few rows take as long
// as reading them does. Each row of x is quantised as it comes, x = least + scale * q
// with q in 0..255: that the range need not be symmetric is what keeps the quality of bfloat16
// (benchmarks/int8_quality.py). So for each group
//
//   sum x * w = weight scale * (scale * sum q_x * q_w + least * sum q_w) + offset * (scale * sum q_x + 32 * least)
//
// where all sums are exact integers, that of q_w kept with the weights. Groups are added in float32, in order.

#include "blocks.h"
#include "product.h"

namespace noria::NORIA_LEVEL {
namespace {

// A panel's weights of one group. What is used together lies together: one stream to read from memory.
struct Block {
  int8_t weights[GROUP / 4][PANEL][4];
  half scales[PANEL];
  int16_t sums[PANEL];
};

struct OffsetBlock : Block {
  half offsets[PANEL];
};

// Two steps along the inputs in the halves of each byte.
struct NibbleBlock {
  uint8_t weights[GROUP / 8][PANEL][4];
  half scales[PANEL];
  int16_t sums[PANEL];
  half offsets[PANEL];
};

INLINE Ints weights_of(const Block* block, int step, int64_t lane) { return load_ints(block->weights[step][lane]); }
INLINE Ints weights_of(const NibbleBlock* block, int step, int64_t lane) {
  const Ints pair = load_ints(block->weights[step / 2][lane]);
  return step % 2 ? high_nibbles(pair) : low_nibbles(pair);
}

INLINE void put_weight(Block& block, int input, int64_t lane, int8_t q) { block.weights[input / 4][lane][input % 4] = q; }
INLINE void put_weight(NibbleBlock& block, int input, int64_t lane, int8_t q) {
  block.weights[input / 8][lane][input % 4] |= uint8_t(q << input / 4 % 2 * 4);
}

template <class Kind>
constexpr bool OFFSETS = false;
template <>
constexpr bool OFFSETS<OffsetBlock> = true;
template <>
constexpr bool OFFSETS<NibbleBlock> = true;

template <class Kind>
constexpr bool SIGNED = true;
template <>
constexpr bool SIGNED<NibbleBlock> = false;

struct Range {
  float scale, least;
  float sum;  // of the group's x; where weights have offsets
};

struct Quantised {
  const uint8_t* bytes;  // [rows][groups * 32]
  const Range* ranges;   // [rows][groups]
};

template <class Kind, class Number>
INLINE Range quantise(const Number* x, int64_t count, uint8_t* bytes, Floats& disease) {
  Number group[GROUP];
  if (count < GROUP) {  // filled up by a number that is there, which does not widen the range; the weights are 0 there
    for (int i = 0; i < GROUP; ++i) group[i] = x[i < count ? i : 0];
    x = group;
  }
  const Floats low = load(x), high = load(x + LANES);
  const float from = smallest(minimum(low, high)), range = largest(maximum(low, high)) - from;
  const Floats to_bytes = splat(range > 0 ? 255.f / range : 0.f), first = splat(from);
  disease = disease + (low - low) + (high - high);
  const Ints low_bytes = ints((low - first) * to_bytes), high_bytes = ints((high - first) * to_bytes);
  store_bytes(bytes, low_bytes);
  store_bytes(bytes + LANES, high_bytes);
  const float scale = range / 255.f;
  float total = 0.f;
  if constexpr (OFFSETS<Kind>) total = scale * sum(floats(low_bytes + high_bytes)) + float(GROUP) * from;
  return {scale, from, total};
}

template <class Kind, class Number>
Quantised quantise_rows(const Number* x, int64_t rows, int64_t inputs, void* scratch, int32_t threads) {
  const int64_t groups = ceiling(inputs, GROUP);
  uint8_t* bytes = (uint8_t*)scratch;
  Range* ranges = (Range*)(bytes + rows * groups * GROUP);
  parallel(rows > 8 ? threads : 1, rows, [=](int64_t row) {
    Floats disease = splat(0.f);
    for (int64_t group = 0; group < groups; ++group) {
      const int64_t place = row * groups + group, start = group * GROUP;
      const int64_t count = least(GROUP, inputs - start);
      ranges[place] = quantise<Kind>(x + row * inputs + start, count, bytes + place * GROUP, disease);
    }
    // 0, but NaN when any number of the row is not finite: bytes would hide that.
    ranges[row * groups].least += sum(disease);
  });
  return {bytes, ranges};
}

template <class Kind, class Y>
struct Tile {
  const NoriaLinear& linear;
  Quantised x;
  Y* y;

  template <int ROWS>
  __attribute__((noinline)) void run(int64_t row, int64_t output, Ahead ahead) const {
    const int64_t groups = ceiling(linear.inputs, GROUP), lane = output % PANEL;
    const Kind* block = (const Kind*)linear.weights + output / PANEL * groups;
    const uint8_t* a = x.bytes + row * groups * GROUP;
    const Range* ranges = x.ranges + row * groups;
    Floats total[ROWS][WIDTH];
#pragma GCC unroll 6
    for (int m = 0; m < ROWS; ++m)
#pragma GCC unroll 2
      for (int j = 0; j < WIDTH; ++j) total[m][j] = splat(0.f);
    for (int64_t group = 0; group < groups; ++group, ++block, ++ranges) {
      ahead.fetch(group);
      Ints c[ROWS][WIDTH];
#pragma GCC unroll 6
      for (int m = 0; m < ROWS; ++m)
#pragma GCC unroll 2
        for (int j = 0; j < WIDTH; ++j) c[m][j] = splat(0);
#pragma GCC unroll 8
      for (int step = 0; step < GROUP / 4; ++step, a += 4) {
        Ints weights[WIDTH];
#pragma GCC unroll 2
        for (int j = 0; j < WIDTH; ++j) weights[j] = weights_of(block, step, lane + j * LANES);
#pragma GCC unroll 6
        for (int m = 0; m < ROWS; ++m) {
          const Ints bytes = splat_word(a + m * groups * GROUP);
#pragma GCC unroll 2
          for (int j = 0; j < WIDTH; ++j) c[m][j] = dot_int8(c[m][j], bytes, weights[j]);
        }
      }
#pragma GCC unroll 2
      for (int j = 0; j < WIDTH; ++j) {
        const Floats scale = load(block->scales + lane + j * LANES);
        const Floats sum = floats(load_ints16(block->sums + lane + j * LANES)) * scale;
#pragma GCC unroll 6
        for (int m = 0; m < ROWS; ++m) {
          const Range range = ranges[m * groups];
          total[m][j] = multiply_add(floats(c[m][j]), scale * splat(range.scale), total[m][j]);
          total[m][j] = multiply_add(sum, splat(range.least), total[m][j]);
        }
        if constexpr (OFFSETS<Kind>) {
          const Floats offset = load(block->offsets + lane + j * LANES);
#pragma GCC unroll 6
          for (int m = 0; m < ROWS; ++m)
            total[m][j] = multiply_add(offset, splat(ranges[m * groups].sum), total[m][j]);
        }
      }
    }
    for (int m = 0; m < ROWS; ++m)
      for (int j = 0; j < WIDTH; ++j) store_outputs(linear, y, row + m, output + j * LANES, total[m][j]);
  }
};

template <class Kind, class Number>
void product(const NoriaLinear& linear, const Number* x, void* y, int64_t y_type, int64_t rows, void* scratch,
             int32_t threads) {
  const Quantised quantised = quantise_rows<Kind>(x, rows, linear.inputs, scratch, threads);
  const int64_t groups = ceiling(linear.inputs, GROUP);
  if (y_type == NORIA_FLOAT32)
    tiles<ROWS_MAX_INT8>(rows, linear.outputs, threads, linear.weights, groups, sizeof(Kind),
                         Tile<Kind, float>{linear, quantised, (float*)y});
  else
    tiles<ROWS_MAX_INT8>(rows, linear.outputs, threads, linear.weights, groups, sizeof(Kind),
                         Tile<Kind, bf16>{linear, quantised, (bf16*)y});
}

template <class Kind>
void product_of(const NoriaLinear& linear, const void* x, void* y, int64_t y_type, int64_t rows, void* scratch,
                int32_t threads) {
  if (linear.input_type == NORIA_FLOAT32)
    product<Kind>(linear, (const float*)x, y, y_type, rows, scratch, threads);
  else
    product<Kind>(linear, (const bf16*)x, y, y_type, rows, scratch, threads);
}

// One group of one output's weights, by the scale as it is kept.
template <class Source>
INLINE Numbers quantised_weights(const Source* source, int64_t count) {
  Numbers found = {};
  float numbers[GROUP] = {}, most = 0;
  for (int64_t i = 0; i < count; ++i) {
    numbers[i] = to_float(source[i]);
    const float size = fabsf(numbers[i]);
    most = size > most ? size : most;
  }
  found.scale = to_half(most / 127.f);
  const float kept = to_float(found.scale);
  for (int i = 0; i < GROUP; ++i) {
    const float q = kept > 0 ? nearbyintf(numbers[i] / kept) : 0.f;
    found.q[i] = int8_t(q > 127.f ? 127.f : q < -127.f ? -127.f : q);
  }
  return found;
}

template <class Kind>
INLINE void put(const Numbers& numbers, Kind& block, int64_t lane) {
  int sum = 0;
  for (int i = 0; i < GROUP; ++i) {
    sum += numbers.q[i];
    put_weight(block, i, lane, numbers.q[i]);
  }
  block.scales[lane] = numbers.scale;
  block.sums[lane] = int16_t(sum);
  if constexpr (OFFSETS<Kind>) block.offsets[lane] = numbers.offset;
}

// One group of one output's weights as a file has them; -8..7 become 0..15 and an offset where a sign has no room.
template <class Kind>
INLINE Numbers block_weights(const uint8_t* block, NoriaType type) {
  Numbers found = read_block(block, type);
  if constexpr (!SIGNED<Kind>)
    if (!has_offsets(type)) {
      for (int8_t& q : found.q) q += 8;
      found.offset = to_half(-8.f * to_float(found.scale));
    }
  return found;
}

template <class Kind>
void pack(const NoriaLinear& linear, const void* source, NoriaType type, int64_t first, int64_t outputs, int32_t threads) {
  const int64_t inputs = linear.inputs, groups = ceiling(inputs, GROUP);
  Kind* blocks = (Kind*)linear.weights;
  panels(first, outputs, threads, [=](int64_t output, int64_t end) {
    for (; output < end; ++output)
      for (int64_t group = 0; group < groups; ++group) {
        const int64_t start = (output - first) * inputs + group * GROUP, count = least(GROUP, inputs - group * GROUP);
        put(type == NORIA_FLOAT32    ? quantised_weights((const float*)source + start, count)
            : type == NORIA_BFLOAT16 ? quantised_weights((const bf16*)source + start, count)
                                     : block_weights<Kind>((const uint8_t*)source + start / GROUP * block_bytes(type), type),
            blocks[output / PANEL * groups + group], output % PANEL);
      }
  });
}

}  // namespace

void product_int8(const NoriaLinear& linear, const void* x, void* y, int64_t y_type, int64_t rows, void* scratch,
                  int32_t threads) {
  if (linear.type == NORIA_INT4_OFFSETS) product_of<NibbleBlock>(linear, x, y, y_type, rows, scratch, threads);
  else if (linear.type == NORIA_INT8_OFFSETS) product_of<OffsetBlock>(linear, x, y, y_type, rows, scratch, threads);
  else product_of<Block>(linear, x, y, y_type, rows, scratch, threads);
}

void pack_int8(const NoriaLinear& linear, const void* source, NoriaType source_type, int64_t first, int64_t outputs,
               int32_t threads) {
  if (linear.type == NORIA_INT4_OFFSETS) pack<NibbleBlock>(linear, source, source_type, first, outputs, threads);
  else if (linear.type == NORIA_INT8_OFFSETS) pack<OffsetBlock>(linear, source, source_type, first, outputs, threads);
  else pack<Block>(linear, source, source_type, first, outputs, threads);
}

}  // namespace noria::NORIA_LEVEL
