// The computation of one chunk of a batch, forwards and backwards. A chunk is so small that everything between reading
// its input and writing its output stays in the cache.
#pragma once

#include "fourier.h"
#include "hadamard.h"
#include "pack.h"
#include "product.h"
#include "rows.h"

namespace dctps::DCTPS_ISA {

template <class T>
struct Buffers {  // the buffers of a thread: rows of the packed grid, `ld` apart; pointers point to the first pixel
  T *x, *y, *back, *planes, *thin, *folded, *line;
  mutable Map map;
  long used;

  // Reserves `rows` rows of the scratch memory.
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
    folded = take(scratch, f, o && o->kind == Kind::product && o->folds ? inputs : 0);
    line = scratch + used;
    used += o && o->kind == Kind::fourier ? o->fourier.length * PAIR<T> : 0;
    used += o && o->kind == Kind::hadamard ? o->length * PAIR<T> : 0;
    // Rows are whole cache lines long, so what follows them is aligned for every type.
    map.source = reinterpret_cast<int64_t*>(scratch + used);
    map.runs = reinterpret_cast<Run*>(map.source + f.ld);
    used += f.ld * MAP_BYTES / long(sizeof(T));
  }
};

// Sets the zeros before and behind the pixels of each row.
template <class T>
void clear_margins(const Frame& f, long pixels, T* rows, long count) {
  for (long i = 0; i < count; i++) {
    fill(rows + i * f.ld - f.margin, f.margin);
    fill(rows + i * f.ld + pixels, f.ld - f.margin - pixels);
  }
}

// Calls visit(side, index of the phase) for every phase that some kernel position reads.
template <class Visit>
void each_phase(const Layer& layer, Visit visit) {
  const long all = layer.axis[0].stride * layer.axis[1].stride * layer.axis[2].stride;
  for (long number = 0; number < all; number++)
    if (layer.phase_of[number] >= 0) visit(input_side(layer, number), layer.phase_of[number]);
}

// Packs the input of the chunk, phase by phase.
template <class T>
void pack_input(const Call<T>& call, const Chunk& chunk, const Buffers<T>& b) {
  const long phases = call.layer.phases, ld = call.frame.ld, far = 1L << 60;
  each_phase(call.layer, [&](const Side& side, long phase) {
    locate(call.layer, chunk, side, call.x, -far, far, b.map);
    pack<T>(b.map, call.x, call.layer.channels(), b.x + phase * ld, phases * ld);
  });
  clear_margins(call.frame, chunk.pixels(call.frame), b.x, call.layer.channels() * phases);
}

// Writes the gradient of the input back to its tensor, phase by phase.
template <class T>
void unpack_input(const Call<T>& call, const Chunk& chunk, const Buffers<T>& b) {
  const long phases = call.layer.phases, ld = call.frame.ld;
  each_phase(call.layer, [&](const Side& side, long phase) {
    locate(call.layer, chunk, side, call.out, chunk.low, chunk.high, b.map);
    unpack<T>(b.map, b.back + phase * ld, phases * ld, call.layer.channels(), nullptr, call.out);
  });
}

// The next two functions apply the pointwise stage of a fast transform, and its adjoint, to all pixels and phases.
template <class T>
void lines_forward(const Call<T>& call, const T* x, T scale, T* out, T* z, long pixels) {
  const Offset<T>& o = *call.offset;
  const long phases = call.layer.phases, ld = call.frame.ld;
  const bool fourier = o.kind == Kind::fourier;
  auto run = fourier ? fourier_forward<T> : hadamard_forward<T>;
  for (long f = 0; f < phases; f++)
    for (long p = 0; p < pixels; p += fourier ? WIDTH<T> : PAIR<T>)
      run(o, x + f * ld + p, phases * ld, scale, out + f * ld + p, phases * ld, z);
}

template <class T>
void lines_adjoint(const Call<T>& call, const T* y, T* out, T* z, long pixels) {
  const Offset<T>& o = *call.offset;
  const long phases = call.layer.phases, ld = call.frame.ld;
  const bool fourier = o.kind == Kind::fourier;
  auto run = fourier ? fourier_adjoint<T> : hadamard_adjoint<T>;
  for (long f = 0; f < phases; f++)
    for (long p = 0; p < pixels; p += fourier ? WIDTH<T> : PAIR<T>)
      run(o, y + f * ld + p, phases * ld, out + f * ld + p, phases * ld, z);
}

