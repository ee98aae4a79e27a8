// The steps of a chain (chain.cpp): layers with what follows them, and max-pools. What a step needs beside the tensors
// of a run is prepared once. The weights may change between two runs: each run compares them, bit by bit, with a copy of
// those for which the step was prepared, because a change of a tensor's numbers may leave no trace elsewhere.
#pragma once

#include <cstring>
#include <memory>

#include "arrays.h"
#include "constants.h"
#include "run.h"

namespace dctps {

class Source {  // an array that a step depends on, and a copy of what was in it
 public:
  Source() = default;
  explicit Source(std::optional<Array> from) : array(std::move(from)) {
    if (array) copy.resize(array->nbytes());
    refresh();
  }

  // Copies the numbers if they have changed, and returns whether they have.
  bool refresh() {
    if (!differs()) return false;
    std::memcpy(copy.data(), array->data(), copy.size());
    return true;
  }
  bool differs() const { return array && std::memcmp(copy.data(), array->data(), copy.size()) != 0; }
  template <class T>
  const T* numbers() const { return array ? reinterpret_cast<const T*>(copy.data()) : nullptr; }

 private:
  std::optional<Array> array;
  std::vector<char> copy;
};

template <class T>
struct Placed {  // a tensor of a chain: which one of a run it is, its shape and its strides in elements
  long number;
  Numbers shape, strides;

  View<T> view() const {
    if (shape.size() != strides.size() || shape.size() < 2 || shape.size() > 2 + AXES || number < 0)
      throw std::invalid_argument("a tensor of a chain has a number, and as many strides as sizes");
    const int axes = int(shape.size()) - 2;
    View<T> out{nullptr, strides[0], strides[1], {0, 0, 0}, false};
    for (int a = 0; a < axes; a++) out.axis[axis_of(axes, a)] = strides[2 + a];
    return out;
  }
  size_t bytes() const {
    size_t size = sizeof(T);
    for (long length : shape) size *= size_t(length);
    return size;
  }
  // Whether the tensor, at this address, is written past the caches, see `View`.
  bool is_large(const T* data) const {
    const View<T> own = view();
    constexpr int64_t line = 64 / sizeof(T);
    bool aligned = own.batch % line == 0 && reinterpret_cast<uintptr_t>(data) % 64 == 0;
    for (int64_t stride : own.axis) aligned = aligned && stride % line == 0;
    return aligned && bytes() > LARGE;
  }
};

template <class T>
class Step {
 public:
  virtual ~Step() = default;
  virtual long pieces() const = 0;  // of work, which threads compute in any order
  // Takes the tensors of a run, and the weights as they are now. Returns false where the step must be made anew.
  virtual bool begin(T* const* tensors) = 0;
  virtual void compute(long piece) const = 0;
  virtual long last_tensor() const = 0;  // the largest number of a tensor
};

// The weights of a layer: the values of S and alpha. Where `base` is given, the step multiplies by W itself, which is
// alpha base, with a value added at each of the places. `watched` are arrays that may not change at all.
template <class T>
struct Weights {
  Source values, alpha;
  std::vector<T> base;
  std::vector<int64_t> places;
  std::vector<Source> watched;

  bool hold() const {
    for (const Source& one : watched)
      if (one.differs()) return false;
    return true;
  }
  T scale() const { return alpha.numbers<T>() ? *alpha.numbers<T>() : T(0); }
  std::vector<T> dense() const {
    std::vector<T> all(base);
    for (T& weight : all) weight *= scale();
    for (size_t i = 0; i < places.size(); i++) all[places[i]] += values.numbers<T>()[i];
    return all;
  }
};

template <class T>
struct Behind {  // what follows a layer: its own bias, a BatchNorm, an addition and an activation
  Source own, norm[4];
  double eps;
  long residual;  // the number of the tensor that is added, or -1
  Activation activation;
};

// y = activation(norm((alpha D + S) x + bias) + residual), where `norm` is a BatchNorm in evaluation, or nothing.
template <class T>
class LayerStep : public Step<T> {
 public:
  LayerStep(const Numbers& geometry, Placed<T> x, Placed<T> y, const OwnedOffset<T>* offset, const Sparse& sparse,
            Weights<T> weights, Behind<T> behind, int threads)
      : layout(geometry, x.shape), x(std::move(x)), y(std::move(y)), offset(offset), sparse(sparse),
        weights(std::move(weights)), behind(std::move(behind)), threads(threads) {
    check_parts(layout, offset, sparse, threads);
    if (this->y.shape != layout.output()) throw std::invalid_argument("y: another shape than the layer gives");
    prepare_weights(), prepare_constants();
  }

  long pieces() const override { return long(job->chunks.list.size()); }
  long last_tensor() const override { return std::max({x.number, y.number, behind.residual}); }

