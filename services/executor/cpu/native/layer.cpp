// Dense layers in one call, made of the same kernels that can be called one by one.

#include <string.h>

#include "api.h"
#include "threads.h"

namespace noria::NORIA_LEVEL {

__thread Team* present_team = nullptr;

}  // namespace noria::NORIA_LEVEL

namespace {

// The wanted rows of the step become its first ones.
void gather(const NoriaStep* step, void* from, int64_t row_bytes) {
  for (int64_t i = 0; i < step->wanted_rows; ++i)
    if (step->wanted[i] != i) memcpy((char*)from + i * row_bytes, (char*)from + step->wanted[i] * row_bytes, row_bytes);
}

// last: what other rows than the wanted ones would give is used by nobody, once their keys and values are in the cache.
void compute(const NoriaLayer* layer, const NoriaStep* step, const float* added, bool last, int64_t threads) {
  const int64_t hidden = layer->out->outputs, type = layer->heads->type;
  int64_t rows = step->rows;
  const NoriaPages* pages = step->pages[layer->group];
  auto product = [=, &rows](const NoriaLinear* linear, const void* x, float* y) {
    NORIA_KERNEL(linear)(linear, x, y, NORIA_FLOAT32, rows, step->product_scratch, threads);
  };
  auto add_norm = [=, &rows](const float* x, const float* weight) {
    NORIA_KERNEL(add_norm)(step->residual, x, weight, layer->epsilon, nullptr, step->normed, type, rows, hidden, threads);
  };
  auto norm = [=, &rows](const float* weight) {
    if (weight) NORIA_KERNEL(norm)(step->added, weight, layer->epsilon, rows, hidden, threads);
  };
  add_norm(added, layer->input_norm);
  product(layer->qkv, step->normed, step->products);
  NORIA_KERNEL(rotate_write)(layer->heads, layer->cache, step->products, step->positions, pages->write_slots,
                             layer->rotations, layer->query_norm, layer->key_norm, layer->epsilon, step->queries, rows,
                             threads);
  if (last && step->wanted && !step->wanted_rows) return;
  NORIA_KERNEL(attention)(layer->heads, layer->cache, step->slices, pages, step->queries, step->attended,
                          step->attention_scratch, threads);
  if (last && step->wanted) {
    gather(step, step->attended, layer->out->inputs * (type == NORIA_BFLOAT16 ? 2 : 4));
    gather(step, step->residual, hidden * 4);
    rows = step->wanted_rows;
  }
  product(layer->out, step->attended, step->added);
  norm(layer->after_attention);
  add_norm(step->added, layer->mlp_norm);
  product(layer->gate_up, step->normed, step->products);
  NORIA_KERNEL(gated)(step->products, layer->gelu, step->gated, type, rows, layer->down->inputs, threads);
  product(layer->down, step->gated, step->added);
  norm(layer->after_mlp);
}

}  // namespace

void NORIA_KERNEL(layers)(const NoriaLayer* const* layers, int64_t count, const NoriaStep* step, const float* added,
                          int64_t threads) {
  noria::NORIA_LEVEL::in_team(threads, [=] {
    const float* x = added;
    for (int64_t i = 0; i < count; ++i, x = step->added) compute(layers[i], step, x, i == count - 1, threads);
  });
}
