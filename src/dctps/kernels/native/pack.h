// Between tensors of any strides and the packed grid of a chunk.
#pragma once

#include "plan.h"
#include "simd.h"

namespace dctps::DCTPS_ISA {

struct Side {  // index in the tensor = grid coordinate * stride + origin, along each axis
  long size[AXES], stride[AXES], origin[AXES];
};

inline Side input_side(const Layer& layer, long phase) {  // `phase` numbers all of stride0 * stride1 * stride2
  Side side;
  for (int a = AXES - 1; a >= 0; a--) {
    const Axis& axis = layer.axis[a];
    side.size[a] = axis.in;
    side.stride[a] = axis.stride;
    side.origin[a] = phase % axis.stride - axis.padding;
    phase /= axis.stride;
  }
  return side;
}

inline Side output_side(const Layer& layer) {
  Side side;
  for (int a = 0; a < AXES; a++) side.size[a] = layer.axis[a].out, side.stride[a] = 1, side.origin[a] = 0;
  return side;
}

struct Run {  // neighbours on the grid: `before` zeros, `count` pixels of the tensor `step` apart, `after` zeros
  long before, count, after;
  int64_t step, source;  // of the first pixel, in channel 0
  long target;           // of the first zero, on the grid
};

inline long ceil_div(long a, long b) { return a >= 0 ? (a + b - 1) / b : -(-a / b); }

// Grid coordinates whose index lies in the tensor: [first, last).
inline void valid(const Side& side, int axis, long grid, long* first, long* last) {
  const long a = ceil_div(-side.origin[axis], side.stride[axis]);
  const long b = ceil_div(side.size[axis] - side.origin[axis], side.stride[axis]);
  *first = a < 0 ? 0 : (a > grid ? grid : a);
  *last = b < *first ? *first : (b > grid ? grid : b);
}

template <class T>
bool merged(const Layer& layer, const Side& side, const View<T>& view) {  // are the pixels of an image one run?
  for (int a = 0; a < AXES; a++)
    if (side.stride[a] != 1 || side.origin[a] != 0 || (a && layer.axis[a].grid != side.size[a])) return false;
  return (view.axis[2] == 1 || side.size[2] == 1) && (view.axis[1] == side.size[2] || side.size[1] == 1) &&
         (view.axis[0] == side.size[1] * side.size[2] || side.size[0] == 1);
}

// Every run of the chunk's rows; those outside of low .. high are zeros.
template <class T, class Visit>
void each_run(const Layer& layer, const Chunk& chunk, const Side& side, const View<T>& view, long low, long high,
              Visit visit) {
  const long g1 = layer.axis[1].grid, g2 = layer.axis[2].grid;
  long from1, to1, from2, to2;
  valid(side, 1, g1, &from1, &to1);
  valid(side, 2, g2, &from2, &to2);
  const bool one_run = merged(layer, side, view);
  for (long i = 0; i < chunk.images; i++) {
    const int64_t image = (chunk.image + i) * view.batch;
    if (one_run) {
      const long first = low > chunk.base ? low : chunk.base, end = chunk.base + chunk.rows;
      long last = high < end ? high : end;
      last = last < side.size[0] ? last : side.size[0];
      const long pixels = g1 * g2, count = last > first ? (last - first) * pixels : 0;
      const long before = count ? (first - chunk.base) * pixels : 0;
      visit(Run{before, count, chunk.rows * pixels - before - count, 1, image + first * pixels,
                i * chunk.rows * pixels});
      continue;
    }
    for (long v = 0; v < chunk.rows; v++) {
      const long u = chunk.base + v, index0 = u * side.stride[0] + side.origin[0];
      const bool inside = u >= low && u < high && index0 >= 0 && index0 < side.size[0];
      for (long j = 0; j < g1; j++) {
        const long target = ((i * chunk.rows + v) * g1 + j) * g2;
        if (!inside || j < from1 || j >= to1 || from2 >= to2) {
          visit(Run{g2, 0, 0, 0, 0, target});
          continue;
        }
        const long index1 = j * side.stride[1] + side.origin[1], index2 = from2 * side.stride[2] + side.origin[2];
        visit(Run{from2, to2 - from2, g2 - to2, side.stride[2] * view.axis[2],
                  image + index0 * view.axis[0] + index1 * view.axis[1] + index2 * view.axis[2], target});
      }
    }
  }
}

template <class T>
void fill(T* to, long count) {
  for (long i = 0; i < count; i++) to[i] = 0;
}

constexpr long BLOCK = 16;  // channels at a time where they are neighbours in memory: a cache line

// grid rows c = 0 .. channels, `ld` apart, from the tensor; zeros where it has no pixel.
template <class T>
void pack(const Layer& layer, const Chunk& chunk, const Side& side, const View<const T>& view, long low, long high,
          long channels, T* grid, long ld) {
  if (view.channel == 1 && channels > 1) {
    for (long c = 0; c < channels; c += BLOCK) {
      const long block = channels - c < BLOCK ? channels - c : BLOCK;
      each_run(layer, chunk, side, view, low, high, [=](const Run& run) {
        T* to = grid + c * ld + run.target;
        for (long b = 0; b < block; b++) fill(to + b * ld, run.before);
        to += run.before;
        for (long j = 0; j < run.count; j++)
          for (long b = 0; b < block; b++) to[b * ld + j] = view.data[run.source + j * run.step + c + b];
        for (long b = 0; b < block; b++) fill(to + b * ld + run.count, run.after);
      });
    }
    return;
  }
  for (long c = 0; c < channels; c++)
    each_run(layer, chunk, side, view, low, high, [=](const Run& run) {
      T* to = grid + c * ld + run.target;
      const T* from = view.data + c * view.channel + run.source;
      fill(to, run.before);
      to += run.before;
      if (run.step == 1)
        for (long j = 0; j < run.count; j++) to[j] = from[j];
      else
        for (long j = 0; j < run.count; j++) to[j] = from[j * run.step];
      fill(to + run.count, run.after);
    });
}

// The way back: the pixels of rows low .. high, plus `bias[c]` where there is one.
template <class T>
void unpack(const Layer& layer, const Chunk& chunk, const Side& side, const T* grid, long ld, long channels,
            long low, long high, const T* bias, const View<T>& view) {
  if (view.channel == 1 && channels > 1) {
    for (long c = 0; c < channels; c += BLOCK) {
      const long block = channels - c < BLOCK ? channels - c : BLOCK;
      each_run(layer, chunk, side, view, low, high, [=](const Run& run) {
        const T* from = grid + c * ld + run.target + run.before;
        for (long j = 0; j < run.count; j++)
          for (long b = 0; b < block; b++)
            view.data[run.source + j * run.step + c + b] = from[b * ld + j] + (bias ? bias[c + b] : T(0));
      });
    }
    return;
  }
  for (long c = 0; c < channels; c++) {
    const T add = bias ? bias[c] : T(0);
    each_run(layer, chunk, side, view, low, high, [=](const Run& run) {
      const T* from = grid + c * ld + run.target + run.before;
      T* to = view.data + c * view.channel + run.source;
      if (run.step == 1)
        for (long j = 0; j < run.count; j++) to[j] = from[j] + add;
      else
        for (long j = 0; j < run.count; j++) to[j * run.step] = from[j] + add;
    });
  }
}

}  // namespace dctps::DCTPS_ISA
