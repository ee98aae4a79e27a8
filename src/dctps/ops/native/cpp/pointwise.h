// Small 1x1 layers on channels-last pixels: y[p] = W x[p]. A vector holds neighbouring outputs, and the inputs of a
// pixel are broadcast. W stays in the cache as panels of COLUMNS vectors: [filters / panel][inputs][panel]; the last
// panel may have fewer vectors. The backward pass reads a block of pixels once for all gradients, and those of S are
// computed at its positions only:
//
//     d = D' y;   the gradient of alpha is <x, d>, that of x is alpha d + S' y, that of S[k, c] is the sum of y[k] x[c]
#pragma once

#include "pack.h"
#include "plan.h"
#include "simd.h"

namespace dctps::DCTPS_ISA {

template <class T>
constexpr long PANEL = COLUMNS * WIDTH<T>;  // columns of a panel

// M rows of one panel of N vectors: the sums stay in registers. `columns` of its columns are written.
template <class T, int M, int N>
inline void panel_tile(const T* panel, long depth, long columns, const T* x, T* out, long ldo, bool past) {
  Vec<T> sums[M][N];
  for (int i = 0; i < M; i++)
    for (int j = 0; j < N; j++) sums[i][j] = Vec<T>{};
  for (long k = 0; k < depth; k++, panel += N * WIDTH<T>) {
    Vec<T> right[N];
    for (int j = 0; j < N; j++) right[j] = load(panel + j * WIDTH<T>);
    for (int i = 0; i < M; i++) {
      const Vec<T> left = splat(x[i * depth + k]);
      for (int j = 0; j < N; j++) sums[i][j] += left * right[j];
    }
  }
  for (int i = 0; i < M; i++)
    for (int j = 0; j < N; j++) {
      T* to = out + i * ldo + j * WIDTH<T>;
      const long left = columns - j * WIDTH<T>;
      if (left < WIDTH<T>) store_part(to, sums[i][j], left);
      else if (past) stream(to, sums[i][j]);
      else store(to, sums[i][j]);
    }
}

// M rows of one panel, which has as many vectors as its columns need; that number is looked for from N downwards.
template <class T, int M, int N>
inline void panel_of(const T* panel, long depth, long columns, const T* x, T* out, long ldo, bool past) {
  if constexpr (N > 1)
    if (columns <= (N - 1) * WIDTH<T>) return panel_of<T, M, N - 1>(panel, depth, columns, x, out, ldo, past);
  constexpr bool fits = M == 1 || M * N <= ROWS * COLUMNS;  // in the registers
  for (int i = 0; i < M; i += fits ? M : ROWS)
    panel_tile<T, fits ? M : ROWS, N>(panel, depth, columns, x + i * depth, out + i * ldo, ldo, past);
}

// M rows of `panel_product`.
template <class T, int M>
inline void panel_rows(const T* panels, long depth, long columns, const T* x, T* out, long ldo, bool past) {
  for (; columns > PANEL<T>; columns -= PANEL<T>, panels += depth * PANEL<T>, out += PANEL<T>)
    panel_of<T, M, COLUMNS>(panels, depth, PANEL<T>, x, out, ldo, past);
  panel_of<T, M, COLUMNS>(panels, depth, columns, x, out, ldo, past);
}

// out (pixels, columns) = x (pixels, depth) times the panels (depth, columns).
template <class T>
void panel_product(const T* panels, long depth, long columns, long pixels, const T* x, T* out, long ldo, bool past) {
  long p = 0;
  for (; p + 2 * ROWS <= pixels; p += 2 * ROWS)
    panel_rows<T, 2 * ROWS>(panels, depth, columns, x + p * depth, out + p * ldo, ldo, past);
  for (; p + ROWS <= pixels; p += ROWS)
    panel_rows<T, ROWS>(panels, depth, columns, x + p * depth, out + p * ldo, ldo, past);
  for (; p < pixels; p++) panel_rows<T, 1>(panels, depth, columns, x + p * depth, out + p * ldo, ldo, past);
}

template <class T>
void pointwise_forward(const Pointwise<T>& c, long first, long last, T*) {
  panel_product(c.forward, c.channels, c.filters, last - first, c.x + first * c.channels, c.out + first * c.filters,
                c.filters, c.past);
  if (c.past) end_of_stream();
}

// --- backwards -------------------------------------------------------------------------------------------------------

constexpr int LINES = 3;  // vectors of pixels in a block of the backward pass
template <class T>
constexpr long BLOCK = LINES * WIDTH<T>;  // a whole number of tiles of the products, ROWS pixels each

inline long rounded(long count, long width) { return (count + width - 1) / width * width; }

// The memory of a backward pass. Transposed blocks have a row of BLOCK pixels for each channel.
template <class T>
struct PointwiseScratch {
  T *d, *x, *y, *back;  // D'y by pixels; x, y and S'y transposed
  long used;

