// Parallel loops. They use torch's own OpenMP threads where these can be found, so that two pools of threads never
// compete for the same cores.
#pragma once

#include <algorithm>
#include <functional>

namespace dctps {

// Calls task(0) ... task(count - 1) in any order from at most `threads` threads. Denormal numbers are flushed to zero.
void parallel(long count, int threads, const std::function<void(long)>& task);

constexpr long PARTIALS = 16 << 20;  // bytes of partial sums above which each thread has only one

// The number of parts of `all` pieces of work whose sums, of `bytes` each, are kept apart. The number of threads alone
// fixes the parts, and with them the order of the sums, whichever thread computes a part. They are many and small, so
// that the others take over what a thread that comes late leaves.
inline long parts_of(long all, long bytes, int threads) {
  if (threads == 1) return 1;
  const long most = std::max(1L, all), least = std::clamp<long>(threads, 1, most);
  return std::clamp(std::min(std::max(32L, 4L * threads), PARTIALS / std::max(1L, bytes)), least, most);
}

}  // namespace dctps
