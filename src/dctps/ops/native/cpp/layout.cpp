// The sizes, phases and shifts of the grid, and the division of a batch into chunks.
#include "layout.h"

#include <algorithm>
#include <stdexcept>

namespace dctps {

static constexpr long ALIGN = 16;  // elements of which rows and margins are multiples
static constexpr long NEAR = 8;    // a chunk of interleaved images takes up to this many times the budget,
static constexpr long NEAR_SMALL = 11;  // and up to so many times if an image has at most SMALL pixels
static constexpr long SMALL = 128;
static constexpr double WHOLE = 1.6;  // an image up to this many times the budget is not cut: bands compute rows twice

static long round_up(long value, long multiple) { return (value + multiple - 1) / multiple * multiple; }

Taps::Taps(const Numbers& geometry) {
  if (geometry.size() < 3 || (geometry.size() - 3) % 4 || geometry.size() > 3 + 4 * AXES)
    throw std::invalid_argument("a geometry is groups, filters, channels and four numbers for each of 0 to 3 axes");
  axes = int(geometry.size() - 3) / 4;
  groups = geometry[0], filters = geometry[1], group_channels = geometry[2];
  const long* numbers[4] = {kernel, stride, padding, dilation};
  for (int kind = 0; kind < 4; kind++)
    for (int a = 0; a < AXES; a++) const_cast<long*>(numbers[kind])[a] = kind == 2 ? 0 : 1;
  for (int a = 0; a < axes; a++) {
    const int to = axis_of(axes, a);
    for (int kind = 0; kind < 4; kind++) const_cast<long*>(numbers[kind])[to] = geometry[3 + kind * axes + a];
  }
  for (int a = 0; a < AXES; a++)
    if (kernel[a] < 1 || stride[a] < 1 || dilation[a] < 1 || padding[a] < 0)
      throw std::invalid_argument("kernel, stride and dilation are at least 1, padding at least 0");
  if (groups < 1 || filters < 1 || group_channels < 1 || filters % groups)
    throw std::invalid_argument("groups must divide the filters, and nothing may be empty");
  taps = kernel[0] * kernel[1] * kernel[2];
  phase_of.assign(stride[0] * stride[1] * stride[2], -1);
  phases = 0;
  for (long t = 0; t < taps; t++) {
    long at[AXES], number = 0;
    coordinates(t, at);
    for (int a = 0; a < AXES; a++) number = number * stride[a] + at[a] * dilation[a] % stride[a];
    if (phase_of[number] < 0) phase_of[number] = int32_t(phases++);
    tap_phase.push_back(phase_of[number]);
  }
}

void Taps::coordinates(long tap, long out[AXES]) const {
  for (int a = AXES - 1; a >= 0; a--) out[a] = tap % kernel[a], tap /= kernel[a];
}

Layout::Layout(const Numbers& geometry, const Numbers& input) : taps(geometry) {
  if (long(input.size()) != taps.axes + 2) throw std::invalid_argument("the input has another number of axes");
  if (input[1] != taps.groups * taps.group_channels) throw std::invalid_argument("the input has other channels");
  layer.groups = taps.groups, layer.filters = taps.filters, layer.group_channels = taps.group_channels;
  layer.batch = input[0];
  for (int a = 0; a < AXES; a++) layer.axis[a].in = 1;
  for (int a = 0; a < taps.axes; a++)
    layer.axis[axis_of(taps.axes, a)].in = input[2 + a];
  for (int a = 0; a < AXES; a++) {
    Axis& axis = layer.axis[a];
    axis.kernel = taps.kernel[a], axis.stride = taps.stride[a];
    axis.padding = taps.padding[a], axis.dilation = taps.dilation[a];
    const long span = axis.dilation * (axis.kernel - 1) + 1, room = axis.in + 2 * axis.padding;
    if (room < span) throw std::invalid_argument("the (padded) input is smaller than the kernel");
    axis.out = (room - span) / axis.stride + 1;
    axis.reach = (span - 1) / axis.stride;
    // Neighbouring rows may share their zeros: what a kernel reads behind one row is the padding before the next. This
    // requires that the last pixel which is read lies inside of its row.
    const long last = std::min((axis.in - 1 + axis.padding) / axis.stride, axis.out - 1 + axis.reach);
    const long shared = std::min({axis.padding / axis.stride, axis.reach, axis.out + axis.reach - 1 - last});
    axis.grid = axis.out + axis.reach - std::max(0L, shared);
  }
  for (long t = 0; t < taps.taps; t++) {
    long at[AXES], shift = 0;
    taps.coordinates(t, at);
    for (int a = 0; a < AXES; a++) shift = shift * layer.axis[a].grid + at[a] * taps.dilation[a] / taps.stride[a];
    tap_shift.push_back(shift);
  }
  layer.taps = taps.taps, layer.phases = taps.phases;
  layer.phase_of = taps.phase_of.data(), layer.tap_phase = taps.tap_phase.data(), layer.tap_shift = tap_shift.data();
}

Numbers Layout::output() const {
  Numbers out = {layer.batch, layer.filters};
  for (int a = 0; a < taps.axes; a++)
    out.push_back(layer.axis[axis_of(taps.axes, a)].out);
  return out;
}

bool Layout::reads_all() const {
  for (const Axis& axis : layer.axis)
    if ((axis.in - 1 + axis.padding) / axis.stride >= axis.out + axis.reach) return false;
  return taps.phases == long(taps.phase_of.size());
}

// Divides each chunk into pieces of about as many filters. The pieces begin with whole tiles of the products and with
// whole vectors of channels.
void Chunks::divide_filters(long filters, long pieces) {
  const long each = round_up((filters + pieces - 1) / std::max(1L, pieces), std::max(2 * PLANES, int(ALIGN)));
  if (pieces < 2 || each >= filters) return;
  std::vector<Chunk> divided;
  for (const Chunk& chunk : list)
    for (long k = 0; k < filters; k += each) {
      divided.push_back(chunk);
      divided.back().first_filter = k, divided.back().last_filter = std::min(k + each, filters);
    }
  list = divided;
}

// The images that are neighbours in the flat pixels: enough to fill vectors where all of their pixels stay near the
// cores, else 1. Zeros between pixels cost the more the smaller an image is, and between vectors they cost nothing.
static long interleaved(const Layer& layer, bool adjacent, long image_bytes, long budget, long lanes, int threads) {
  const long near = layer.axis[0].grid * layer.axis[2].grid <= SMALL ? NEAR_SMALL : NEAR;
  const bool small = image_bytes * lanes <= near * budget && layer.batch >= lanes * threads;
  return adjacent && small && layer.taps > 1 && layer.phases <= MAX_PHASES && layer.axis[1].grid == 1 ? lanes : 1;
}

Chunks::Chunks(const Layer& layer, bool backward, long pixel_bytes, long budget, long lanes, bool adjacent,
               int threads, bool by_filters) {
  const Axis& first = layer.axis[0];
  frame.row_pixels = layer.axis[1].grid * layer.axis[2].grid;
  const long image = first.grid * frame.row_pixels * pixel_bytes;
  const long rows = backward ? first.out + first.reach : first.out;  // the rows that bands would divide
  const long halo = backward ? 2 * first.reach : first.reach;
  frame.inner = interleaved(layer, adjacent, image, budget, lanes, threads);
  const long bands = double(image) <= WHOLE * double(budget) ? 1 : (image + budget - 1) / budget;
  long parts = std::max(1L, std::min(bands, rows / std::max(1L, 2 * halo)));
  const long full = first.out * layer.axis[1].out * layer.axis[2].out / lanes;  // vectors that an image fills
  if (layer.batch < threads) parts = std::max(parts, std::min({long(threads), rows / std::max(1L, 2 * halo), full}));
  frame.banded = parts > 1 && frame.inner == 1;
  if (frame.banded) {
    const long height = (rows + parts - 1) / parts;
    frame.images = 1, frame.rows = height + halo;
    for (long i = 0; i < layer.batch; i++)
      for (long row = 0; row < rows; row += height) {
        const long last = std::min(row + height, rows);
        const long base = backward ? row - first.reach : row;
        list.push_back({i, 1, base, last - row + halo, row, last, 0, layer.filters});
      }
  } else {
    const long pixels = std::max(1L, first.grid * frame.row_pixels), share = (layer.batch + threads - 1) / threads;
    const long wanted = std::max(budget / std::max(1L, image), (lanes + pixels - 1) / pixels);
    frame.images = frame.inner > 1 ? frame.inner : std::clamp(wanted, 1L, std::max(1L, share));
    frame.rows = first.grid;
    for (long i = 0; i < layer.batch; i += frame.images)
      list.push_back({i, std::min(frame.images, layer.batch - i), 0, first.grid, 0, rows, 0, layer.filters});
  }
  if (by_filters && !backward) divide_filters(layer.filters, threads / std::max<long>(1, long(list.size())));
  frame.row_pixels *= frame.inner;
  frame.reach = 0;
  for (long t = 0; t < layer.taps; t++) {
    shift.push_back(layer.tap_shift[t] * frame.inner);
    frame.reach = std::max<long>(frame.reach, shift.back());
  }
  frame.margin = round_up(frame.reach, ALIGN) + ALIGN;
  const long longest = (frame.images + frame.inner - 1) / frame.inner * frame.rows * frame.row_pixels;
  // A row has room for the last tile of vectors. Its length is an odd number of cache lines, so that rows do not
  // compete for the same place in the cache.
  frame.ld = round_up(frame.margin + longest + frame.reach + 6 * ALIGN, ALIGN);
  if (frame.ld / ALIGN % 2 == 0) frame.ld += ALIGN;
}

}  // namespace dctps
