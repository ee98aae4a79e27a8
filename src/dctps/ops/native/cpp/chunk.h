// The computation of one chunk of a batch, forwards and backwards. A chunk is so small that everything between reading
// its input and writing its output stays in the cache.
#pragma once

#include "stages.h"

namespace dctps::DCTPS_ISA {

// Sets the zeros before and behind the pixels of each row.
template <class T>
void clear_margins(const Frame& f, long pixels, T* rows, long count) {
  for (long i = 0; i < count; i++) {
    fill(rows + i * f.ld - f.margin, f.margin);
    fill(rows + i * f.ld + pixels, f.ld - f.margin - pixels);
  }
}

// Packs the input of the chunk, phase by phase.
template <class T>
void pack_input(const Call<T>& call, const Chunk& chunk, const Buffers<T>& b) {
  const long phases = call.layer.phases, ld = call.frame.ld, far = 1L << 60;
  each_phase(call.layer, [&](const Side& side, long phase) {
    locate(call.layer, call.frame, chunk, side, call.x, -far, far, b.map);
    pack<T>(b.map, call.x, call.layer.channels(), b.x + phase * ld, phases * ld);
  });
  clear_margins(call.frame, chunk.pixels(call.frame), b.x, call.layer.channels() * phases);
}

// Writes the gradient of the input back to its tensor, phase by phase.
template <class T>
void unpack_input(const Call<T>& call, const Chunk& chunk, const Buffers<T>& b) {
  const long phases = call.layer.phases, ld = call.frame.ld;
  each_phase(call.layer, [&](const Side& side, long phase) {
    locate(call.layer, call.frame, chunk, side, call.out, chunk.low, chunk.high, b.map);
    unpack<T>(b.map, b.back + phase * ld, phases * ld, call.layer.channels(), Finish<T>{}, call.out);
  });
}

// y = (alpha D + S) x, for the filters of the chunk.
template <class T>
void forward_rows(const Call<T>& call, const Chunk& chunk, const Buffers<T>& b, const Places& places) {
  const Offset<T>* o = call.offset;
  const long ld = call.frame.ld, from = chunk.first_filter, to = chunk.last_filter;
  const T one = 1;
  const bool depthwise = o && call.layer.taps > 1;
  if (depthwise && call.frame.inner > 1) {  // nothing else writes the zeros that the shifted rows read
    const long planes = (o->kind == Kind::product ? PLANES : o->planes) * call.layer.phases;
    for (long i = 0; i < planes; i++) clear_outside(call.frame, places.seen(i), b.planes + i * ld);
    for (long i = 0; call.turns && i < 2; i++) clear_outside(call.frame, places.turned, b.turned + i * ld);
  }
  if (o && o->kind == Kind::product) {
    product_forward(call, from, to, b, places);
  } else if (o) {
    lines_forward(call, b.x, depthwise ? T(1) : call.alpha, depthwise ? b.planes : b.y, b.line, places);
    if (depthwise) depthwise_forward(call, b, from, to, b.planes, places);
  }
  if (depthwise && !is_apart(call)) return;
  const T* keep = !o ? NOTHING<T> : o->kind == Kind::product && !depthwise ? &call.alpha : &one;  // factor of D x so far
  combine(call.sparse, from, to, b.x, keep, b.y + from * ld, ld, places.output);
}

// back = D'y.
template <class T>
void offset_adjoint(const Call<T>& call, const Buffers<T>& b, const Places& places) {
  const bool depthwise = call.layer.taps > 1;
  for (long i = 0; call.turns && call.frame.inner > 1 && i < 2; i++)
    clear_outside(call.frame, places.turned, b.turned + i * call.frame.ld);
  if (call.offset->kind == Kind::product) return product_adjoint(call, b, places);
  if (depthwise) depthwise_adjoint(call, b, 0, call.layer.filters, b.planes, places);
  lines_adjoint(call, depthwise ? b.planes : b.y, b.back, b.line, places);
}

// The elements of scratch memory that a thread needs.
template <class T>
long scratch_size(const Call<T>& call, bool backward) {
  return Buffers<T>(call, backward, nullptr).used;
}

// y = (alpha D + S) x for one chunk, finished.
template <class T>
void forward(const Call<T>& call, const Chunk& chunk, T* scratch) {
  const Buffers<T> b(call, false, scratch);
  pack_input(call, chunk, b);
  forward_rows(call, chunk, b, Places(call.layer, call.frame, chunk));
  locate(call.layer, call.frame, chunk, output_side(call.layer), call.out, chunk.low, chunk.high, b.map);
  const long from = chunk.first_filter;
  View<T> out = call.out;
  out.data += from * out.channel;
  const Finish<T> finish = from_channel(call.finish, from, from * out.channel);
  unpack<T>(b.map, b.y + from * call.frame.ld, call.frame.ld, chunk.last_filter - from, finish, out);
}

// <x, D'y> over the pixels `first` to `last` that some output reads; `b.map` is the map of the outputs. D'y is zero at
// the other pixels, but zero times an infinity is a NaN.
template <class T>
double dot_of_read_pixels(const Call<T>& call, const Buffers<T>& b, long first, long last) {
  const Layer& layer = call.layer;
  double total = 0;
  for (long f = 0; f < layer.phases; f++)
    for (long p = first; p < last; p++) {
      bool read = false;
      for (long t = 0; t < layer.taps && !read; t++) {
        const long output = p - layer.tap_shift[t];
        read = layer.tap_phase[t] == f && output >= 0 && b.map.source[output] >= 0;
      }
      for (long i = f; read && i < layer.channels() * layer.phases; i += layer.phases)
        total += double(b.back[i * call.frame.ld + p]) * double(b.x[i * call.frame.ld + p]);
    }
  return total;
}

// The gradients for one chunk. Writes that of x, adds to those of the values, and returns <x, D'y>.
template <class T>
double backward(const Call<T>& call, const Chunk& chunk, T* scratch, double* values) {
  const Buffers<T> b(call, true, scratch);
  const Layer& layer = call.layer;
  const Places places(layer, call.frame, chunk);
  const long pixels = chunk.pixels(call.frame), ld = call.frame.ld, inputs = layer.channels() * layer.phases;
  if (call.needs_values || call.needs_alpha) pack_input(call, chunk, b);
  locate(layer, call.frame, chunk, output_side(layer), call.y, -1, chunk.high, b.map);
  pack<T>(b.map, call.y, layer.filters, b.y, ld);
  clear_margins(call.frame, pixels, b.y, layer.filters);
  // The gradients are summed over the band's own pixels; its neighbours sum over the others.
  const long skip = call.frame.banded ? (chunk.low - chunk.base) * call.frame.row_pixels : 0;
  const long own = call.frame.banded ? (chunk.high - chunk.low) * call.frame.row_pixels : pixels;
  if (call.needs_values) dots(call.sparse, b.y + skip, ld, b.x + skip, b.map.source + skip, own, values);
  double alpha = 0;
  if (call.offset && (call.needs_x || call.needs_alpha)) {
    offset_adjoint(call, b, places);
    for (long i = 0; call.needs_alpha && i < inputs; i++)
      alpha += dot(b.back + i * ld, b.x + i * ld, call.frame.inner > 1 ? places.input(i) : Lines{skip, 0, 1, own});
    if (!finite(alpha)) alpha = dot_of_read_pixels(call, b, skip, skip + own);
  }
  if (call.needs_x) {
    const T* keep = call.offset ? &call.alpha : NOTHING<T>;
    combine_back(call.sparse_adjoint, 0, inputs, b.y, keep, b.back, ld, places);
    unpack_input(call, chunk, b);
  }
  return alpha;
}

}  // namespace dctps::DCTPS_ISA
