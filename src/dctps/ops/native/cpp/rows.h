// Weighted sums and dot products of shifted rows of pixels. The sparse part and the depthwise stage consist of them.
#pragma once

#include "lines.h"
#include "plan.h"
#include "simd.h"

namespace dctps::DCTPS_ISA {

constexpr int TILE = 6;  // vectors of a row that stay in registers while its entries are summed

template <class T>
struct Sum {  // a weighted sum of shifted rows of `source`
  const Entry<T>*entry, *end;
  const T* source;
};

template <class T>
inline Sum<T> sum_of(const Rows<T>& list, long row, const T* source) {
  return {list.entries + list.start[row], list.entries + list.start[row + 1], source};
}

template <class T, int N>
inline void add_entries(const Sum<T>& list, long p, Vec<T> (&sums)[N]) {
  for (const Entry<T>* entry = list.entry; entry != list.end; entry++) {
    const T* shifted = list.source + entry->offset + p;
    const Vec<T> weight = splat(entry->weight);
    for (int j = 0; j < N; j++) sums[j] += weight * load(shifted + j * WIDTH<T>);
  }
}

template <class T>
constexpr const T* NOTHING = nullptr;  // a pointer to no factor, where nothing is kept

// row = keep * row + the sums. Where `keep` is NOTHING, the row is not read. A factor of zero is not the same: zero
// times an infinity is a NaN.
template <class T>
inline void combine_row(const Sum<T>& a, const Sum<T>& b, const T* keep, T* row, const Lines& lines) {
  if (a.entry == a.end && b.entry == b.end && keep && *keep == T(1)) return;
  each_tile<T, TILE>(lines, [&](long p, auto vectors) {
    constexpr int N = vectors.count;
    Vec<T> sums[N];
    for (int j = 0; j < N; j++) sums[j] = keep ? *keep * load(row + p + j * WIDTH<T>) : Vec<T>{};
    add_entries<T, N>(a, p, sums);
    add_entries<T, N>(b, p, sums);
    for (int j = 0; j < N; j++) store(row + p + j * WIDTH<T>, sums[j]);
  });
}

// out[i] = keep * out[i] + the sum of weight * source[offset ...] over the entries of row i, for rows `from` to `to`.
template <class T>
void combine(const Rows<T>& list, long from, long to, const T* source, const T* keep, T* out, long ld,
             const Lines& lines) {
  for (long i = from; i < to; i++)
    combine_row(sum_of(list, i, source), Sum<T>{}, keep, out + (i - from) * ld, lines);
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

// The dot product of two rows over the pixels of the lines.
template <class T>
double dot(const T* a, const T* b, const Lines& lines) {
  double total = 0;
  for (long i = 0; i < lines.count; i++) {
    const long first = lines.first + i * lines.step, last = first + lines.length;
    Vec<T> sums = {};
    long p = first;
    for (; p + WIDTH<T> <= last; p += WIDTH<T>) sums += load(a + p) * load(b + p);
    total += double(sum<T>(sums));
    for (; p < last; p++) total += double(a[p]) * double(b[p]);
  }
  return total;
}

}  // namespace dctps::DCTPS_ISA
