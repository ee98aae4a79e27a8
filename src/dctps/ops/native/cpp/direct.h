// Calls of the kernels for channels-last tensors. A call prepares the lists or panels that its kernel reads and divides
// the work among threads.
#pragma once

#include <algorithm>
#include <stdexcept>
#include <vector>

#include "layout.h"
#include "parallel.h"
#include "sparse.h"

namespace dctps {

template <class T>
const Kernels<T>& kernels();

using Meets = std::vector<std::vector<Meet>>;  // the meets of each coordinate of the destination

// Which kernel positions meet which coordinates of the source along one axis.
inline Meets meets_of(const Axis& axis, bool adjoint) {
  Meets meets(adjoint ? axis.in : axis.out);
  for (long o = 0; o < axis.out; o++)
    for (long t = 0; t < axis.kernel; t++) {
      const long i = o * axis.stride - axis.padding + t * axis.dilation;
      if (i >= 0 && i < axis.in) meets[adjoint ? i : o].push_back({int32_t(t), int32_t(adjoint ? o : i)});
    }
  return meets;
}

// A depthwise convolution of one geometry, or its adjoint, as lists of the sources that each destination reads.
template <class T>
class Stencil {
 public:
  Gather<T> gather{};

  Stencil(const Layer& layer, const std::vector<T>& weight, bool adjoint) {
    gather.weight = weight.data(), gather.channels = layer.filters;
    for (int a = 0; a < AXES; a++) {
      gather.kernel[a] = layer.axis[a].kernel;
      const Meets meets = meets_of(layer.axis[a], adjoint);
      if (a == AXES - 1) make_spans(meets, adjoint ? layer.axis[a].stride : 1, adjoint ? 1 : layer.axis[a].stride);
      else make_rows(a, meets);
    }
  }

 private:
  std::vector<Meet> flat[AXES];
  std::vector<const Meet*> rows[2];
  std::vector<Span> spans;

  // Concatenates the meets of axis a in `flat` and returns where each coordinate starts.
  std::vector<size_t> flatten(int a, const Meets& meets) {
    std::vector<size_t> starts = {0};
    for (const auto& own : meets) {
      flat[a].insert(flat[a].end(), own.begin(), own.end());
      starts.push_back(flat[a].size());
    }
    return starts;
  }

  void make_rows(int a, const Meets& meets) {
    for (size_t start : flatten(a, meets)) rows[a].push_back(flat[a].data() + start);
    gather.meets[a] = rows[a].data(), gather.size[a] = long(meets.size());
  }

  // Joins the coordinates of the last axis that read alike into spans.
  void make_spans(const Meets& meets, long period, long source_step) {
    const std::vector<size_t> starts = flatten(AXES - 1, meets);
    const Meet* all = flat[AXES - 1].data();
    const long size = long(meets.size());
    for (long residue = 0; residue < std::min(period, size); residue++)
      for (long d = residue; d < size; d += period) {
        const bool goes_on = d > residue && continues(meets[d - period], meets[d], source_step);
        if (goes_on) spans.back().count++;
        else spans.push_back({d, period, 1, source_step, all + starts[d], all + starts[d + 1]});
      }
    gather.spans = spans.data(), gather.span_count = long(spans.size());
  }

  // Whether one coordinate reads with the same kernel positions as another, `step` further.
  static bool continues(const std::vector<Meet>& before, const std::vector<Meet>& after, long step) {
    if (before.size() != after.size()) return false;
    for (size_t i = 0; i < before.size(); i++)
      if (before[i].tap != after[i].tap || before[i].source + step != after[i].source) return false;
    return true;
  }
};

constexpr long MOST_TAPS = 64;  // kernel positions for which Lines has room

// A depthwise convolution on channels-last tensors, forwards and backwards.
template <class T>
struct Depthwise {
  const Layer& layer;
  std::vector<T> weight;  // (taps, channels)

  Depthwise(const Layer& layer, const T* filters) : layer(layer), weight(layer.taps * layer.filters) {
    if (layer.group_channels != 1 || layer.filters != layer.groups || layer.taps > MOST_TAPS)
      throw std::invalid_argument("not a depthwise convolution with at most 64 kernel positions");
    for (long c = 0; c < layer.filters; c++)
      for (long t = 0; t < layer.taps; t++) weight[t * layer.filters + c] = filters[c * layer.taps + t];
  }

  void forward(const View<const T>& x, const View<T>& y, int threads) {
    Stencil<T> stencil(layer, weight, false);
    stencil.gather.source = x, stencil.gather.out = y;
    const long rows = layer.axis[0].out, pieces = layer.batch < threads ? rows : 1;
    parallel(layer.batch * pieces, threads, [&](long i) {
      const long piece = i % pieces, first = rows * piece / pieces, last = rows * (piece + 1) / pieces;
      for (long row = first; row < last; row++) kernels<T>().gather(stencil.gather, i / pieces, row);
    });
  }

