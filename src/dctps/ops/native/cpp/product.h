// Dense products C = A B or C += A B, where the rows of B and C are rows of pixels. Tiles of ROWS x COLUMNS vectors
// stay in registers. Row k of B begins at b + at[k], so it may be a row of the grid or a shifted one.
#pragma once

#include "plan.h"
#include "simd.h"

namespace dctps::DCTPS_ISA {

template <class T, int M, bool ADD>
inline void product_tile(const T* a, long depth, const T* b, const int32_t* at, T* c, long ldc) {
  Vec<T> sums[M][COLUMNS];
  for (int i = 0; i < M; i++)
    for (int j = 0; j < COLUMNS; j++) sums[i][j] = ADD ? load(c + i * ldc + j * WIDTH<T>) : Vec<T>{};
  for (long k = 0; k < depth; k++, a += ROWS) {
    Vec<T> right[COLUMNS];
    for (int j = 0; j < COLUMNS; j++) right[j] = load(b + at[k] + j * WIDTH<T>);
    for (int i = 0; i < M; i++) {
      const Vec<T> left = splat(a[i]);
      for (int j = 0; j < COLUMNS; j++) sums[i][j] += left * right[j];
    }
  }
  for (int i = 0; i < M; i++)
    for (int j = 0; j < COLUMNS; j++) store(c + i * ldc + j * WIDTH<T>, sums[i][j]);
}

template <class T, bool ADD>
inline void product_rows(long rows, const T* a, long depth, const T* b, const int32_t* at, T* c, long ldc) {
  switch (rows) {
    case 1: return product_tile<T, 1, ADD>(a, depth, b, at, c, ldc);
    case 2: return product_tile<T, 2, ADD>(a, depth, b, at, c, ldc);
    case 3: return product_tile<T, 3, ADD>(a, depth, b, at, c, ldc);
    case 4: return product_tile<T, 4, ADD>(a, depth, b, at, c, ldc);
    case 5: return product_tile<T, 5, ADD>(a, depth, b, at, c, ldc);
    default: return product_tile<T, 6, ADD>(a, depth, b, at, c, ldc);
  }
}

// Multiplies the rows `from` (a multiple of ROWS) to `to` of A with B, for `pixels` columns rounded up to whole tiles.
template <class T, bool ADD = false>
void product(const Matrix<T>& a, long from, long to, const T* b, const int32_t* at, T* c, long ldc, long pixels) {
  for (long p = 0; p < pixels; p += COLUMNS * WIDTH<T>)
    for (long i = from; i < to; i += ROWS)
      product_rows<T, ADD>(to - i, a.data + i * a.columns, a.columns, b + p, at, c + (i - from) * ldc + p, ldc);
}

}  // namespace dctps::DCTPS_ISA
