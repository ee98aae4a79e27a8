// One call of the kernels. It prepares the lists of multiply-adds, divides the batch into chunks, and lets threads
// compute the chunks.
#pragma once

#include <stdexcept>
#include <vector>

#include "layout.h"
#include "offset.h"
#include "parallel.h"
#include "scratch.h"
#include "sparse.h"

namespace dctps {

template <class T>
const Kernels<T>& kernels();   // the kernels of the best instruction set of this CPU
const char* instruction_set();  // the name of that instruction set
long& cache_budget();          // bytes of a chunk, by default most of the second-level cache; tests make it small

template <class T>
struct Lists {  // the multiply-adds of a call as rows of entries (offset, weight)
  std::vector<int32_t> starts[4];
  std::vector<Entry<T>> entries[4];
  std::vector<int32_t> steps, plane_steps;

  Rows<T> rows(int i) const { return {starts[i].data(), entries[i].data(), long(starts[i].size()) - 1}; }

  // Lists the depthwise stage: term r of filter k reads plane source[k, r] at every kernel position t.
  void depthwise(Call<T>& call, const OwnedOffset<T>& o) {
    const Layer& l = call.layer;
    const long ld = call.frame.ld;
    starts[0].resize(o.filters + 1), starts[1].assign(o.plan.planes * l.phases + 1, 0);
    for (long k = 0; k <= o.filters; k++) starts[0][k] = int32_t(k * o.terms * l.taps);
    auto row = [&](long i, long t) { return o.source[i] * l.phases + l.tap_phase[t]; };
    for (long i = 0; i < o.filters * o.terms; i++)
      for (long t = 0; t < l.taps; t++) starts[1][row(i, t) + 1]++;
    for (size_t r = 1; r < starts[1].size(); r++) starts[1][r] += starts[1][r - 1];
    std::vector<int32_t> next(starts[1].begin(), starts[1].end() - 1);
    entries[0].resize(starts[0].back()), entries[1].resize(starts[0].back());
    for (long i = 0; i < o.filters * o.terms; i++)
      for (long t = 0; t < l.taps; t++) {
        const T weight = o.weights[i * l.taps + t];
        entries[0][i * l.taps + t] = {int32_t(row(i, t) * ld + l.tap_shift[t]), call.alpha * weight};
        entries[1][next[row(i, t)]++] = {int32_t(i / o.terms * ld - l.tap_shift[t]), weight};
      }
    call.taps = rows(0), call.taps_adjoint = rows(1);
  }

  // Lists the rows of the kernel: each filter reads the two rows of h, see `Turn`.
  void turns(Call<T>& call, const OwnedOffset<T>& o) {
    const Layer& l = call.layer;
    call.turns = true, call.turn_row = l.tap_shift[3], call.turn_column = l.tap_shift[1];
    for (long k = 0; k < o.filters; k++) {
      const Turn<T>& turn = o.plan.turns[k];
      starts[0].push_back(int32_t(6 * k));
      for (long i = 0; i < 3; i++) {
        const int32_t at = int32_t(i * call.turn_row);
        entries[0].push_back({at, call.alpha * turn.real[i]});
        entries[0].push_back({int32_t(at + call.frame.ld), -call.alpha * turn.imaginary[i]});
      }
    }
    starts[0].push_back(int32_t(6 * o.filters));
    call.taps = rows(0);
  }

  // Lists where the rows of matrix products begin.
  void products(Call<T>& call, const Offset<T>& o) {
    const Layer& l = call.layer;
    const long ld = call.frame.ld, most = std::max({o.inputs, o.rank, long(PLANES)});
    for (long k = 0; k < most; k++) steps.push_back(int32_t(k * l.phases * ld));
    for (long k = 0; k < PLANES; k++) plane_steps.push_back(int32_t(k * (l.taps > 1 ? o.parts * l.phases : 1) * ld));
    call.steps = steps.data(), call.plane_steps = plane_steps.data();
  }

  // Lists the sparse part.
  void sparse(Call<T>& call, const Sparse& s, const T* values, bool backward) {
    const Layer& l = call.layer;
    const long ld = call.frame.ld;
    starts[2] = s.start;
    entries[2].reserve(s.count());
    for (long i = 0; i < s.count(); i++) {
      const long row = s.channel[i] * l.phases + l.tap_phase[s.tap[i]];
      entries[2].push_back({int32_t(row * ld + l.tap_shift[s.tap[i]]), values[i]});
    }
    call.sparse = rows(2);
    if (!backward) return;
    starts[3] = s.back_start;
    entries[3].reserve(s.count());
    for (long i = 0; i < s.count(); i++)
      entries[3].push_back({int32_t(s.back_filter[i] * ld - l.tap_shift[s.back_tap[i]]), values[s.back_value[i]]});
    call.sparse_adjoint = rows(3);
  }
};

// Throws unless layout, offset and sparse part belong to the same layer.
template <class T>
void check_parts(const Layout& layout, const OwnedOffset<T>* offset, const Sparse& sparse, int threads) {
  const Taps& a = layout.taps;
  const Taps& b = sparse.taps;
  if (a.filters != b.filters || a.group_channels != b.group_channels || a.groups != b.groups || a.taps != b.taps ||
      a.tap_phase != b.tap_phase)
    throw std::invalid_argument("the sparse part belongs to another layer");
  if (offset && (offset->filters != a.filters || offset->taps != a.taps || offset->plan.kind == Kind::none ||
                 offset->plan.inputs != a.group_channels || a.groups != 1 ||
                 (a.taps == 1 && offset->plan.planes != a.filters)))
    throw std::invalid_argument("the offset belongs to another layer");
  if (threads < 1) throw std::invalid_argument("at least one thread");
}

template <class T>
struct Job {  // one call, forwards or backwards; it begins threads of its own if it is `alone`, else they are there
  Call<T> call{};
  Chunks chunks;
  Lists<T> lists;

