// Compiled once per instruction set, with DCTPS_ISA as the name of its namespace.
#include "chunk.h"

namespace dctps::DCTPS_ISA {

// Constants, so that nothing of this file runs before the instruction set is known to be there.
extern const Kernels<float> float_kernels;
extern const Kernels<double> double_kernels;
constexpr Kernels<float> float_kernels = {PAIR<float>, scratch_size<float>, forward<float>, backward<float>};
constexpr Kernels<double> double_kernels = {PAIR<double>, scratch_size<double>, forward<double>, backward<double>};

}  // namespace dctps::DCTPS_ISA