  // Either gradient may be left out by a null pointer. The number of threads alone determines the order of the sums.
  void backward(const View<const T>& y, const View<const T>& x, const View<T>& x_grad, T* gradient, int threads) {
    Stencil<T> back(layer, weight, true), forward(layer, weight, false);
    back.gather.source = y, back.gather.out = x_grad, forward.gather.source = x;
    const long size = long(weight.size()), parts = parts_of(layer.batch, 8 * size, threads);
    std::vector<std::vector<double>> partial(parts);
    parallel(parts, threads, [&](long part) {
      std::vector<T> own(size);
      partial[part].assign(size, 0.0);
      const long end = layer.batch * (part + 1) / parts;
      for (long image = layer.batch * part / parts, next; image < end; image = next) {
        std::fill(own.begin(), own.end(), T(0));
        for (next = image; next < std::min(end, image + together()); next++)
          one_image(back, forward, y, next, gradient ? own.data() : nullptr);
        for (long i = 0; i < size; i++) partial[part][i] += double(own[i]);
      }
    });
    for (long i = 0; gradient && i < size; i++) {
      double sum = 0;
      for (const auto& part : partial) sum += part[i];
      gradient[i % layer.filters * layer.taps + i / layer.filters] = T(sum);
    }
  }

 private:
  // Images whose weight gradients are summed in the type T: as many as have 256 pixels together, or one.
  long together() const {
    return std::max(1L, 256 / std::max(1L, layer.axis[0].out * layer.axis[1].out * layer.axis[2].out));
  }

  // Goes row by row, so that what one gradient has read is still in the cache for the other.
  void one_image(const Stencil<T>& back, const Stencil<T>& forward, const View<const T>& y, long image, T* own) {
    const Axis& axis = layer.axis[0];
    for (long row = 0, done = 0; row < axis.out; row++) {
      if (own) kernels<T>().weight(forward.gather, y, image, row, own);
      const long until = axis.in * (row + 1) / axis.out;
      for (; back.gather.out.data && done < until; done++) kernels<T>().gather(back.gather, image, done);
    }
  }
};

// The product of W = alpha D + S with densely packed channels-last pixels, forwards and backwards.
template <class T>
struct PointwiseJob {
  Pointwise<T> call{};
  std::vector<T> panels;

  PointwiseJob(long pixels, const Sparse& sparse, const T* offset, T alpha, const T* values, bool backward) {
    const Taps& taps = sparse.taps;
    const long m = taps.filters, n = taps.group_channels;
    call.pixels = pixels, call.channels = n, call.filters = m, call.alpha = alpha;
    call.count = sparse.count(), call.values = values;
    call.start = sparse.back_start.data(), call.filter = sparse.back_filter.data(), call.value = sparse.back_value.data();
    if (backward) {
      panels = packed(m, n, [&](long k, long c) { return offset[k * n + c]; });
      call.back = panels.data();
    } else {
      std::vector<T> weight(offset, offset + m * n);
      for (T& w : weight) w *= alpha;
      for (long c = 0; c < n; c++)
        for (long e = call.start[c]; e < call.start[c + 1]; e++) weight[call.filter[e] * n + c] += values[call.value[e]];
      panels = packed(n, m, [&](long c, long k) { return weight[k * n + c]; });
      call.forward = panels.data();
    }
  }

  void forward(int threads) {
    const long parts = std::clamp(call.pixels / TILE, 1L, threads == 1 ? 1L : std::max(64L, 8L * threads));
    parallel(parts, threads, [&](long part) { kernels<T>().pointwise(call, begin(part, parts), begin(part + 1, parts), nullptr); });
  }

  double backward(T* gradient, int threads) {
    const long parts = parts_of(call.pixels / TILE, 8 * call.count, threads), size = kernels<T>().pointwise_scratch(call);
    std::vector<std::vector<double>> partial(parts);
    std::vector<double> inner(parts);
    parallel(parts, threads, [&](long part) {
      std::vector<T> scratch(size);
      partial[part].assign(call.needs_values ? call.count : 0, 0.0);
      inner[part] = kernels<T>().pointwise_backward(call, begin(part, parts), begin(part + 1, parts), scratch.data(), partial[part].data());
    });
    for (long e = 0; gradient && e < call.count; e++) {
      double sum = 0;
      for (const auto& part : partial) sum += part[e];
      gradient[e] = T(sum);
    }
    double total = 0;
    for (double own : inner) total += own;
    return total;
  }

 private:
  static constexpr long TILE = 48;  // parts begin at multiples of so many pixels, so that few tiles and blocks are divided

  long begin(long part, long parts) const {
    return part == parts ? call.pixels : call.pixels / TILE * part / parts * TILE;
  }

  // The matrix at(k, n) as panels: [columns / panel][depth][panel]. The last one is as narrow as whole vectors allow, and
  // has zeros at the end.
  template <class At>
  static std::vector<T> packed(long depth, long columns, At at) {
    const long panel = kernels<T>().panel, width = kernels<T>().lanes / 2, whole = (columns + width - 1) / width * width;
    std::vector<T> out(whole * depth, T(0));
    for (long n = 0; n < columns; n += panel)
      for (long k = 0; k < depth; k++)
        for (long i = n; i < std::min(n + panel, columns); i++)
          out[n * depth + k * std::min(panel, whole - n) + i - n] = at(k, i);
    return out;
  }
};

}  // namespace dctps
