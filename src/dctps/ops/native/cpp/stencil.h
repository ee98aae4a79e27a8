// Depthwise convolutions on channels-last tensors. A vector holds neighbouring channels of one pixel, so nothing needs
// to be packed, and what the kernel reads stays in the cache from one row of the image to the next.
#pragma once

#include "plan.h"
#include "simd.h"

namespace dctps::DCTPS_ISA {

constexpr int AT_ONCE = 6;  // destinations that share a load of the weights

struct Lines {  // the rows of the source that one row of the destination reads, with their first kernel positions
  int64_t at[64];
  long tap[64], count;
};

template <class T>
Lines lines_of(const Gather<T>& g, long image, long row0, long row1) {
  Lines lines;
  lines.count = 0;
  for (const Meet* a = g.meets[0][row0]; a < g.meets[0][row0 + 1]; a++)
    for (const Meet* b = g.meets[1][row1]; b < g.meets[1][row1 + 1]; b++) {
      lines.at[lines.count] = image * g.source.batch + a->source * g.source.axis[0] + b->source * g.source.axis[1];
      lines.tap[lines.count++] = (a->tap * g.kernel[1] + b->tap) * g.kernel[2];
    }
  return lines;
}

// Computes P destinations for N vectors of channels, beginning with channel c.
template <class T, class V, int N, int P, bool PAST>
inline void gather_tile(const Gather<T>& g, const Lines& lines, const Span& span, long first, long c, T* out) {
  constexpr long width = sizeof(V) / sizeof(T);
  const int64_t pixel = g.source.axis[2], step = span.source_step * pixel;
  V sums[P][N];
  for (int p = 0; p < P; p++)
    for (int n = 0; n < N; n++) sums[p][n] = V{};
  for (long r = 0; r < lines.count; r++)
    for (const Meet* m = span.meets; m < span.end; m++) {
      const T* weight = g.weight + (lines.tap[r] + m->tap) * g.channels + c;
      const T* from = g.source.data + lines.at[r] + m->source * pixel + first * step + c;
      for (int n = 0; n < N; n++) {
        const V factor = take<V>(weight + n * width);
        for (int p = 0; p < P; p++) sums[p][n] += factor * take<V>(from + p * step + n * width);
      }
    }
  for (int p = 0; p < P; p++)
    for (int n = 0; n < N; n++) put<PAST, V>(out + p * span.step * g.out.axis[2] + n * width, sums[p][n]);
}

// Calls block(c) for blocks of N vectors of channels, then one(c) for one vector, then rest(c) for single channels.
template <class T, int N, class Block, class One, class Rest>
inline void each_block(long channels, Block block, One one, Rest rest) {
  long c = 0;
  for (; c + N * WIDTH<T> <= channels; c += N * WIDTH<T>) block(c);
  for (; c + WIDTH<T> <= channels; c += WIDTH<T>) one(c);
  for (; c < channels; c++) rest(c);
}

// Computes P destinations for all channels, in the order of memory. A tile of few destinations takes more channels:
// a sum of products waits for the one before it, so that about eight sums must be under way.
template <class T, int P>
inline void gather_pixels(const Gather<T>& g, const Lines& lines, const Span& span, long first, T* out) {
  constexpr int N = P > 2 ? 2 : 4;
  T* to = out + (span.first + first * span.step) * g.out.axis[2];
  each_block<T, N>(
      g.channels,
      [&](long c) {
        if (g.out.large) gather_tile<T, Vec<T>, N, P, true>(g, lines, span, first, c, to + c);
        else gather_tile<T, Vec<T>, N, P, false>(g, lines, span, first, c, to + c);
      },
      [&](long c) { gather_tile<T, Vec<T>, 1, P, false>(g, lines, span, first, c, to + c); },
      [&](long c) { gather_tile<T, T, 1, P, false>(g, lines, span, first, c, to + c); });
}

// Computes one row of the destination.
template <class T>
void gather_row(const Gather<T>& g, long image, long row) {
  for (long row1 = 0; row1 < g.size[1]; row1++) {
    const Lines lines = lines_of(g, image, row, row1);
    T* out = g.out.data + image * g.out.batch + row * g.out.axis[0] + row1 * g.out.axis[1];
    for (const Span* span = g.spans; span < g.spans + g.span_count; span++) {
      long i = 0;
      for (; i + AT_ONCE <= span->count; i += AT_ONCE) gather_pixels<T, AT_ONCE>(g, lines, *span, i, out);
      for (; i + 2 <= span->count; i += 2) gather_pixels<T, 2>(g, lines, *span, i, out);
      for (; i < span->count; i++) gather_pixels<T, 1>(g, lines, *span, i, out);
    }
  }
  if (g.out.large) end_of_stream();
}

// Adds to the weight gradients of R lines and M kernel positions of each, so that y is read once for all of them; for
// one vector of channels, beginning with channel c.
template <class T, class V, int R, int M>
inline void weight_tile(const Gather<T>& g, const Lines& lines, long r, const Span& span, const Meet* meets, long first,
                        long last, long c, const T* y, int64_t y_step, T* sums) {
  const int64_t pixel = g.source.axis[2], step = span.source_step * pixel;
  V own[R][M];
  for (int l = 0; l < R; l++)
    for (int m = 0; m < M; m++) own[l][m] = V{};
  const T* from = y + first * y_step + c;
  const T* x = g.source.data + first * step + c;
  for (long i = first; i < last; i++, from += y_step, x += step) {
    const V upstream = take<V>(from);
    for (int l = 0; l < R; l++)
      for (int m = 0; m < M; m++) own[l][m] += upstream * take<V>(x + lines.at[r + l] + meets[m].source * pixel);
  }
  for (int l = 0; l < R; l++)
    for (int m = 0; m < M; m++) {
      T* to = sums + (lines.tap[r + l] + meets[m].tap) * g.channels + c;
      put<false, V>(to, take<V>(to) + own[l][m]);
    }
}

template <class T, int R, int M>
inline void weight_pixels(const Gather<T>& g, const Lines& lines, long r, const Span& span, const Meet* meets,
                          long first, long last, const T* y, int64_t y_step, T* sums) {
  auto one = [&](long c) {
    weight_tile<T, Vec<T>, R, M>(g, lines, r, span, meets, first, last, c, y, y_step, sums);
  };
  each_block<T, 1>(
      g.channels, one, one,
      [&](long c) { weight_tile<T, T, R, M>(g, lines, r, span, meets, first, last, c, y, y_step, sums); });
}

template <class T, int R>
void weight_lines(const Gather<T>& g, const Lines& lines, long r, const Span& span, long first, long last, const T* y,
                  int64_t y_step, T* sums) {
  const Meet* m = span.meets;
  for (; m + 3 <= span.end; m += 3) weight_pixels<T, R, 3>(g, lines, r, span, m, first, last, y, y_step, sums);
  for (; m + 2 <= span.end; m += 2) weight_pixels<T, R, 2>(g, lines, r, span, m, first, last, y, y_step, sums);
  for (; m < span.end; m++) weight_pixels<T, R, 1>(g, lines, r, span, m, first, last, y, y_step, sums);
}

constexpr long SHORT = 8;  // pixels that are processed together, so few that they stay in the first-level cache

// Adds the contribution of one row of y to the weight gradients `sums` (taps, channels).
template <class T>
void weight_row(const Gather<T>& g, const View<const T>& y, long image, long row, T* sums) {
  for (long row1 = 0; row1 < g.size[1]; row1++) {
    const Lines lines = lines_of(g, image, row, row1);
    const T* line = y.data + image * y.batch + row * y.axis[0] + row1 * y.axis[1];
    for (const Span* span = g.spans; span < g.spans + g.span_count; span++) {
      const T* from = line + span->first * y.axis[2];
      const int64_t step = span->step * y.axis[2];
      for (long i = 0; i < span->count; i += SHORT) {
        const long last = i + SHORT < span->count ? i + SHORT : span->count;
        long r = 0;
        for (; r + 3 <= lines.count; r += 3) weight_lines<T, 3>(g, lines, r, *span, i, last, from, step, sums);
        for (; r + 2 <= lines.count; r += 2) weight_lines<T, 2>(g, lines, r, *span, i, last, from, step, sums);
        for (; r < lines.count; r++) weight_lines<T, 1>(g, lines, r, *span, i, last, from, step, sums);
      }
    }
  }
}

}  // namespace dctps::DCTPS_ISA
