// The stages of a chunk: the pointwise stage of the offset, its depthwise stage, and their adjoints.
#pragma once

#include "fourier.h"
#include "hadamard.h"
#include "places.h"
#include "product.h"
#include "rows.h"
#include "turn.h"

namespace dctps::DCTPS_ISA {

template <class T>
struct Buffers {  // the buffers of a thread: rows of the packed grid, `ld` apart; pointers point to the first pixel
  T *x, *y, *back, *planes, *thin, *turned, *line;
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
    const bool depthwise = o && call.layer.taps > 1;
    const long planes = o && o->kind == Kind::product ? PLANES : (o ? o->planes : 0);
    y = take(scratch, f, call.layer.filters);
    x = take(scratch, f, !backward || call.needs_values || call.needs_alpha ? inputs : 0);
    back = take(scratch, f, backward ? inputs : 0);
    this->planes = take(scratch, f, depthwise ? planes * call.layer.phases : 0);
    thin = take(scratch, f, o && o->kind == Kind::product && o->folds ? o->rank * call.layer.phases : 0);
    turned = take(scratch, f, call.turns ? 2 : 0);
    line = scratch + used;
    used += o && o->kind == Kind::fourier ? o->fourier.length * PAIR<T> : 0;
    used += o && o->kind == Kind::hadamard ? o->length * PAIR<T> : 0;
    // Rows are whole cache lines long, so what follows them is aligned for every type.
    map.source = reinterpret_cast<int64_t*>(scratch + used);
    map.runs = reinterpret_cast<Run*>(map.source + f.ld);
    used += f.ld * MAP_BYTES / long(sizeof(T));
  }
};

// `combine` for rows (channel, phase) or (plane, phase) of the input's grid.
template <class T>
void combine_back(const Rows<T>& list, long from, long to, const T* source, const T* keep, T* out, long ld,
                  const Places& places) {
  if (places.phases == 1) return combine(list, from, to, source, keep, out, ld, places.input(0));
  for (long i = from; i < to; i++)
    combine_row(sum_of(list, i, source), Sum<T>{}, keep, out + (i - from) * ld, places.input(i));
}

// The next two functions apply the pointwise stage of a fast transform, and its adjoint, to all pixels and phases.
template <class T>
void lines_forward(const Call<T>& call, const T* x, T scale, T* out, T* z, const Places& places) {
  const Offset<T>& o = *call.offset;
  const long phases = call.layer.phases, ld = call.frame.ld;
  for (long f = 0; f < phases; f++)
    if (const Lines& lines = call.layer.taps > 1 ? places.seen(f) : places.input(f); o.kind == Kind::fourier)
      each_tile<T, 1>(lines, [&](long p, auto) {
        fourier_forward(o, x + f * ld + p, phases * ld, scale, out + f * ld + p, phases * ld, z);
      });
    else
      each_tile<T, 2>(lines, [&](long p, auto) {
        hadamard_forward(o, x + f * ld + p, phases * ld, scale, out + f * ld + p, phases * ld, z);
      });
}

template <class T>
void lines_adjoint(const Call<T>& call, const T* y, T* out, T* z, const Places& places) {
  const Offset<T>& o = *call.offset;
  const long phases = call.layer.phases, ld = call.frame.ld;
  for (long f = 0; f < phases; f++)
    if (const Lines& lines = places.input(f); o.kind == Kind::fourier)
      each_tile<T, 1>(lines, [&](long p, auto) {
        fourier_adjoint(o, y + f * ld + p, phases * ld, out + f * ld + p, phases * ld, z);
      });
    else
      each_tile<T, 2>(lines, [&](long p, auto) {
        hadamard_adjoint(o, y + f * ld + p, phases * ld, out + f * ld + p, phases * ld, z);
      });
}

// Computes the sums and the differences of channels at equal distance from the middle. In `out` the sums come first.
template <class T>
void fold(const Offset<T>& o, const T* x, T* out, long rows, const Lines& lines) {
  const long n = o.inputs;
  for (long c = 0; c < (n + 1) / 2; c++) {
    const T *a = x + c * rows, *b = x + (n - 1 - c) * rows;
    T *sum = out + c * rows, *difference = sum + (n + 1) / 2 * rows;
    const Vec<T> left = splat(o.sign[c]), right = splat(o.sign[n - 1 - c]);
    each_tile<T, 1>(lines, [&](long p, auto) {
      const Vec<T> first = left * load(a + p), second = 2 * c + 1 == n ? Vec<T>{} : right * load(b + p);
      store(sum + p, first + second);
      if (2 * c + 1 != n) store(difference + p, first - second);
    });
  }
}

// The adjoint of `fold`.
template <class T>
void unfold(const Offset<T>& o, const T* folded, T* out, long rows, const Lines& lines) {
  const long n = o.inputs;
  for (long c = 0; c < (n + 1) / 2; c++) {
    T *a = out + c * rows, *b = out + (n - 1 - c) * rows;
    const T *sum = folded + c * rows, *difference = sum + (n + 1) / 2 * rows;
    const Vec<T> left = splat(o.sign[c]), right = splat(o.sign[n - 1 - c]);
    each_tile<T, 1>(lines, [&](long p, auto) {
      const Vec<T> even = load(sum + p), odd = 2 * c + 1 == n ? Vec<T>{} : load(difference + p);
      store(a + p, left * (even + odd));
      if (2 * c + 1 != n) store(b + p, right * (even - odd));
    });
  }
}

// Whether S is added behind the depthwise stage. A few values of a filter are added while its sums are in registers;
// many of them are faster piece by piece of the pixels, for all filters, as `combine` adds them.
template <class T>
bool is_apart(const Call<T>& call) {
  return call.sparse.start[call.sparse.count] > 32 * call.sparse.count;
}

