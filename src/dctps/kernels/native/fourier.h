// The pointwise stage as a Fourier transform along the channels: lanes are pixels, so every operation is a full vector
// operation and a permutation of rows costs nothing.
//
// Two vectors of pixels travel as real and imaginary part of one transform. With X the spectrum of a real input,
//
//     out_k = real_k Re X[f_k] + imaginary_k Im X[f_k]
//
// which covers the cosine, sine and Hartley transforms and the cosines and sines of the separable way; missing inputs
// and outputs are never touched. The transform works in place, by decimation in frequency, and leaves its results in
// the order of reversed digits, which the tables of the plan (`..._after`) undo.
#pragma once

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
constexpr long PAIR = 2 * WIDTH<T>;

template <class T>
inline Complex<T> load_row(const T* z, long row) {
  return {load(z + row * PAIR<T>), load(z + row * PAIR<T> + WIDTH<T>)};
}
template <class T>
inline void store_row(T* z, long row, Complex<T> a) {
  store(z + row * PAIR<T>, a.re);
  store(z + row * PAIR<T> + WIDTH<T>, a.im);
}
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

constexpr int MAX_RADIX = 31;

// Any other radix by its definition, with the pairs a_i + a_(r-i) and a_i - a_(r-i) that halve the work (r is odd).
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

template <class T>
void transform(const Fourier<T>& f, T* z) {
  long block = f.length;
  for (int s = 0; s < f.stages; block /= f.radix[s++]) {
    if (f.radix[s] == 4) radix4(z, f.length, block, f.twiddle[s]);
    else if (f.radix[s] == 2) radix2(z, f.length, block, f.twiddle[s]);
    else radix_odd(z, f.length, block, f.radix[s], f.twiddle[s], f.root[s]);
  }
}

template <class T>
void clear(T* z, long count) {
  for (long i = 0; i < count; i++) z[i] = 0;
}

// out[k] = scale * (pointwise stage of x)[k] for PAIR pixels; rows of x and out are `ldx` and `ldo` apart.
template <class T>
void fourier_forward(const Offset<T>& o, const T* x, long ldx, T scale, T* out, long ldo, T* z) {
  const Fourier<T>& f = o.fourier;
  if (o.inputs < f.length) clear(z, f.length * PAIR<T>);
  for (long c = 0; c < o.inputs; c++) {
    const Vec<T> sign = splat(o.sign[c]);
    store_row<T>(z, f.place[c], {sign * load(x + c * ldx), sign * load(x + c * ldx + WIDTH<T>)});
  }
  transform(f, z);
  for (long k = 0; k < o.planes; k++) {
    const Complex<T> low = load_row(z, f.low_after[k]), high = load_row(z, f.high_after[k]);
    const Vec<T> real = splat(scale * f.real[k]), imaginary = splat(scale * f.imaginary[k]);
    store(out + k * ldo, real * (low.re + high.re) + imaginary * (low.im - high.im));
    store(out + k * ldo + WIDTH<T>, real * (low.im + high.im) + imaginary * (high.re - low.re));
  }
}

// The transposed computation: x[c] = sum_k (pointwise stage)[k, c] y[k].
template <class T>
void fourier_adjoint(const Offset<T>& o, const T* y, long ldy, T* out, long ldo, T* z) {
  const Fourier<T>& f = o.fourier;
  clear(z, f.length * PAIR<T>);
  for (long k = 0; k < o.planes; k++) {
    const Vec<T> first = load(y + k * ldy), second = load(y + k * ldy + WIDTH<T>);
    const Vec<T> real = splat(f.real[k]), imaginary = splat(f.imaginary[k]);
    const Complex<T> a = {real * first, -imaginary * first}, b = {real * second, -imaginary * second};
    const Complex<T> low = {a.re - b.im, a.im + b.re}, high = {a.re + b.im, b.re - a.im};
    store_row(z, f.low[k], load_row(z, f.low[k]) + low);
    store_row(z, f.high[k], load_row(z, f.high[k]) + high);
  }
  transform(f, z);
  for (long c = 0; c < o.inputs; c++) {
    const Complex<T> row = load_row(z, f.place_after[c]);
    const Vec<T> sign = splat(o.sign[c]);
    store(out + c * ldo, sign * row.re);
    store(out + c * ldo + WIDTH<T>, sign * row.im);
  }
}

}  // namespace dctps::DCTPS_ISA
