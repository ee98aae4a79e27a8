// Compiled once per instruction set, with DCTPS_ISA as the name of its namespace.
#include "chunk.h"

namespace dctps::DCTPS_ISA {

template <class T>
static Kernels<T> kernels() {
  return {PAIR<T>, scratch_size<T>, forward<T>, backward<T>};
}

extern const Kernels<float> float_kernels;
extern const Kernels<double> double_kernels;
const Kernels<float> float_kernels = kernels<float>();
const Kernels<double> double_kernels = kernels<double>();

}  // namespace dctps::DCTPS_ISA