// y[k] = the depthwise stage of filter k, multiplied by alpha, for the filters `from` to `to`, and S x unless S is apart.
// `planes` holds their planes alone.
template <class T>
void depthwise_forward(const Call<T>& call, const Buffers<T>& b, long from, long to, const T* planes,
                       const Places& places) {
  const long ld = call.frame.ld;
  auto sparse = [&](long k) { return is_apart(call) ? Sum<T>{} : sum_of(call.sparse, k, b.x); };
  if (!call.turns) {
    // The list counts the planes of all filters.
    const T* all = planes - from * call.offset->parts * call.layer.phases * ld;
    for (long k = from; k < to; k++)
      combine_row(sum_of(call.taps, k, all), sparse(k), NOTHING<T>, b.y + k * ld, places.output);
    return;
  }
  for (long k = from; k < to; k++) {
    const T* plane = planes + 2 * (k - from) * ld;
    turn_columns(call.offset->turns[k], plane, plane + ld, call.turn_column, b.turned, b.turned + ld, places.turned);
    combine_row(sum_of(call.taps, k, b.turned), sparse(k), NOTHING<T>, b.y + k * ld, places.output);
  }
}

// The adjoint of the depthwise stage: the planes of the filters `from` to `to`.
template <class T>
void depthwise_adjoint(const Call<T>& call, const Buffers<T>& b, long from, long to, T* planes, const Places& places) {
  const long ld = call.frame.ld, back = 2 * call.turn_column;
  if (!call.turns) {
    const bool all = call.offset->kind != Kind::product;  // other transforms may have planes that several filters read
    const long first = all ? 0 : from * call.offset->parts, last = all ? call.offset->planes : to * call.offset->parts;
    return combine_back(call.taps_adjoint, first * call.layer.phases, last * call.layer.phases, b.y,
                   NOTHING<T>, planes, ld, places);
  }
  Lines spread = places.turned;
  if (call.frame.inner == 1) {  // whole vectors before the first pixel, which the turn back reads
    spread.first = -WIDTH<T> * ((back + WIDTH<T> - 1) / WIDTH<T>);
    spread.length = places.input(0).length - spread.first;
  }
  for (long k = from; k < to; k++) {
    T* plane = planes + 2 * (k - from) * ld;
    const Turn<T>& turn = call.offset->turns[k];
    spread_rows(turn, b.y + k * ld, call.turn_row, b.turned, b.turned + ld, spread);
    turn_columns(turn, b.turned - back, b.turned + ld - back, call.turn_column, plane, plane + ld, places.input(0));
  }
}

// D x for the filters `from` to `to`, where the pointwise stage is a matrix product; all where there is no other stage.
template <class T>
void product_forward(const Call<T>& call, long from, long to, const Buffers<T>& b, const Places& places) {
  const Offset<T>& o = *call.offset;
  const long phases = call.layer.phases, ld = call.frame.ld, rows = phases * ld;
  const bool depthwise = call.layer.taps > 1;
  auto lines = [&](long f) { return depthwise ? places.seen(f) : places.input(f); };
  for (long f = 0; o.folds && f < phases; f++)
    if (o.thin) fold_product(o, b.x + f * ld, rows, b.thin + f * ld, rows, lines(f));
    else fold(o, b.x + f * ld, b.thin + f * ld, rows, lines(f));
  const T* source = o.folds ? b.thin : b.x;
  if (!depthwise) return product(o.part[0].second, from, to, source, call.steps, b.y, ld, lines(0));
  const long block = PLANES / o.parts;
  for (long k = from; k < to; k += block) {
    const long last = k + block < to ? k + block : to;
    for (int i = 0; i < o.parts; i++)
      for (long f = 0; f < phases; f++)
        product(o.part[i].second, k, last, source + o.part[i].rank_start * rows + f * ld, call.steps,
                b.planes + i * rows + f * ld, o.parts * rows, lines(f));
    depthwise_forward(call, b, k, last, b.planes, places);
  }
}

// `offset_adjoint` where the pointwise stage is a matrix product.
template <class T>
void product_adjoint(const Call<T>& call, const Buffers<T>& b, const Places& places) {
  const Offset<T>& o = *call.offset;
  const long phases = call.layer.phases, ld = call.frame.ld, rows = phases * ld, filters = call.layer.filters;
  T* target = o.folds ? b.thin : b.back;
  const long block = PLANES / o.parts;
  for (long k = 0; k < filters; k += block) {
    const long count = filters - k < block ? filters - k : block;
    const bool depthwise = call.layer.taps > 1;
    if (depthwise) depthwise_adjoint(call, b, k, k + count, b.planes, places);
    for (int i = 0; i < o.parts; i++) {
      const Part<T>& part = o.part[i];
      const long padded = (part.rank + ROWS - 1) / ROWS * ROWS;
      const Matrix<T> matrix = {part.second_adjoint + k * padded, part.rank, count};
      auto run = k ? product<T, true> : product<T, false>;
      for (long f = 0; f < phases; f++)
        run(matrix, 0, part.rank, depthwise ? b.planes + i * rows + f * ld : b.y + k * ld, call.plane_steps,
            target + part.rank_start * rows + f * ld, rows, places.input(f));
    }
  }
  for (long f = 0; o.folds && f < phases; f++)
    if (o.thin) unfold_product(o, b.thin + f * ld, rows, b.back + f * ld, rows, places.input(f));
    else unfold(o, b.thin + f * ld, b.back + f * ld, rows, places.input(f));
}

}  // namespace dctps::DCTPS_ISA
