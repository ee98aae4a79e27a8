// The geometry of a layer on inputs of one size, and how its batch is cut into chunks.
#pragma once

#include <vector>

#include "plan.h"

namespace dctps {

using Numbers = std::vector<long>;

struct Taps {  // what follows from the weight's shape, stride and dilation alone
  int axes;
  long groups, filters, group_channels, taps, phases;
  long kernel[AXES], stride[AXES], padding[AXES], dilation[AXES];
  std::vector<int32_t> phase_of, tap_phase;

  // groups, filters, channels per group, then kernel, stride, padding and dilation of each axis
  explicit Taps(const Numbers& geometry);
  void coordinates(long tap, long out[AXES]) const;
};

struct Layout {
  Taps taps;
  Layer layer;
  std::vector<int64_t> tap_shift;

  Layout(const Numbers& geometry, const Numbers& input);  // input: batch, channels, spatial sizes
  Numbers output() const;                                 // batch, filters, spatial sizes
  bool reads_all() const;                                 // does every input pixel reach an output?
};

// Chunks of about `budget` bytes where each pixel of the grid takes `pixel_bytes`, but of `lanes` pixels at least; and
// enough of them for all threads.
struct Chunks {
  Frame frame;
  std::vector<Chunk> list;
  Chunks(const Layer& layer, bool backward, long pixel_bytes, long budget, long lanes, int threads);
};

}  // namespace dctps