// Computes the sums and the differences of channels at equal distance from the middle. In `out` the sums come first.
template <class T>
void fold(const Call<T>& call, const T* x, T* out, long pixels) {
  const Offset<T>& o = *call.offset;
  const long n = o.inputs, rows = call.layer.phases * call.frame.ld;
  for (long f = 0; f < call.layer.phases; f++)
    for (long c = 0; c < (n + 1) / 2; c++) {
      const T *a = x + c * rows + f * call.frame.ld, *b = x + (n - 1 - c) * rows + f * call.frame.ld;
      T *sum = out + c * rows + f * call.frame.ld, *difference = sum + (n + 1) / 2 * rows;
      const Vec<T> left = splat(o.sign[c]), right = splat(o.sign[n - 1 - c]);
      if (2 * c + 1 == n)
        for (long p = 0; p < pixels; p += WIDTH<T>) store(sum + p, left * load(a + p));
      else
        for (long p = 0; p < pixels; p += WIDTH<T>) {
          const Vec<T> first = left * load(a + p), second = right * load(b + p);
          store(sum + p, first + second);
          store(difference + p, first - second);
        }
    }
}

// The adjoint of `fold`.
template <class T>
void unfold(const Call<T>& call, const T* folded, T* out, long pixels) {
  const Offset<T>& o = *call.offset;
  const long n = o.inputs, rows = call.layer.phases * call.frame.ld;
  for (long f = 0; f < call.layer.phases; f++)
    for (long c = 0; c < (n + 1) / 2; c++) {
      T *a = out + c * rows + f * call.frame.ld, *b = out + (n - 1 - c) * rows + f * call.frame.ld;
      const T *sum = folded + c * rows + f * call.frame.ld, *difference = sum + (n + 1) / 2 * rows;
      const Vec<T> left = splat(o.sign[c]), right = splat(o.sign[n - 1 - c]);
      if (2 * c + 1 == n)
        for (long p = 0; p < pixels; p += WIDTH<T>) store(a + p, left * load(sum + p));
      else
        for (long p = 0; p < pixels; p += WIDTH<T>) {
          const Vec<T> even = load(sum + p), odd = load(difference + p);
          store(a + p, left * (even + odd));
          store(b + p, right * (even - odd));
        }
    }
}

// `offset_forward` where the pointwise stage is a matrix product.
template <class T>
void product_forward(const Call<T>& call, const Buffers<T>& b, long pixels) {
  const Offset<T>& o = *call.offset;
  const long phases = call.layer.phases, ld = call.frame.ld, rows = phases * ld, filters = call.layer.filters;
  const long seen = pixels + call.frame.reach;  // the depthwise stage also reads zeros behind the last row
  const T* source = o.folds ? b.folded : b.x;
  if (o.folds) fold(call, b.x, b.folded, seen);
  for (int i = 0; o.thin && i < o.parts; i++)
    for (long f = 0; f < phases; f++)
      product(o.part[i].first, 0, o.part[i].rank, source + o.part[i].start * rows + f * ld, call.steps,
              b.thin + o.part[i].rank_start * rows + f * ld, rows, seen);
  if (o.thin) source = b.thin;
  if (o.gathers) return product(o.gather, 0, filters, source, call.gathered, b.y, ld, pixels);
  if (call.layer.taps == 1) return product(o.part[0].second, 0, filters, source, call.steps, b.y, ld, pixels);
  const long block = PLANES / o.parts;
  for (long k = 0; k < filters; k += block) {
    const long last = k + block < filters ? k + block : filters;
    for (int i = 0; i < o.parts; i++)
      for (long f = 0; f < phases; f++)
        product(o.part[i].second, k, last, source + o.part[i].rank_start * rows + f * ld, call.steps,
                b.planes + i * rows + f * ld, o.parts * rows, seen);
    // The list counts the planes of all filters, but b.planes holds those of this block alone.
    combine(call.taps, k, last, b.planes - k * o.parts * rows, NOTHING<T>, b.y + k * ld, ld, pixels);
  }
}

// `offset_adjoint` where the pointwise stage is a matrix product.
template <class T>
void product_adjoint(const Call<T>& call, const Buffers<T>& b, long pixels) {
  const Offset<T>& o = *call.offset;
  const long phases = call.layer.phases, ld = call.frame.ld, rows = phases * ld, filters = call.layer.filters;
  T* folded = o.folds ? b.folded : b.back;
  T* target = o.thin ? b.thin : folded;
  for (long f = 0; o.gathers && f < phases; f++)
    product(o.gather_adjoint[f], 0, o.rank, b.y, call.gathered_adjoint[f], target + f * ld, rows, pixels);
  const long block = PLANES / o.parts;
  for (long k = 0; !o.gathers && k < filters; k += block) {
    const long count = filters - k < block ? filters - k : block;
    const bool depthwise = call.layer.taps > 1;
    if (depthwise)
      combine(call.taps_adjoint, k * o.parts * phases, (k + count) * o.parts * phases, b.y, NOTHING<T>, b.planes, ld, pixels);
    for (int i = 0; i < o.parts; i++) {
      const Part<T>& part = o.part[i];
      const long padded = (part.rank + ROWS - 1) / ROWS * ROWS;
      const Matrix<T> matrix = {part.second_adjoint + k * padded, part.rank, count};
      auto run = k ? product<T, true> : product<T, false>;
      for (long f = 0; f < phases; f++)
        run(matrix, 0, part.rank, depthwise ? b.planes + i * rows + f * ld : b.y + k * ld, call.plane_steps,
            target + part.rank_start * rows + f * ld, rows, pixels);
    }
  }
  for (int i = 0; o.thin && i < o.parts; i++)
    for (long f = 0; f < phases; f++)
      product(o.part[i].first_adjoint, 0, o.part[i].inputs, b.thin + o.part[i].rank_start * rows + f * ld, call.steps,
              folded + o.part[i].start * rows + f * ld, rows, pixels);
  if (o.folds) unfold(call, b.folded, b.back, pixels);
}

