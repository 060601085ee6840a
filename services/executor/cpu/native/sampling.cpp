// Sampling: exactly what cpu/reference_sampling.py defines, over the whole vocabulary, in one pass for greedy rows and two for others.
//
// Rows are independent. They are given to threads whole, so that a row stays in the second-level cache between its passes;
// fewer long rows than threads are shared, each pass cut into spans of blocks. Both run the same steps in the same order of
// summation.

#include "api.h"
#include "distribution.h"
#include "threads.h"

#include <omp.h>

namespace noria::NORIA_LEVEL {
namespace {

constexpr int64_t SPAN = SPAN_BLOCKS, SHARED_ROWS_MAX = 64;
constexpr int64_t SHARED_VOCABULARY_MIN = 100000;  // a smaller row takes less time than calling threads for its passes
constexpr double LOG2_E = 1.4426950408889634;

INLINE int64_t blocks_of(int64_t vocabulary) { return (vocabulary + BLOCK - 1) / BLOCK; }

// One row under way, and its scratch memory. counts are zero between rows; the rest is whatever it is.
struct Work {
  const NoriaSampler* sampler;
  int64_t index;
  Row row;
  Candidates candidates;
  float *raw, *spare_scores, *spare_weights;
  int32_t* counts;
  Scale scale;
  double log_total;  // of the model's own distribution
  float raw_top;
};

INLINE const NoriaSampling& parameters(const Work& w) { return w.sampler->parameters[w.index]; }
INLINE bool tells(const Work& w) { return parameters(w).logprobs >= 0; }
INLINE bool draws(const Work& w) { return parameters(w).scale > 0; }

INLINE bool adjusts(const Work& w) {
  const NoriaSampler& s = *w.sampler;
  const int64_t i = w.index;
  return s.bias_starts[i] < s.bias_starts[i + 1] || s.history_starts[i] < s.history_starts[i + 1];
}

// Philox4x32-10 by (seed, position), as cpu/philox.py: a number in [0, 1) of 53 bits.
double uniform(uint64_t seed, uint64_t position) {
  uint32_t c[4] = {uint32_t(position), uint32_t(position >> 32), 0, 0};
  uint32_t key[2] = {uint32_t(seed), uint32_t(seed >> 32)};
  for (int round = 0; round < 10; ++round) {
    const uint64_t first = uint64_t(c[0]) * 0xD2511F53, second = uint64_t(c[2]) * 0xCD9E8D57;
    const uint32_t next[4] = {uint32_t(second >> 32) ^ c[1] ^ key[0], uint32_t(second),
                              uint32_t(first >> 32) ^ c[3] ^ key[1], uint32_t(first)};
    memcpy(c, next, sizeof c);
    key[0] += 0x9E3779B9;
    key[1] += 0xBB67AE85;
  }
  return double(uint64_t(c[0] >> 5) << 26 | c[1] >> 6) * 0x1p-53;
}

// The steps of a row, in order. Those of a span of blocks may run at once, each on its own. ---------------------------

void raw_maxima(Work& w, int64_t first, int64_t end) {
  if (!tells(w)) return;
  for (int64_t block = first; block < end; ++block) find_maxima(w.row, block);
}

void raw_masses(Work& w, int64_t first, int64_t end) {
  if (!tells(w)) return;
  const Scale natural = {largest_of(w.row), float(LOG2_E)};
  for (int64_t block = first; block < end; ++block) find_mass(w.row, natural, -INFINITY, block);
}

// Whether a candidate goes before another: likelier, or as likely and of a lower id.
INLINE bool before(float score, int32_t id, float other_score, int32_t other_id) {
  return score > other_score || (score == other_score && id < other_id);
}

void tell_likeliest(Work& w) {
  const int64_t wanted = parameters(w).logprobs;
  if (wanted == 0) return;
  Candidates& c = w.candidates;
  gather(w.row, {0, 1}, kth_largest(w.row.maxima, w.row.blocks * LANES, wanted, 16), c);
  int32_t* ids = w.sampler->top_ids + w.index * w.sampler->top;
  float* found = w.sampler->top_logprobs + w.index * w.sampler->top;
  int64_t count = 0;
  for (int64_t i = 0; i < c.count; ++i) {
    if (count == wanted && !before(c.scores[i], c.ids[i], found[count - 1], ids[count - 1])) continue;
    int64_t place = count < wanted ? count++ : wanted - 1;
    for (; place > 0 && before(c.scores[i], c.ids[i], found[place - 1], ids[place - 1]); --place) {
      found[place] = found[place - 1];
      ids[place] = ids[place - 1];
    }
    found[place] = c.scores[i];
    ids[place] = c.ids[i];
  }
  for (int64_t i = 0; i < count; ++i) found[i] = float(double(found[i]) - w.raw_top - w.log_total);
  for (int64_t i = count; i < wanted; ++i) found[i] = -INFINITY, ids[i] = 0;
}

INLINE float& tamed(float& logit) {
  if (logit > FLT_MAX) logit = FLT_MAX;
  return logit;
}

void penalise(Work& w) {
  constexpr int32_t done = 1 << 30;
  const NoriaSampler& s = *w.sampler;
  const NoriaSampling& p = parameters(w);
  const int32_t* ids = s.history + s.history_starts[w.index];
  const int64_t count = s.history_starts[w.index + 1] - s.history_starts[w.index];
  for (int64_t i = s.prompts[w.index]; i < count; ++i) ++w.counts[ids[i]];
  for (int64_t i = 0; i < count; ++i) {
    const int32_t found = w.counts[ids[i]];
    if (found & done) continue;
    w.counts[ids[i]] = found | done;
    float& logit = tamed(w.row.logits[ids[i]]);
    logit = logit > 0 ? logit / p.repetition : logit * p.repetition;
    if (found) logit = logit - p.frequency * float(found) - p.presence;
  }
  for (int64_t i = 0; i < count; ++i) w.counts[ids[i]] = 0;
}

void adjust(Work& w) {
  const NoriaSampler& s = *w.sampler;
  if (tells(w)) {
    w.raw_top = largest_of(w.row);
    w.log_total = log(total_of(w.row));
    tell_likeliest(w);
  }
  if (!adjusts(w)) return;
  if (tells(w)) memcpy(w.raw, w.row.logits, w.row.vocabulary * sizeof(float));
  for (int64_t i = s.bias_starts[w.index]; i < s.bias_starts[w.index + 1]; ++i)
    tamed(w.row.logits[s.bias_ids[i]]) += s.bias_values[i];
  penalise(w);
}

void maxima(Work& w, int64_t first, int64_t end) {
  if (tells(w) && !adjusts(w)) return;
  for (int64_t block = first; block < end; ++block) find_maxima(w.row, block);
}

void masses(Work& w, int64_t first, int64_t end) {
  const NoriaSampling& p = parameters(w);
  if (!draws(w) || p.top_k) return;
  const Scale scale = {largest_of(w.row), p.scale};
  const float least = p.top_p < 1 ? -INFINITY : p.least;
  for (int64_t block = first; block < end; ++block) find_mass(w.row, scale, least, block);
}

int64_t first_of(const Row& row, float top) {
  for (int64_t block = 0; block < row.blocks; ++block) {
    if (!at_least(load(row.maxima + block * LANES), splat(top))) continue;
    for (int64_t i = block * BLOCK; i < row.vocabulary; ++i)
      if (row.logits[i] == top) return i;
  }
  return 0;
}

// Candidates that hold `wanted` of the row's mass, and how low their scores go.
float gather_mass(Work& w, double total, double wanted) {
  Candidates& c = w.candidates;
  float least = -12;
  gather(w.row, w.scale, least, c);
  if (weigh(c) >= wanted) return least;
  // All tokens below this together weigh no more than what is not wanted.
  const double spare = (total - wanted) / double(w.row.vocabulary);
  least = spare > 0x1p-125 ? float(log2(spare)) : SCORE_MIN;
  gather(w.row, w.scale, least, c);
  weigh(c);
  return least;
}

int64_t drawn(Work& w) {
  const NoriaSampling& p = parameters(w);
  const double number = uniform(p.seed, uint64_t(w.sampler->positions[w.index]));
  if (!p.top_k && p.top_p >= 1) return draw_of_row(w.row, w.scale, p.least, number);
  Candidates& c = w.candidates;
  float least = SCORE_MIN;
  double total;
  if (p.top_k) {
    const float about = kth_largest(w.row.maxima, w.row.blocks * LANES, p.top_k, 16);
    gather(w.row, w.scale, (about - w.scale.top) * w.scale.scale, c);
    keep(c, kth_largest(c.scores, c.count, p.top_k, 32));
    total = weigh(c);
  } else {
    total = total_of(w.row);
    least = gather_mass(w, total, total * p.top_p);
  }
  if (p.top_p < 1) least = least_with_mass(c, total * p.top_p, least, w.spare_scores, w.spare_weights);
  return draw_candidate(c, least > p.least ? least : p.least, number);
}

void choose(Work& w) {
  const NoriaSampler& s = *w.sampler;
  const float top = largest_of(w.row);
  w.scale = {top, parameters(w).scale};
  const int64_t id = top == -INFINITY ? 0 : draws(w) ? drawn(w) : first_of(w.row, top);
  s.ids[w.index] = id;
  if (tells(w)) {
    const float logit = adjusts(w) ? w.raw[id] : w.row.logits[id];
    s.logprobs[w.index] = float(double(logit) - w.raw_top - w.log_total);
  }
}

struct Step {
  void (*spans)(Work&, int64_t first, int64_t end);
  void (*whole)(Work&);
};
constexpr Step STEPS[] = {
    {raw_maxima, nullptr}, {raw_masses, nullptr}, {nullptr, adjust}, {maxima, nullptr}, {masses, nullptr}, {nullptr, choose},
};

// Scratch memory ------------------------------------------------------------------------------------------------------

INLINE int64_t room(int64_t vocabulary) { return blocks_of(vocabulary) * BLOCK + LANES; }

INLINE int64_t scratch_bytes(int64_t vocabulary) {
  const int64_t blocks = blocks_of(vocabulary);
  return (room(vocabulary) * 7 + blocks * LANES) * 4 + blocks * 8;
}

Work make_work(const NoriaSampler& sampler, int64_t index, void* scratch) {
  const int64_t vocabulary = sampler.vocabulary, blocks = blocks_of(vocabulary), count = room(vocabulary);
  Work w = {};
  w.sampler = &sampler;
  w.index = index;
  double* masses = static_cast<double*>(scratch);
  float* place = reinterpret_cast<float*>(masses + blocks);
  w.row = {sampler.logits + index * vocabulary, vocabulary, blocks, place, masses};
  place += blocks * LANES;
  w.counts = reinterpret_cast<int32_t*>(place);
  w.candidates = {reinterpret_cast<int32_t*>(place + count), place + 2 * count, place + 3 * count, 0};
  w.raw = place + 4 * count;
  w.spare_scores = place + 5 * count;
  w.spare_weights = place + 6 * count;
  return w;
}

}  // namespace
}  // namespace noria::NORIA_LEVEL

