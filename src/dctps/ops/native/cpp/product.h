// Dense products C = A B or C += A B, where the rows of B and C are rows of pixels. Tiles of ROWS x COLUMNS vectors
// stay in registers. Row k of B begins at b + at[k], so it may be a row of the grid or a shifted one.
#pragma once

#include "lines.h"
#include "plan.h"
#include "simd.h"

namespace dctps::DCTPS_ISA {

template <class T, int M, int N, bool ADD>
inline void product_tile(const T* a, long depth, const T* b, const int32_t* at, T* c, long ldc) {
  Vec<T> sums[M][N];
  for (int i = 0; i < M; i++)
    for (int j = 0; j < N; j++) sums[i][j] = ADD ? load(c + i * ldc + j * WIDTH<T>) : Vec<T>{};
  for (long k = 0; k < depth; k++, a += ROWS) {
    Vec<T> right[N];
    for (int j = 0; j < N; j++) right[j] = load(b + at[k] + j * WIDTH<T>);
    for (int i = 0; i < M; i++) {
      const Vec<T> left = splat(a[i]);
      for (int j = 0; j < N; j++) sums[i][j] += left * right[j];
    }
  }
  for (int i = 0; i < M; i++)
    for (int j = 0; j < N; j++) store(c + i * ldc + j * WIDTH<T>, sums[i][j]);
}

template <class T, int N, bool ADD>
inline void product_rows(long rows, const T* a, long depth, const T* b, const int32_t* at, T* c, long ldc) {
  switch (rows) {
    case 1: return product_tile<T, 1, N, ADD>(a, depth, b, at, c, ldc);
    case 2: return product_tile<T, 2, N, ADD>(a, depth, b, at, c, ldc);
    case 3: return product_tile<T, 3, N, ADD>(a, depth, b, at, c, ldc);
    case 4: return product_tile<T, 4, N, ADD>(a, depth, b, at, c, ldc);
    case 5: return product_tile<T, 5, N, ADD>(a, depth, b, at, c, ldc);
    default: return product_tile<T, 6, N, ADD>(a, depth, b, at, c, ldc);
  }
}

// Multiplies the rows `from` (a multiple of ROWS) to `to` of A with B, for the pixels of `lines`.
template <class T, bool ADD = false>
void product(const Matrix<T>& a, long from, long to, const T* b, const int32_t* at, T* c, long ldc,
             const Lines& lines) {
  each_tile<T, COLUMNS>(lines, [&](long p, auto columns) {
    for (long i = from; i < to; i += ROWS)
      product_rows<T, columns.count, ADD>(to - i, a.data + i * a.columns, a.columns, b + p, at,
                                          c + (i - from) * ldc + p, ldc);
  });
}

// --- folded channels ------------------------------------------------------------------------------------------------

constexpr int FOLDED_COLUMNS = COLUMNS / 2;  // a tile has M rows of each part, so it takes as many registers as above

template <class T>
struct Folded {  // the first factors of both parts, and the channels that they fold
  const T *even, *odd;  // packed matrices
  const T* sign;        // (channels)
  long channels;
};

// M rows of both parts of `fold_product`: the channels c and n-1-c are loaded once for both.
template <class T, int M, int N>
inline void fold_tile(const Folded<T>& f, const T* x, long ldx, long even_rows, long odd_rows, T* even, T* odd,
                      long ldo) {
  Vec<T> sums[2][M][N] = {};
  const T *a = f.even, *b = f.odd;
  const long half = f.channels / 2;
  for (long c = 0; c < half; c++, a += ROWS, b += ROWS) {
    const Vec<T> left = splat(f.sign[c]), right = splat(f.sign[f.channels - 1 - c]);
    Vec<T> sum[N], difference[N];
    for (int j = 0; j < N; j++) {
      const Vec<T> first = left * load(x + c * ldx + j * WIDTH<T>);
      const Vec<T> second = load(x + (f.channels - 1 - c) * ldx + j * WIDTH<T>);
      sum[j] = first + right * second, difference[j] = first - right * second;
    }
    for (int i = 0; i < M; i++) {
      const Vec<T> of_sums = splat(a[i]), of_differences = splat(b[i]);
      for (int j = 0; j < N; j++) {
        sums[0][i][j] += of_sums * sum[j];
        sums[1][i][j] += of_differences * difference[j];
      }
    }
  }
  if (f.channels % 2)
    for (int j = 0; j < N; j++) {
      const Vec<T> middle = splat(f.sign[half]) * load(x + half * ldx + j * WIDTH<T>);
      for (int i = 0; i < M; i++) sums[0][i][j] += splat(a[i]) * middle;
    }
  for (int i = 0; i < M; i++)
    for (int j = 0; j < N; j++) {
      if (i < even_rows) store(even + i * ldo + j * WIDTH<T>, sums[0][i][j]);
      if (i < odd_rows) store(odd + i * ldo + j * WIDTH<T>, sums[1][i][j]);
    }
}

// M pairs of channels of `unfold_product`, from the sums of both parts.
template <class T, int M, int N>
inline void unfold_tile(const Folded<T>& f, long channel, long even_depth, long odd_depth, const T* even, const T* odd,
                        long ldi, T* out, long ldo) {
  Vec<T> sums[2][M][N] = {};
  const long depth = even_depth > odd_depth ? even_depth : odd_depth;
  const T *a = f.even, *b = f.odd;
  for (long k = 0; k < depth; k++, a += ROWS, b += ROWS) {
    Vec<T> of_even[N], of_odd[N];
    for (int j = 0; j < N; j++) {
      of_even[j] = k < even_depth ? load(even + k * ldi + j * WIDTH<T>) : Vec<T>{};
      of_odd[j] = k < odd_depth ? load(odd + k * ldi + j * WIDTH<T>) : Vec<T>{};
    }
    for (int i = 0; i < M; i++) {
      const Vec<T> left = splat(a[i]), right = splat(b[i]);
      for (int j = 0; j < N; j++) {
        sums[0][i][j] += left * of_even[j];
        sums[1][i][j] += right * of_odd[j];
      }
    }
  }
  for (int i = 0; i < M; i++) {
    const long c = channel + i, mirrored = f.channels - 1 - c;
    const Vec<T> left = splat(f.sign[c]), right = splat(f.sign[mirrored]);
    for (int j = 0; j < N; j++) {
      store(out + c * ldo + j * WIDTH<T>, left * (sums[0][i][j] + sums[1][i][j]));
      if (c != mirrored) store(out + mirrored * ldo + j * WIDTH<T>, right * (sums[0][i][j] - sums[1][i][j]));
    }
  }
}

// Calls run(number of rows as a constant) for at most ROWS rows.
template <class Run>
inline void with_rows(long rows, Run run) {
  switch (rows) {
    case 1: return run(Constant<1>());
    case 2: return run(Constant<2>());
    case 3: return run(Constant<3>());
    case 4: return run(Constant<4>());
    case 5: return run(Constant<5>());
    default: return run(Constant<6>());
  }
}

// The first factors of both parts, applied to x_c + x_(n-1-c) and to x_c - x_(n-1-c), with the signs of the channels.
template <class T>
void fold_product(const Offset<T>& o, const T* x, long ldx, T* out, long ldo, const Lines& lines) {
  const Part<T>&first = o.part[0], &second = o.part[1];
  const long rows = first.rank > second.rank ? first.rank : second.rank;
  T *even = out, *odd = out + second.rank_start * ldo;
  each_tile<T, FOLDED_COLUMNS>(lines, [&](long p, auto columns) {
    for (long i = 0; i < rows; i += ROWS)
      with_rows(rows - i, [&](auto count) {
        const Folded<T> f = {first.first.data + i * first.first.columns, second.first.data + i * second.first.columns,
                             o.sign, o.inputs};
        fold_tile<T, count.count, columns.count>(f, x + p, ldx, first.rank - i, second.rank - i, even + i * ldo + p,
                                                 odd + i * ldo + p, ldo);
      });
  });
}

// The adjoint of `fold_product`.
template <class T>
void unfold_product(const Offset<T>& o, const T* thin, long ldi, T* out, long ldo, const Lines& lines) {
  const Part<T>&first = o.part[0], &second = o.part[1];
  const T *even = thin, *odd = thin + second.rank_start * ldi;
  each_tile<T, FOLDED_COLUMNS>(lines, [&](long p, auto columns) {
    for (long c = 0; c < first.inputs; c += ROWS)
      with_rows(first.inputs - c, [&](auto count) {
        const Folded<T> f = {first.first_adjoint.data + c * first.first_adjoint.columns,
                             second.first_adjoint.data + c * second.first_adjoint.columns, o.sign, o.inputs};
        unfold_tile<T, count.count, columns.count>(f, c, first.rank, second.rank, even + p, odd + p, ldi, out + p, ldo);
      });
  });
}

}  // namespace dctps::DCTPS_ISA