  PointwiseScratch(const Pointwise<T>& c, T* memory) {
    const long channels = rounded(c.channels, WIDTH<T>) * BLOCK<T>, filters = rounded(c.filters, WIDTH<T>) * BLOCK<T>;
    d = memory, x = d + channels, y = x + channels, back = y + filters, used = 3 * channels + filters;
  }
};

template <class T>
long pointwise_scratch(const Pointwise<T>& c) {
  return PointwiseScratch<T>(c, nullptr).used;
}

// Transposes a block of pixels by channels. Behind the last pixel and the last channel it has zeros.
template <class T>
void transpose_pixels(const T* from, long pixels, long channels, T* to) {
  constexpr long W = WIDTH<T>;
  for (long c = 0; c < channels; c += W) {
    const long room = channels - c < W ? channels - c : W;
    for (long p = 0; p < pixels; p += W) {
      Vec<T> rows[W] = {};
      for (long j = 0; j < W && p + j < pixels; j++) {
        const T* pixel = from + (p + j) * channels + c;
        rows[j] = room == W ? load(pixel) : load_part(pixel, room);
      }
      transpose<T>(rows);
      for (long b = 0; b < W; b++) store(to + (c + b) * BLOCK<T> + p, rows[b]);
    }
    for (long p = rounded(pixels, W); p < BLOCK<T>; p += W)
      for (long b = 0; b < W; b++) store(to + (c + b) * BLOCK<T> + p, Vec<T>{});
  }
}

// The sparse part of a block, channel by channel: S'y, and the sums over pixels of y[k] x[c] at the places of S.
template <class T>
void sparse_block(const Pointwise<T>& call, const PointwiseScratch<T>& s, double* values) {
  constexpr long W = WIDTH<T>;
  for (long c = 0; c < call.channels; c++) {
    Vec<T> x[LINES], back[LINES];
    for (int i = 0; i < LINES; i++) x[i] = load(s.x + c * BLOCK<T> + i * W), back[i] = Vec<T>{};
    for (long e = call.start[c]; e < call.start[c + 1]; e++) {
      const T* row = s.y + call.filter[e] * BLOCK<T>;
      const Vec<T> weight = splat(call.values[call.value[e]]);
      Vec<T> total{};
      for (int i = 0; i < LINES; i++) {
        const Vec<T> y = load(row + i * W);
        total += y * x[i], back[i] += weight * y;
      }
      if (call.needs_values) values[call.value[e]] += double(folded_sum<T>(total));
    }
    for (int i = 0; i < LINES; i++) store(s.back + c * BLOCK<T> + i * W, back[i]);
  }
}

// Whether S has a place in a block of channels.
template <class T>
bool is_used(const Pointwise<T>& call, long c) {
  const long end = c + WIDTH<T> < call.channels ? c + WIDTH<T> : call.channels;
  return call.start[c] < call.start[end];
}

// Makes alpha d + S'y of d, for one block of channels, and adds <x, d> to `dots`.
template <class T, bool WHOLE>
inline void finish_channels(const Pointwise<T>& call, const PointwiseScratch<T>& s, const T* x, long pixels, long c,
                            Vec<T> (&dots)[LINES]) {
  constexpr long W = WIDTH<T>;
  const long room = WHOLE ? W : call.channels - c;
  const bool used = is_used(call, c);
  auto take = [&](const T* from) { return WHOLE ? load(from) : load_part(from, room); };
  for (long p = 0; p < pixels; p += W) {
    Vec<T> rows[W] = {};
    for (long b = 0; used && b < W; b++) rows[b] = load(s.back + (c + b) * BLOCK<T> + p);
    if (used) transpose<T>(rows);
    for (long j = 0; j < W && p + j < pixels; j++) {
      const long at = (p + j) * call.channels + c;
      const Vec<T> d = take(s.d + at), total = d * splat(call.alpha) + rows[j];
      dots[j % LINES] += d * take(x + at);
      if (WHOLE) store(s.d + at, total);
      else store_part(s.d + at, total, room);
    }
  }
}

// The same for all channels; returns <x, d>.
template <class T>
double finish_block(const Pointwise<T>& call, const PointwiseScratch<T>& s, const T* x, long pixels) {
  Vec<T> dots[LINES] = {};
  long c = 0;
  for (; c + WIDTH<T> <= call.channels; c += WIDTH<T>) finish_channels<T, true>(call, s, x, pixels, c, dots);
  if (c < call.channels) finish_channels<T, false>(call, s, x, pixels, c, dots);
  return double(sum<T>(dots[0] + dots[1] + dots[2]));
}

// Copies a block of the gradient of x to its tensor.
template <class T>
void hand_over(long size, const T* from, bool past, T* to) {
  if (!past) __builtin_memcpy(to, from, size * sizeof(T));
  else  // these are whole cache lines, see `past_caches`
    for (long i = 0; i < size; i += WIDTH<T>) stream(to + i, load(from + i));
}

template <class T>
double pointwise_backward(const Pointwise<T>& c, long first, long last, T* memory, double* values) {
  const PointwiseScratch<T> s(c, memory);
  double inner = 0;
  for (long p = first; p < last; p += BLOCK<T>) {
    const long pixels = last - p < BLOCK<T> ? last - p : BLOCK<T>;
    const T *x = c.x + p * c.channels, *y = c.y + p * c.filters;
    panel_product(c.back, c.filters, c.channels, pixels, y, s.d, c.channels, false);
    if (c.count) {
      transpose_pixels(x, pixels, c.channels, s.x), transpose_pixels(y, pixels, c.filters, s.y);
      sparse_block(c, s, values);
    }
    inner += finish_block(c, s, x, pixels);
    if (c.needs_x) hand_over(pixels * c.channels, s.d, c.past, c.out + p * c.channels);
  }
  if (c.past) end_of_stream();
  return inner;
}

}  // namespace dctps::DCTPS_ISA
