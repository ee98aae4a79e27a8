// Dense products C = A B (+ C) with pixels along the rows of B and C: tiles of ROWS x COLUMNS vectors in registers.
#pragma once

#include "plan.h"
#include "simd.h"

namespace dctps::DCTPS_ISA {

template <class T, int M>
inline void product_tile(const T* a, long depth, const T* b, long ldb, T* c, long ldc, bool add) {
  Vec<T> sums[M][COLUMNS];
  for (int i = 0; i < M; i++)
    for (int j = 0; j < COLUMNS; j++) sums[i][j] = add ? load(c + i * ldc + j * WIDTH<T>) : Vec<T>{};
  for (long k = 0; k < depth; k++, a += ROWS, b += ldb) {
    Vec<T> right[COLUMNS];
    for (int j = 0; j < COLUMNS; j++) right[j] = load(b + j * WIDTH<T>);
    for (int i = 0; i < M; i++) {
      const Vec<T> left = splat(a[i]);
      for (int j = 0; j < COLUMNS; j++) sums[i][j] += left * right[j];
    }
  }
  for (int i = 0; i < M; i++)
    for (int j = 0; j < COLUMNS; j++) store(c + i * ldc + j * WIDTH<T>, sums[i][j]);
}

template <class T>
inline void product_rows(long rows, const T* a, long depth, const T* b, long ldb, T* c, long ldc, bool add) {
  switch (rows) {
    case 1: return product_tile<T, 1>(a, depth, b, ldb, c, ldc, add);
    case 2: return product_tile<T, 2>(a, depth, b, ldb, c, ldc, add);
    case 3: return product_tile<T, 3>(a, depth, b, ldb, c, ldc, add);
    case 4: return product_tile<T, 4>(a, depth, b, ldb, c, ldc, add);
    case 5: return product_tile<T, 5>(a, depth, b, ldb, c, ldc, add);
    default: return product_tile<T, 6>(a, depth, b, ldb, c, ldc, add);
  }
}

// Rows `from` (a multiple of ROWS) to `to` of A times B, for `pixels` columns rounded up to whole tiles.
template <class T>
void product(const Matrix<T>& a, long from, long to, const T* b, long ldb, T* c, long ldc, long pixels, bool add) {
  for (long p = 0; p < pixels; p += COLUMNS * WIDTH<T>)
    for (long i = from; i < to; i += ROWS) {
      const long rows = to - i < ROWS ? to - i : ROWS;
      product_rows(rows, a.data + i * a.columns, a.columns, b + p, ldb, c + (i - from) * ldc + p, ldc, add);
    }
}

}  // namespace dctps::DCTPS_ISA
