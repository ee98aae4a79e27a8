// The Python functions of the kernels for channels-last tensors: depthwise convolutions and small 1x1 layers. They
// check their arguments and release the GIL.
#include "direct.h"

#include "arrays.h"

using namespace nanobind::literals;

namespace dctps {

namespace {

void check_threads(int threads) {
  if (threads < 1) throw std::invalid_argument("at least one thread");
}

template <class T>
View<T> channels_last(const Array& array, const Numbers& shape, const char* name) {
  const View<T> out = view<T>(array, shape, name);
  if (out.channel != 1 && shape[1] > 1) throw std::invalid_argument(std::string(name) + ": channels must be neighbours");
  return out;
}

template <class T>
void depthwise_forward(const Numbers& geometry, const Array& x, const Array& weight, const Array& y, int threads) {
  if (x.dtype() != nb::dtype<T>()) throw nb::next_overload();
  check_threads(threads);
  const Layout layout(geometry, shape_of(x));
  const View<const T> source = channels_last<const T>(x, shape_of(x), "x");
  const View<T> out = channels_last<T>(y, layout.output(), "y");
  Depthwise<T> job(layout.layer, vector<T>(weight, layout.layer.filters * layout.layer.taps, "weight"));
  const nb::gil_scoped_release release;
  if (y.size()) job.forward(source, out, threads);
}

template <class T>
void depthwise_backward(const Numbers& geometry, const Array& y, const Array& x, const Array& weight,
                        const std::optional<Array>& x_grad, const std::optional<Array>& weight_grad, int threads) {
  if (x.dtype() != nb::dtype<T>()) throw nb::next_overload();
  check_threads(threads);
  const Layout layout(geometry, shape_of(x));
  const long size = layout.layer.filters * layout.layer.taps;
  const View<const T> source = channels_last<const T>(x, shape_of(x), "x");
  const View<const T> upstream = channels_last<const T>(y, layout.output(), "y");
  View<T> out{};
  if (x_grad) out = channels_last<T>(*x_grad, shape_of(x), "x_grad");
  T* gradient = const_cast<T*>(vector<T>(weight_grad, size, "weight_grad"));
  Depthwise<T> job(layout.layer, vector<T>(weight, size, "weight"));
  const nb::gil_scoped_release release;
  if (y.size()) job.backward(upstream, source, out, gradient, threads);
  else if (gradient) std::fill(gradient, gradient + size, T(0));
}

// The first element of an array (batch, channels, ...) whose pixels lie densely in channels-last order.
template <class T>
T* pixels_of(const Array& array, long channels, const char* name) {
  bool fits = array.dtype() == nb::dtype<std::remove_const_t<T>>() && array.ndim() >= 2 && long(array.shape(1)) == channels;
  if (fits && array.size() == 0) return nullptr;  // an empty array is never read
  fits = fits && (channels == 1 || array.stride(1) == 1);
  int64_t step = channels;
  for (size_t i = array.ndim(); fits && i-- > 1;) {
    const size_t a = i == 1 ? 0 : i;  // from the last axis to the first, then the batch
    fits = array.shape(a) == 1 || array.stride(a) == step;
    step *= int64_t(array.shape(a));
  }
  if (!fits) throw std::invalid_argument(std::string(name) + ": expected dense channels-last pixels of the input's type");
  return static_cast<T*>(array.data());
}

// The first element of D as a dense (filters, channels) matrix of a 1x1 layer.
template <class T>
const T* table_of(const Array& offset, const Taps& taps) {
  if (offset.dtype() != nb::dtype<T>() || offset.ndim() != 2 || long(offset.shape(0)) != taps.filters ||
      long(offset.shape(1)) != taps.group_channels || (taps.group_channels > 1 && offset.stride(1) != 1) ||
      (taps.filters > 1 && offset.stride(0) != taps.group_channels))
    throw std::invalid_argument("offset: expected a dense (filters, channels) matrix of the input's type");
  if (taps.taps != 1 || taps.groups != 1 || taps.stride[0] * taps.stride[1] * taps.stride[2] != 1 ||
      taps.padding[0] + taps.padding[1] + taps.padding[2])
    throw std::invalid_argument("not a 1x1 layer without groups, stride and padding");
  return static_cast<const T*>(offset.data());
}

long pixels_in(const Array& x) { return x.shape(1) ? long(x.size() / x.shape(1)) : 0; }

// Whether a result is so large that it is written past the caches, which takes whole, aligned cache lines.
bool past_caches(const void* data, long pixels, long channels, long bytes) {
  return size_t(pixels * channels * bytes) > LARGE && channels * bytes % 64 == 0 && reinterpret_cast<uintptr_t>(data) % 64 == 0;
}

template <class T>
void pointwise_forward(const Array& x, const Array& offset, double alpha, const Sparse& sparse, const Array& values,
                       const Array& y, int threads) {
  if (x.dtype() != nb::dtype<T>()) throw nb::next_overload();
  check_threads(threads);
  const Taps& taps = sparse.taps;
  const T* source = pixels_of<const T>(x, taps.group_channels, "x");
  T* out = pixels_of<T>(y, taps.filters, "y");
  if (pixels_in(x) != pixels_in(y)) throw std::invalid_argument("x and y have different numbers of pixels");
  const T *table = table_of<T>(offset, taps), *weights = vector<T>(values, sparse.count(), "values");
  const nb::gil_scoped_release release;
  if (!pixels_in(x)) return;
  PointwiseJob<T> job(pixels_in(x), sparse, table, T(alpha), weights, false);
  job.call.x = source, job.call.out = out;
  job.call.past = past_caches(out, job.call.pixels, taps.filters, sizeof(T));
  job.forward(threads);
}

template <class T>
double pointwise_backward(const Array& y, const Array& x, const Array& offset, double alpha, const Sparse& sparse,
                          const Array& values, const std::optional<Array>& x_grad,
                          const std::optional<Array>& values_grad, int threads) {
  if (x.dtype() != nb::dtype<T>()) throw nb::next_overload();
  check_threads(threads);
  const Taps& taps = sparse.taps;
  const T* source = pixels_of<const T>(x, taps.group_channels, "x");
  const T* upstream = pixels_of<const T>(y, taps.filters, "y");
  T* out = x_grad ? pixels_of<T>(*x_grad, taps.group_channels, "x_grad") : nullptr;
  if (pixels_in(x) != pixels_in(y) || (x_grad && pixels_in(*x_grad) != pixels_in(x)))
    throw std::invalid_argument("x, y and x_grad have different numbers of pixels");
  const T *table = table_of<T>(offset, taps), *weights = vector<T>(values, sparse.count(), "values");
  T* gradient = const_cast<T*>(vector<T>(values_grad, sparse.count(), "values_grad"));
  const nb::gil_scoped_release release;
  if (!pixels_in(x)) {
    if (gradient) std::fill(gradient, gradient + sparse.count(), T(0));
    return 0;
  }
  PointwiseJob<T> job(pixels_in(x), sparse, table, T(alpha), weights, true);
  job.call.x = source, job.call.y = upstream, job.call.out = out;
  job.call.needs_x = out != nullptr, job.call.needs_values = gradient != nullptr;
  job.call.past = out && past_caches(out, job.call.pixels, taps.group_channels, sizeof(T));
  return job.backward(gradient, threads);
}

template <class T>
void bind(nb::module_& m) {
  m.def("depthwise_forward", &depthwise_forward<T>, "geometry"_a, "x"_a, "weight"_a, "y"_a, "threads"_a);
  m.def("depthwise_backward", &depthwise_backward<T>, "geometry"_a, "y"_a, "x"_a, "weight"_a, "x_grad"_a.none(),
        "weight_grad"_a.none(), "threads"_a);
  m.def("pointwise_forward", &pointwise_forward<T>, "x"_a, "offset"_a, "alpha"_a, "sparse"_a, "values"_a, "y"_a,
        "threads"_a);
  m.def("pointwise_backward", &pointwise_backward<T>, "y"_a, "x"_a, "offset"_a, "alpha"_a, "sparse"_a, "values"_a,
        "x_grad"_a.none(), "values_grad"_a.none(), "threads"_a);
}

}  // namespace

void bind_direct32(nb::module_& m) { bind<float>(m); }
void bind_direct64(nb::module_& m) { bind<double>(m); }

}  // namespace dctps
