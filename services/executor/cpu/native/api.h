// The C interface of the kernels: what library.py binds with ctypes.
//
// Every kernel is one exported function per level, `noria_<level>_<name>`; the declarations below stand for each level
// that includes this header. Arguments are pointers, int64_t sizes, double parameters, and structs of those whose fields
// are in the order of their mirror in library.py. Tensors are dense and row-major. `threads` bounds the threads used.
// Nothing allocates beyond its own stack; scratch memory comes from the caller. Nothing checks: library.py does.

#pragma once
#include <stdint.h>

#define NORIA_JOIN(level, name) noria_##level##_##name
#define NORIA_EXPAND(level, name) NORIA_JOIN(level, name)
#define NORIA_KERNEL(name) NORIA_EXPAND(NORIA_LEVEL, name)
#define NORIA_EXPORT __attribute__((visibility("default")))

// Element types, as numbers in structs.
enum NoriaType : int64_t {
  NORIA_FLOAT32 = 0,
  NORIA_BFLOAT16 = 1,
  NORIA_FLOAT16 = 2,
  NORIA_INT8 = 3,
  NORIA_INT8_OFFSETS = 4,  // weights only: int8 where a group has an offset beside its scale
  NORIA_Q8_0 = 5,          // sources of weights only: a GGUF file's blocks, see blocks.h
  NORIA_Q4_0 = 6,
  NORIA_Q4_1 = 7,
  NORIA_Q5_0 = 8,
  NORIA_Q5_1 = 9,
  NORIA_INT4_OFFSETS = 10,  // weights only: four bits, 0 to 15, and an offset beside each group's scale
};

