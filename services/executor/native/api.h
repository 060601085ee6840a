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
enum NoriaType : int64_t { NORIA_FLOAT32 = 0, NORIA_BFLOAT16 = 1, NORIA_FLOAT16 = 2, NORIA_INT8 = 3 };

extern "C" {

// Matrix products, linear.cpp and int8.cpp ----------------------------------------------------------------------------

// y = x @ weights.T + bias. Packed weights lie in panels of 32 outputs, the last one filled up with zeros; along the
// inputs a panel takes 128 bytes a step: 1 float32, 2 bfloat16 or 4 int8 inputs of each of its outputs.
struct NoriaLinear {
  const void* weights;   // [panels][steps][32][inputs in a step]
  const void* scales;    // int8: half [panels][groups][32], a group is 32 inputs
  const void* sums;      // int8: int16 [panels][groups][32], sums of a group's weights
  const float* bias;     // [panels * 32], or null
  int64_t outputs, inputs;
  int64_t type;          // of the weights
  int64_t input_type;    // of x: NORIA_FLOAT32 or NORIA_BFLOAT16; the weights' own unless those are int8
  int64_t output_type;   // of y: NORIA_FLOAT32 or that of x
};

// x [rows, inputs], y [rows, outputs]. scratch: rows * scratch_bytes(inputs) for int8, else unused.
NORIA_EXPORT void NORIA_KERNEL(linear)(const NoriaLinear* linear, const void* x, void* y, int64_t rows, void* scratch,
                                       int64_t threads);

// Fill `weights` (and int8: `scales` and `sums`) of a NoriaLinear, whose pointers are written through here, from a
// matrix [outputs, inputs] of `source_type`.
NORIA_EXPORT void NORIA_KERNEL(pack)(const NoriaLinear* linear, const void* source, int64_t source_type, int64_t threads);

}  // extern "C"