// y = alpha D x. Only where no depthwise stage follows a matrix product, y = D x; the sparse part then scales it.
template <class T>
void offset_forward(const Call<T>& call, const Buffers<T>& b, long pixels) {
  if (call.offset->kind == Kind::product) return product_forward(call, b, pixels);
  const bool depthwise = call.layer.taps > 1;
  const long seen = pixels + call.frame.reach;
  lines_forward(call, b.x, depthwise ? T(1) : call.alpha, depthwise ? b.planes : b.y, b.line, seen);
  if (depthwise) combine(call.taps, 0, call.layer.filters, b.planes, NOTHING<T>, b.y, call.frame.ld, pixels);
}

// back = D'y.
template <class T>
void offset_adjoint(const Call<T>& call, const Buffers<T>& b, long pixels) {
  if (call.offset->kind == Kind::product) return product_adjoint(call, b, pixels);
  const bool depthwise = call.layer.taps > 1;
  const long planes = call.offset->planes * call.layer.phases;
  if (depthwise) combine(call.taps_adjoint, 0, planes, b.y, NOTHING<T>, b.planes, call.frame.ld, pixels);
  lines_adjoint(call, depthwise ? b.planes : b.y, b.back, b.line, pixels);
}

// The elements of scratch memory that a thread needs.
template <class T>
long scratch_size(const Call<T>& call, bool backward) {
  return Buffers<T>(call, backward, nullptr).used;
}

// y = (alpha D + S) x + bias for one chunk.
template <class T>
void forward(const Call<T>& call, const Chunk& chunk, T* scratch) {
  const Buffers<T> b(call, false, scratch);
  const long pixels = chunk.pixels(call.frame), ld = call.frame.ld, filters = call.layer.filters;
  pack_input(call, chunk, b);
  const T one = 1, *keep = NOTHING<T>;
  if (call.offset) {
    offset_forward(call, b, pixels);
    const bool scaled = call.offset->kind != Kind::product || (call.layer.taps > 1 && !call.offset->gathers);
    keep = scaled ? &one : &call.alpha;
  }
  combine(call.sparse, 0, filters, b.x, keep, b.y, ld, pixels);
  locate(call.layer, chunk, output_side(call.layer), call.out, chunk.low, chunk.high, b.map);
  unpack<T>(b.map, b.y, ld, filters, call.bias, call.out);
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
  const long pixels = chunk.pixels(call.frame), ld = call.frame.ld, inputs = layer.channels() * layer.phases;
  if (call.needs_values || call.needs_alpha) pack_input(call, chunk, b);
  locate(layer, chunk, output_side(layer), call.y, -1, chunk.high, b.map);
  pack<T>(b.map, call.y, layer.filters, b.y, ld);
  clear_margins(call.frame, pixels, b.y, layer.filters);
  // The gradients are summed over the band's own pixels; its neighbours sum over the others.
  const long skip = call.frame.banded ? (chunk.low - chunk.base) * call.frame.row_pixels : 0;
  const long own = call.frame.banded ? (chunk.high - chunk.low) * call.frame.row_pixels : pixels;
  if (call.needs_values) dots(call.sparse, b.y + skip, ld, b.x + skip, b.map.source + skip, own, values);
  double alpha = 0;
  if (call.offset && (call.needs_x || call.needs_alpha)) {
    offset_adjoint(call, b, pixels);
    if (call.needs_alpha)
      for (long i = 0; i < inputs; i++) alpha += dot(b.back + i * ld + skip, b.x + i * ld + skip, own);
    if (!finite(alpha)) alpha = dot_of_read_pixels(call, b, skip, skip + own);
  }
  if (call.needs_x) {
    combine(call.sparse_adjoint, 0, inputs, b.y, call.offset ? &call.alpha : NOTHING<T>, b.back, ld, pixels);
    unpack_input(call, chunk, b);
  }
  return alpha;
}

}  // namespace dctps::DCTPS_ISA
