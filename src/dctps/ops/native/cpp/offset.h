// The offset of a layer as the kernels need it: the tables of its pointwise stage and the weights of its depthwise
// stage. It is made once per weight shape and owns its tables; `Offset` in plan.h points to them.
#pragma once

#include <algorithm>
#include <cmath>
#include <complex>
#include <optional>
#include <stdexcept>
#include <utility>
#include <vector>

#include "plan.h"

namespace dctps {

struct Table {  // a row-major matrix that belongs to the caller
  const double* data;
  long rows, columns;
};

template <class T>
struct OwnedOffset {
  Offset<T> plan{};
  long filters, terms, taps;
  std::vector<int32_t> source;  // (filters, terms): the plane that a term of a filter reads
  std::vector<T> weights;       // (filters, terms, taps): the weights of the depthwise stage

  OwnedOffset(long filters, long terms, long taps, std::vector<int32_t> source, const std::vector<double>& weights)
      : filters(filters), terms(terms), taps(taps), source(std::move(source)), weights(weights.begin(), weights.end()) {
    if (filters < 1 || terms < 1 || PLANES % terms || taps < 1 || long(this->source.size()) != filters * terms ||
        long(this->weights.size()) != filters * terms * taps)
      throw std::invalid_argument("sources and weights of the depthwise stage do not fit together");
    find_turns(weights);
  }
  OwnedOffset(const OwnedOffset&) = delete;

  // Makes the pointwise stage one product per term, with the (folded) channels of the term.
  void product(const std::vector<std::optional<Table>>& first, const std::vector<Table>& second,
               const std::vector<double>& signs) {
    const bool thin = first[0].has_value(), folds = second.size() > 1;
    plan.thin = thin, plan.folds = folds, plan.parts = int(second.size());
    plan.inputs = long(signs.size()), plan.planes = filters * terms, plan.rank = 0;
    if (first.size() != second.size() || plan.parts != terms) throw std::invalid_argument("a product for each term");
    for (long i = 0; i < filters * terms; i++)
      if (source[i] != i) throw std::invalid_argument("a product's planes are the filters' terms in turn");
    plan.sign = kept(signs);
    for (int i = 0; i < plan.parts; i++) {
      Part<T>& part = plan.part[i];
      part.inputs = thin && first[i] ? first[i]->columns : second[i].columns, part.rank = second[i].columns;
      part.rank_start = i ? plan.part[0].rank : 0;
      const long expected = folds ? (plan.inputs + 1 - i) / 2 : plan.inputs;
      if (first[i].has_value() != thin || (thin && first[i]->rows != part.rank) || second[i].rows != filters ||
          part.inputs != expected)
        throw std::invalid_argument("the factors do not fit together");
      plan.rank += part.rank;
    }
    if (thin) pack_first(first);
    for (int i = 0; i < plan.parts; i++) {
      plan.part[i].second = packed(second[i], false);
      numbers.emplace_back();
      for (long k = 0; k < filters; k += PLANES / plan.parts)
        pack(second[i], true, k, std::min(k + PLANES / plan.parts, filters), numbers.back());
      plan.part[i].second_adjoint = numbers.back().data();
    }
    plan.kind = Kind::product;
  }

  // The multiply-adds of the pointwise stage per pixel that it reads, and of what follows it per output; both without
  // S. A transform of length n counts n log2 n.
  std::pair<long, long> multiply_adds() const {
    const long depthwise = taps > 1 ? filters * terms * taps : 0;
    if (plan.kind == Kind::fourier) return {transform_operations(whole_length), depthwise};
    if (plan.kind == Kind::hadamard) return {transform_operations(plan.length), depthwise};
    long first = 0, second = 0;
    for (int i = 0; i < plan.parts; i++) {
      first += plan.thin ? plan.part[i].rank * plan.part[i].inputs : 0;
      second += filters * plan.part[i].rank;
    }
    return {first + second, depthwise};
  }

  long bytes() const {
    size_t total = (weights.size()) * sizeof(T);
    for (const auto& table : numbers) total += table.size() * sizeof(T);
    for (const auto& table : indices) total += table.size() * sizeof(int32_t);
    return long(total);
  }

  // Makes the pointwise stage out_k = real_k Re X[f_k] + imaginary_k Im X[f_k]. X is the Fourier transform of a line
  // with sign_c x_c at place_c.
  void fourier(long length, const std::vector<int32_t>& place, const std::vector<double>& signs,
               const std::vector<int32_t>& frequency, const std::vector<double>& real,
               const std::vector<double>& imaginary) {
    plan.inputs = long(place.size()), plan.planes = long(frequency.size());
    if (signs.size() != place.size() || real.size() != frequency.size() || imaginary.size() != frequency.size())
      throw std::invalid_argument("tables of a Fourier stage do not fit together");
    check(place, length), check(frequency, length);
    whole_length = length;
    const long step = length % 2 ? 1 : 2, rows = length / step;  // an odd length leaves the imaginary parts zero
    stages(rows);
    std::vector<int32_t> at, left_at;
    std::vector<double> signs_after;
    for (size_t c = 0; c < place.size(); c++) {
      const int32_t row = int32_t(place[c] / step), part = int32_t(place[c] % step);
      at.push_back(2 * row + part), left_at.push_back(2 * after(row) + part);
      signs_after.push_back(part ? -signs[c] : signs[c]);
    }
    plan.sign = kept(signs), plan.fourier.sign_after = kept(signs_after);
    plan.fourier.place = kept(at), plan.fourier.place_after = kept(left_at);
    pair_outputs(length, rows, frequency, real, imaginary);
    check_planes();
    plan.kind = Kind::fourier;
  }

