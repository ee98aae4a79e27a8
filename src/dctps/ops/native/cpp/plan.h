// The data of a call: plain numbers and pointers, shared by the code of all instruction sets.
//
// A chunk of the batch is some images, or some rows of one image. It is packed as [channel][phase][flat pixel] on a
// grid padded with zeros. Flat pixels have the order (image, pixel) or, where images are small and neighbouring images
// fill the vectors, (pixel, image): then every shift is a whole number of vectors, and what lies between the lines of
// pixels is never computed. A stride s divides the input into s phases per axis; pixels that are s apart in the input are
// neighbours in a phase. Whatever stride, padding and dilation are, kernel position t then reads phase[t] at the
// constant distance shift[t] in the flat pixels:
//
//     y[k][p] = sum_(c,t) W[k,c,t] x[c][phase_t][p + shift_t]
//
// The adjoint is x[c][f][p] = sum over k and all t with phase f of W[k,c,t] y[k][p - shift_t]. The gradient of a weight
// is the dot product of y[k] and the shifted x[c]. y is zero wherever there is no output, so nothing crosses an edge.
#pragma once

#include <cstdint>

namespace dctps {

constexpr int AXES = 3;     // spatial axes; layers with fewer have axes of size one
constexpr int MAX_STAGES = 40;  // largest number of stages of a Fourier transform
constexpr int MAX_PHASES = 16;  // largest number of phases of interleaved images
constexpr int ROWS = 6;     // rows of a tile of a matrix product
constexpr int PLANES = 24;  // planes that a matrix product and the depthwise stage process at a time

// The axis of the grid that axis `a` of a layer with `axes` axes becomes. The first axis becomes the rows, because
// large inputs are divided into bands of rows. The last of several axes becomes the axis of neighbours in memory.
inline __attribute__((always_inline)) int axis_of(int axes, int a) {
  return axes <= 2 && a == 0 ? 0 : AXES - axes + a;
}

struct Axis {
  long in, out, kernel, stride, padding, dilation;
  long reach;  // the largest shift along this axis
  long grid;   // pixels of the grid along this axis
};

struct Layer {  // the geometry of a layer on inputs of one size
  long groups, filters, group_channels, batch;
  Axis axis[AXES];
  long taps, phases;
  const int32_t* phase_of;     // (stride0 * stride1 * stride2): index among the phases in use, or -1
  const int32_t* tap_phase;    // (taps): phase that a kernel position reads
  const int64_t* tap_shift;    // (taps): its shift in flat pixels
  __attribute__((always_inline)) long channels() const { return groups * group_channels; }
};

struct Frame {  // the layout in memory that all chunks of a call have
  long images, rows;  // largest numbers of images and of rows in a chunk
  bool banded;        // whether chunks are bands of rows of one image
  long inner;         // images that are neighbours in the flat pixels; 1 where pixels are neighbours
  long reach;         // the largest shift
  long margin, ld;    // number of zeros before the pixels of a row, and of elements from one row to the next
  long row_pixels;    // flat pixels of one row of the first axis
};

struct Lines {  // flat pixels: `count` lines of `length` pixels, `step` apart
  long first, step, count, length;
};

struct Chunk {
  long image, images;  // first image and number of images
  long base, rows;  // first row (in output coordinates) and number of rows of each image
  long low, high;   // rows whose results this chunk writes
  long first_filter, last_filter;  // filters whose results this chunk computes; all of them in a backward pass
  __attribute__((always_inline)) long pixels(const Frame& f) const {
    return (images + f.inner - 1) / f.inner * rows * f.row_pixels;
  }
};

template <class T>
struct View {  // a tensor (batch, channels, 3 axes) of any strides, in elements
  T* data;
  int64_t batch, channel, axis[AXES];
  bool large;  // whether it is much larger than the caches and the channels of every pixel are aligned to a vector
};

template <class T>
struct Entry {  // one multiply-add of a row of pixels: weight * source[offset + pixel]
  int32_t offset;
  T weight;
};

template <class T>
struct Rows {  // a list of sums: out[i] is the sum of the entries start[i] .. start[i + 1]
  const int32_t* start;
  const Entry<T>* entries;
  long count;
};

enum class Kind { none, product, fourier, hadamard };

template <class T>
struct Matrix {  // a matrix packed for products: [rows / ROWS][columns][ROWS]
  const T* data;
  long rows, columns;
};

template <class T>
struct Fourier {  // a Fourier transform along the channels, see fourier.h
  long length;  // number of complex rows
  int stages;
  int radix[MAX_STAGES];
  const T* twiddle[MAX_STAGES];  // (block / radix, radix - 1) complex numbers for each stage
  const T* root[MAX_STAGES];     // (radix) complex numbers for each stage
  // The half row of each input (2 * row is a real part, 2 * row + 1 an imaginary part), before and after a transform.
  const int32_t *place, *place_after;  // (inputs)
  const T* sign_after;                 // (inputs)
  // The outputs are grouped by the pair of rows, f and -f, that they are computed from: up to four share one reading.
  long pairs;
  bool covers;                            // whether every row belongs to a pair
  const int32_t *low, *high, *low_after, *high_after;  // (pairs): rows f and -f, before and after a transform
  const int32_t *start, *output;          // (pairs + 1), (outputs): the outputs of each pair
  const T* weight;                        // (outputs, 4): weights of both parts of both rows
};

// When channels are counted from their middle, cosines are even and sines are odd. So the channels are folded into the
// sums x_c + x_(n-1-c) and the differences x_c - x_(n-1-c), and each term is a product with one of these halves, which
// halves the work.
template <class T>
struct Part {  // one term: the product second * first of two thin factors, or `second` alone
  long inputs, rank;  // columns of `first` and of `second`; they are equal where there is no `first`
  long rank_start;  // its first row among the ranks of all parts
  Matrix<T> first, first_adjoint, second;  // the first factors of both parts have as many rows, some of them zeros
  const T* second_adjoint;  // the transpose in blocks of PLANES / terms columns, each packed as a Matrix
};

// The depthwise stage of a 3 x 3 kernel whose weights are waves. The two planes of a filter are the real and imaginary
// part of z, and its weights, as complex numbers, are column_i exp(i (j - 1) angle) for kernel position (i, j):
//
//     h(p) = sum_j exp(i (j - 1) angle) z(p + j);    y(p) = Re sum_i column_i h(p + i rows)
template <class T>
struct Turn {
  T cosine, sine;  // of the angle
  T real[3], imaginary[3];  // column_i
};

template <class T>
struct Offset {
  Kind kind;            // kind of the pointwise stage
  long inputs, planes;  // inputs and outputs of the pointwise stage; planes have the order (filter, term)
  const T* sign;        // (inputs)
  // if the kind is product:
  bool thin, folds;  // whether the parts have thin factors, and whether channels are folded
  int parts;
  Part<T> part[2];
  long rank;  // sum of the ranks of all parts
  const Turn<T>* turns;  // (filters), or null where the depthwise weights are no waves
  Fourier<T> fourier;  // if the kind is fourier
  // if the kind is hadamard:
  long length;
  const int32_t* row;  // (planes): row of the transform that a plane is
  T scale;
};

enum class Activation { none, relu, relu6 };

// What is done with an output y before it is written: activation(scale y + shift + residual). In evaluation it holds a
// bias, a BatchNorm, the addition of a residual and an activation.
template <class T>
struct Finish {
  const T *scale, *shift;  // (filters), or null
  const T* residual;       // a tensor with the strides of the output, or null
  Activation activation;
};

template <class T>
struct Call {
  Layer layer;
  Frame frame;
  const Offset<T>* offset;  // null without an offset
  T alpha;
  Rows<T> taps, taps_adjoint;      // the depthwise stage; empty where there is one kernel position
  bool turns;                      // whether it is computed by turns; `taps` then reads the two rows of h
  long turn_row, turn_column;      // shifts of the next row and column of the kernel
  Rows<T> sparse, sparse_adjoint;  // S by (filter), and by (channel, phase)
  const int32_t* steps;            // starts of the rows of a phase: 0, 1, 2, ... times phases * ld
  const int32_t* plane_steps;      // starts of the planes of a term: 0, 1, 2, ... times terms * phases * ld
  View<const T> x, y;              // the input, and the gradient of the output
  View<T> out;                     // the output, or the gradient of the input
  Finish<T> finish;                // of the forward pass
  bool needs_x, needs_values, needs_alpha;
};

// --- channels-last tensors, whose neighbouring channels fill vectors without packing -------------------------------

struct Meet {  // a kernel position, and the coordinate of the source that a destination reads with it
  int32_t tap, source;
};

struct Span {  // destinations first, first + step, ... with the same kernel positions; each reads `source_step` further
  long first, step, count, source_step;
  const Meet *meets, *end;  // meets of the first destination
};

template <class T>
struct Gather {  // a depthwise convolution or its adjoint: out[p][c] = sum over p's meets of w[tap][c] source[..][c]
  View<const T> source;
  View<T> out;
  const T* weight;  // (taps, channels)
  long channels, kernel[AXES], size[2];
  const Meet* const* meets[2];  // first meet of each destination coordinate on the first two axes, and the end
  const Span* spans;            // spans of the last axis
  long span_count;
};

template <class T>
struct Pointwise {  // y[p] = W x[p] for densely packed pixels, forwards and backwards
  long pixels, channels, filters;
  const T *forward, *back;  // W' and D as panels, see pointwise.h
  T alpha;
  const T *x, *y;  // the input, and the gradient of the output
  T* out;          // the output, or the gradient of the input
  bool past;       // whether `out` is written past the caches
  long count;      // nnz of S
  const int32_t *start, *filter, *value;  // the places of S by channel: where a channel starts, filter, index of the value
  const T* values;
  bool needs_x, needs_values;
};

// --- normalisation, see normalise.h --------------------------------------------------------------------------------

template <class T>
struct Normalisation {  // y = activation((x - mean) scale + shift + residual), or its gradient, on a dense matrix
  long columns;  // elements from one row to the next
  long planes;   // 0 where constants belong to columns; else the number of channels, and row r has channel r % planes
  Activation activation;
  const T *x, *residual;            // residual is null where there is none
  const T *mean, *scale, *shift;    // constants of the columns, or of the channels
  const T *grad, *y;                // gradient of the output; y is null where x says which outputs the activation cut
  const T *slope, *offset;          // the gradient of x is scale * grad + slope * (x - mean) + offset
  T *out, *residual_grad;           // the output, or the gradient of x; the gradient of the residual, or null
  bool past, residual_past;         // whether they are written past the caches
  bool together;                    // whether several rows are read at a time
};

struct Tile {  // a part of the matrix
  long first_row, last_row, first_column, last_column;
};

template <class T>
struct Kernels {  // the kernels of one instruction set
  long lanes;  // pixels that a transform takes at a time; fewer pixels would leave vectors half empty
  long (*scratch)(const Call<T>&, bool backward);  // elements of scratch memory that a thread needs
  void (*forward)(const Call<T>&, const Chunk&, T* scratch);
  // Adds the gradients of the values to `values` (nnz) and returns <x, D'y>.
  double (*backward)(const Call<T>&, const Chunk&, T* scratch, double* values);
  void (*gather)(const Gather<T>&, long image, long row);
  void (*weight)(const Gather<T>& forward, const View<const T>& y, long image, long row, T* sums);  // adds to `sums`
  long panel;  // columns of a panel
  long (*pointwise_scratch)(const Pointwise<T>&);
  void (*pointwise)(const Pointwise<T>&, long first, long last, T* scratch);
  double (*pointwise_backward)(const Pointwise<T>&, long first, long last, T* scratch, double* values);
  // Means, and sums of squared deviations from them, of each column of a tile, or of each row where rows are planes.
  void (*normalise_statistics)(const Normalisation<T>&, const Tile&, T* scratch, double* mean, double* square);
  void (*normalise)(const Normalisation<T>&, const Tile&);
  // Sums of g and of g (x - mean), where g is the gradient behind the activation; writes g to `residual_grad`, if any.
  void (*normalise_sums)(const Normalisation<T>&, const Tile&, T* scratch, double* sum, double* product);
  void (*normalise_gradient)(const Normalisation<T>&, const Tile&);
};

}  // namespace dctps
