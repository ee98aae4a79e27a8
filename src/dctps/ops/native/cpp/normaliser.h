// Calls of the kernels of normalise.h: how a tensor is a matrix, how it is divided into tiles, and how the sums of tiles
// become statistics and gradients of channels. Tiles depend on the shape alone, so results are the same for any number
// of threads.
#pragma once

#include <cmath>
#include <memory>
#include <numeric>
#include <vector>

#include "arrays.h"
#include "parallel.h"
#include "plan.h"

namespace dctps {

template <class T>
const Kernels<T>& kernels();

struct Share {  // what a tile contributes: sums of `count` elements of each of `channels` channels, from `channel` on
  long channel, channels, count, result;  // result: where they are among the results of all tiles
};

struct Grid {  // a dense tensor (batch, channels, pixels) as a matrix
  long channels, count;  // count: elements of a channel
  long rows, columns;
  long inner = 1;        // neighbouring columns of one channel
  bool planes = false;   // whether a row is a plane of one channel
  long chunk;            // columns of a tile
  std::vector<Tile> tiles;
  std::vector<Share> parts;  // one per tile or, where rows are planes, one per image

  Grid(long batch, long c, long pixels, bool channels_last) : channels(c), count(batch * pixels) {
    if (channels_last || pixels == 1) fold(batch * pixels);
    else if (pixels <= SMALL_PLANE) rows = batch, columns = c * pixels, inner = pixels;
    else rows = batch * c, columns = pixels, planes = true;
    chunk = planes ? columns : std::min(columns, inner > 1 ? inner * (TILE_COLUMNS / inner / 16 * 16) : 2 * TILE_COLUMNS);
    const long height = std::max(planes ? 1L : 64L, TILE_SIZE / std::max(1L, chunk));
    for (long r = 0; r < rows; r += height)
      for (long j = 0; j < columns; j += chunk) add({r, std::min(rows, r + height), j, std::min(columns, j + chunk)});
    if (const long left = channels_last || pixels == 1 ? count * channels - rows * columns : 0)
      add({rows, rows + 1, 0, left});
    for (long n = 0; planes && n < batch; n++) parts.push_back({0, c, pixels, n * c});
  }

  long spread() const { return planes ? 1 : columns / channels; }  // columns of a channel
  long results() const { return planes ? rows : parts.empty() ? 0 : parts.back().result + parts.back().channels; }

 private:
  static constexpr long SMALL_PLANE = 256;         // pixels up to which a row has the planes of all channels
  static constexpr long TILE_SIZE = 1 << 17;       // elements of a tile
  static constexpr long TILE_COLUMNS = 4096;       // columns of a tile whose sums stay in the caches
  static constexpr long UNIT = 64;                 // columns that all vectors divide

  // Several pixels of few channels become one row, such that vectors fill it.
  void fold(long pixels) {
    long together = UNIT / std::gcd(std::max(1L, channels), UNIT);
    while (together > 1 && (together * channels > 2 * TILE_COLUMNS || together > pixels)) together /= 2;
    rows = pixels / together, columns = together * channels;
  }

  void add(const Tile& t) {
    tiles.push_back(t);
    if (planes) return;
    const long width = t.last_column - t.first_column, own = columns == channels || inner > 1 ? width / inner : channels;
    const long first = columns == channels || inner > 1 ? t.first_column / inner : 0;
    parts.push_back({first, own, (t.last_row - t.first_row) * (width / own), results()});
  }
};

template <class T>
class Normaliser {
 public:
  const Grid grid;
  Normalisation<T> call{};

  Normaliser(long batch, long channels, long pixels, bool channels_last, int activation, int threads)
      : grid(batch, channels, pixels, channels_last), threads(threads) {
    call.columns = grid.columns, call.planes = grid.planes ? channels : 0, call.activation = Activation(activation);
    call.together = grid.columns * sizeof(T) >= LONG_ROW || !is_large();
  }

  // Whether the caches hold too little of the tensors; a pass has several of one size, so each counts double.
  bool is_large() const { return 2 * size_t(grid.count * grid.channels) * sizeof(T) > LARGE; }

  // Whether a tensor of this size is written past the caches, which takes whole, aligned cache lines.
  bool past(const void* data) const {
    const size_t line = 64, row = grid.columns * sizeof(T), tile = grid.chunk * sizeof(T);
    return is_large() && row % line == 0 && tile % line == 0 && reinterpret_cast<uintptr_t>(data) % line == 0;
  }

