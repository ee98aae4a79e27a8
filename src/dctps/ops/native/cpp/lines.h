// The pixels of a chunk that a stage computes, in tiles of whole vectors.
#pragma once

#include "plan.h"
#include "simd.h"

namespace dctps::DCTPS_ISA {

template <int N>
struct Constant {
  static constexpr int count = N;
};

// Calls visit(first pixel, number of vectors as a constant) for tiles of MOST, ..., 4, 2 or 1 vectors that cover the
// lines. A line that is no whole number of vectors is rounded up to a pair of them: the transforms read pairs, in which
// every lane must hold a number.
template <class T, int MOST, class Visit>
inline void each_tile(const Lines& lines, Visit visit) {
  constexpr long W = WIDTH<T>;
  for (long i = 0; i < lines.count; i++) {
    long p = lines.first + i * lines.step;
    const long pairs = (lines.length + 2 * W - 1) / (2 * W);
    const long end = p + (lines.length % W ? pairs * 2 * W : lines.length);
    for (; p + MOST * W <= end; p += MOST * W) visit(p, Constant<MOST>());
    if constexpr (MOST > 8)
      for (; p + 8 * W <= end; p += 8 * W) visit(p, Constant<8>());
    if constexpr (MOST > 4)
      for (; p + 4 * W <= end; p += 4 * W) visit(p, Constant<4>());
    if constexpr (MOST > 2)
      for (; p + 2 * W <= end; p += 2 * W) visit(p, Constant<2>());
    if constexpr (MOST > 1)
      for (; p < end; p += W) visit(p, Constant<1>());
  }
}

}  // namespace dctps::DCTPS_ISA
