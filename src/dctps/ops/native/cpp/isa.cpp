// The kernels of one instruction set. This file is compiled once per instruction set; DCTPS_ISA names its namespace.
#include "chunk.h"
#include "normalise.h"
#include "pointwise.h"
#include "stencil.h"

namespace dctps::DCTPS_ISA {

template <class T>
constexpr Kernels<T> all = {
    PAIR<T>,
    scratch_size<T>,
    forward<T>,
    backward<T>,
    gather_row<T>,
    weight_row<T>,
    PANEL<T>,
    pointwise_scratch<T>,
    pointwise_forward<T>,
    pointwise_backward<T>,
    normalise_statistics<T>,
    normalise<T>,
    normalise_sums<T>,
    normalise_gradient<T>,
};

// These are constants, so no code of this file runs before dispatch.cpp knows that the CPU has the instruction set.
extern const Kernels<float> float_kernels;
extern const Kernels<double> double_kernels;
constexpr Kernels<float> float_kernels = all<float>;
constexpr Kernels<double> double_kernels = all<double>;

}  // namespace dctps::DCTPS_ISA