  Job(const Layout& layout, const OwnedOffset<T>* offset, T alpha, const Sparse& sparse, const T* values, bool backward,
      bool adjacent, int threads, bool alone = true)
      : chunks(layout.layer, backward, bytes_per_pixel(layout.layer, offset, backward), cache_budget(),
               lanes(offset), adjacent, threads, !alone && computes_filters_apart(layout.layer, offset)) {
    call.layer = layout.layer, call.frame = chunks.frame, call.alpha = alpha;
    call.layer.tap_shift = chunks.shift.data();
    const long widest = std::max({call.layer.filters, call.layer.channels() * call.layer.phases,
                                  offset ? offset->plan.planes * call.layer.phases : 0L});
    if (widest > INT32_MAX / call.frame.ld) throw std::invalid_argument("a layer too large for its chunk");
    if (offset) {
      call.offset = &offset->plan;
      if (offset->plan.kind == Kind::product) lists.products(call, offset->plan);
      if (turns(*offset)) lists.turns(call, *offset);
      else if (call.layer.taps > 1) lists.depthwise(call, *offset);
    }
    lists.sparse(call, sparse, values, backward);
  }

  bool turns(const OwnedOffset<T>& offset) const {  // whether the kernel is 3 x 3 without a stride and its weights turn
    const Layer& l = call.layer;
    return offset.plan.turns && l.phases == 1 && l.axis[0].kernel == 3 && l.axis[2].kernel == 3;
  }

  // Whether each filter is computed by itself, from what is small beside it.
  static bool computes_filters_apart(const Layer& layer, const OwnedOffset<T>* offset) {
    return !offset || (offset->plan.kind == Kind::product && layer.taps > 1);
  }

  // Pixels that the stages take at a time: a pair of vectors in the Hadamard transform, else a vector.
  static long lanes(const OwnedOffset<T>* offset) {
    return offset && offset->plan.kind == Kind::hadamard ? kernels<T>().lanes : kernels<T>().lanes / 2;
  }

  static long bytes_per_pixel(const Layer& l, const OwnedOffset<T>* o, bool backward) {
    const long inputs = l.channels() * l.phases;
    long rows = l.filters + inputs * (backward ? 2 : 1);
    if (o && o->plan.kind == Kind::product) rows += o->plan.folds ? o->plan.rank * l.phases : 0;
    else if (o && l.taps > 1) rows += o->plan.planes * l.phases;
    return rows * long(sizeof(T));
  }

  void forward(int threads) {
    const long size = kernels<T>().scratch(call, false);
    parallel(long(chunks.list.size()), threads, [&](long i) { forward_chunk(i, size); });
  }

  void forward_chunk(long i, long size) const { kernels<T>().forward(call, chunks.list[i], scratch(size)); }

  // Returns <x, D'y> and writes the gradient of the values. The number of threads alone fixes the order of the sums.
  double backward(int threads, T* values, long count) {
    const long size = kernels<T>().scratch(call, true), all = long(chunks.list.size());
    const long parts = parts_of(all, 8 * count, threads);
    std::vector<std::vector<double>> partial(parts);
    std::vector<double> alpha(parts);
    parallel(parts, threads, [&](long part) {
      partial[part].assign(call.needs_values ? count : 0, 0.0);
      for (long i = all * part / parts; i < all * (part + 1) / parts; i++)
        alpha[part] += kernels<T>().backward(call, chunks.list[i], scratch(size), partial[part].data());
    });
    for (long i = 0; call.needs_values && i < count; i++) {
      double sum = 0;
      for (const auto& own : partial) sum += own[i];
      values[i] = T(sum);
    }
    double total = 0;
    for (double own : alpha) total += own;
    return total;
  }

 private:
  static T* scratch(long elements) {  // memory of this thread, kept for the next call
    static thread_local Scratch own;
    return static_cast<T*>(own.at_least(size_t(elements) * sizeof(T)));
  }
};

}  // namespace dctps