  // Makes the pointwise stage out_k = scale * X[row_k]. X is the Walsh-Hadamard transform of sign_c x_c.
  void hadamard(long length, const std::vector<double>& signs, const std::vector<int32_t>& row, double scale) {
    plan.inputs = long(signs.size()), plan.planes = long(row.size());
    if (length < 1 || (length & (length - 1)) || plan.inputs > length)
      throw std::invalid_argument("a Hadamard stage needs a power of two, not less than its inputs");
    check(row, length);
    plan.length = length, plan.scale = T(scale), plan.sign = kept(signs), plan.row = kept(row);
    check_planes();
    plan.kind = Kind::hadamard;
  }

 private:
  long whole_length = 0;  // length of the Fourier transform before even and odd places become complex numbers
  std::vector<Turn<T>> turns;
  std::vector<std::vector<T>> numbers;
  std::vector<std::vector<int32_t>> indices;

  static long transform_operations(long length) { return std::lround(double(length) * std::log2(double(length))); }

  // Packs the first factors of both parts. Those of the odd part get rows and columns of zeros, so that one loop serves
  // both parts.
  void pack_first(const std::vector<std::optional<Table>>& first) {
    long rank = 0, inputs = 0;
    for (const auto& table : first) rank = std::max(rank, table->rows), inputs = std::max(inputs, table->columns);
    for (size_t i = 0; i < first.size(); i++) {
      std::vector<double> whole(rank * inputs, 0.0);
      for (long j = 0; j < first[i]->rows; j++)
        std::copy_n(first[i]->data + j * first[i]->columns, first[i]->columns, whole.begin() + j * inputs);
      plan.part[i].first = packed({whole.data(), rank, inputs}, false);
      plan.part[i].first_adjoint = packed({whole.data(), rank, inputs}, true);
    }
  }

  // Finds the turns of a 3 x 3 kernel: weights that, as complex numbers w0 - i w1, are column_i exp(i (j - 1) angle).
  void find_turns(const std::vector<double>& weights) {
    if (taps != 9 || terms != 2) return;
    for (long k = 0; k < filters; k++) {
      auto at = [&](long t) { return std::complex<double>(weights[k * 18 + t], -weights[k * 18 + 9 + t]); };
      const std::complex<double> middle = at(4), turn = std::abs(middle) > 0 ? at(5) / middle : 1.0;
      for (long t = 0; t < 9; t++) {
        const std::complex<double> expected = at(t / 3 * 3 + 1) * std::pow(turn, double(t % 3 - 1));
        if (std::abs(expected - at(t)) > 1e-11 * std::abs(middle)) return turns.clear();
      }
      if (std::abs(std::abs(turn) - 1) > 1e-11) return turns.clear();
      turns.push_back({T(turn.real()), T(turn.imag()), {}, {}});
      for (long i = 0; i < 3; i++)
        turns.back().real[i] = T(at(3 * i + 1).real()), turns.back().imaginary[i] = T(at(3 * i + 1).imag());
    }
    for (long i = 0; i < filters * terms; i++)
      if (source[i] != i) return turns.clear();
    plan.turns = turns.data();
  }

  // Stores a table for as long as the offset lives.
  const T* kept(const std::vector<double>& values, double factor = 1) {
    std::vector<T> own;
    for (double v : values) own.push_back(T(factor * v));
    numbers.push_back(std::move(own));
    return numbers.back().data();
  }
  const int32_t* kept(const std::vector<int32_t>& values) {
    indices.push_back(values);
    return indices.back().data();
  }

  void check_planes() const {
    for (int32_t s : source)
      if (s < 0 || s >= plan.planes) throw std::invalid_argument("a plane that the pointwise stage does not have");
  }
  static void check(const std::vector<int32_t>& rows, long length) {
    for (int32_t row : rows)
      if (row < 0 || row >= length) throw std::invalid_argument("a row outside of the transform");
  }

