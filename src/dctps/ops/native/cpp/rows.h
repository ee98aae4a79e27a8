// Weighted sums and dot products of shifted rows of pixels. The sparse part and the depthwise stage consist of them.
#pragma once

#include "plan.h"
#include "simd.h"

namespace dctps::DCTPS_ISA {

constexpr int TILE = 6;  // vectors of a row that stay in registers while its entries are summed

template <class T, int N>
inline void combine_tile(const Entry<T>* entry, const Entry<T>* end, const T* source, const T* keep, T* row) {
  Vec<T> sums[N];
  for (int j = 0; j < N; j++) sums[j] = keep ? *keep * load(row + j * WIDTH<T>) : Vec<T>{};
  for (; entry != end; entry++) {
    const T* shifted = source + entry->offset;
    const Vec<T> weight = splat(entry->weight);
    for (int j = 0; j < N; j++) sums[j] += weight * load(shifted + j * WIDTH<T>);
  }
  for (int j = 0; j < N; j++) store(row + j * WIDTH<T>, sums[j]);
}

template <class T>
constexpr const T* NOTHING = nullptr;  // a pointer to no factor, where nothing is kept

// out[i] = keep * out[i] + the sum of weight * source[offset ...] over the entries of row i, for rows `from` to `to`.
// Where `keep` is NOTHING, out[i] is not read. A factor of zero is not the same: zero times an infinity is a NaN.
template <class T>
void combine(const Rows<T>& list, long from, long to, const T* source, const T* keep, T* out, long ld, long pixels) {
  constexpr long W = WIDTH<T>;
  for (long i = from; i < to; i++) {
    const Entry<T>*entry = list.entries + list.start[i], *end = list.entries + list.start[i + 1];
    if (entry == end && keep && *keep == T(1)) continue;
    T* row = out + (i - from) * ld;
    long p = 0;
    for (; p + (TILE - 1) * W < pixels; p += TILE * W) combine_tile<T, TILE>(entry, end, source + p, keep, row + p);
    // The rest goes in pairs of vectors, because the transforms read pairs, in which every lane must hold a number.
    for (; p < pixels; p += 2 * W) combine_tile<T, 2>(entry, end, source + p, keep, row + p);
  }
}

template <class T>
inline bool finite(T number) {
  return number - number == 0;
}

// The dot product of two rows over the outputs alone, which are the pixels with outputs[p] >= 0.
template <class T>
double dot_of_outputs(const T* row, const T* source, const int64_t* outputs, long pixels) {
  double total = 0;
  for (long p = 0; p < pixels; p++)
    if (outputs[p] >= 0) total += double(row[p]) * double(source[p]);
  return total;
}

template <class T, int COUNT>
inline void dot_group(const T* row, const T* source, const Entry<T>* entry, const int64_t* outputs, long pixels,
                      double* out) {
  Vec<T> sums[COUNT][2] = {};
  for (long p = 0; p < pixels; p += 2 * WIDTH<T>)
    for (int j = 0; j < 2; j++) {
      const Vec<T> y = load(row + p + j * WIDTH<T>);
      for (int i = 0; i < COUNT; i++) sums[i][j] += y * load(source + entry[i].offset + p + j * WIDTH<T>);
    }
  for (int i = 0; i < COUNT; i++) {
    const T total = sum<T>(sums[i][0] + sums[i][1]);
    out[i] += finite(total) ? double(total) : dot_of_outputs(row, source + entry[i].offset, outputs, pixels);
  }
}

// out[e] += <y[i], source[offset_e ...]> for every entry e of every row i. y is zero where there is no output. Zero times
// an infinity is a NaN, so a product that is not finite is summed again over the outputs alone.
template <class T>
void dots(const Rows<T>& list, const T* y, long ld, const T* source, const int64_t* outputs, long pixels, double* out) {
  for (long i = 0; i < list.count; i++) {
    long e = list.start[i];
    const long end = list.start[i + 1];
    for (; e + 4 <= end; e += 4) dot_group<T, 4>(y + i * ld, source, list.entries + e, outputs, pixels, out + e);
    for (; e < end; e++) dot_group<T, 1>(y + i * ld, source, list.entries + e, outputs, pixels, out + e);
  }
}

// The dot product of two rows.
template <class T>
double dot(const T* a, const T* b, long pixels) {
  Vec<T> sums = {};
  long p = 0;
  for (; p + WIDTH<T> <= pixels; p += WIDTH<T>) sums += load(a + p) * load(b + p);
  double total = double(sum<T>(sums));
  for (; p < pixels; p++) total += double(a[p]) * double(b[p]);
  return total;
}

}  // namespace dctps::DCTPS_ISA
