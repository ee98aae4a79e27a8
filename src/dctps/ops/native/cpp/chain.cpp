// A chain of layers that are computed in one call, in one parallel region. Between two layers threads wait for one
// another without leaving the region. A thread that comes late finds what the others have left: nobody waits for a
// thread that has not begun.
#include <nanobind/stl/shared_ptr.h>

#include <atomic>
#include <exception>
#include <mutex>
#include <thread>

#include "steps.h"

#if defined(__SSE2__)
#include <immintrin.h>
#endif

using namespace nanobind::literals;

namespace dctps {

namespace {

constexpr long SPINS = 2000;  // looks at a counter, some ten microseconds, before a waiting thread lets others run

inline void pause_briefly(long spins) {
#if defined(__SSE2__)
  if (spins < SPINS) return _mm_pause();
#endif
  if (spins >= SPINS) std::this_thread::yield();
}

struct Pieces {  // of one step; threads take one after the other
  long count = 0;
  std::atomic<long> next{0}, done{0};

  // Computes pieces until none is left, and waits for those that others compute.
  template <class F>
  void share(const F& compute) {
    for (long i = next++; i < count; i = next++) {
      compute(i);
      done.fetch_add(1, std::memory_order_release);
    }
    for (long spins = 0; done.load(std::memory_order_acquire) < count; spins++) pause_briefly(spins);
  }
};

template <class T>
class Chain {
 public:
  explicit Chain(std::vector<std::shared_ptr<Step<T>>> steps) : steps(std::move(steps)) {
    for (const auto& step : this->steps) tensors = std::max(tensors, step->last_tensor() + 1);
  }

  // Computes all steps on the tensors at these addresses, or nothing and returns false where the chain must be made anew.
  bool run(const std::vector<uintptr_t>& addresses, int threads) {
    if (long(addresses.size()) < tensors || threads < 1) throw std::invalid_argument("too few tensors, or no thread");
    std::vector<T*> data;
    for (uintptr_t address : addresses) data.push_back(reinterpret_cast<T*>(address));
    const nb::gil_scoped_release release;
    const std::lock_guard<std::mutex> guard(lock);  // steps hold the tensors of one run
    Run run(steps);
    parallel(threads, threads, [&](long) { work(run, data.data()); });
    if (run.error) std::rethrow_exception(run.error);
    return run.holds;
  }

 private:
  struct Run {
    Pieces beginnings;
    std::vector<Pieces> pieces;
    std::atomic<bool> holds{true}, failed{false};
    std::mutex lock;
    std::exception_ptr error;

    explicit Run(const std::vector<std::shared_ptr<Step<T>>>& steps) : pieces(steps.size()) {
      beginnings.count = long(steps.size());
      for (size_t i = 0; i < steps.size(); i++) pieces[i].count = steps[i]->pieces();
    }
    // Calls a function, and keeps its exception, so that no thread waits for a piece that is never done.
    template <class F>
    void keep_error(const F& function) {
      if (failed) return;
      try {
        function();
      } catch (...) {
        const std::lock_guard<std::mutex> guard(lock);
        error = std::current_exception(), failed = true;
      }
    }
  };

  std::vector<std::shared_ptr<Step<T>>> steps;
  long tensors = 0;
  std::mutex lock;

