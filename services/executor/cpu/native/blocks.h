// The blocks of a GGUF file that int8 weights hold without loss: 32 numbers along the inputs, w = scale * q + offset.
//
// Q8_0  half scale; int8 q[32]                                          no offset
// Q4_0  half scale; bytes of q + 8: number i low, number i + 16 high    no offset, q in -8..7
// Q4_1  half scale, offset; bytes as above                              q in 0..15
// Q5_0, Q5_1 have 32 bits before the bytes, number i's fifth in bit i; q is in -16..15 or 0..31.

#pragma once
#include "api.h"
#include "vector.h"

namespace noria::NORIA_LEVEL {
namespace {

struct Numbers {
  int8_t q[32];
  half scale, offset;
};

INLINE bool has_offsets(NoriaType type) { return type == NORIA_Q4_1 || type == NORIA_Q5_1; }

INLINE int64_t block_bytes(NoriaType type) {
  if (type == NORIA_Q8_0) return 34;
  const bool five = type == NORIA_Q5_0 || type == NORIA_Q5_1;
  return 18 + (has_offsets(type) ? 2 : 0) + (five ? 4 : 0);
}

INLINE Numbers read_block(const uint8_t* block, NoriaType type) {
  Numbers found = {};
  memcpy(&found.scale, block, 2);
  block += 2;
  if (type == NORIA_Q8_0) {
    memcpy(found.q, block, 32);
    return found;
  }
  int zero = type == NORIA_Q4_0 ? 8 : type == NORIA_Q5_0 ? 16 : 0;
  if (has_offsets(type)) {
    memcpy(&found.offset, block, 2);
    block += 2;
  }
  uint32_t fifths = 0;
  if (type == NORIA_Q5_0 || type == NORIA_Q5_1) {
    memcpy(&fifths, block, 4);
    block += 4;
  }
  for (int i = 0; i < 32; ++i) {
    const int four = i < 16 ? block[i] & 15 : block[i - 16] >> 4;
    found.q[i] = int8_t((four | (fifths >> i & 1) << 4) - zero);
  }
  return found;
}

}  // namespace
}  // namespace noria::NORIA_LEVEL
