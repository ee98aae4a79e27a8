// The Python functions of BatchNorm with the addition of a residual and an activation. They check their arguments and
// release the GIL.
#include "normaliser.h"

using namespace nanobind::literals;

namespace dctps {

namespace {

enum Saved { MEAN, LOW, SCALE, SHIFT, INVERSE, SAVED };  // rows of the table that a forward pass leaves for the backward one

struct Shape {
  long batch, channels, pixels;
  bool channels_last;
};

bool is_dense(const Array& array, bool channels_last) {
  int64_t step = 1;
  for (size_t i = array.ndim(); i-- > 0;) {
    const size_t a = !channels_last ? i : i == array.ndim() - 1 ? 1 : i == 0 ? 0 : i + 1;  // from the last axis in memory
    if (array.shape(a) != 1 && array.stride(a) != step) return false;
    step *= int64_t(array.shape(a));
  }
  return true;
}

Shape shape_of_input(const Array& x, int threads, int activation) {
  if (threads < 1) throw std::invalid_argument("at least one thread");
  if (activation < 0 || activation > 2) throw std::invalid_argument("no such activation");
  if (x.ndim() < 2 || x.size() == 0) throw std::invalid_argument("x: expected (batch, channels, ...) and no empty axis");
  const bool last = is_dense(x, true);
  if (!last && !is_dense(x, false)) throw std::invalid_argument("x: expected a dense tensor, contiguous or channels-last");
  return {long(x.shape(0)), long(x.shape(1)), long(x.size() / (x.shape(0) * x.shape(1))), last};
}

// The elements of an array that must lie in memory as x does, or null where there is no array.
template <class T>
T* like(const std::optional<Array>& array, const Array& x, const Shape& shape, const char* name) {
  if (!array) return nullptr;
  bool fits = array->dtype() == x.dtype() && array->ndim() == x.ndim() && is_dense(*array, shape.channels_last);
  for (size_t i = 0; fits && i < x.ndim(); i++) fits = array->shape(i) == x.shape(i);
  if (!fits) throw std::invalid_argument(std::string(name) + ": another shape, type or memory format than x has");
  return static_cast<T*>(array->data());
}

template <class T>
T* mutable_vector(const std::optional<Array>& array, long size, const char* name) {
  return const_cast<T*>(vector<T>(array, size, name));
}

// Statistics of the batch, from which the running ones are updated, or the running ones themselves.
template <class T>
void choose_statistics(Normaliser<T>& job, bool training, double momentum, T* running_mean, T* running_var, double* mean,
                       double* variance) {
  const long channels = job.grid.channels;
  if (!training) {
    for (long c = 0; c < channels; c++) mean[c] = running_mean[c], variance[c] = running_var[c];
    return;
  }
  job.statistics(mean, variance);
  if (!running_mean) return;
  const double unbiased = double(job.grid.count) / double(job.grid.count - 1);
  for (long c = 0; c < channels; c++) {
    running_mean[c] = T((1 - momentum) * running_mean[c] + momentum * mean[c]);
    running_var[c] = T((1 - momentum) * running_var[c] + momentum * variance[c] * unbiased);
  }
}

// y = activation((x - mean) scale + shift + residual); `saved` is a table for `backward`.
template <class T>
void forward(const Array& x, const std::optional<Array>& residual, const std::optional<Array>& weight,
             const std::optional<Array>& bias, const std::optional<Array>& running_mean,
             const std::optional<Array>& running_var, bool training, double momentum, double eps, int activation,
             const Array& y, const Array& saved, int threads) {
  if (x.dtype() != nb::dtype<T>()) throw nb::next_overload();
  const Shape shape = shape_of_input(x, threads, activation);
  const long channels = shape.channels;
  const T *scales = vector<T>(weight, channels, "weight"), *shifts = vector<T>(bias, channels, "bias");
  T* means = mutable_vector<T>(running_mean, channels, "running_mean");
  T* variances = mutable_vector<T>(running_var, channels, "running_var");
  T* table = mutable_vector<T>(saved, SAVED * channels, "saved");
  if (!means != !variances || (!training && !means)) throw std::invalid_argument("running statistics are missing");
  if (training && shape.batch * shape.pixels < 2) throw std::invalid_argument("one element has no variance");
  Normaliser<T> job(shape.batch, channels, shape.pixels, shape.channels_last, activation, threads);
  job.call.x = static_cast<const T*>(x.data()), job.call.residual = like<const T>(residual, x, shape, "residual");
  job.call.out = like<T>(y, x, shape, "y"), job.call.past = job.past(job.call.out);
  const nb::gil_scoped_release release;
  std::vector<double> mean(channels), variance(channels);
  choose_statistics(job, training, momentum, means, variances, mean.data(), variance.data());
  for (long c = 0; c < channels; c++) {
    const double inverse = 1 / std::sqrt(variance[c] + eps);
    const T high = T(mean[c]), scale = T((scales ? double(scales[c]) : 1) * inverse);
    const double low = mean[c] - double(high);  // what is lost of the mean in type T goes to the shift
    table[MEAN * channels + c] = high, table[LOW * channels + c] = T(low), table[INVERSE * channels + c] = T(inverse);
    table[SCALE * channels + c] = scale;
    table[SHIFT * channels + c] = T((shifts ? double(shifts[c]) : 0) - low * double(scale));
  }
  job.call.mean = job.constants(table + MEAN * channels), job.call.scale = job.constants(table + SCALE * channels);
  job.call.shift = job.constants(table + SHIFT * channels);
  job.run(kernels<T>().normalise);
}

template <class T>
struct Gradients {  // of the weight and the bias, or null
  T *weight, *bias;
};

// Finds the sums of the gradient, writes those that are asked for, and makes the constants of the gradient of x.
template <class T>
void reduce(Normaliser<T>& job, const T* table, bool training, const Gradients<T>& wanted, T* slope, T* offset) {
  const long channels = job.grid.channels;
  std::vector<double> sum(channels), product(channels);
  job.sums(sum.data(), product.data());
  const double whole = training ? 1 / double(job.grid.count) : 0;  // running statistics do not depend on x
  for (long c = 0; c < channels; c++) {
    const double low = table[LOW * channels + c], inverse = table[INVERSE * channels + c], scale = table[SCALE * channels + c];
    const double inner = product[c] - low * sum[c];  // sum of g (x - mean) for the mean before it was rounded
    if (wanted.weight) wanted.weight[c] = T(inner * inverse);
    if (wanted.bias) wanted.bias[c] = T(sum[c]);
    const double steep = -scale * inverse * inverse * inner * whole;
    slope[c] = T(steep), offset[c] = T(-scale * sum[c] * whole - steep * low);
  }
}

// Writes the gradients that are asked for. y is the output where it says what the activation has cut, else None.
template <class T>
void backward(const Array& grad, const Array& x, const std::optional<Array>& y, const Array& saved, bool training,
              int activation, const std::optional<Array>& x_grad, const std::optional<Array>& residual_grad,
              const std::optional<Array>& weight_grad, const std::optional<Array>& bias_grad, int threads) {
  if (x.dtype() != nb::dtype<T>()) throw nb::next_overload();
  const Shape shape = shape_of_input(x, threads, activation);
  const long channels = shape.channels;
  Normaliser<T> job(shape.batch, channels, shape.pixels, shape.channels_last, activation, threads);
  Normalisation<T>& call = job.call;
  call.x = static_cast<const T*>(x.data()), call.grad = like<const T>(grad, x, shape, "grad");
  call.y = like<const T>(y, x, shape, "y"), call.out = like<T>(x_grad, x, shape, "x_grad");
  call.residual_grad = like<T>(residual_grad, x, shape, "residual_grad");
  const T* table = vector<T>(saved, SAVED * channels, "saved");
  const Gradients<T> wanted{mutable_vector<T>(weight_grad, channels, "weight_grad"), mutable_vector<T>(bias_grad, channels, "bias_grad")};
  if (call.residual_grad && (!call.y || !activation)) throw std::invalid_argument("residual_grad: there is nothing to cut");
  const nb::gil_scoped_release release;
  call.past = call.out && job.past(call.out);
  call.residual_past = call.residual_grad && job.past(call.residual_grad);
  call.mean = job.constants(table + MEAN * channels), call.scale = job.constants(table + SCALE * channels);
  call.shift = job.constants(table + SHIFT * channels);
  std::vector<T> slope(channels), offset(channels);
  if (training || call.residual_grad || wanted.weight || wanted.bias)
    reduce(job, table, training, wanted, slope.data(), offset.data());
  if (!call.out) return;
  if (call.residual_grad) call.grad = call.residual_grad, call.y = nullptr, call.activation = Activation::none;
  call.slope = job.constants(slope.data()), call.offset = job.constants(offset.data());
  job.run(kernels<T>().normalise_gradient);
}

template <class T>
void bind(nb::module_& m) {
  m.def("normalise_forward", &forward<T>, "x"_a, "residual"_a.none(), "weight"_a.none(), "bias"_a.none(),
        "running_mean"_a.none(), "running_var"_a.none(), "training"_a, "momentum"_a, "eps"_a, "activation"_a, "y"_a,
        "saved"_a, "threads"_a);
  m.def("normalise_backward", &backward<T>, "grad"_a, "x"_a, "y"_a.none(), "saved"_a, "training"_a, "activation"_a,
        "x_grad"_a.none(), "residual_grad"_a.none(), "weight_grad"_a.none(), "bias_grad"_a.none(), "threads"_a);
}

}  // namespace

void bind_normalise(nb::module_& m) {
  bind<float>(m);
  bind<double>(m);
}

}  // namespace dctps
