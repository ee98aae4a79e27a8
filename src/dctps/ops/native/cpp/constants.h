// A BatchNorm in evaluation, with the bias of the layer before it, as a scale and a shift of each filter.
#pragma once

#include <cmath>
#include <vector>

namespace dctps {

template <class T>
struct Norm {  // (filters) each; weight and bias may be null, and without a BatchNorm all are
  const T *weight, *bias, *mean, *variance;
  double eps;
};

// (y + own - mean) weight / sqrt(variance + eps) + bias. Without a BatchNorm, the shift is the layer's own bias, if any.
template <class T>
struct Constants {
  std::vector<T> scale, shift;

  Constants() = default;
  Constants(long filters, const T* own, const Norm<T>& norm) {
    if (!norm.mean && !own) return;
    shift.assign(filters, T(0));
    if (own) shift.assign(own, own + filters);
    if (!norm.mean) return;
    scale.resize(filters);
    for (long k = 0; k < filters; k++) {
      const double factor = (norm.weight ? double(norm.weight[k]) : 1) / std::sqrt(double(norm.variance[k]) + norm.eps);
      scale[k] = T(factor);
      shift[k] = T((double(shift[k]) - double(norm.mean[k])) * factor + (norm.bias ? double(norm.bias[k]) : 0));
    }
  }

  const T* scales() const { return scale.empty() ? nullptr : scale.data(); }
  const T* shifts() const { return shift.empty() ? nullptr : shift.data(); }
};

}  // namespace dctps