  // The constants of channels as the kernels take them.
  const T* constants(const T* values) {
    const long copies = grid.spread() / grid.inner;
    if (grid.spread() == 1) return values;
    own.emplace_back(new T[grid.columns]);
    T* to = own.back().get();
    for (long k = 0; k < copies; k++)
      for (long c = 0; c < grid.channels; c++)
        for (long i = 0; i < grid.inner; i++) *to++ = values[c];
    return own.back().get();
  }

  // The mean and the biased variance of each channel.
  void statistics(double* mean, double* variance) {
    Results results = reduced(kernels<T>().normalise_statistics, true);
    std::fill(mean, mean + grid.channels, 0.0), std::fill(variance, variance + grid.channels, 0.0);
    const double whole = 1 / double(grid.count);
    for (const Share& p : grid.parts)
      for (long c = 0; c < p.channels; c++) mean[p.channel + c] += results.a[p.result + c] * (double(p.count) * whole);
    for (const Share& p : grid.parts)
      for (long c = 0; c < p.channels; c++) {
        const double apart = results.a[p.result + c] - mean[p.channel + c];
        variance[p.channel + c] += (results.b[p.result + c] + double(p.count) * apart * apart) * whole;
      }
  }

  // The sums of g and of g (x - mean) of each channel.
  void sums(double* sum, double* product) {
    Results results = reduced(kernels<T>().normalise_sums, false);
    std::fill(sum, sum + grid.channels, 0.0), std::fill(product, product + grid.channels, 0.0);
    for (const Share& p : grid.parts)
      for (long c = 0; c < p.channels; c++)
        sum[p.channel + c] += results.a[p.result + c], product[p.channel + c] += results.b[p.result + c];
  }

  // Runs a kernel on all tiles, the last one first, because the caches may still have what was read last.
  void run(void (*kernel)(const Normalisation<T>&, const Tile&)) const {
    const long count = long(grid.tiles.size());
    parallel(count, threads, [&](long i) { kernel(call, grid.tiles[count - 1 - i]); });
  }

 private:
  using Reduction = void (*)(const Normalisation<T>&, const Tile&, T*, double*, double*);
  struct Results {
    std::unique_ptr<double[]> a, b;
  };

  static constexpr size_t LONG_ROW = 4096;  // bytes of a row whose constants do not stay in the first cache

  const int threads;
  std::vector<std::unique_ptr<T[]>> own;

  Results reduced(Reduction kernel, bool deviations) const {
    const long size = grid.results();
    Results all{std::unique_ptr<double[]>(new double[size]), std::unique_ptr<double[]>(new double[size])};
    parallel(long(grid.tiles.size()), threads, [&](long i) {
      const Tile& t = grid.tiles[i];
      const std::unique_ptr<T[]> scratch(new T[2 * grid.chunk]);
      if (grid.planes || grid.spread() == 1) {
        const long at = grid.planes ? t.first_row : grid.parts[i].result;
        return kernel(call, t, scratch.get(), all.a.get() + at, all.b.get() + at);
      }
      const std::unique_ptr<double[]> a(new double[grid.chunk]), b(new double[grid.chunk]);
      kernel(call, t, scratch.get(), a.get(), b.get());
      gather(t, grid.parts[i], a.get(), b.get(), all.a.get() + grid.parts[i].result, all.b.get() + grid.parts[i].result, deviations);
    });
    return all;
  }

  // The results of the channels of a tile from those of its columns: sums, or means and squared deviations from them.
  void gather(const Tile& t, const Share& p, const double* a, const double* b, double* to_a, double* to_b, bool deviations) const {
    const long inner = grid.inner, copies = (t.last_column - t.first_column) / (p.channels * inner);
    const double share = deviations ? 1 / double(copies * inner) : 1, height = double(t.last_row - t.first_row);
    std::fill(to_a, to_a + p.channels, 0.0), std::fill(to_b, to_b + p.channels, 0.0);
    auto each = [&](auto&& add) {
      for (long k = 0; k < copies; k++)
        for (long c = 0; c < p.channels; c++)
          for (long i = 0; i < inner; i++) add(c, (k * p.channels + c) * inner + i);
    };
    each([&](long c, long j) { to_a[c] += a[j] * share; });
    each([&](long c, long j) {
      const double apart = deviations ? a[j] - to_a[c] : 0;
      to_b[c] += b[j] + height * apart * apart;
    });
  }
};

}  // namespace dctps
