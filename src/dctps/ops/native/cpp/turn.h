// The depthwise stage of a 3 x 3 kernel whose weights are waves, see `Turn` in plan.h. It goes over the columns of the
// kernel and then over its rows: with C and S the cosine and sine of the angle,
//
//     h = z(p + 1) + C (z(p + 2) + z(p)) + i S (z(p + 2) - z(p))
//
// which takes 8 operations and 6 loads where two planes times three columns take 12 of each. The two rows of h stay in
// the first-level cache.
#pragma once

#include "lines.h"

namespace dctps::DCTPS_ISA {

// h from the planes `real` and `imaginary` of z. The adjoint is the same with z(p - 2 column) in the place of z(p).
template <class T>
inline void turn_columns(const Turn<T>& turn, const T* real, const T* imaginary, long column, T* out_real,
                         T* out_imaginary, const Lines& lines) {
  const Vec<T> cosine = splat(turn.cosine), sine = splat(turn.sine);
  each_tile<T, 2>(lines, [&](long start, auto vectors) {
    for (int j = 0; j < vectors.count; j++) {
      const long p = start + j * WIDTH<T>;
      const Vec<T> a = load(real + p), c = load(real + p + 2 * column);
      const Vec<T> b = load(imaginary + p), d = load(imaginary + p + 2 * column);
      store(out_real + p, load(real + p + column) + cosine * (a + c) + sine * (b - d));
      store(out_imaginary + p, load(imaginary + p + column) + cosine * (b + d) + sine * (c - a));
    }
  });
}

// g(p) = sum_i conj(column_i) y(p - i row), whose real and imaginary part `turn_columns` then turns back.
template <class T>
inline void spread_rows(const Turn<T>& turn, const T* y, long row, T* out_real, T* out_imaginary, const Lines& lines) {
  each_tile<T, 2>(lines, [&](long start, auto vectors) {
    for (int j = 0; j < vectors.count; j++) {
      const long p = start + j * WIDTH<T>;
      const Vec<T> a = load(y + p), b = load(y + p - row), c = load(y + p - 2 * row);
      store(out_real + p, splat(turn.real[0]) * a + splat(turn.real[1]) * b + splat(turn.real[2]) * c);
      store(out_imaginary + p,
            splat(-turn.imaginary[0]) * a - splat(turn.imaginary[1]) * b - splat(turn.imaginary[2]) * c);
    }
  });
}

}  // namespace dctps::DCTPS_ISA
