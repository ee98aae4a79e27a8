// The pointwise stage as a Fourier transform along the channels. The lanes of a vector are pixels, so every operation
// is a full vector operation, and a permutation of rows costs nothing.
//
// The inputs of a pixel are real. Those at even places become the real parts and those at odd places the imaginary
// parts of a transform of half the length. With X the spectrum of the whole input, each output is
//
//     out_k = real_k Re X[f_k] + imaginary_k Im X[f_k]
//
// This is a weighted sum of four numbers, the real and imaginary parts of rows f and -f; the plan holds the weights. It
// covers the cosine, sine and Hartley transforms, and the cosines and sines of separable factors. Missing inputs and
// outputs are never touched. The transform works in place, by decimation in frequency. It leaves its results in the
// order of reversed digits, and the tables of the plan whose names end in `_after` say where they are.
#pragma once

#include "pack.h"
#include "plan.h"
#include "simd.h"

namespace dctps::DCTPS_ISA {

template <class T>
struct Complex {
  Vec<T> re, im;
};
template <class T>
inline Complex<T> operator+(Complex<T> a, Complex<T> b) {
  return {a.re + b.re, a.im + b.im};
}
template <class T>
inline Complex<T> operator-(Complex<T> a, Complex<T> b) {
  return {a.re - b.re, a.im - b.im};
}
template <class T>
inline Complex<T> times(Complex<T> a, const T* w) {
  const Vec<T> re = splat(w[0]), im = splat(w[1]);
  return {a.re * re - a.im * im, a.re * im + a.im * re};
}
template <class T>
inline Complex<T> rotate(Complex<T> a) {  // -i a
  return {a.im, -a.re};
}

template <class T>
constexpr long PAIR = 2 * WIDTH<T>;  // elements of a complex row: a vector of real and one of imaginary parts

template <class T>
inline Complex<T> load_row(const T* z, long row) {
  return {load(z + row * PAIR<T>), load(z + row * PAIR<T> + WIDTH<T>)};
}
template <class T>
inline void store_row(T* z, long row, Complex<T> a) {
  store(z + row * PAIR<T>, a.re);
  store(z + row * PAIR<T> + WIDTH<T>, a.im);
}
// Stores a complex row multiplied by its twiddle factor, which in the last stage is one.
template <class T>
inline void store_twisted(T* z, long row, Complex<T> a, const T* twiddle, bool last) {
  store_row(z, row, last ? a : times(a, twiddle));
}

template <class T>
void radix2(T* z, long length, long block, const T* twiddle) {
  const long half = block / 2;
  for (long j = 0; j < half; j++, twiddle += 2)
    for (long r = j; r < length; r += block) {
      const Complex<T> a = load_row(z, r), b = load_row(z, r + half);
      store_row(z, r, a + b);
      store_twisted(z, r + half, a - b, twiddle, half == 1);
    }
}

template <class T>
void radix4(T* z, long length, long block, const T* twiddle) {
  const long step = block / 4;
  for (long j = 0; j < step; j++, twiddle += 6)
    for (long r = j; r < length; r += block) {
      const Complex<T> a = load_row(z, r), b = load_row(z, r + step);
      const Complex<T> c = load_row(z, r + 2 * step), d = load_row(z, r + 3 * step);
      const Complex<T> even = a + c, odd = b + d, left = a - c, right = rotate(b - d);
      store_row(z, r, even + odd);
      store_twisted(z, r + step, left + right, twiddle, step == 1);
      store_twisted(z, r + 2 * step, even - odd, twiddle + 2, step == 1);
      store_twisted(z, r + 3 * step, left - right, twiddle + 4, step == 1);
    }
}

// Radix 8: two transforms of four rows, the odd one turned by the eighth roots of one.
template <class T>
void radix8(T* z, long length, long block, const T* twiddle) {
  const long step = block / 8;
  const Vec<T> root = splat(T(0.70710678118654752440));
  for (long j = 0; j < step; j++, twiddle += 14)
    for (long r = j; r < length; r += block) {
      Complex<T> sums[4], differences[4];
      for (int i = 0; i < 4; i++) {
        const Complex<T> a = load_row(z, r + i * step), b = load_row(z, r + (i + 4) * step);
        sums[i] = a + b, differences[i] = a - b;
      }
      const Complex<T> one = differences[1], three = differences[3];
      differences[1] = {root * (one.re + one.im), root * (one.im - one.re)};
      differences[2] = rotate(differences[2]);
      differences[3] = {root * (three.im - three.re), -root * (three.re + three.im)};
      Complex<T> out[8];
      for (int odd = 0; odd < 2; odd++) {
        const Complex<T>* v = odd ? differences : sums;
        const Complex<T> even = v[0] + v[2], left = v[0] - v[2], other = v[1] + v[3], right = rotate(v[1] - v[3]);
        out[odd] = even + other, out[4 + odd] = even - other;
        out[2 + odd] = left + right, out[6 + odd] = left - right;
      }
      store_row(z, r, out[0]);
      for (int q = 1; q < 8; q++) store_twisted(z, r + q * step, out[q], twiddle + 2 * (q - 1), step == 1);
    }
}

constexpr int MAX_RADIX = 31;

// Computes any odd radix r by its definition. The sums a_i + a_(r-i) and differences a_i - a_(r-i) halve the work.
template <class T>
void radix_odd(T* z, long length, long block, int radix, const T* twiddle, const T* root) {
  const long step = block / radix;
  const int half = radix / 2;
  Complex<T> sums[MAX_RADIX / 2 + 1], differences[MAX_RADIX / 2 + 1];
  for (long j = 0; j < step; j++, twiddle += 2 * (radix - 1))
    for (long r = j; r < length; r += block) {
      const Complex<T> first = load_row(z, r);
      Complex<T> total = first;
      for (int i = 1; i <= half; i++) {
        const Complex<T> a = load_row(z, r + i * step), b = load_row(z, r + (radix - i) * step);
        sums[i] = a + b;
        differences[i] = a - b;
        total = total + sums[i];
      }
      store_row(z, r, total);
      for (int q = 1; q <= half; q++) {
        Complex<T> even = first, odd = {};
        for (int i = 1; i <= half; i++) {
          const T* w = root + 2 * ((i * q) % radix);  // cos and -sin
          const Vec<T> cosine = splat(w[0]), sine = splat(w[1]);
          even.re += sums[i].re * cosine;
          even.im += sums[i].im * cosine;
          odd.re -= differences[i].im * sine;
          odd.im += differences[i].re * sine;
        }
        store_twisted(z, r + q * step, even + odd, twiddle + 2 * (q - 1), step == 1);
        store_twisted(z, r + (radix - q) * step, even - odd, twiddle + 2 * (radix - q - 1), step == 1);
      }
    }
}

// The transform of `length` complex rows, in place.
template <class T>
void transform(const Fourier<T>& f, T* z) {
  long block = f.length;
  for (int s = 0; s < f.stages; block /= f.radix[s++]) {
    if (f.radix[s] == 8) radix8(z, f.length, block, f.twiddle[s]);
    else if (f.radix[s] == 4) radix4(z, f.length, block, f.twiddle[s]);
    else if (f.radix[s] == 2) radix2(z, f.length, block, f.twiddle[s]);
    else radix_odd(z, f.length, block, f.radix[s], f.twiddle[s], f.root[s]);
  }
}

// out[k] = scale * (pointwise stage of x)[k] for one vector of pixels. Rows of x and out are `ldx` and `ldo` apart.
template <class T>
void fourier_forward(const Offset<T>& o, const T* x, long ldx, T scale, T* out, long ldo, T* z) {
  const Fourier<T>& f = o.fourier;
  if (o.inputs < 2 * f.length) fill(z, f.length * PAIR<T>);
  for (long c = 0; c < o.inputs; c++) store(z + f.place[c] * WIDTH<T>, splat(o.sign[c]) * load(x + c * ldx));
  transform(f, z);
  for (long pair = 0; pair < f.pairs; pair++) {
    const Complex<T> low = load_row(z, f.low_after[pair]), high = load_row(z, f.high_after[pair]);
    for (long i = f.start[pair]; i < f.start[pair + 1]; i++) {
      const T* w = f.weight + 4 * i;
      const Vec<T> first = splat(w[0]) * low.re + splat(w[1]) * low.im;
      store(out + f.output[i] * ldo, scale * (first + splat(w[2]) * high.re + splat(w[3]) * high.im));
    }
  }
}

// The adjoint: out[c] = sum_k (pointwise stage)[k, c] y[k]. To apply the adjoint of the transform, conjugate the
// numbers, transform them, and conjugate the result.
template <class T>
void fourier_adjoint(const Offset<T>& o, const T* y, long ldy, T* out, long ldo, T* z) {
  const Fourier<T>& f = o.fourier;
  if (!f.covers) fill(z, f.length * PAIR<T>);
  for (long pair = 0; pair < f.pairs; pair++) {
    Complex<T> low = {}, high = {};
    for (long i = f.start[pair]; i < f.start[pair + 1]; i++) {
      const Vec<T> value = load(y + f.output[i] * ldy);
      const T* w = f.weight + 4 * i;
      low = low + Complex<T>{splat(w[0]) * value, splat(-w[1]) * value};
      high = high + Complex<T>{splat(w[2]) * value, splat(-w[3]) * value};
    }
    const bool same = f.low[pair] == f.high[pair];
    store_row(z, f.low[pair], same ? low + high : low);
    if (!same) store_row(z, f.high[pair], high);
  }
  transform(f, z);
  for (long c = 0; c < o.inputs; c++)
    store(out + c * ldo, splat(f.sign_after[c]) * load(z + f.place_after[c] * WIDTH<T>));
}

}  // namespace dctps::DCTPS_ISA
