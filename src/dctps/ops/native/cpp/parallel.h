// Threads: torch's own OpenMP pool where it can be found, so that two pools never fight for the same cores.
#pragma once

#include <functional>

namespace dctps {

// task(0) ... task(count - 1), in any order, by at most `threads` threads; denormal numbers are flushed to zero.
void parallel(long count, int threads, const std::function<void(long)>& task);

}  // namespace dctps
