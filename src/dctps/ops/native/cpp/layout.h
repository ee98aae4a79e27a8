// The geometry of a layer on inputs of one size, and the division of its batch into chunks. The header of plan.h
// describes the grid, its phases and its shifts.
#pragma once

#include <vector>

#include "plan.h"

namespace dctps {

using Numbers = std::vector<long>;

struct Taps {  // what follows from the geometry of the layer alone, whatever the size of the input
  int axes;
  long groups, filters, group_channels, taps, phases;
  long kernel[AXES], stride[AXES], padding[AXES], dilation[AXES];
  std::vector<int32_t> phase_of, tap_phase;  // see Layer

  // The numbers are groups, filters, channels per group, then kernel, stride, padding and dilation of all axes.
  explicit Taps(const Numbers& geometry);
  // Writes the coordinates of a kernel position to `out`.
  void coordinates(long tap, long out[AXES]) const;
};

struct Layout {  // a layer on inputs of one size
  Taps taps;
  Layer layer;
  std::vector<int64_t> tap_shift;

  Layout(const Numbers& geometry, const Numbers& input);  // `input` is (batch, channels, spatial sizes)
  Numbers output() const;                                 // (batch, filters, spatial sizes)
  bool reads_all() const;                                 // whether some output reads each input pixel
};

// The chunks of a batch. A chunk takes about `budget` bytes when a pixel of the grid takes `pixel_bytes`, and it has at
// least `lanes` pixels. There are enough chunks for all threads. Images are interleaved only where the channels of every
// pixel are neighbours (`adjacent`); elsewhere that would copy single numbers. Where there are fewer chunks than threads,
// and `by_filters` says that filters can be computed apart, each thread takes some filters of a chunk.
struct Chunks {
  Frame frame;
  std::vector<int64_t> shift;  // (taps): shift of each kernel position in the flat pixels of the frame
  std::vector<Chunk> list;
  Chunks(const Layer& layer, bool backward, long pixel_bytes, long budget, long lanes, bool adjacent, int threads,
         bool by_filters = false);

 private:
  void divide_filters(long filters, long pieces);
};

}  // namespace dctps
