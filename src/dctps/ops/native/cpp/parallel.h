// Parallel loops. They use torch's own OpenMP threads where these can be found, so that two pools of threads never
// compete for the same cores.
#pragma once

#include <functional>

namespace dctps {

// Calls task(0) ... task(count - 1) in any order from at most `threads` threads. Denormal numbers are flushed to zero.
void parallel(long count, int threads, const std::function<void(long)>& task);

}  // namespace dctps
