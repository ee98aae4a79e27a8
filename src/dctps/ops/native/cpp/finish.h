// What is done with an output before it is written, see `Finish` in plan.h.
#pragma once

#include "plan.h"

namespace dctps::DCTPS_ISA {

template <Activation A, class P>
inline P activated(P v) {  // a NaN stays a NaN
  const P zero{}, six = zero + 6;
  if constexpr (A != Activation::none) v = v < zero ? zero : v;
  if constexpr (A == Activation::relu6) v = v > six ? six : v;
  return v;
}

// The same where the activation is known at run time only.
template <class P>
inline P activated(P v, Activation a) {
  if (a == Activation::none) return v;
  return a == Activation::relu ? activated<Activation::relu>(v) : activated<Activation::relu6>(v);
}

// The constants of the channels from c on, and the residual `distance` elements further.
template <class T>
inline Finish<T> from_channel(const Finish<T>& f, long c, int64_t distance) {
  return {f.scale ? f.scale + c : nullptr, f.shift ? f.shift + c : nullptr,
          f.residual ? f.residual + distance : nullptr, f.activation};
}

}  // namespace dctps::DCTPS_ISA
