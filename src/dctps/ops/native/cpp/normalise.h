// BatchNorm, the addition of a residual and an activation in one pass over memory, and the two passes of its gradient:
//
//     y = activation((x - mean) scale + shift + residual)
//
// A tensor is a dense matrix. In one layout a vector holds neighbouring columns, and each column has its constants
// (channels-last tensors, and contiguous ones with small planes). In the other one a row is a plane of one channel.
// Sums run in registers over a few rows, in type T over a block of rows, and in double over blocks.
#pragma once

#include "finish.h"
#include "simd.h"

namespace dctps::DCTPS_ISA {

constexpr long ROW_BLOCK = 256;       // rows whose sums are in type T
constexpr long PLANE_BLOCK = 4096;  // elements of a plane whose sums are in type T

// --- one element or one vector of elements ---------------------------------------------------------------------------

template <class P, class T>
inline P fill(T value) {
  return value - P{};
}

// The gradient of the activation's input, from the gradient of its output y; y may also be the input.
template <Activation A, class P>
inline P masked(P grad, P y) {
  const P zero{}, six = zero + 6;
  if constexpr (A != Activation::none) grad = y <= zero ? zero : grad;
  if constexpr (A == Activation::relu6) grad = y >= six ? zero : grad;
  return grad;
}

// Constants at column j, as vectors of neighbours, or of row's channel, as vectors of equal elements.
template <bool PLANES, class P, class T>
inline P constant(const T* values, long channel, long column) {
  if (PLANES) return fill<P>(values[channel]);
  return take<P>(values + column);
}

// --- what is done with each element ----------------------------------------------------------------------------------

template <class T, Activation A, bool RESIDUAL, bool PAST>
struct Output {
  const Normalisation<T>& n;

  template <class P>
  struct Constants {
    P mean, scale, shift;
  };
  template <bool PLANES, class P>
  inline Constants<P> constants(long channel, long column) const {
    return {constant<PLANES, P>(n.mean, channel, column), constant<PLANES, P>(n.scale, channel, column),
            constant<PLANES, P>(n.shift, channel, column)};
  }
  template <class P>
  inline void at(const Constants<P>& k, long i) const {
    P v = (take<P>(n.x + i) - k.mean) * k.scale + k.shift;
    if constexpr (RESIDUAL) v += take<P>(n.residual + i);
    put<PAST>(n.out + i, activated<A>(v));
  }
};

template <class T, Activation A, bool FROM_Y, bool PAST>
struct Gradient {
  const Normalisation<T>& n;

  template <class P>
  struct Constants {
    P mean, scale, shift, slope, offset;
  };
  template <bool PLANES, class P>
  inline Constants<P> constants(long channel, long column) const {
    return {constant<PLANES, P>(n.mean, channel, column), constant<PLANES, P>(n.scale, channel, column),
            constant<PLANES, P>(n.shift, channel, column), constant<PLANES, P>(n.slope, channel, column),
            constant<PLANES, P>(n.offset, channel, column)};
  }
  template <class P>
  inline void at(const Constants<P>& k, long i) const {
    const P d = take<P>(n.x + i) - k.mean;
    P g = loaded(take<P>(n.grad + i));
    if constexpr (FROM_Y) g = masked<A>(g, take<P>(n.y + i));
    else g = masked<A>(g, P(d * k.scale + k.shift));
    put<PAST>(n.out + i, P(g * k.scale + (d * k.slope + k.offset)));
  }
};

template <class T>
struct Statistics {  // sums of d and of d d, where d is the distance from the first element of the block
  const Normalisation<T>& n;
  const T* first;  // the first row of the block, or the first element of a block of a plane

  template <class P>
  struct Constants {
    P mean;
  };
  template <bool PLANES, class P>
  inline Constants<P> constants(long, long column) const {
    return {constant<PLANES, P>(first, 0, column)};
  }
  template <class P>
  inline void at(const Constants<P>& k, long i, P& a, P& b) const {
    const P d = take<P>(n.x + i) - k.mean;
    a += d, b += d * d;
  }
};

template <class T, Activation A, bool FROM_Y, bool WRITES, bool PAST>
struct Sums {  // sums of g and of g (x - mean)
  const Normalisation<T>& n;