  bool begin(T* const* tensors) override {
    if (!weights.hold()) return false;
    const bool values = weights.values.refresh(), alpha = weights.alpha.refresh();
    if (values || alpha) prepare_weights();
    bool changed = behind.own.refresh();
    for (Source& one : behind.norm) changed = one.refresh() || changed;
    if (changed) prepare_constants();
    Call<T>& call = job->call;
    call.x.data = tensors[x.number], call.out.data = tensors[y.number];
    call.out.large = y.is_large(call.out.data);
    call.finish = {constants.scales(), constants.shifts(),
                   behind.residual < 0 ? nullptr : tensors[behind.residual], behind.activation};
    return true;
  }

  void compute(long piece) const override { job->forward_chunk(piece, scratch); }

 private:
  Layout layout;
  Placed<T> x, y;
  const OwnedOffset<T>* offset;
  const Sparse& sparse;
  Weights<T> weights;
  Behind<T> behind;
  int threads;
  Constants<T> constants;
  std::unique_ptr<Job<T>> job;
  long scratch = 0;

  void prepare_weights() {
    const std::vector<T> dense = weights.dense();
    const T* numbers = dense.empty() ? weights.values.template numbers<T>() : dense.data();
    const View<T> source = x.view(), out = y.view();
    const bool adjacent = source.channel == 1 && out.channel == 1;
    job = std::make_unique<Job<T>>(layout, offset, weights.scale(), sparse, numbers, false, adjacent, threads, false);
    job->call.x = {nullptr, source.batch, source.channel, {source.axis[0], source.axis[1], source.axis[2]}, false};
    job->call.out = out;
    scratch = kernels<T>().scratch(job->call, false);
  }

  void prepare_constants() {
    const Source* n = behind.norm;
    const Norm<T> norm{n[0].numbers<T>(), n[1].numbers<T>(), n[2].numbers<T>(), n[3].numbers<T>(), behind.eps};
    constants = Constants<T>(layout.layer.filters, behind.own.template numbers<T>(), norm);
  }
};

// The largest number of each window of two axes; a NaN wins, as in torch. Windows lie inside of the input.
template <class T>
class PoolStep : public Step<T> {
 public:
  PoolStep(Placed<T> x, Placed<T> y, long kernel, long stride)
      : x(std::move(x)), y(std::move(y)), kernel(kernel), stride(stride), from(this->x.view()), to(this->y.view()) {
    const Numbers &in = this->x.shape, &out = this->y.shape;
    bool fits = in.size() == 4 && out.size() == 4 && kernel > 0 && stride > 0 && in[0] == out[0] && in[1] == out[1];
    for (size_t a = 2; fits && a < 4; a++) fits = out[a] > 0 && (out[a] - 1) * stride + kernel <= in[a];
    if (!fits) throw std::invalid_argument("a window of the pool leaves the input");
    for (long i = 0; i < kernel * kernel; i++) window.push_back(i / kernel * from.axis[0] + i % kernel * from.axis[2]);
  }

  long pieces() const override { return y.shape[0] * y.shape[2]; }
  long last_tensor() const override { return std::max(x.number, y.number); }

  bool begin(T* const* tensors) override {
    from.data = tensors[x.number], to.data = tensors[y.number];
    return true;
  }

  void compute(long piece) const override {  // one row of one image
    const long image = piece / y.shape[2], row = piece % y.shape[2];
    const T* source = from.data + image * from.batch + row * stride * from.axis[0];
    T* out = to.data + image * to.batch + row * to.axis[0];
    if (from.channel == 1 && to.channel == 1)
      for (long j = 0; j < y.shape[3]; j++) pixel(source + j * stride * from.axis[2], out + j * to.axis[2]);
    else
      for (long c = 0; c < y.shape[1]; c++) line(source + c * from.channel, out + c * to.channel);
  }

 private:
  Placed<T> x, y;
  long kernel, stride;
  View<T> from, to;
  Numbers window;  // distances of its entries from the first one

  static T larger(T found, T most) { return found > most || found != found ? found : most; }

  // All channels of one output, where channels are neighbours.
  void pixel(const T* source, T* out) const {
    const long channels = y.shape[1];
    for (long c = 0; c < channels; c++) out[c] = source[c];
    for (size_t i = 1; i < window.size(); i++)
      for (long c = 0; c < channels; c++) out[c] = larger(source[window[i] + c], out[c]);
  }

  // All outputs of one row of one channel.
  void line(const T* source, T* out) const {
    for (long j = 0; j < y.shape[3]; j++, source += stride * from.axis[2], out += to.axis[2]) {
      T most = source[0];
      for (size_t i = 1; i < window.size(); i++) most = larger(source[window[i]], most);
      *out = most;
    }
  }
};

}  // namespace dctps
