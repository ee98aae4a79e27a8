// Parallel loops: by the OpenMP runtime that torch has loaded or, where there is none, by std::thread.
#include "parallel.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

#if defined(__unix__) || defined(__APPLE__)
#include <dlfcn.h>
#endif
#if defined(__SSE2__)
#include <immintrin.h>
#endif

namespace dctps {

namespace {

struct FlushDenormals {  // at very low densities activations underflow, which makes a CPU several times slower
#if defined(__SSE2__)
  unsigned before = _mm_getcsr();
  FlushDenormals() { _mm_setcsr(before | 0x8040); }
  ~FlushDenormals() { _mm_setcsr(before); }
#endif
};

struct Job {
  long count;
  const std::function<void(long)>* task;
  std::atomic<long> next{0};
  std::mutex lock;
  std::exception_ptr error;
};

void work(void* data) {
  Job& job = *static_cast<Job*>(data);
  const FlushDenormals flush;
  for (long i = job.next++; i < job.count; i = job.next++) {
    try {
      (*job.task)(i);
    } catch (...) {
      const std::lock_guard<std::mutex> guard(job.lock);
      job.error = std::current_exception();
    }
  }
}

// The entry point of GCC's OpenMP runtime. Those of Intel and LLVM have it, too, and torch has loaded one of the three.
using Parallel = void (*)(void (*)(void*), void*, unsigned, unsigned);

Parallel openmp() {
#if defined(__unix__) || defined(__APPLE__)
  static const Parallel found = reinterpret_cast<Parallel>(dlsym(RTLD_DEFAULT, "GOMP_parallel"));
  return found;
#else
  return nullptr;
#endif
}

}  // namespace

void parallel(long count, int threads, const std::function<void(long)>& task) {
  Job job;
  job.count = count, job.task = &task;
  const unsigned workers = unsigned(std::clamp<long>(threads, 1, std::max(1L, count)));
  if (workers == 1) {
    work(&job);
  } else if (openmp()) {
    openmp()(work, &job, workers, 0);
  } else {
    std::vector<std::thread> others;
    try {
      for (unsigned i = 1; i < workers; i++) others.emplace_back(work, &job);
    } catch (const std::system_error&) {
    }  // where no more threads can start, those that have started do the work
    work(&job);
    for (std::thread& other : others) other.join();
  }
  if (job.error) std::rethrow_exception(job.error);
}

}  // namespace dctps
