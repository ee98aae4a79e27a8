// The choice of the instruction set, made once, when it is first needed: the best one that the CPU has. The environment
// variable DCTPS_ISA limits the choice.
#include <cstdlib>
#include <cstring>

#if defined(__linux__)
#include <unistd.h>
#endif

#include "run.h"

namespace dctps {

#define DECLARE(isa)                          \
  namespace isa {                             \
  extern const Kernels<float> float_kernels;  \
  extern const Kernels<double> double_kernels; \
  }
DECLARE(plain)
#if defined(DCTPS_X86)
DECLARE(avx2)
DECLARE(avx512)
#endif

namespace {

struct Choice {
  const char* name;
  const Kernels<float>* floats;
  const Kernels<double>* doubles;
};

Choice choose() {
  const Choice choices[] = {
#if defined(DCTPS_X86)
      {"avx512", &avx512::float_kernels, &avx512::double_kernels},
      {"avx2", &avx2::float_kernels, &avx2::double_kernels},
#endif
      {"plain", &plain::float_kernels, &plain::double_kernels},
  };
  const char* asked = std::getenv("DCTPS_ISA");  // the best instruction set that may be chosen
  bool admitted = !asked;
  for (const Choice& choice : choices) {
    admitted = admitted || std::strcmp(asked, choice.name) == 0;
    if (!admitted) continue;
#if defined(DCTPS_X86)
    __builtin_cpu_init();
    if (!std::strcmp(choice.name, "avx512") &&
        !(__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
          __builtin_cpu_supports("avx512bw")))
      continue;
    if (!std::strcmp(choice.name, "avx2") && !(__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))) continue;
#endif
    return choice;
  }
  return choices[sizeof(choices) / sizeof(*choices) - 1];
}

const Choice& chosen() {
  static const Choice choice = choose();
  return choice;
}

}  // namespace

template <>
const Kernels<float>& kernels<float>() { return *chosen().floats; }
template <>
const Kernels<double>& kernels<double>() { return *chosen().doubles; }

const char* instruction_set() { return chosen().name; }

// Three quarters of the second-level cache, or of 512 KiB where its size is unknown or implausible.
long& cache_budget() {
  static long bytes = [] {
    long size = 0;
#if defined(_SC_LEVEL2_CACHE_SIZE)
    size = sysconf(_SC_LEVEL2_CACHE_SIZE);
#endif
    if (size < (256 << 10) || size > (8 << 20)) size = 512 << 10;
    return size * 3 / 4;
  }();
  return bytes;
}

}  // namespace dctps
