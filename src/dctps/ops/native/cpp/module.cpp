// The Python module `_native`, which checks its arguments and calls the kernels. It does not link against torch.
#include "arrays.h"
#include "constants.h"
#include "run.h"

#include <functional>

using namespace nanobind::literals;

namespace dctps {

void bind_direct32(nb::module_& m), bind_direct64(nb::module_& m);  // direct.cpp
void bind_normalise(nb::module_& m);                                // normalise.cpp
void bind_snapshot(nb::module_& m);                                 // snapshot.cpp
void bind_chain32(nb::module_& m), bind_chain64(nb::module_& m);    // chain.cpp

static std::vector<double> floats(const Floats& a) { return {a.data(), a.data() + a.size()}; }
static std::vector<int32_t> indices(const Indices& a) { return {a.data(), a.data() + a.size()}; }
static Table table(const Floats& a) {
  if (a.ndim() != 2) throw std::invalid_argument("a factor is a matrix");
  return {a.data(), long(a.shape(0)), long(a.shape(1))};
}

// The constants of a BatchNorm (weight, bias, mean and variance, or nothing) behind a layer with this bias.
template <class T>
static Constants<T> constants_of(long filters, const std::optional<Array>& own,
                                 const std::vector<std::optional<Array>>& norm, double eps) {
  if (!norm.empty() && (norm.size() != 4 || !norm[2] || !norm[3]))
    throw std::invalid_argument("norm: weight, bias, mean and variance");
  Norm<T> found{nullptr, nullptr, nullptr, nullptr, eps};
  if (!norm.empty())
    found = {vector<T>(norm[0], filters, "weight"), vector<T>(norm[1], filters, "bias"),
             vector<T>(norm[2], filters, "mean"), vector<T>(norm[3], filters, "variance"), eps};
  return Constants<T>(filters, vector<T>(own, filters, "bias"), found);
}

// The residual, which must have the strides of the output, or null where there is none.
template <class T>
static const T* residual_like(const std::optional<Array>& residual, const Numbers& shape, const View<T>& out) {
  if (!residual) return nullptr;
  const View<const T> found = view<const T>(*residual, shape, "residual");
  bool same = found.batch == out.batch && found.channel == out.channel;
  for (int a = 0; a < AXES; a++) same = same && found.axis[a] == out.axis[a];
  if (!same) throw std::invalid_argument("residual: other strides than the output");
  return found.data;
}

// y = activation(norm((alpha D + S) x + bias) + residual), where `norm` is a BatchNorm in evaluation, or empty.
template <class T>
static void forward(const Numbers& geometry, const Array& x, const OwnedOffset<T>* offset, double alpha,
                    const Sparse& sparse, const Array& values, const std::optional<Array>& bias, const Array& y,
                    int threads, const std::vector<std::optional<Array>>& norm, double eps,
                    const std::optional<Array>& residual, int activation) {
  if (x.dtype() != nb::dtype<T>()) throw nb::next_overload();
  const Layout layout(geometry, shape_of(x));
  check_parts(layout, offset, sparse, threads);
  if (activation < 0 || activation > int(Activation::relu6)) throw std::invalid_argument("an unknown activation");
  const View<const T> source = view<const T>(x, shape_of(x), "x");
  const View<T> out = view<T>(y, layout.output(), "y");
  const T* weights = vector<T>(values, sparse.count(), "values");
  const Constants<T> constants = constants_of<T>(layout.layer.filters, bias, norm, eps);
  const T* added = residual_like<T>(residual, layout.output(), out);
  if (y.size() == 0) return;
  const nb::gil_scoped_release release;
  Job<T> job(layout, offset, T(alpha), sparse, weights, false, source.channel == 1 && out.channel == 1, threads);
  job.call.x = source, job.call.out = out;
  job.call.finish = {constants.scales(), constants.shifts(), added, Activation(activation)};
  job.forward(threads);
}

// Writes the gradients of x and the values that are asked for, and returns <x, D'y>; y is the gradient of the output.
template <class T>
static double backward(const Numbers& geometry, const Array& y, const Array& x, const OwnedOffset<T>* offset,
                       double alpha, const Sparse& sparse, const Array& values, const std::optional<Array>& x_grad,
                       const std::optional<Array>& values_grad, bool needs_alpha, int threads) {
  if (x.dtype() != nb::dtype<T>()) throw nb::next_overload();
  const Layout layout(geometry, shape_of(x));
  check_parts(layout, offset, sparse, threads);
  const View<const T> upstream = view<const T>(y, layout.output(), "y"), source = view<const T>(x, shape_of(x), "x");
  const T* weights = vector<T>(values, sparse.count(), "values");
  T* gradient = const_cast<T*>(vector<T>(values_grad, sparse.count(), "values_grad"));
  View<T> out{};
  if (x_grad) out = view<T>(*x_grad, shape_of(x), "x_grad");
  const nb::gil_scoped_release release;
  if (y.size() == 0) {
    if (gradient) std::fill(gradient, gradient + sparse.count(), T(0));
    return 0;
  }
  Job<T> job(layout, offset, T(alpha), sparse, weights, true, source.channel == 1 && upstream.channel == 1, threads);
  job.call.x = source, job.call.y = upstream, job.call.out = out;
  job.call.needs_x = x_grad.has_value(), job.call.needs_values = gradient != nullptr;
  job.call.needs_alpha = needs_alpha && offset;
  return job.backward(threads, gradient, sparse.count());
}

template <class T>
static void bind(nb::module_& m, const char* name) {
  using Own = OwnedOffset<T>;
  nb::class_<Own>(m, name)
      .def("__init__",
           [](Own* self, long filters, long terms, long taps, const Indices& source, const Floats& weights) {
             new (self) Own(filters, terms, taps, indices(source), floats(weights));
           })
      .def("product",
           [](Own& self, const std::vector<std::optional<Floats>>& first, const std::vector<Floats>& second,
              const Floats& signs) {
             std::vector<std::optional<Table>> thin;
             std::vector<Table> wide;
             for (const auto& factor : first) thin.push_back(factor ? std::optional(table(*factor)) : std::nullopt);
             for (const auto& factor : second) wide.push_back(table(factor));
             if (wide.empty() || wide.size() > 2) throw std::invalid_argument("one or two terms");
             self.product(thin, wide, floats(signs));
           })
      .def("fourier",
           [](Own& self, long length, const Indices& place, const Floats& signs, const Indices& frequency,
              const Floats& real, const Floats& imaginary) {
             self.fourier(length, indices(place), floats(signs), indices(frequency), floats(real), floats(imaginary));
           })
      .def_prop_ro("nbytes", &Own::bytes)
      .def_prop_ro("multiply_adds", &Own::multiply_adds)
      .def("hadamard", [](Own& self, long length, const Floats& signs, const Indices& row, double scale) {
        self.hadamard(length, floats(signs), indices(row), scale);
      });
}

// Both types under one name, for which the type of x decides, and each type in a module of its own: a DLPack capsule can
// be taken once only, so it cannot be offered to one type after the other.
template <class T>
static void bind_calls(nb::module_ m) {
  m.def("forward", &forward<T>, "geometry"_a, "x"_a, "offset"_a.none(), "alpha"_a, "sparse"_a, "values"_a,
        "bias"_a.none(), "y"_a, "threads"_a, "norm"_a = std::vector<std::optional<Array>>(), "eps"_a = 0.0,
        "residual"_a.none() = nb::none(), "activation"_a = 0);
  m.def("backward", &backward<T>, "geometry"_a, "y"_a, "x"_a, "offset"_a.none(), "alpha"_a, "sparse"_a, "values"_a,
        "x_grad"_a.none(), "values_grad"_a.none(), "needs_alpha"_a, "threads"_a);
}

}  // namespace dctps

