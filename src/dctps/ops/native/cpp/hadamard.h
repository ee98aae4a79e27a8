// The pointwise stage as a Walsh-Hadamard transform along the channels. It consists of additions of whole rows of
// pixels; a complex row of fourier.h holds two vectors of pixels here.
#pragma once

#include "fourier.h"

namespace dctps::DCTPS_ISA {

// The unnormalised transform of `length` rows, in place.
template <class T>
void walsh(T* z, long length) {
  long half = length / 2;
  for (; half >= 2; half /= 4)  // two steps of the transform in one pass
    for (long block = 0; block < length; block += 2 * half)
      for (long r = block; r < block + half / 2; r++) {
        const long step = half / 2;
        const Complex<T> a = load_row(z, r), b = load_row(z, r + step);
        const Complex<T> c = load_row(z, r + 2 * step), d = load_row(z, r + 3 * step);
        const Complex<T> ac = a + c, bd = b + d, a_c = a - c, b_d = b - d;
        store_row(z, r, ac + bd);
        store_row(z, r + step, ac - bd);
        store_row(z, r + 2 * step, a_c + b_d);
        store_row(z, r + 3 * step, a_c - b_d);
      }
  if (half == 1)
    for (long r = 0; r < length; r += 2) {
      const Complex<T> a = load_row(z, r), b = load_row(z, r + 1);
      store_row(z, r, a + b);
      store_row(z, r + 1, a - b);
    }
}

// out[k] = scale * (pointwise stage of x)[k] for two vectors of pixels.
template <class T>
void hadamard_forward(const Offset<T>& o, const T* x, long ldx, T scale, T* out, long ldo, T* z) {
  for (long c = 0; c < o.inputs; c++) {
    const Vec<T> sign = splat(o.sign[c]);
    store_row<T>(z, c, {sign * load(x + c * ldx), sign * load(x + c * ldx + WIDTH<T>)});
  }
  fill(z + o.inputs * PAIR<T>, (o.length - o.inputs) * PAIR<T>);
  walsh(z, o.length);
  const Vec<T> factor = splat(scale * o.scale);
  for (long k = 0; k < o.planes; k++) {
    const Complex<T> row = load_row(z, o.row[k]);
    store(out + k * ldo, factor * row.re);
    store(out + k * ldo + WIDTH<T>, factor * row.im);
  }
}

// out[c] = sum_k (pointwise stage)[k, c] y[k] for two vectors of pixels.
template <class T>
void hadamard_adjoint(const Offset<T>& o, const T* y, long ldy, T* out, long ldo, T* z) {
  fill(z, o.length * PAIR<T>);
  for (long k = 0; k < o.planes; k++) {
    const Complex<T> row = {load(y + k * ldy), load(y + k * ldy + WIDTH<T>)};
    store_row(z, o.row[k], load_row(z, o.row[k]) + row);
  }
  walsh(z, o.length);
  for (long c = 0; c < o.inputs; c++) {
    const Vec<T> factor = splat(o.scale * o.sign[c]);
    const Complex<T> row = load_row(z, c);
    store(out + c * ldo, factor * row.re);
    store(out + c * ldo + WIDTH<T>, factor * row.im);
  }
}

}  // namespace dctps::DCTPS_ISA