  template <class P>
  struct Constants {
    P mean, scale, shift;
  };
  template <bool PLANES, class P>
  inline Constants<P> constants(long channel, long column) const {
    return {constant<PLANES, P>(n.mean, channel, column), constant<PLANES, P>(n.scale, channel, column),
            constant<PLANES, P>(n.shift, channel, column)};
  }
  template <class P>
  inline void at(const Constants<P>& k, long i, P& a, P& b) const {
    const P d = take<P>(n.x + i) - k.mean;
    P g = loaded(take<P>(n.grad + i));
    if constexpr (FROM_Y) g = masked<A>(g, take<P>(n.y + i));
    else g = masked<A>(g, P(d * k.scale + k.shift));
    if constexpr (WRITES) put<PAST>(n.residual_grad + i, g);
    a += g, b += g * d;
  }
};

// --- walks over a tile -----------------------------------------------------------------------------------------------

constexpr int ABREAST = COLUMNS;  // vectors of a row that are in registers together

// Does a task for rows first .. first + ROWS, vector by vector. Several rows share the loads of constants and sums, which
// saves time where these leave the first cache (long rows) or x comes from a cache; one row after the other is the order
// in which memory is fastest.
template <class T, long ROWS, class Task>
inline void walk_rows(const Task& task, long first, const Tile& t) {
  constexpr long W = WIDTH<T>;
  const long ld = task.n.columns;
  long j = t.first_column;
  for (; j + W <= t.last_column; j += W) {
    const auto k = task.template constants<false, Vec<T>>(0, j);
    for (long r = 0; r < ROWS; r++) task.at(k, (first + r) * ld + j);
  }
  for (; j < t.last_column; j++) {
    const auto k = task.template constants<false, T>(0, j);
    for (long r = 0; r < ROWS; r++) task.at(k, (first + r) * ld + j);
  }
}

template <class T, long ROWS, class Task>
inline void add_rows(const Task& task, long first, const Tile& t, T* a, T* b) {
  constexpr long W = WIDTH<T>;
  const long ld = task.n.columns, c = t.first_column;
  long j = c;
  for (; j + W <= t.last_column; j += W) {
    const auto k = task.template constants<false, Vec<T>>(0, j);
    Vec<T> sa = load(a + j - c), sb = load(b + j - c);
    for (long r = 0; r < ROWS; r++) task.at(k, (first + r) * ld + j, sa, sb);
    store(a + j - c, sa), store(b + j - c, sb);
  }
  for (; j < t.last_column; j++) {
    const auto k = task.template constants<false, T>(0, j);
    for (long r = 0; r < ROWS; r++) task.at(k, (first + r) * ld + j, a[j - c], b[j - c]);
  }
}

// The same for rows that are short enough for registers to hold their constants and sums.
template <class T, class Task>
inline void walk_short(const Task& task, const Tile& t) {
  constexpr long W = WIDTH<T>;
  decltype(task.template constants<false, Vec<T>>(0, 0)) k[ABREAST];
  for (int v = 0; v < ABREAST; v++) k[v] = task.template constants<false, Vec<T>>(0, t.first_column + v * W);
  for (long r = t.first_row; r < t.last_row; r++)
    for (int v = 0; v < ABREAST; v++) task.at(k[v], r * task.n.columns + t.first_column + v * W);
}

template <class T, class Task>
inline void add_short(const Task& task, const Tile& t, T* a, T* b) {
  constexpr long W = WIDTH<T>;
  decltype(task.template constants<false, Vec<T>>(0, 0)) k[ABREAST];
  Vec<T> sa[ABREAST], sb[ABREAST];
  for (int v = 0; v < ABREAST; v++) {
    k[v] = task.template constants<false, Vec<T>>(0, t.first_column + v * W);
    sa[v] = load(a + v * W), sb[v] = load(b + v * W);
  }
  for (long r = t.first_row; r < t.last_row; r++)
    for (int v = 0; v < ABREAST; v++) task.at(k[v], r * task.n.columns + t.first_column + v * W, sa[v], sb[v]);
  for (int v = 0; v < ABREAST; v++) store(a + v * W, sa[v]), store(b + v * W, sb[v]);
}

template <class T, class Task>
void walk_columns(const Task& task, const Tile& t) {
  if (t.last_column - t.first_column == ABREAST * WIDTH<T>) return walk_short<T>(task, t);
  long r = t.first_row;
  for (; task.n.together && r + 4 <= t.last_row; r += 4) walk_rows<T, 4>(task, r, t);
  for (; r < t.last_row; r++) walk_rows<T, 1>(task, r, t);
}

// Adds the sums of the columns of a tile to a and b, which start at its first column.
template <class T, class Task>
void add_columns(const Task& task, const Tile& t, T* a, T* b) {
  if (t.last_column - t.first_column == ABREAST * WIDTH<T>) return add_short(task, t, a, b);
  long r = t.first_row;
  for (; task.n.together && r + 8 <= t.last_row; r += 8) add_rows<T, 8>(task, r, t, a, b);
  for (; r < t.last_row; r++) add_rows<T, 1>(task, r, t, a, b);
}

template <class T, class Task>
void walk_planes(const Task& task, const Tile& t) {
  constexpr long W = WIDTH<T>;
  for (long r = t.first_row; r < t.last_row; r++) {
    const auto k = task.template constants<true, Vec<T>>(r % task.n.planes, 0);
    const auto rest = task.template constants<true, T>(r % task.n.planes, 0);
    const long last = (r + 1) * task.n.columns;
    long i = r * task.n.columns;
    for (; i + W <= last; i += W) task.at(k, i);
    for (; i < last; i++) task.at(rest, i);
  }
}

// The sums over elements first .. last of the plane of this channel.
template <class T, class Task>
inline void add_plane(const Task& task, long channel, long first, long last, T& a, T& b) {
  constexpr long W = WIDTH<T>;
  const auto k = task.template constants<true, Vec<T>>(channel, 0);
  const auto rest = task.template constants<true, T>(channel, 0);
  Vec<T> sa[ABREAST] = {}, sb[ABREAST] = {};
  long i = first;
  for (; i + ABREAST * W <= last; i += ABREAST * W)
    for (int v = 0; v < ABREAST; v++) task.at(k, i + v * W, sa[v], sb[v]);
  for (; i + W <= last; i += W) task.at(k, i, sa[0], sb[0]);
  a = b = 0;
  for (; i < last; i++) task.at(rest, i, a, b);
  for (int v = 1; v < ABREAST; v++) sa[0] += sa[v], sb[0] += sb[v];
  a += sum<T>(sa[0]), b += sum<T>(sb[0]);
}

// --- statistics ------------------------------------------------------------------------------------------------------

struct Weights {  // of a block of elements among those seen before
  double inverse, share, between;
  Weights(long seen, long count)
      : inverse(1 / double(count)), share(double(count) / double(seen + count)), between(double(seen) * share) {}
};

// Merges a block with the sums a and b of distances from `first` into the mean and the square of those seen before.
template <class T>
inline void merge(const Weights& w, T first, T a, T b, double& mean, double& square) {
  const double shift = double(a) * w.inverse, apart = double(first) + shift - mean;
  const double deviation = double(b) - double(a) * shift;
  mean += apart * w.share;
  square += (deviation < 0 ? 0 : deviation) + apart * apart * w.between;
}

template <class T>
void normalise_statistics(const Normalisation<T>& n, const Tile& t, T* scratch, double* mean, double* square) {
  const long width = t.last_column - t.first_column, results = n.planes ? t.last_row - t.first_row : width;
  for (long j = 0; j < results; j++) mean[j] = square[j] = 0;
  if (n.planes) {
    for (long r = t.first_row; r < t.last_row; r++)
      for (long seen = 0; seen < n.columns; seen += PLANE_BLOCK) {
        const long first = r * n.columns + seen, left = n.columns - seen, count = left < PLANE_BLOCK ? left : PLANE_BLOCK;
        T a, b;
        add_plane(Statistics<T>{n, n.x + first}, 0, first, first + count, a, b);
        merge(Weights(seen, count), n.x[first], a, b, mean[r - t.first_row], square[r - t.first_row]);
      }
    return;
  }
  T *a = scratch, *b = scratch + width;
  for (long r = t.first_row; r < t.last_row; r += ROW_BLOCK) {
    const long end = r + ROW_BLOCK < t.last_row ? r + ROW_BLOCK : t.last_row;
    const T* first = n.x + r * n.columns;
    for (long j = 0; j < 2 * width; j++) scratch[j] = 0;
    add_columns(Statistics<T>{n, first}, Tile{r, end, t.first_column, t.last_column}, a, b);
    const Weights w(r - t.first_row, end - r);
    for (long j = 0; j < width; j++) merge(w, first[t.first_column + j], a[j], b[j], mean[j], square[j]);
  }
}

// --- sums of the gradient --------------------------------------------------------------------------------------------

template <class T, class Task>
void sums_by(const Task& task, const Tile& t, T* scratch, double* sum, double* product) {
  const Normalisation<T>& n = task.n;
  const long width = t.last_column - t.first_column, results = n.planes ? t.last_row - t.first_row : width;
  for (long j = 0; j < results; j++) sum[j] = product[j] = 0;
  if (n.planes) {
    for (long r = t.first_row; r < t.last_row; r++)
      for (long first = r * n.columns, end = first + n.columns; first < end; first += PLANE_BLOCK) {
        T a, b;
        add_plane(task, r % n.planes, first, end - first < PLANE_BLOCK ? end : first + PLANE_BLOCK, a, b);
        sum[r - t.first_row] += a, product[r - t.first_row] += b;
      }
    return;
  }
  T *a = scratch, *b = scratch + width;
  for (long r = t.first_row; r < t.last_row; r += ROW_BLOCK) {
    const long end = r + ROW_BLOCK < t.last_row ? r + ROW_BLOCK : t.last_row;
    for (long j = 0; j < 2 * width; j++) scratch[j] = 0;
    add_columns(task, Tile{r, end, t.first_column, t.last_column}, a, b);
    for (long j = 0; j < width; j++) sum[j] += a[j], product[j] += b[j];
  }
}

template <class T, Activation A>
void sums_with(const Normalisation<T>& n, const Tile& t, T* scratch, double* sum, double* product) {
  if (!n.y) sums_by(Sums<T, A, false, false, false>{n}, t, scratch, sum, product);
  else if (!n.residual_grad) sums_by(Sums<T, A, true, false, false>{n}, t, scratch, sum, product);
  else if (!n.residual_past) sums_by(Sums<T, A, true, true, false>{n}, t, scratch, sum, product);
  else sums_by(Sums<T, A, true, true, true>{n}, t, scratch, sum, product);
}

template <class T>
void normalise_sums(const Normalisation<T>& n, const Tile& t, T* scratch, double* sum, double* product) {
  if (n.activation == Activation::none) sums_by(Sums<T, Activation::none, false, false, false>{n}, t, scratch, sum, product);
  else if (n.activation == Activation::relu) sums_with<T, Activation::relu>(n, t, scratch, sum, product);
  else sums_with<T, Activation::relu6>(n, t, scratch, sum, product);
  if (n.residual_past) end_of_stream();
}

// --- outputs and gradients -------------------------------------------------------------------------------------------

template <class T, class Task>
void walk(const Task& task, const Tile& t) {
  if (task.n.planes) walk_planes<T>(task, t);
  else walk_columns<T>(task, t);
}

template <class T, Activation A, bool PAST>
void normalise_with(const Normalisation<T>& n, const Tile& t) {
  if (n.residual) walk<T>(Output<T, A, true, PAST>{n}, t);
  else walk<T>(Output<T, A, false, PAST>{n}, t);
}

template <class T, bool PAST>
void normalise_to(const Normalisation<T>& n, const Tile& t) {
  if (n.activation == Activation::none) normalise_with<T, Activation::none, PAST>(n, t);
  else if (n.activation == Activation::relu) normalise_with<T, Activation::relu, PAST>(n, t);
  else normalise_with<T, Activation::relu6, PAST>(n, t);
}

template <class T>
void normalise(const Normalisation<T>& n, const Tile& t) {
  if (!n.past) return normalise_to<T, false>(n, t);
  normalise_to<T, true>(n, t);
  end_of_stream();
}

template <class T, Activation A, bool PAST>
void gradient_with(const Normalisation<T>& n, const Tile& t) {
  if (n.y) walk<T>(Gradient<T, A, true, PAST>{n}, t);
  else walk<T>(Gradient<T, A, false, PAST>{n}, t);
}

template <class T, bool PAST>
void gradient_to(const Normalisation<T>& n, const Tile& t) {
  if (n.activation == Activation::none) walk<T>(Gradient<T, Activation::none, false, PAST>{n}, t);
  else if (n.activation == Activation::relu) gradient_with<T, Activation::relu, PAST>(n, t);
  else gradient_with<T, Activation::relu6, PAST>(n, t);
}

template <class T>
void normalise_gradient(const Normalisation<T>& n, const Tile& t) {
  if (!n.past) return gradient_to<T, false>(n, t);
  gradient_to<T, true>(n, t);
  end_of_stream();
}

}  // namespace dctps::DCTPS_ISA
