// The places of a chunk: which flat pixels each stage computes, and which are zeros between them.
#pragma once

#include "lines.h"
#include "pack.h"

namespace dctps::DCTPS_ISA {

// Sets the zeros of a row outside of the lines.
template <class T>
void clear_outside(const Frame& f, const Lines& lines, T* row) {
  long p = -f.margin;
  for (long line = 0; line < lines.count; line++) {
    const long first = lines.first + line * lines.step;
    fill(row + p, first - p);
    p = first + lines.length;
  }
  fill(row + p, f.ld - f.margin - p);
}

// Calls visit(side, index of the phase) for every phase that some kernel position reads.
template <class Visit>
void each_phase(const Layer& layer, Visit visit) {
  const long all = layer.axis[0].stride * layer.axis[1].stride * layer.axis[2].stride;
  for (long number = 0; number < all; number++)
    if (layer.phase_of[number] >= 0) visit(input_side(layer, number), layer.phase_of[number]);
}

// The flat pixels of a chunk that the stages compute. Where pixels are neighbours, these are all of them, and the zeros
// behind them where a stage reads those of the stage before it. Where images are, the zeros between lines are left out.
struct Places {
  Lines turned, output;  // of h (rows of x, columns of y), and of y
  const long phases;     // phases whose places differ

  Places(const Layer& layer, const Frame& f, const Chunk& chunk) : phases(f.inner == 1 ? 1 : layer.phases) {
    const long pixels = chunk.pixels(f);
    output = x[0] = {0, 0, 1, pixels}, turned = read[0] = {0, 0, 1, pixels + f.reach};
    if (f.inner == 1) return;
    each_phase(layer, [&](const Side& side, long phase) { x[phase] = read[phase] = inside(layer, f, side); });
    output = inside(layer, f, output_side(layer));
    turned = {x[0].first - x[0].first % f.row_pixels, f.row_pixels, x[0].count, output.length};
  }

  const Lines& input(long row) const { return x[row % phases]; }    // of row (channel, phase) of x
  const Lines& seen(long row) const { return read[row % phases]; }  // of a row that the depthwise stage reads

 private:
  Lines x[MAX_PHASES], read[MAX_PHASES];

  // The lines of the grid that lie in the tensor; the grid has pixels in the order (row, column, image).
  static Lines inside(const Layer& layer, const Frame& f, const Side& side) {
    long first[2], count[2];
    for (int i = 0; i < 2; i++) {
      const int a = i ? AXES - 1 : 0;
      const long last = (side.size[a] - 1 - side.origin[a]) / side.stride[a], grid = layer.axis[a].grid;
      first[i] = side.origin[a] < 0 ? (side.stride[a] - 1 - side.origin[a]) / side.stride[a] : 0;
      count[i] = (last < grid ? last + 1 : grid) - first[i];
    }
    return {first[0] * f.row_pixels + first[1] * f.inner, f.row_pixels, count[0], count[1] * f.inner};
  }
};

}  // namespace dctps::DCTPS_ISA
