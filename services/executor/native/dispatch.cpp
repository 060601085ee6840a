// Which levels this processor can run. Compiled for every processor; the kernels themselves are found by name.

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

}  // extern "C"
