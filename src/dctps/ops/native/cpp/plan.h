// What a call knows: plain numbers and pointers, shared by the code of all instruction sets.
//
// A chunk of the batch (some images, or some rows of one) is packed as [channel][phase][flat pixel] on a grid padded
// with zeros. A stride s splits the input into s phases, pixels s apart being neighbours; then kernel position t reads
// phase[t] at the constant distance shift[t] in the flat pixels, whatever stride, padding and dilation are:
//
//     y[k][p] = sum_(c,t) W[k,c,t] x[c][phase_t][p + shift_t]
//
// The adjoint is x[c][f][p] = sum over t with phase f of W[k,c,t] y[k][p - shift_t], and the gradient of a weight the
// dot product of y[k] and the shifted x[c]. y is zero wherever no output is, so nothing crosses an edge.
#pragma once

#include <cstdint>

namespace dctps {

constexpr int AXES = 3;     // fewer axes are filled up with ones
constexpr int MAX_STAGES = 40;
constexpr int ROWS = 6;     // of a tile of a matrix product
constexpr int PLANES = 24;  // planes that the adjoint of a matrix product takes at a time

// Where axis `a` of `axes` goes: the first one becomes rows, so that large inputs can be cut into bands, and the last of
// several the one of neighbours in memory.
inline __attribute__((always_inline)) int axis_of(int axes, int a) {
  return axes <= 2 && a == 0 ? 0 : AXES - axes + a;
}

struct Axis {
  long in, out, kernel, stride, padding, dilation;
  long reach;  // the largest shift along this axis
  long grid;   // pixels of the grid
};

struct Layer {  // geometry of the layer on inputs of one size
  long groups, filters, group_channels, batch;
  Axis axis[AXES];
  long taps, phases;
  const int32_t* phase_of;     // (stride0 * stride1 * stride2): index among the phases in use, or -1
  const int32_t* tap_phase;    // (taps)
  const int64_t* tap_shift;    // (taps) in flat pixels
  __attribute__((always_inline)) long channels() const { return groups * group_channels; }
};

struct Frame {  // how every chunk of a call lies in memory
  long images, rows;  // at most, per chunk
  bool banded;        // chunks are bands of rows of one image
  long reach;         // the largest shift
  long margin, ld;    // zeros before the pixels of a row; elements from row to row
  long row_pixels;    // pixels of one row of the first axis
};

struct Chunk {
  long image, images;
  long base, rows;  // first row (in output coordinates) and number of rows of each image
  long low, high;   // the rows that this chunk answers for
  __attribute__((always_inline)) long pixels(const Frame& f) const { return images * rows * f.row_pixels; }
};

template <class T>
struct View {  // a tensor (batch, channels, 3 axes) of any strides, in elements
  T* data;
  int64_t batch, channel, axis[AXES];
  bool large;  // much larger than the caches, and every pixel's channels aligned to a vector
};

template <class T>
struct Entry {  // one multiply-add of a row of pixels
  int32_t offset;
  T weight;
};

template <class T>
struct Rows {  // out[i] = sum of entries[start[i]] .. entries[start[i + 1]]
  const int32_t* start;
  const Entry<T>* entries;
  long count;
};

enum class Kind { none, product, fourier, hadamard };

template <class T>
struct Matrix {  // packed for products: [rows / ROWS][columns][ROWS]
  const T* data;
  long rows, columns;
};

template <class T>
struct Fourier {
  long length;  // complex rows
  int stages;
  int radix[MAX_STAGES];
  const T* twiddle[MAX_STAGES];  // per stage [block / radix][radix - 1] complex
  const T* root[MAX_STAGES];     // per stage [radix] complex
  // Halves of rows (real and imaginary parts, counted through): where inputs go, and where the transform leaves them.
  const int32_t *place, *place_after;  // (inputs)
  const T* sign_after;                 // (inputs)
  // Outputs by the pair of rows (f and -f) that they are made of: a pair is read once for up to four of them.
  long pairs;
  bool covers;                            // does every row belong to a pair?
  const int32_t *low, *high, *low_after, *high_after;  // (pairs) rows as the adjoint takes and the transform leaves them
  const int32_t *start, *output;          // (pairs + 1), (outputs): which outputs
  const T* weight;                        // (outputs, 4): of both parts of both rows
};

// Cosines are even and sines odd in the channels counted from their middle. So the channels are folded, x_c + x_(n-1-c)
// and x_c - x_(n-1-c), and each term of the separable way is a product with its half of them: half the work.
template <class T>
struct Part {  // one term: second * first, or second alone
  long inputs, rank;  // rank = inputs without `first`
  long start, rank_start;  // its rows among the folded channels, and among those of all ranks
  Matrix<T> first, first_adjoint, second;
  const T* second_adjoint;  // blocks of PLANES / terms columns, each packed as a Matrix
};

template <class T>
struct Offset {
  Kind kind;
  long inputs, planes;  // of the pointwise stage; planes are ordered (filter, term)
  const T* sign;        // (inputs)
  // product
  bool thin, folds;
  int parts;
  Part<T> part[2];
  long rank;  // of all parts
  // Strided convolutions have fewer outputs than inputs, so both stages in one product cost less than the planes:
  // y = gather * (first x, as each kernel position sees it), columns ordered (kernel position, rank).
  bool gathers;
  Matrix<T> gather;
  const Matrix<T>* gather_adjoint;  // (phases), columns ordered (kernel position of the phase, filter)
  Fourier<T> fourier;
  // hadamard
  long length;
  const int32_t* row;  // (planes)
  T scale;
};

template <class T>
struct Call {
  Layer layer;
  Frame frame;
  const Offset<T>* offset;  // or null
  T alpha;
  Rows<T> taps, taps_adjoint;      // the depthwise stage; empty where there is one kernel position
  Rows<T> sparse, sparse_adjoint;  // S by (filter) and by (channel, phase)
  const int32_t* steps;            // rows of a phase: 0, 1, 2, ... times phases * ld
  const int32_t* plane_steps;      // planes of a term: 0, 1, 2, ... times terms * phases * ld
  const int32_t* gathered;         // rows that `gather` reads
  const int32_t* const* gathered_adjoint;
  View<const T> x, y;              // what is read (y: the gradient of the output)
  View<T> out;                     // what is written
  const T* bias;                   // or null
  bool needs_x, needs_values, needs_alpha;
};

// --- channels-last tensors, whose neighbouring channels fill vectors as they lie -----------------------------------

struct Meet {  // a kernel position and the coordinate of the source that it reads
  int32_t tap, source;
};

struct Span {  // destinations first, first + step, ... which read with the same kernel positions, one step further each
  long first, step, count, source_step;
  const Meet *meets, *end;  // of the first of them
};

template <class T>
struct Gather {  // a depthwise convolution or its adjoint: out[p][c] = sum over the meets of p of w[tap][c] source[..][c]
  View<const T> source;
  View<T> out;
  const T* weight;  // (taps, channels)
  long channels, kernel[AXES], size[2];
  const Meet* const* meets[2];  // by the destination's coordinate on the first two axes; one more marks the end
  const Span* spans;            // of the last axis
  long span_count;
};

template <class T>
struct Pointwise {  // y[p] = W x[p] over `pixels`, and backwards; x and y lie dense
  long pixels, channels, filters;
  const T *forward, *back;  // W' and D as panels of vectors, see pointwise.h
  T alpha;
  const T *x, *y;  // what is read (y: the gradient of the output)
  T* out;
  bool past;  // write past the caches
  long count;  // of S
  const int32_t *filter, *channel;
  const T* values;
  bool needs_x, needs_values, needs_alpha;
};

template <class T>
struct Kernels {  // one set per instruction set
  long lanes;  // pixels that a transform takes at a time: fewer would leave vectors half empty
  long (*scratch)(const Call<T>&, bool backward);  // elements that a thread needs
  void (*forward)(const Call<T>&, const Chunk&, T* scratch);
  // adds to `values` (nnz) and returns <x, D'y>
  double (*backward)(const Call<T>&, const Chunk&, T* scratch, double* values);
  void (*gather)(const Gather<T>&, long image, long row);
  void (*weight)(const Gather<T>& forward, const View<const T>& y, long image, long row, T* sums);  // adds (taps, channels)
  long panel;  // columns of a panel
  long (*pointwise_scratch)(const Pointwise<T>&);
  void (*pointwise)(const Pointwise<T>&, long first, long last, T* scratch);
  double (*pointwise_backward)(const Pointwise<T>&, long first, long last, T* scratch, double* values);
};

}  // namespace dctps