using namespace noria::NORIA_LEVEL;

int64_t NORIA_KERNEL(sample_scratch_bytes)(int64_t vocabulary) { return scratch_bytes(vocabulary); }

void NORIA_KERNEL(sample)(const NoriaSampler* sampler, void* scratch, int64_t threads) {
  const int64_t rows = sampler->rows, bytes = scratch_bytes(sampler->vocabulary);
  const auto scratch_of = [=](int64_t place) { return static_cast<char*>(scratch) + place * bytes; };
  if (rows >= threads || rows > SHARED_ROWS_MAX || sampler->vocabulary < SHARED_VOCABULARY_MIN) {
    parallel(int32_t(threads), rows, [=](int64_t index) {
      Work w = make_work(*sampler, index, scratch_of(omp_get_thread_num()));
      for (const Step& step : STEPS)
        if (step.spans) step.spans(w, 0, w.row.blocks);
        else step.whole(w);
    });
    return;
  }
  Work works[SHARED_ROWS_MAX];
  for (int64_t index = 0; index < rows; ++index) works[index] = make_work(*sampler, index, scratch_of(index));
  const int64_t spans = (blocks_of(sampler->vocabulary) + SPAN - 1) / SPAN;
  for (const Step& step : STEPS) {
    if (step.whole) {
      parallel(int32_t(threads), rows, [&](int64_t index) { step.whole(works[index]); });
      continue;
    }
    parallel(int32_t(threads), rows * spans, [&](int64_t task) {
      Work& w = works[task / spans];
      const int64_t first = task % spans * SPAN;
      step.spans(w, first, smaller(first + SPAN, w.row.blocks));
    });
  }
}
