// Weighted sums and dot products of shifted rows of pixels. The sparse part and the depthwise stage consist of them.
#pragma once

#include "lines.h"
#include "plan.h"
#include "simd.h"

namespace dctps::DCTPS_ISA {

constexpr int TILE = 12;  // vectors of a row that stay in registers while its entries are summed

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

constexpr long PIECE = 768;  // bytes of a row of pixels that all sums go through before the next ones

// out[i] = keep * out[i] + the sum of weight * source[offset ...] over the entries of row i, for rows `from` to `to`.
// The sums of all rows go through a piece of the pixels, so that what one has read is near for the others.
template <class T>
void combine(const Rows<T>& list, long from, long to, const T* source, const T* keep, T* out, long ld,
             const Lines& lines) {
  constexpr long piece = PIECE / long(sizeof(T));
  for (long line = 0; line < lines.count; line++)
    for (long done = 0; done < lines.length; done += piece) {
      const long left = lines.length - done;
      const Lines part = {lines.first + line * lines.step + done, 0, 1, left < piece ? left : piece};
      for (long i = from; i < to; i++)
        combine_row(sum_of(list, i, source), Sum<T>{}, keep, out + (i - from) * ld, part);
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

constexpr int TOGETHER = 64;  // entries of a filter whose sums are kept at a time

// sums[i] += y * source[offset_i ...] for N vectors of y, which stay in registers while the entries are gone through.
template <class T, int N>
inline void add_products(const T* y, const T* source, const Entry<T>* entry, long count, Vec<T>* sums) {
  Vec<T> row[N];
  for (int j = 0; j < N; j++) row[j] = load(y + j * WIDTH<T>);
  for (long i = 0; i < count; i++) {
    const T* shifted = source + entry[i].offset;
    Vec<T> parts[2] = {sums[i], Vec<T>{}};
    for (int j = 0; j < N; j++) parts[j % 2] += row[j] * load(shifted + j * WIDTH<T>);
    sums[i] = parts[0] + parts[1];
  }
}

// out[e] += <y[i], source[offset_e ...]> for every entry e of every row i. y is zero where there is no output. Zero times
// an infinity is a NaN, so a product that is not finite is summed again over the outputs alone.
template <class T>
void dots(const Rows<T>& list, const T* y, long ld, const T* source, const int64_t* outputs, long pixels, double* out) {
  for (long i = 0; i < list.count; i++)
    for (long e = list.start[i], next; e < list.start[i + 1]; e = next) {
      next = e + TOGETHER < list.start[i + 1] ? e + TOGETHER : list.start[i + 1];
      const Entry<T>* entry = list.entries + e;
      const T* row = y + i * ld;
      Vec<T> sums[TOGETHER];
      for (long j = 0; j < next - e; j++) sums[j] = Vec<T>{};
      each_tile<T, TILE>(Lines{0, 0, 1, pixels}, [&](long p, auto vectors) {
        add_products<T, vectors.count>(row + p, source + p, entry, next - e, sums);
      });
      for (long j = 0; j < next - e; j++) {
        const T total = folded_sum<T>(sums[j]);
        out[e + j] += finite(total) ? double(total) : dot_of_outputs(row, source + entry[j].offset, outputs, pixels);
      }
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