NB_MODULE(_native, m) {
  using namespace dctps;
  nb::set_leak_warnings(false);  // Python caches plans until the interpreter ends
  bind<float>(m, "Offset32");
  bind<double>(m, "Offset64");
  nb::module_ single = m.def_submodule("float32"), twice = m.def_submodule("float64");
  nb::class_<Sparse>(m, "Sparse")
      .def("__init__", [](Sparse* self, const Numbers& geometry, const Positions& positions) {
        new (self) Sparse(geometry, positions.data(), long(positions.size()));
      });
  for (nb::module_& to : {std::ref(m), std::ref(single)}) bind_calls<float>(to), bind_direct32(to);
  for (nb::module_& to : {std::ref(m), std::ref(twice)}) bind_calls<double>(to), bind_direct64(to);
  bind_normalise(m);
  bind_snapshot(m);
  bind_chain32(single), bind_chain64(twice);
  m.def("reads_all", [](const Numbers& geometry, const Numbers& input) { return Layout(geometry, input).reads_all(); });
  m.def("instruction_set", &instruction_set);
  m.def("cache_budget", [](std::optional<long> bytes) {
    const long before = cache_budget();
    if (bytes) cache_budget() = *bytes < 1 ? 1 : *bytes;
    return before;
  }, "bytes"_a.none() = nb::none());
}
