// Small 1x1 layers on channels-last pixels: y[p] = W x[p]. A vector holds neighbouring outputs, and the inputs of a
// pixel are broadcast. W stays in the cache as panels of COLUMNS vectors: [filters / panel][inputs][panel]. The
// backward pass reads a block of pixels once for all gradients, and those of S are computed at its positions only:
//
//     d = D' y;   the gradient of alpha is <x, d>, that of x is alpha d + S' y, that of S[k, c] is the sum of y[k] x[c]
#pragma once

#include "plan.h"
#include "simd.h"

namespace dctps::DCTPS_ISA {

template <class T>
constexpr long PANEL = COLUMNS * WIDTH<T>;  // columns of a panel
constexpr long BLOCK = 4 * ROWS;  // pixels that the backward pass reads at a time

// The sums of M pixels and one panel, in registers.
template <class T, int M>
inline void panel_tile(const T* panel, long depth, const T* x, long ldx, Vec<T> (&sums)[ROWS][COLUMNS]) {
  for (int i = 0; i < M; i++)
    for (int j = 0; j < COLUMNS; j++) sums[i][j] = Vec<T>{};
  for (long k = 0; k < depth; k++, panel += PANEL<T>) {
    Vec<T> right[COLUMNS];
    for (int j = 0; j < COLUMNS; j++) right[j] = load(panel + j * WIDTH<T>);
    for (int i = 0; i < M; i++) {
      const Vec<T> left = splat(x[i * ldx + k]);
      for (int j = 0; j < COLUMNS; j++) sums[i][j] += left * right[j];
    }
  }
}

// M rows of `panel_product`.
template <class T, int M>
inline void panel_rows(const T* panels, long depth, long columns, const T* x, long ldx, T* out, long ldo, bool past) {
  for (long n = 0; n < columns; n += PANEL<T>, panels += depth * PANEL<T>) {
    Vec<T> sums[ROWS][COLUMNS];
    panel_tile<T, M>(panels, depth, x, ldx, sums);
    const long room = columns - n;
    for (int i = 0; i < M; i++)
      for (int j = 0; j < COLUMNS; j++) {
        T* to = out + i * ldo + n + j * WIDTH<T>;
        const long left = room - j * WIDTH<T>;
        if (left >= WIDTH<T>) past ? stream(to, sums[i][j]) : store(to, sums[i][j]);
        else if (left > 0) __builtin_memcpy(to, &sums[i][j], left * sizeof(T));
      }
  }
}

// out (pixels, columns) = x (pixels, depth) times the panels (depth, columns).
template <class T>
void panel_product(const T* panels, long depth, long columns, long pixels, const T* x, T* out, long ldo, bool past) {
  long p = 0;
  for (; p + ROWS <= pixels; p += ROWS)
    panel_rows<T, ROWS>(panels, depth, columns, x + p * depth, depth, out + p * ldo, ldo, past);
  for (; p < pixels; p++) panel_rows<T, 1>(panels, depth, columns, x + p * depth, depth, out + p * ldo, ldo, past);
}

template <class T>
void pointwise_forward(const Pointwise<T>& c, long first, long last, T*) {
  panel_product(c.forward, c.channels, c.filters, last - first, c.x + first * c.channels, c.out + first * c.filters,
                c.filters, c.past);
  if (c.past) end_of_stream();
}

template <class T>
long pointwise_scratch(const Pointwise<T>& c) {
  return BLOCK * c.channels + c.count;
}

// Returns <x, d>, and then multiplies d by alpha.
template <class T>
double scale_and_dot(long size, const T* x, T alpha, T* d) {
  Vec<T> dots[2] = {};
  long i = 0;
  for (; i + 2 * WIDTH<T> <= size; i += 2 * WIDTH<T>)
    for (int j = 0; j < 2; j++) {
      const Vec<T> part = load(d + i + j * WIDTH<T>);
      dots[j] += part * load(x + i + j * WIDTH<T>);
      store(d + i + j * WIDTH<T>, part * splat(alpha));
    }
  T rest = 0;
  for (; i < size; i++) rest += x[i] * d[i], d[i] *= alpha;
  return double(sum<T>(dots[0] + dots[1]) + rest);
}

// Copies a block of the gradient of x to its tensor.
template <class T>
void hand_over(long size, const T* from, bool past, T* to) {
  if (!past) __builtin_memcpy(to, from, size * sizeof(T));
  else  // these are whole cache lines, see `past_caches`
    for (long i = 0; i < size; i += WIDTH<T>) stream(to + i, load(from + i));
}

template <class T>
double pointwise_backward(const Pointwise<T>& c, long first, long last, T* scratch, double* values) {
  T *d = scratch, *own = scratch + BLOCK * c.channels;
  double inner = 0;
  for (long p = first; p < last; p += BLOCK) {
    const long pixels = last - p < BLOCK ? last - p : BLOCK;
    const T *x = c.x + p * c.channels, *y = c.y + p * c.filters;
    panel_product(c.back, c.filters, c.channels, pixels, y, d, c.channels, false);
    inner += scale_and_dot(pixels * c.channels, x, c.alpha, d);
    for (long e = 0; e < c.count; e++) {
      const T *from = y + c.filter[e], *with = x + c.channel[e];
      T *to = d + c.channel[e], total = 0;
      const T value = c.values[e];
      for (long i = 0; i < pixels; i++) {
        const T upstream = from[i * c.filters];
        total += upstream * with[i * c.channels];
        to[i * c.channels] += value * upstream;
      }
      own[e] = total;
    }
    if (c.needs_values)
      for (long e = 0; e < c.count; e++) values[e] += double(own[e]);
    if (c.needs_x) hand_over(pixels * c.channels, d, c.past, c.out + p * c.channels);
  }
  if (c.past) end_of_stream();
  return inner;
}

}  // namespace dctps::DCTPS_ISA
