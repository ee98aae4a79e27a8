// Arrays from Python. They are passed by DLPack; the functions below check their type, shape and strides and turn them
// into views and pointers.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <string>
#include <tuple>

#include "layout.h"

namespace dctps {

namespace nb = nanobind;

using Array = nb::ndarray<nb::device::cpu>;
using Floats = nb::ndarray<const double, nb::c_contig, nb::device::cpu>;
using Indices = nb::ndarray<const int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Positions = nb::ndarray<const int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

constexpr size_t LARGE = 4 << 20;  // bytes of a tensor above which it is written past the caches

// The elements of a contiguous vector of `size` numbers, or null where there is no array.
template <class T>
inline const T* vector(const std::optional<Array>& array, long size, const char* name) {
  if (!array) return nullptr;
  if (array->dtype() != nb::dtype<T>() || array->ndim() != 1 || long(array->size()) != size ||
      (size > 1 && array->stride(0) != 1))
    throw std::invalid_argument(std::string(name) + ": expected a contiguous vector of " + std::to_string(size) +
                                " numbers of the input's type");
  return static_cast<const T*>(array->data());
}

// The array, whose shape must be `shape`, as a view (batch, channels, 3 axes).
template <class T>
inline View<T> view(const Array& array, const Numbers& shape, const char* name) {
  bool fits = array.dtype() == nb::dtype<std::remove_const_t<T>>() && array.ndim() == shape.size();
  for (size_t i = 0; fits && i < shape.size(); i++) fits = long(array.shape(i)) == shape[i];
  if (!fits) throw std::invalid_argument(std::string(name) + ": another shape or type than the layer and its input say");
  const int axes = int(shape.size()) - 2;
  View<T> out{static_cast<T*>(array.data()), array.stride(0), array.stride(1), {0, 0, 0}, false};
  for (int a = 0; a < axes; a++) out.axis[axis_of(axes, a)] = array.stride(2 + a);
  constexpr int64_t line = 64 / sizeof(T);
  out.large = array.size() * sizeof(T) > LARGE && out.batch % line == 0 && reinterpret_cast<uintptr_t>(out.data) % 64 == 0;
  for (int64_t stride : out.axis) out.large = out.large && stride % line == 0;
  return out;
}

inline Numbers shape_of(const Array& array) {
  Numbers shape;
  for (size_t i = 0; i < array.ndim(); i++) shape.push_back(long(array.shape(i)));
  return shape;
}

}  // namespace dctps
