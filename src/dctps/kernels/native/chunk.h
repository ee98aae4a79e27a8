// One chunk of a batch, forwards and backwards: everything between reading and writing it stays in the cache.
#pragma once

#include "fourier.h"
#include "hadamard.h"
#include "pack.h"
#include "product.h"
#include "rows.h"

namespace dctps::DCTPS_ISA {

template <class T>
struct Buffers {  // rows of the packed grid, `ld` apart; pointers are to the first pixel of the first row
  T *x, *y, *back, *planes, *thin, *line;
  mutable Map map;
  long used;

  T* take(T* scratch, const Frame& f, long rows) {
    T* start = scratch + used + f.margin;
    used += rows * f.ld;
    return start;
  }

  Buffers(const Call<T>& call, bool backward, T* scratch) : used(0) {
    const Frame& f = call.frame;
    const long inputs = call.layer.channels() * call.layer.phases;
    const Offset<T>* o = call.offset;
    const bool depthwise = o && call.layer.taps > 1 && !o->gathers;
    const long planes = o && o->kind == Kind::product ? PLANES : (o ? o->planes : 0);
    y = take(scratch, f, call.layer.filters);
    x = take(scratch, f, !backward || call.needs_values || call.needs_alpha ? inputs : 0);
    back = take(scratch, f, backward ? inputs : 0);
    this->planes = take(scratch, f, depthwise ? planes * call.layer.phases : 0);
    thin = take(scratch, f, o && o->kind == Kind::product && o->thin ? o->rank * call.layer.phases : 0);
    line = scratch + used;
    used += o && o->kind == Kind::fourier ? o->fourier.length * PAIR<T> : 0;
    used += o && o->kind == Kind::hadamard ? o->length * PAIR<T> : 0;
    // rows are whole cache lines long, so what follows them is aligned for anything
    map.source = reinterpret_cast<int64_t*>(scratch + used);
    map.runs = reinterpret_cast<Run*>(map.source + f.ld);
    used += f.ld * MAP_BYTES / long(sizeof(T));
  }
};

template <class T>
void clear_margins(const Frame& f, long pixels, T* rows, long count) {
  for (long i = 0; i < count; i++) {
    fill(rows + i * f.ld - f.margin, f.margin);
    fill(rows + i * f.ld + pixels, f.ld - f.margin - pixels);
  }
}

// visit(side, first row of the phase) for every phase that some kernel position reads
template <class Visit>
void each_phase(const Layer& layer, Visit visit) {
  const long all = layer.axis[0].stride * layer.axis[1].stride * layer.axis[2].stride;
  for (long number = 0; number < all; number++)
    if (layer.phase_of[number] >= 0) visit(input_side(layer, number), layer.phase_of[number]);
}

template <class T>
void pack_input(const Call<T>& call, const Chunk& chunk, const Buffers<T>& b) {
  const long phases = call.layer.phases, ld = call.frame.ld, far = 1L << 60;
  each_phase(call.layer, [&](const Side& side, long phase) {
    locate(call.layer, chunk, side, call.x, -far, far, b.map);
    pack<T>(b.map, call.x, call.layer.channels(), b.x + phase * ld, phases * ld);
  });
  clear_margins(call.frame, chunk.pixels(call.frame), b.x, call.layer.channels() * phases);
}

template <class T>
void unpack_input(const Call<T>& call, const Chunk& chunk, const Buffers<T>& b) {
  const long phases = call.layer.phases, ld = call.frame.ld;
  each_phase(call.layer, [&](const Side& side, long phase) {
    locate(call.layer, chunk, side, call.out, chunk.low, chunk.high, b.map);
    unpack<T>(b.map, b.back + phase * ld, phases * ld, call.layer.channels(), nullptr, call.out);
  });
}

// The pointwise stage of the fast transforms, and its adjoint, over all pixels and phases.
template <class T>
void lines_forward(const Call<T>& call, const T* x, T scale, T* out, T* z, long pixels) {
  const Offset<T>& o = *call.offset;
  const long phases = call.layer.phases, ld = call.frame.ld;
  auto run = o.kind == Kind::fourier ? fourier_forward<T> : hadamard_forward<T>;
  for (long f = 0; f < phases; f++)
    for (long p = 0; p < pixels; p += PAIR<T>) run(o, x + f * ld + p, phases * ld, scale, out + f * ld + p, phases * ld, z);
}

template <class T>
void lines_adjoint(const Call<T>& call, const T* y, T* out, T* z, long pixels) {
  const Offset<T>& o = *call.offset;
  const long phases = call.layer.phases, ld = call.frame.ld;
  auto run = o.kind == Kind::fourier ? fourier_adjoint<T> : hadamard_adjoint<T>;
  for (long f = 0; f < phases; f++)
    for (long p = 0; p < pixels; p += PAIR<T>) run(o, y + f * ld + p, phases * ld, out + f * ld + p, phases * ld, z);
}

// y = alpha D x
template <class T>
void offset_forward(const Call<T>& call, const Buffers<T>& b, long pixels) {
  const Offset<T>& o = *call.offset;
  const long phases = call.layer.phases, ld = call.frame.ld, filters = call.layer.filters;
  const bool depthwise = call.layer.taps > 1;
  const long seen = pixels + call.frame.reach;  // zeros behind the last row are read, too
  if (o.kind != Kind::product) {
    lines_forward(call, b.x, depthwise ? T(1) : call.alpha, depthwise ? b.planes : b.y, b.line, seen);
    if (depthwise) combine(call.taps, 0, filters, b.planes, T(0), b.y, ld, pixels);
    return;
  }
  const T* source = b.x;
  if (o.thin) {
    for (long f = 0; f < phases; f++)
      product(o.first, 0, o.rank, b.x + f * ld, call.steps, b.thin + f * ld, phases * ld, seen);
    source = b.thin;
  }
  if (o.gathers || !depthwise) {  // these factors hold no alpha: it is applied with the sparse part
    product(o.gathers ? o.gather : o.second, 0, filters, source, o.gathers ? call.gathered : call.steps, b.y, ld, pixels);
    return;
  }
  const long terms = o.planes / filters;
  for (long k = 0; k < filters; k += PLANES / terms) {
    const long last = k + PLANES / terms < filters ? k + PLANES / terms : filters;
    for (long f = 0; f < phases; f++)
      product(o.second, k * terms, last * terms, source + f * ld, call.steps, b.planes + f * ld, phases * ld, seen);
    // the list numbers all planes; this block's begin at b.planes
    combine(call.taps, k, last, b.planes - k * terms * phases * ld, T(0), b.y + k * ld, ld, pixels);
  }
}

// back = D'y
template <class T>
void offset_adjoint(const Call<T>& call, const Buffers<T>& b, long pixels) {
  const Offset<T>& o = *call.offset;
  const long phases = call.layer.phases, ld = call.frame.ld;
  const bool depthwise = call.layer.taps > 1;
  if (o.kind != Kind::product) {
    if (depthwise) combine(call.taps_adjoint, 0, o.planes * phases, b.y, T(0), b.planes, ld, pixels);
    lines_adjoint(call, depthwise ? b.planes : b.y, b.back, b.line, pixels);
    return;
  }
  T* target = o.thin ? b.thin : b.back;
  if (o.gathers)
    for (long f = 0; f < phases; f++)
      product(o.gather_adjoint[f], 0, o.rank, b.y, call.gathered_adjoint[f], target + f * ld, phases * ld, pixels);
  for (long k = 0; !o.gathers && k < o.planes; k += PLANES) {
    const long count = o.planes - k < PLANES ? o.planes - k : PLANES;
    const T* planes = b.y + k * ld;
    if (depthwise) {
      combine(call.taps_adjoint, k * phases, (k + count) * phases, b.y, T(0), b.planes, ld, pixels);
      planes = b.planes;
    }
    const long padded = (o.rank + ROWS - 1) / ROWS * ROWS;
    const Matrix<T> block = {o.second_adjoint + k * padded, o.rank, count};
    auto run = k ? product<T, true> : product<T, false>;
    for (long f = 0; f < phases; f++)
      run(block, 0, o.rank, planes + f * ld, call.steps, target + f * ld, phases * ld, pixels);
  }
  if (o.thin)
    for (long f = 0; f < phases; f++)
      product(o.first_adjoint, 0, o.inputs, b.thin + f * ld, call.steps, b.back + f * ld, phases * ld, pixels);
}

template <class T>
long scratch_size(const Call<T>& call, bool backward) {
  return Buffers<T>(call, backward, nullptr).used;
}

template <class T>
void forward(const Call<T>& call, const Chunk& chunk, T* scratch) {
  const Buffers<T> b(call, false, scratch);
  const long pixels = chunk.pixels(call.frame), ld = call.frame.ld, filters = call.layer.filters;
  pack_input(call, chunk, b);
  T keep = 0;
  if (call.offset) {
    offset_forward(call, b, pixels);
    const bool scaled = call.offset->kind != Kind::product || (call.layer.taps > 1 && !call.offset->gathers);
    keep = scaled ? T(1) : call.alpha;
  }
  combine(call.sparse, 0, filters, b.x, keep, b.y, ld, pixels);
  locate(call.layer, chunk, output_side(call.layer), call.out, chunk.low, chunk.high, b.map);
  unpack<T>(b.map, b.y, ld, filters, call.bias, call.out);
}

template <class T>
double backward(const Call<T>& call, const Chunk& chunk, T* scratch, double* values) {
  const Buffers<T> b(call, true, scratch);
  const Layer& layer = call.layer;
  const long pixels = chunk.pixels(call.frame), ld = call.frame.ld, inputs = layer.channels() * layer.phases;
  locate(layer, chunk, output_side(layer), call.y, -1, chunk.high, b.map);
  pack<T>(b.map, call.y, layer.filters, b.y, ld);
  clear_margins(call.frame, pixels, b.y, layer.filters);
  if (call.needs_values || call.needs_alpha) pack_input(call, chunk, b);
  // a band's own pixels: what lies before belongs to its neighbour
  const long skip = call.frame.banded ? (chunk.low - chunk.base) * call.frame.row_pixels : 0;
  const long own = call.frame.banded ? (chunk.high - chunk.low) * call.frame.row_pixels : pixels;
  double alpha = 0;
  if (call.offset && (call.needs_x || call.needs_alpha)) {
    offset_adjoint(call, b, pixels);
    if (call.needs_alpha)
      for (long i = 0; i < inputs; i++) alpha += dot(b.back + i * ld + skip, b.x + i * ld + skip, own);
  }
  if (call.needs_x) {
    combine(call.sparse_adjoint, 0, inputs, b.y, call.offset ? call.alpha : T(0), b.back, ld, pixels);
    unpack_input(call, chunk, b);
  }
  if (call.needs_values) dots(call.sparse, b.y + skip, ld, b.x + skip, own, values);
  return alpha;
}

}  // namespace dctps::DCTPS_ISA