extern "C" {

// Matrix products, linear.cpp and int8.cpp ----------------------------------------------------------------------------

// y = x @ weights.T + bias. Packed weights lie in panels of 32 outputs, the last one filled up with zeros; along the
// inputs a panel takes 128 bytes a step: 1 float32, 2 bfloat16 or 4 int8 inputs of each of its outputs.
struct NoriaLinear {
  const void* weights;   // [panels][steps][32][inputs in a step]; int8: [panels][groups of 32 inputs][1152 bytes], the
                         // weights of a group as above, then of each output its scale (half) and sum of weights (int16);
                         // with offsets 1216 bytes: of each output its offset (half) behind that; of four bits 704: as
                         // with offsets, but inputs 8i to 8i + 3 in the lower halves of bytes, the next four in the upper
  const float* bias;     // [panels * 32], or null
  int64_t outputs, inputs;
  int64_t type;          // of the weights
  int64_t input_type;    // of x: NORIA_FLOAT32 or NORIA_BFLOAT16; the weights' own unless those are int8
};

// x [rows, inputs], y [rows, outputs] of y_type: NORIA_FLOAT32 or NORIA_BFLOAT16. scratch for int8: for each row and group
// 32 bytes and three float32.
NORIA_EXPORT void NORIA_KERNEL(linear)(const NoriaLinear* linear, const void* x, void* y, int64_t y_type, int64_t rows,
                                       void* scratch, int64_t threads);

// Fill `outputs` outputs from `first` on of a NoriaLinear's `weights`, which are written through its pointer and were
// zeroed before, from a matrix [outputs, inputs] of `source_type`: NORIA_FLOAT32 or NORIA_BFLOAT16, for int8 with or
// without offsets also blocks [outputs][inputs / 32]; those that have offsets only for weights that have. Weights of four
// bits come from NORIA_Q4_0 and NORIA_Q4_1 only.
NORIA_EXPORT void NORIA_KERNEL(pack)(const NoriaLinear* linear, const void* source, int64_t source_type, int64_t first,
                                     int64_t outputs, int64_t threads);

// Sampling, sampling.cpp ----------------------------------------------------------------------------------------------

// How a row is sampled: the columns of PARAMETERS in plan/sampling_metadata.py, field by field.
struct NoriaSampling {
  double top_p;
  uint64_t seed;
  float scale;       // bits per unit of a logit; 0 is greedy
  float least;       // lowest score kept, relative to the likeliest; -inf is off
  int32_t top_k;     // 0 is off
  float repetition, presence, frequency;
  int32_t logprobs;  // likeliest tokens to tell with the sampled one; -1 for neither
};

// The arrays of SamplingMetadata and SamplerOutput in plan/sampling_metadata.py. Those of a row i begin at starts[i] and end at starts[i + 1].
struct NoriaSampler {
  float* logits;  // [rows, vocabulary], overwritten
  int64_t rows, vocabulary;
  const NoriaSampling* parameters;
  const int64_t* positions;
  const int32_t* history;
  const int64_t *history_starts, *prompts;
  const int32_t* bias_ids;
  const float* bias_values;
  const int64_t* bias_starts;
  int64_t* ids;                 // out: [rows]
  float* logprobs;              // out, where asked for: [rows]
  int32_t* top_ids;             // out, where asked for: [rows, top]
  float* top_logprobs;          // out, where asked for: [rows, top]
  int64_t top;
};

// scratch: sample_scratch_bytes(vocabulary) for each thread, zeroed once and then left alone.
NORIA_EXPORT void NORIA_KERNEL(sample)(const NoriaSampler* sampler, void* scratch, int64_t threads);
NORIA_EXPORT int64_t NORIA_KERNEL(sample_scratch_bytes)(int64_t vocabulary);

// Attention and the layers' other parts, attention.cpp, heads.cpp, elementwise.cpp, layer.cpp ------------------------

// Where a step's slices lie (pages.py): position of the first query token, how many it has, its first query row.
struct NoriaSlices {
  const int64_t* starts;
  const int64_t* lengths;
  const int64_t* rows;
  int64_t count;
};

// One group's pages of a step: page p of slice s is pool row table[s * entries + p], or p % ring where ring is not 0.
struct NoriaPages {
  const int32_t* table;
  int64_t entries;
  int64_t ring;
  int64_t window;              // how many keys a token sees, itself included; 0 is all
  const int64_t* write_slots;  // [tokens] tokens of the pool
  void* plan;                  // who computes what of attention: attention_plan
};

// One layer's pages (kv_cache/page_formats.py): rows of page_bytes, [page_size][kv_heads][head_dim] numbers, then int8's bfloat16 scales.
// tiled (kv_cache/tiled_pages.py): bfloat16, head_dim a multiple of 32 and page_size of 16; keys [kv_heads][page_size / 16][head_dim / 2][16][2],
// values [kv_heads][page_size / 2][head_dim / 32][even numbers, odd ones][16][2]. All that is in such pages is finite.
struct NoriaCache {
  uint8_t* keys;
  uint8_t* values;
  int64_t page_bytes, page_size, kv_heads, head_dim;
  int64_t type;
  int64_t tiled;
};

struct NoriaHeads {
  int64_t heads;  // of queries
  int64_t type;   // of queries and outputs: NORIA_FLOAT32 or NORIA_BFLOAT16
  double scale;   // of scores
  double cap;     // scores are cap * tanh(score / cap); 0 is none
};

// Where pages->plan is null, the bytes that a plan of this step takes. Else makes the plan there, and returns the bytes
// that attention needs beside it. A plan is good for all layers whose pages these are.
NORIA_EXPORT int64_t NORIA_KERNEL(attention_plan)(const NoriaHeads* heads, const NoriaCache* cache,
                                                  const NoriaSlices* slices, const NoriaPages* pages, int64_t threads);

// queries and output [tokens, heads * head_dim]: causal attention over the pages, this step's keys included.
NORIA_EXPORT void NORIA_KERNEL(attention)(const NoriaHeads* heads, const NoriaCache* cache, const NoriaSlices* slices,
                                          const NoriaPages* pages, const void* queries, void* output, void* scratch,
                                          int64_t threads);

// Norms the heads, rotates queries and keys, writes keys and values into the cache, and the queries as attention wants
// them. qkv float32 [tokens, (heads + 2 kv_heads) * head_dim]; rotations float32 [positions][head_dim]: cosines, then
// sines; the norms' weights float32 [head_dim], or null.
NORIA_EXPORT void NORIA_KERNEL(rotate_write)(const NoriaHeads* heads, const NoriaCache* cache, const float* qkv,
                                             const int64_t* positions, const int64_t* write_slots, const float* rotations,
                                             const float* query_norm, const float* key_norm, double epsilon, void* queries,
                                             int64_t tokens, int64_t threads);

// x [rows, width] = scale * table[ids]; table of `type`.
NORIA_EXPORT void NORIA_KERNEL(embed)(const void* table, int64_t type, const int64_t* ids, double scale, float* x,
                                      int64_t rows, int64_t width, int64_t threads);

// residual += x where x is not null; y = weight * residual / rms(residual), of `type`. picked: the rows of residual and x
// that y's rows are made from, or null for all; nothing is added to residual then.
NORIA_EXPORT void NORIA_KERNEL(add_norm)(float* residual, const float* x, const float* weight, double epsilon,
                                         const int64_t* picked, void* y, int64_t type, int64_t rows, int64_t width,
                                         int64_t threads);

// x = weight * x / rms(x), in place.
NORIA_EXPORT void NORIA_KERNEL(norm)(float* x, const float* weight, double epsilon, int64_t rows, int64_t width,
                                     int64_t threads);

// y [rows, width] of `type` = activation(x[:, :width]) * x[:, width:]; gelu: tanh's approximation, else SiLU.
NORIA_EXPORT void NORIA_KERNEL(gated)(const float* x, int64_t gelu, void* y, int64_t type, int64_t rows, int64_t width,
                                      int64_t threads);

// A layer whose MLP is dense. Norms' weights are float32; null where the family has no such norm.
struct NoriaLayer {
  const float *input_norm, *query_norm, *key_norm, *after_attention, *mlp_norm, *after_mlp;
  const NoriaLinear *qkv, *out, *gate_up, *down;
  const NoriaHeads* heads;
  const NoriaCache* cache;
  const float* rotations;
  int64_t group;  // of pages
  int64_t gelu;
  double epsilon;
};

// What all layers of a step share: where its tokens are, and the memory that layers work in.
struct NoriaStep {
  int64_t rows;
  const int64_t* positions;
  const NoriaSlices* slices;
  const NoriaPages* const* pages;                   // by group
  float *residual, *added;                          // [rows, hidden]
  float* products;                                  // [rows, the most outputs of qkv and gate_up]
  void *normed, *queries, *attended, *gated;        // of the heads' type
  void *attention_scratch, *product_scratch;
  const int64_t* wanted;  // after the last layer: only these rows, ascending; null: all of them
  int64_t wanted_rows;
};

// Layers one after the other, from the residual stream to what is to be added to it next, step->added. added: what is to be
// added first, or null. Rows that are wanted are the first ones of both then, without a gap.
NORIA_EXPORT void NORIA_KERNEL(layers)(const NoriaLayer* const* layers, int64_t count, const NoriaStep* step,
                                       const float* added, int64_t threads);

}  // extern "C"
