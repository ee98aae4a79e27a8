// A copy of the numbers of some vectors, with which later numbers are compared. It tells whether what was made from them
// still holds, however they were changed.
#include <cstring>

#include "arrays.h"

using namespace nanobind::literals;

namespace dctps {

namespace {

using Vector = nb::ndarray<nb::ro, nb::device::cpu>;

class Snapshot {
 public:
  explicit Snapshot(const std::vector<Vector>& vectors) {
    for (const Vector& vector : vectors) {
      if (!is_dense(vector)) throw std::invalid_argument("a snapshot is of contiguous vectors");
      const char* data = static_cast<const char*>(vector.data());
      copies.push_back({vector.dtype(), {data, data + vector.nbytes()}});
    }
  }

  // Whether these vectors have the types, the lengths and, bit by bit, the numbers of those that were copied.
  bool matches(const nb::args& vectors) const {
    if (vectors.size() != copies.size()) return false;
    for (size_t i = 0; i < copies.size(); i++) {
      Vector vector;
      const Copy& copy = copies[i];
      if (!nb::try_cast(vectors[i], vector) || vector.dtype() != copy.dtype || vector.nbytes() != copy.bytes.size() || !is_dense(vector) ||
          std::memcmp(vector.data(), copy.bytes.data(), copy.bytes.size()))
        return false;
    }
    return true;
  }

 private:
  struct Copy {
    nb::dlpack::dtype dtype;
    std::vector<char> bytes;
  };
  std::vector<Copy> copies;

  static bool is_dense(const Vector& vector) {  // of at most one axis
    return vector.size() < 2 || (vector.ndim() == 1 && vector.stride(0) == 1);
  }
};

}  // namespace

void bind_snapshot(nb::module_& m) {
  nb::class_<Snapshot>(m, "Snapshot").def(nb::init<const std::vector<Vector>&>(), "vectors"_a).def("matches", &Snapshot::matches);
}

}  // namespace dctps
