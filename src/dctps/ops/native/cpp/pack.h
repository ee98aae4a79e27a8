// Copies between tensors of any strides and the packed grid of a chunk.
//
// A map says where each pixel of the grid lies in the tensor. It is made once per chunk and serves all channels.
// Tensors with neighbouring channels (channels-last, and the input of linear layers) are transposed in square blocks
// whose side is the width of a vector. In other tensors, runs of pixels are copied.
#pragma once

#include <type_traits>
#include <utility>

#include "finish.h"
#include "simd.h"

namespace dctps::DCTPS_ISA {

struct Side {  // where the grid lies on a tensor: index in the tensor = grid coordinate * stride + origin
  long size[AXES], stride[AXES], origin[AXES];
};

inline Side input_side(const Layer& layer, long phase) {  // `phase` counts all stride0 * stride1 * stride2 phases
  Side side;
  for (int a = AXES - 1; a >= 0; a--) {
    const Axis& axis = layer.axis[a];
    side.size[a] = axis.in;
    side.stride[a] = axis.stride;
    side.origin[a] = phase % axis.stride - axis.padding;
    phase /= axis.stride;
  }
  return side;
}

inline Side output_side(const Layer& layer) {
  Side side;
  for (int a = 0; a < AXES; a++) side.size[a] = layer.axis[a].out, side.stride[a] = 1, side.origin[a] = 0;
  return side;
}

struct Run {  // pixels that are neighbours on the grid and `step` apart in the tensor
  int64_t source, step;
  long target, count;
};

struct Map {
  int64_t* source;  // (pixels) index of each grid pixel in channel 0 of the tensor, or -1 outside of the tensor
  Run* runs;        // the same pixels as runs, made on demand
  long pixels;
};
constexpr long MAP_BYTES = sizeof(int64_t) + sizeof(Run);  // bytes of a map per pixel

inline long index_along(const Side& side, int axis, long coordinate) {  // -1 outside of the tensor
  const long index = coordinate * side.stride[axis] + side.origin[axis];
  return index >= 0 && index < side.size[axis] ? index : -1;
}

// Makes the map of a chunk. Rows outside of low .. high count as outside of the tensor.
template <class T>
void locate(const Layer& layer, const Frame& frame, const Chunk& chunk, const Side& side, const View<T>& view, long low,
            long high, Map& map) {
  int64_t* to = map.source;
  for (long i = 0; i < chunk.images; i += frame.inner)
    for (long v = 0; v < chunk.rows; v++) {
      const long u = chunk.base + v, i0 = u >= low && u < high ? index_along(side, 0, u) : -1;
      for (long j = 0; j < layer.axis[1].grid; j++) {
        const long i1 = index_along(side, 1, j);
        const int64_t row = (chunk.image + i) * view.batch + i0 * view.axis[0] + i1 * view.axis[1];
        for (long k = 0; k < layer.axis[2].grid; k++) {
          const long i2 = index_along(side, 2, k);
          const bool outside = i0 < 0 || i1 < 0 || i2 < 0;
          for (long l = 0; l < frame.inner; l++)
            *to++ = outside || i + l >= chunk.images ? -1 : row + l * view.batch + i2 * view.axis[2];
        }
      }
    }
  map.pixels = to - map.source;
}

// Finds the runs of a map and returns their number.
inline long find_runs(const Map& map) {
  long count = 0;
  for (long p = 0; p < map.pixels;) {
    if (map.source[p] < 0) {
      p++;
      continue;
    }
    Run run = {map.source[p], 1, p, 1};
    if (p + 1 < map.pixels && map.source[p + 1] >= 0) run.step = map.source[p + 1] - map.source[p];
    while (++p < map.pixels && map.source[p] >= 0 && map.source[p] == map.source[p - 1] + run.step) run.count++;
    map.runs[count++] = run;
  }
  return count;
}

template <class T>
inline void fill(T* to, long count) {
  for (long i = 0; i < count; i++) to[i] = 0;
}

// --- transposing blocks of W x W, W the width of a vector -----------------------------------------------------------

template <class T, int... I>
inline Vec<T> shuffle(Vec<T> a, Vec<T> b) {
#if defined(__GNUC__) && !defined(__clang__)  // GCC has __builtin_shufflevector only from version 12
  using Index = std::conditional_t<sizeof(T) == 4, int32_t, int64_t>;
  return __builtin_shuffle(a, b, Vec<Index>{I...});
#else
  return __builtin_shufflevector(a, b, I...);
#endif
}
template <class T, int... I>
inline Vec<T> interleave_low(Vec<T> a, Vec<T> b, std::integer_sequence<int, I...>) {
  return shuffle<T, (I / 2 + I % 2 * int(sizeof...(I)))...>(a, b);
}
template <class T, int... I>
inline Vec<T> interleave_high(Vec<T> a, Vec<T> b, std::integer_sequence<int, I...>) {
  constexpr int n = sizeof...(I);
  return shuffle<T, (n / 2 + I / 2 + I % 2 * n)...>(a, b);
}

// Transposes a block of W vectors in log2(W) steps of interleaving.
template <class T>
inline void transpose(Vec<T>* rows) {
  constexpr int W = WIDTH<T>;
  using Lane = std::make_integer_sequence<int, W>;
  for (int step = 1; step < W; step *= 2) {
    Vec<T> next[W];
    for (int i = 0; i < W / 2; i++) {
      next[2 * i] = interleave_low<T>(rows[i], rows[i + W / 2], Lane());
      next[2 * i + 1] = interleave_high<T>(rows[i], rows[i + W / 2], Lane());
    }
    for (int i = 0; i < W; i++) rows[i] = next[i];
  }
}

constexpr long NEAR = 64 << 10;  // bytes up to which the pixels of the next turn are fetched ahead of it

// Whether flat pixels are near one another in the tensor; neighbouring images are not.
inline bool is_near(const Map& map, long channels) {
  long p = map.pixels / 2;
  while (p + 1 < map.pixels && (map.source[p] < 0 || map.source[p + 1] < 0)) p++;
  return p + 1 < map.pixels && map.source[p + 1] - map.source[p] <= 8 * channels;
}

// Packs all whole blocks of channels. Channels are the inner loop, because neighbours share a cache line of the tensor.
template <class T>
void pack_blocks(const Map& map, const T* data, long channels, T* grid, long ld) {
  constexpr long W = WIDTH<T>;
  const bool near = is_near(map, channels) && 2 * W * channels * long(sizeof(T)) <= NEAR;
  for (long p = 0; p < map.pixels; p += 2 * W)
    for (long c = 0; c + W <= channels; c += W)
      for (long half = p; half < p + 2 * W; half += W) {
        Vec<T> rows[W];
        for (long j = 0; j < W; j++) {
          const int64_t source = half + j < map.pixels ? map.source[half + j] : -1;
          rows[j] = source < 0 ? Vec<T>{} : load(data + source + c);
          if (near && half + j + 2 * W < map.pixels) __builtin_prefetch(data + map.source[half + j + 2 * W] + c);
        }
        transpose<T>(rows);
        for (long b = 0; b < W; b++) store(grid + (c + b) * ld + half, rows[b]);
      }
}

constexpr long STAGED = 128;  // channels that are staged at a time: so many of W pixels stay in the first-level cache

// Unpacks the pixels p to p + W for `count` channels, whole blocks. They are staged pixel by pixel in the first-level
// cache, so that the tensor is written in long runs, which its cache lines and pages reward.
template <class T, bool STREAM>
inline void unpack_pixels(const Map& map, long p, const T* grid, long ld, long count, const Finish<T>& finish, T* data) {
  constexpr long W = WIDTH<T>, LD = STAGED + W;
  alignas(64) T stage[W * LD];
  for (long c = 0; c < count; c += W) {
    Vec<T> rows[W];
    for (long b = 0; b < W; b++) rows[b] = load(grid + (c + b) * ld + p);
    transpose<T>(rows);
    const Vec<T> scale = finish.scale ? load(finish.scale + c) : splat(T(1));
    const Vec<T> shift = finish.shift ? load(finish.shift + c) : Vec<T>{};
    for (long j = 0; j < W; j++) store<T>(stage + j * LD + c, rows[j] * scale + shift);
  }
  for (long j = 0; j < W && p + j < map.pixels; j++) {
    const int64_t at = map.source[p + j];
    if (at < 0) continue;
    for (long c = 0; c < count; c += W) {
      Vec<T> v = load(stage + j * LD + c);
      if (finish.residual) v += load(finish.residual + at + c);
      v = activated(v, finish.activation);
      STREAM ? stream<T>(data + at + c, v) : store<T>(data + at + c, v);
    }
  }
}

template <class T, bool STREAM>
void unpack_blocks(const Map& map, const T* grid, long ld, long channels, const Finish<T>& finish, T* data) {
  constexpr long W = WIDTH<T>;
  const long whole = channels / W * W;
  for (long p = 0; p < map.pixels; p += W)
    for (long c = 0; c < whole; c += STAGED) {
      const long count = whole - c < STAGED ? whole - c : STAGED;
      unpack_pixels<T, STREAM>(map, p, grid + c * ld, ld, count, from_channel(finish, c, c), data + c);
    }
}

// Copies `count` pixels of one channel, whose scale and shift these are, to a tensor where they are `step` apart.
template <class T>
inline void unpack_run(long count, long step, const T* from, T scale, T shift, const T* residual, Activation activation,
                       T* to) {
  for (long j = 0; j < count; j++) {
    const T v = from[j] * scale + shift + (residual ? residual[j * step] : T(0));
    to[j * step] = activated(v, activation);
  }
}

// --- all channels ---------------------------------------------------------------------------------------------------

// Copies all channels of the tensor to rows of the grid, `ld` apart, with zeros where the tensor has no pixel.
template <class T>
void pack(const Map& map, const View<const T>& view, long channels, T* grid, long ld) {
  long c = 0;
  if (view.channel == 1) pack_blocks(map, view.data, channels, grid, ld), c = channels / WIDTH<T> * WIDTH<T>;
  if (c == channels) return;
  const long runs = find_runs(map);
  for (; c < channels; c++) {
    T* row = grid + c * ld;
    const T* data = view.data + c * view.channel;
    fill(row, map.pixels);
    for (long i = 0; i < runs; i++) {
      const Run run = map.runs[i];
      T* to = row + run.target;
      const T* from = data + run.source;
      if (run.step == 1)
        for (long j = 0; j < run.count; j++) to[j] = from[j];
      else
        for (long j = 0; j < run.count; j++) to[j] = from[j * run.step];
    }
  }
}

// Copies rows of the grid to the channels of the tensor, finished.
template <class T>
void unpack(const Map& map, const T* grid, long ld, long channels, const Finish<T>& finish, const View<T>& view) {
  long c = 0;
  if (view.channel == 1) {
    (view.large ? unpack_blocks<T, true> : unpack_blocks<T, false>)(map, grid, ld, channels, finish, view.data);
    if (view.large) end_of_stream();
    c = channels / WIDTH<T> * WIDTH<T>;
  }
  if (c == channels) return;
  const long runs = find_runs(map);
  for (; c < channels; c++) {
    const T scale = finish.scale ? finish.scale[c] : T(1), shift = finish.shift ? finish.shift[c] : T(0);
    for (long i = 0; i < runs; i++) {
      const Run run = map.runs[i];
      const int64_t at = c * view.channel + run.source;
      const T *from = grid + c * ld + run.target, *residual = finish.residual ? finish.residual + at : nullptr;
      T* to = view.data + at;
      if (run.step == 1) unpack_run(run.count, 1, from, scale, shift, residual, finish.activation, to);
      else unpack_run(run.count, run.step, from, scale, shift, residual, finish.activation, to);
    }
  }
}

}  // namespace dctps::DCTPS_ISA
