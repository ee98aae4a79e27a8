// Scratch memory of a thread, on huge pages where the system has them: the stages go down the rows of a chunk, which
// are some kilobytes apart, so that small pages would cost a translation of addresses for nearly every cache line.
#pragma once

#include <cstdlib>
#include <new>

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace dctps {

class Scratch {
 public:
  Scratch() = default;
  Scratch(const Scratch&) = delete;
  ~Scratch() { std::free(data); }

  // At least so many bytes, aligned to a huge page; what they hold is not kept when they grow.
  void* at_least(size_t bytes) {
    if (bytes <= size) return data;
    std::free(data);
    size = (bytes + PAGE - 1) / PAGE * PAGE;
    data = std::aligned_alloc(PAGE, size);
    if (!data) {
      size = 0;
      throw std::bad_alloc();
    }
#if defined(__linux__)
    madvise(data, size, MADV_HUGEPAGE);
#endif
    return data;
  }

 private:
  static constexpr size_t PAGE = 2 << 20;
  void* data = nullptr;
  size_t size = 0;
};

}  // namespace dctps