  // Appends the columns `from` to `to` of a table, or of its transpose, as [rows / ROWS][columns][ROWS] with zeros at
  // the end.
  static void pack(const Table& table, bool transposed, long from, long to, std::vector<T>& out) {
    const long rows = transposed ? table.columns : table.rows;
    for (long i = 0; i < rows; i += ROWS)
      for (long k = from; k < to; k++)
        for (long r = i; r < i + ROWS; r++)
          out.push_back(r >= rows ? T(0) : T(table.data[transposed ? k * table.columns + r : r * table.columns + k]));
  }
  Matrix<T> packed(const Table& table, bool transposed) {
    const long columns = transposed ? table.rows : table.columns;
    numbers.emplace_back();
    pack(table, transposed, 0, columns, numbers.back());
    return {numbers.back().data(), transposed ? table.columns : table.rows, columns};
  }

  // Divides a transform of `length` complex rows into stages, each with its radix and twiddle factors.
  void stages(long length) {
    Fourier<T>& f = plan.fourier;
    f.length = length;
    if (length < 1) throw std::invalid_argument("a transform of length 0");
    for (long rest = length, block = length; rest > 1;) {
      int radix = rest % 8 == 0 && rest != 16 ? 8 : rest % 4 == 0 ? 4 : 2;  // 16 is 4 x 4
      while (rest % radix) radix++;
      if (radix > 31 || f.stages == MAX_STAGES) throw std::invalid_argument("a prime factor above 31");
      f.radix[f.stages] = radix;
      f.twiddle[f.stages] = roots(block, 0, block / radix, 1, radix);
      f.root[f.stages] = roots(radix, 1, 2, 0, radix);
      f.stages++, rest /= radix, block /= radix;
    }
  }
  // The table of exp(-2 pi i j q / n), with one row for each j.
  const T* roots(long n, long from_j, long to_j, long from_q, long to_q) {
    std::vector<double> table;
    for (long j = from_j; j < to_j; j++)
      for (long q = from_q; q < to_q; q++) {
        const double angle = -2 * M_PI * double(j * q % n) / double(n);
        table.push_back(std::cos(angle)), table.push_back(std::sin(angle));
      }
    return kept(table);
  }

  // Groups the outputs by the pair of rows, f and -f, from which they are computed.
  void pair_outputs(long length, long rows, const std::vector<int32_t>& frequency, const std::vector<double>& real,
                    const std::vector<double>& imaginary) {
    std::vector<std::vector<int32_t>> by_row(rows / 2 + 1);
    for (size_t k = 0; k < frequency.size(); k++) {
      const long row = frequency[k] % rows;
      by_row[std::min(row, (rows - row) % rows)].push_back(int32_t(k));
    }
    std::vector<int32_t> low, high, start = {0}, output;
    std::vector<double> weights;
    for (size_t row = 0; row < by_row.size(); row++) {
      if (by_row[row].empty()) continue;
      low.push_back(int32_t(row)), high.push_back(int32_t((rows - row) % rows));
      for (int32_t k : by_row[row]) {
        const double angle = 2 * M_PI * double(frequency[k]) / double(length);
        append(weights, real[k], imaginary[k], angle, rows == length, frequency[k] % rows != long(row));
        output.push_back(k);
      }
      start.push_back(int32_t(output.size()));
    }
    Fourier<T>& f = plan.fourier;
    f.pairs = long(low.size()), f.covers = f.pairs == long(by_row.size());
    f.low = kept(low), f.high = kept(high), f.low_after = kept(after(low)), f.high_after = kept(after(high));
    f.start = kept(start), f.output = kept(output), f.weight = kept(weights);
  }

  // Appends the weights that both parts of Z[f] and Z[-f] have in real Re X[f] + imaginary Im X[f]. With E the
  // transform of the even places and O that of the odd ones, Z = E + i O and X = E + exp(-i angle) O. Where the length
  // is odd, X is Z itself (`whole`). The weights of Z[-f] come first where `swapped`.
  static void append(std::vector<double>& weights, double real, double imaginary, double angle, bool whole, bool swapped) {
    const double turned = real * std::sin(angle) + imaginary * std::cos(angle);
    const double other = real * std::cos(angle) - imaginary * std::sin(angle);
    const double own[2] = {whole ? real : (real - turned) / 2, whole ? imaginary : (other + imaginary) / 2};
    const double mirrored[2] = {whole ? 0 : (real + turned) / 2, whole ? 0 : (other - imaginary) / 2};
    weights.insert(weights.end(), swapped ? mirrored : own, (swapped ? mirrored : own) + 2);
    weights.insert(weights.end(), swapped ? own : mirrored, (swapped ? own : mirrored) + 2);
  }

  // Where decimation in frequency leaves a row: the index with reversed digits.
  int32_t after(int32_t row) const {
    long position = 0, block = plan.fourier.length, rest = row;
    for (int s = 0; s < plan.fourier.stages; s++) {
      const long radix = plan.fourier.radix[s];
      block /= radix;
      position += rest % radix * block;
      rest /= radix;
    }
    return int32_t(position);
  }
  std::vector<int32_t> after(std::vector<int32_t> rows) const {
    for (int32_t& row : rows) row = after(row);
    return rows;
  }
};

}  // namespace dctps
