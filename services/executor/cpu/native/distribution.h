// One row of logits as a distribution: passes over the whole vocabulary, and exact selection among candidates.
//
// A pass takes the row in blocks of 256 logits, each as 16 vectors. A block leaves one vector of maxima, over its 16
// logits of each lane, and the sum of its weights in float64. So the k-th largest of all, and what lies above a score, is
// found by looking at 1/16 of the row. Scores and weights are those of cpu/reference_sampling.py, bit by bit.

#pragma once
#include <float.h>

#include "wide_sums.h"

namespace noria::NORIA_LEVEL {
namespace {

constexpr int VECTORS = 16;               // in a block
constexpr int BLOCK = VECTORS * LANES;    // logits
constexpr int SPAN_BLOCKS = 16;           // what one thread takes of a row that is shared among threads
constexpr float SCORE_MIN = -126, ABOVE_MIN = -0x1.f7fffep6f;  // weighs nothing; the next float, which does

INLINE int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

// score = (logit - top) * scale
struct Scale {
  float top, scale;
};

// A row and what passes leave of it: block b's maxima at [16 b], and its mass.
struct Row {
  float* logits;
  int64_t vocabulary, blocks;
  float* maxima;
  double* masses;
};

// Tokens above some score, in the order of ids; room for the vocabulary and a vector more. Filled up with -inf.
struct Candidates {
  int32_t* ids;
  float *scores, *weights;
  int64_t count;
};

INLINE Floats scores(Floats logits, Scale s) { return (logits - splat(s.top)) * splat(s.scale); }

// 2^score of cpu/reference_sampling.py: minimax polynomial, no fused operations.
INLINE Floats weights(Floats scores) {
  const Floats clipped = maximum(scores, splat(SCORE_MIN)), whole = rounded(clipped), part = clipped - whole;
  Floats power = splat(0x1.5bba14p-10f);
  power = power * part + splat(0x1.3cea88p-7f);
  power = power * part + splat(0x1.c6b752p-5f);
  power = power * part + splat(0x1.ebf9bcp-3f);
  power = power * part + splat(0x1.62e42ap-1f);
  power = power * part + splat(1.f);
  return zero_below(clipped, splat(ABOVE_MIN), scaled(power, whole));
}

// A block's logits; those of the last one are copied to `spare`, filled up with -inf.
INLINE const float* block_at(const Row& row, int64_t block, float* spare) {
  const int64_t left = row.vocabulary - block * BLOCK;
  if (left >= BLOCK) return row.logits + block * BLOCK;
  for (int64_t i = 0; i < BLOCK; ++i) spare[i] = i < left ? row.logits[block * BLOCK + i] : -INFINITY;
  return spare;
}

// Infinite logits become the largest number, so that scores are numbers. (What is no number passes no comparison.)
INLINE void tame(const Row& row, int64_t block) {
  for (int64_t i = block * BLOCK; i < row.vocabulary && i < (block + 1) * BLOCK; ++i)
    if (row.logits[i] > FLT_MAX) row.logits[i] = FLT_MAX;
}

static void find_maxima(const Row& row, int64_t block) {
  float spare[BLOCK];
  const float* logits = block_at(row, block, spare);
  Floats most = splat(-INFINITY);
  for (int i = 0; i < VECTORS; ++i) most = maximum(load(logits + i * LANES), most);
  if (at_least(most, splat(INFINITY))) {
    tame(row, block);
    most = minimum(most, splat(FLT_MAX));
  }
  store(row.maxima + block * LANES, most);
}

static float largest_of(const Row& row) {
  Floats most = splat(-INFINITY);
  for (int64_t block = 0; block < row.blocks; ++block) most = maximum(load(row.maxima + block * LANES), most);
  return largest(most);
}

// The mass of a block's tokens with scores of at least `least`.
static void find_mass(const Row& row, Scale s, float least, int64_t block) {
  row.masses[block] = 0;
  if (!at_least(scores(load(row.maxima + block * LANES), s), splat(least))) return;
  float spare[BLOCK];
  const float* logits = block_at(row, block, spare);
  Doubles mass;
  for (int i = 0; i < VECTORS; ++i) {
    const Floats score = scores(load(logits + i * LANES), s);
    add(mass, zero_below(score, splat(least), weights(score)));
  }
  row.masses[block] = sum(mass);
}

static double total_of(const Row& row) {
  double total = 0;
  for (int64_t block = 0; block < row.blocks; ++block) total += row.masses[block];
  return total;
}

// As many bits as there are numbers left for a vector.
INLINE uint32_t first_bits(int64_t left) { return left >= LANES ? 0xffff : left > 0 ? (1u << left) - 1 : 0; }

static void fill_up(Candidates& c) { store(c.scores + c.count, splat(-INFINITY)); }

// Take all tokens with scores of at least `least`.
static void gather(const Row& row, Scale s, float least, Candidates& c) {
  c.count = 0;
  float spare[BLOCK];
  for (int64_t block = 0; block < row.blocks; ++block) {
    if (!at_least(scores(load(row.maxima + block * LANES), s), splat(least))) continue;
    const float* logits = block_at(row, block, spare);
    for (int i = 0; i < VECTORS; ++i) {
      const Floats score = scores(load(logits + i * LANES), s);
      const int64_t first = block * BLOCK + i * LANES;
      const uint32_t lanes = at_least(score, splat(least)) & first_bits(row.vocabulary - first);
      pack(c.ids + c.count, ascending(int32_t(first)), lanes);
      c.count += pack(c.scores + c.count, score, lanes);
    }
  }
  fill_up(c);
}

static void keep(Candidates& c, float least) {
  int64_t kept = 0;
  for (int64_t i = 0; i < c.count; i += LANES) {
    const Floats score = load(c.scores + i);
    const uint32_t lanes = at_least(score, splat(least)) & first_bits(c.count - i);
    pack(c.ids + kept, load_ints(c.ids + i), lanes);
    kept += pack(c.scores + kept, score, lanes);
  }
  c.count = kept;
  fill_up(c);
}

static double weigh(Candidates& c) {
  Doubles mass;
  for (int64_t i = 0; i < c.count; i += LANES) {
    const Floats weight = weights(load(c.scores + i));
    store(c.weights + i, weight);
    add(mass, weight);
  }
  return sum(mass);
}

static double mass_from(const float* scores, const float* weights, int64_t count, float least) {
  Doubles mass;
  for (int64_t i = 0; i < count; i += LANES) add(mass, zero_below(load(scores + i), splat(least), load(weights + i)));
  return sum(mass);
}

static int64_t count_from(const float* numbers, int64_t count, float least) {
  int64_t found = 0;
  for (int64_t i = 0; i < count; i += LANES) found += __builtin_popcount(at_least(load(numbers + i), splat(least)));
  return found;
}

// A float by its rank among all: unsigned numbers ordered as the floats are.
INLINE float by_rank(uint32_t rank) {
  const uint32_t bits = rank & 0x80000000 ? rank & 0x7fffffff : ~rank;
  float x;
  memcpy(&x, &bits, 4);
  return x;
}

// What is no number has ranks beyond both infinities.
INLINE bool x_is_below(uint32_t rank) { return !(rank & 0x80000000); }

// The highest x for which passes(x) holds, which holds for all below; only the first `bits` of its rank are found, the
// others are zero. -inf when there is none.
template <class Passes>
INLINE float highest(int bits, Passes passes) {
  uint32_t rank = 0;
  for (int bit = 31; bit > 31 - bits; --bit) {
    const uint32_t higher = rank | 1u << bit;
    const float x = by_rank(higher);
    if (x == x ? passes(x) : x_is_below(higher)) rank = higher;
  }
  const float x = by_rank(rank);
  return x >= -FLT_MAX ? x : -INFINITY;
}

// The k-th largest of numbers that are filled up with -inf to whole vectors; of fewer bits, a number just below it.
static float kth_largest(const float* numbers, int64_t count, int64_t k, int bits) {
  return highest(bits, [=](float x) __attribute__((always_inline)) { return count_from(numbers, count, x) >= k; });
}

// The score at which the likeliest candidates first hold a mass; the least one's where all of them do not.
//
// The score is bracketed by halving until few candidates are left between the bounds; those are searched by rank.
static float least_with_mass(const Candidates& c, double wanted, float low, float* spare_scores, float* spare_weights) {
  float high = 1;  // from low up there is enough, from high up there is not
  double above = 0;
  int64_t left = c.count, passed = 0;
  for (int64_t few = 1024; left > few; few += 256) {
    const float middle = (low + high) / 2;
    const double mass = mass_from(c.scores, c.weights, c.count, middle);
    const int64_t passing = count_from(c.scores, c.count, middle);
    if (mass >= wanted) {
      low = middle, left = passing - passed;
    } else {
      high = middle, above = mass, left -= passing - passed, passed = passing;
    }
  }
  int64_t count = 0;
  Floats lowest = splat(INFINITY);
  for (int64_t i = 0; i < c.count; i += LANES) {
    const Floats score = load(c.scores + i);
    const uint32_t lanes = at_least(score, splat(low)) & ~at_least(score, splat(high));
    pack(spare_weights + count, load(c.weights + i), lanes);
    count += pack(spare_scores + count, score, lanes);
    lowest = minimum(first_lanes(int(smaller(LANES, c.count - i)), score, lowest), lowest);
  }
  store(spare_scores + count, splat(-INFINITY));
  store(spare_weights + count, splat(0.f));
  const float found = highest(32, [=](float x) __attribute__((always_inline)) {
    return above + mass_from(spare_scores, spare_weights, count, x) >= wanted;
  });
  const float least = smallest(lowest);
  return found > least ? found : least;
}

// Where the cumulative sum of weights first exceeds a target; the last token of any weight where it does not.
static int64_t exceeds(const float* weights, int64_t count, double target, double sum_before) {
  int64_t last = 0;
  for (int64_t i = 0; i < count; ++i) {
    if (weights[i] > 0) last = i;
    sum_before += weights[i];
    if (sum_before > target) return i;
  }
  return last;
}

static int64_t draw_candidate(const Candidates& c, float least, double uniform) {
  for (int64_t i = 0; i < c.count; i += LANES)
    store(c.weights + i, zero_below(load(c.scores + i), splat(least), load(c.weights + i)));
  const double target = uniform * mass_from(c.scores, c.weights, c.count, -INFINITY);
  double before = 0;
  int64_t block = 0, last = 0;
  for (; block < c.count; block += BLOCK) {
    const double mass = mass_from(c.scores + block, c.weights + block, smaller(BLOCK, c.count - block), -INFINITY);
    if (mass > 0) last = block;
    if (before + mass > target) break;
    before += mass;
  }
  if (block >= c.count) block = last;
  return c.ids[block + exceeds(c.weights + block, smaller(BLOCK, c.count - block), target, before)];
}

// One token of the whole row, among those with scores of at least `least`, whose masses have been found.
static int64_t draw_of_row(const Row& row, Scale s, float least, double uniform) {
  const double target = uniform * total_of(row);
  double before = 0;
  int64_t block = 0, last = 0;
  for (; block < row.blocks; ++block) {
    if (row.masses[block] > 0) last = block;
    if (before + row.masses[block] > target) break;
    before += row.masses[block];
  }
  if (block == row.blocks) block = last;
  float spare[BLOCK], weight[BLOCK];
  const float* logits = block_at(row, block, spare);
  for (int i = 0; i < BLOCK; i += LANES) {
    const Floats score = scores(load(logits + i), s);
    store(weight + i, zero_below(score, splat(least), weights(score)));
  }
  return block * BLOCK + exceeds(weight, BLOCK, target, before);
}

}  // namespace
}  // namespace noria::NORIA_LEVEL