  void work(Run& run, T* const* data) {
    run.beginnings.share([&](long i) {
      run.keep_error([&] { if (!steps[i]->begin(data)) run.holds = false; });
    });
    for (size_t i = 0; run.holds && !run.failed && i < steps.size(); i++)
      run.pieces[i].share([&](long piece) { run.keep_error([&] { steps[i]->compute(piece); }); });
  }
};

using Tensor = std::tuple<long, Numbers, Numbers>;  // a `Placed`

template <class T>
Placed<T> placed(const Tensor& t) { return {std::get<0>(t), std::get<1>(t), std::get<2>(t)}; }

// An array that must be a contiguous vector of `size` numbers of type T.
template <class T>
Source checked(const std::optional<Array>& array, long size, const char* name) {
  vector<T>(array, size, name);
  return Source(array);
}

template <class T>
Weights<T> weights_of(const Sparse& sparse, const Array& values, const std::optional<Array>& alpha,
                      const std::optional<Array>& base, const std::vector<Array>& watched, const Positions& positions) {
  const Taps& taps = sparse.taps;
  const long size = taps.filters * taps.group_channels * taps.taps;
  Weights<T> found;
  found.values = checked<T>(values, base ? long(positions.size()) : sparse.count(), "values");
  found.alpha = checked<T>(alpha, 1, "alpha");
  for (const Array& one : watched) {
    if (one.size() > 1 && !(one.ndim() == 1 && one.stride(0) == 1))
      throw std::invalid_argument("a watched array is a contiguous vector");
    found.watched.emplace_back(one);
  }
  if (!base) return found;
  const T* numbers = vector<T>(base, size, "base");
  found.base.assign(numbers, numbers + size);
  for (size_t i = 0; i < positions.size(); i++) {
    if (positions.data()[i] < 0 || positions.data()[i] >= size) throw std::invalid_argument("a place outside of W");
    found.places.push_back(positions.data()[i]);
  }
  if (sparse.count() != size) throw std::invalid_argument("W has a value at every place");
  return found;
}

template <class T>
Behind<T> behind_of(long filters, const std::optional<Array>& bias, const std::vector<std::optional<Array>>& norm,
                    double eps, long residual, int activation) {
  if (!norm.empty() && (norm.size() != 4 || !norm[2] || !norm[3]))
    throw std::invalid_argument("norm: weight, bias, mean and variance");
  if (activation < 0 || activation > int(Activation::relu6)) throw std::invalid_argument("an unknown activation");
  Behind<T> found{checked<T>(bias, filters, "bias"), {}, eps, residual, Activation(activation)};
  for (size_t i = 0; i < norm.size(); i++) found.norm[i] = checked<T>(norm[i], filters, "norm");
  return found;
}

template <class T>
void bind(nb::module_& m) {
  using Steps = std::vector<std::shared_ptr<Step<T>>>;
  nb::class_<Step<T>>(m, "Step");
  nb::class_<LayerStep<T>, Step<T>>(m, "LayerStep")
      .def("__init__",
           [](LayerStep<T>* self, const Numbers& geometry, const Tensor& x, const Tensor& y,
              const OwnedOffset<T>* offset, const Sparse& sparse, const Array& values,
              const std::optional<Array>& alpha, const std::optional<Array>& base, const Positions& positions,
              const std::vector<Array>& watched, const std::optional<Array>& bias,
              const std::vector<std::optional<Array>>& norm, double eps, long residual, int activation, int threads) {
             new (self) LayerStep<T>(geometry, placed<T>(x), placed<T>(y), offset, sparse,
                                     weights_of<T>(sparse, values, alpha, base, watched, positions),
                                     behind_of<T>(sparse.taps.filters, bias, norm, eps, residual, activation), threads);
           },
           "geometry"_a, "x"_a, "y"_a, "offset"_a.none(), "sparse"_a, "values"_a, "alpha"_a.none(), "base"_a.none(),
           "positions"_a, "watched"_a, "bias"_a.none(), "norm"_a, "eps"_a, "residual"_a, "activation"_a, "threads"_a,
           nb::keep_alive<1, 5>(), nb::keep_alive<1, 6>());
  nb::class_<PoolStep<T>, Step<T>>(m, "PoolStep")
      .def("__init__",
           [](PoolStep<T>* self, const Tensor& x, const Tensor& y, long kernel, long stride) {
             new (self) PoolStep<T>(placed<T>(x), placed<T>(y), kernel, stride);
           },
           "x"_a, "y"_a, "kernel"_a, "stride"_a);
  nb::class_<Chain<T>>(m, "Chain")
      .def("__init__", [](Chain<T>* self, Steps steps) { new (self) Chain<T>(std::move(steps)); }, "steps"_a)
      .def("run", &Chain<T>::run, "addresses"_a, "threads"_a);
}

}  // namespace

void bind_chain32(nb::module_& m) { bind<float>(m); }
void bind_chain64(nb::module_& m) { bind<double>(m); }

}  // namespace dctps
