// The support of S as the kernels need it: its positions by filter, and by (channel, phase) for the adjoint. It is made
// once per support.
#pragma once

#include <stdexcept>
#include <vector>

#include "layout.h"

namespace dctps {

struct Sparse {
  Taps taps;
  std::vector<int32_t> start, channel, tap;                     // by filter, in the order of the positions
  std::vector<int32_t> back_start, back_value, back_filter, back_tap;  // by channel * phases + phase

  Sparse(const Numbers& geometry, const int64_t* positions, long count) : taps(geometry) {
    const long patch = taps.group_channels * taps.taps, per_group = taps.filters / taps.groups;
    if (count > INT32_MAX) throw std::invalid_argument("more than 2^31 values in one layer");
    start.assign(taps.filters + 1, 0);
    back_start.assign(taps.groups * taps.group_channels * taps.phases + 1, 0);
    for (long i = 0; i < count; i++) {
      const int64_t at = positions[i];
      if (at < 0 || at >= taps.filters * patch || (i && at <= positions[i - 1]))
        throw std::invalid_argument("positions must be sorted, distinct and within the weight");
      const long filter = at / patch, inner = at % patch;
      start[filter + 1]++;
      channel.push_back(int32_t(filter / per_group * taps.group_channels + inner / taps.taps));
      tap.push_back(int32_t(inner % taps.taps));
      back_start[row(i) + 1]++;
    }
    for (size_t k = 1; k < start.size(); k++) start[k] += start[k - 1];
    for (size_t k = 1; k < back_start.size(); k++) back_start[k] += back_start[k - 1];
    back_value.resize(count), back_filter.resize(count), back_tap.resize(count);
    std::vector<int32_t> next(back_start.begin(), back_start.end() - 1);
    for (long i = 0; i < count; i++) {
      const int32_t to = next[row(i)]++;
      back_value[to] = int32_t(i), back_filter[to] = int32_t(positions[i] / patch), back_tap[to] = tap[i];
    }
  }

  long count() const { return long(channel.size()); }

 private:
  // The row (channel, phase) of the input that position i reads.
  long row(long i) const { return channel[i] * taps.phases + taps.tap_phase[tap[i]]; }
};

}  // namespace dctps
