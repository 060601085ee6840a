// What is not made for one level: which levels this processor can run, and checksums. Kernels are found by name.

#include <stdint.h>
#include <string.h>

#define NORIA_EXPORT __attribute__((visibility("default")))

extern "C" {

// Digest of the sources this library was built from, given by build.py.
NORIA_EXPORT const char* noria_digest() { return NORIA_DIGEST; }

// Whether this library holds a level, by name, and this processor runs it.
NORIA_EXPORT int noria_runs(const char* level) {
  if (!strcmp(level, "portable")) return 1;
#if defined(NORIA_X86)
  __builtin_cpu_init();
  if (!strcmp(level, "avx2"))
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
  if (!strcmp(level, "avx512"))
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512vnni") &&
           __builtin_cpu_supports("avx512bf16");
#endif
  return 0;
}

// Two sums over 64-bit words, the second one of the first: any one changed word, and words that changed places, show.
NORIA_EXPORT uint64_t noria_checksum(const unsigned char* bytes, int64_t count) {
  constexpr int LANES = 8;
  uint64_t first[LANES] = {}, second[LANES] = {}, words[LANES];
  while (count > 0) {
    const int64_t now = count < int64_t(sizeof words) ? count : int64_t(sizeof words);
    if (now < int64_t(sizeof words)) memset(words, 0, sizeof words);
    memcpy(words, bytes, size_t(now));
    for (int i = 0; i < LANES; ++i) {
      first[i] += words[i];
      second[i] += first[i];
    }
    bytes += now;
    count -= now;
  }
  uint64_t found = 0;
  for (int i = 0; i < LANES; ++i) found = (found * 31 + first[i]) * 31 + second[i];
  return found >> 1;  // fits a signed number
}

}  // extern "C"
