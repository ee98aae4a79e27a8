// Vectors by the compiler's vector extension: one source for AVX-512, AVX2, NEON and plain SSE. Every file that
// includes this one is compiled once per instruction set, in a namespace of its own (DCTPS_ISA). Such files use no
// templates of the standard library, because the linker keeps only one copy of those, compiled for any of the
// instruction sets.
#pragma once

#include <cstdint>
#if defined(__AVX__)
#include <immintrin.h>
#endif

namespace dctps::DCTPS_ISA {

#if defined(__AVX512F__)
constexpr int VECTOR = 64;  // bytes of a vector
constexpr int COLUMNS = 4;  // vectors of a tile's row in a matrix product: a tile takes 6 x 4 of 32 registers
#elif defined(__AVX__)
constexpr int VECTOR = 32;
constexpr int COLUMNS = 2;  // a tile takes 6 x 2 of 16 registers
#else
constexpr int VECTOR = 16;
constexpr int COLUMNS = 2;
#endif

template <class T>
struct Lanes {
  typedef T type __attribute__((vector_size(VECTOR)));
};
template <class T>
using Vec = typename Lanes<T>::type;
template <class T>
constexpr long WIDTH = VECTOR / sizeof(T);  // elements of a vector

template <class T>
inline Vec<T> load(const T* from) {
  Vec<T> v;
  __builtin_memcpy(&v, from, VECTOR);
  return v;
}

template <class T>
inline void store(T* to, Vec<T> v) {
  __builtin_memcpy(to, &v, VECTOR);
}

// Reads the first `count` elements of a vector, fewer than all; the others are zero.
template <class T>
inline Vec<T> load_part(const T* from, long count) {
#if defined(__AVX512F__)
  if constexpr (sizeof(T) == 4) return _mm512_maskz_loadu_ps(__mmask16((1 << count) - 1), from);
  else return _mm512_maskz_loadu_pd(__mmask8((1 << count) - 1), from);
#else
  Vec<T> v{};
  for (long i = 0; i < count; i++) v[i] = from[i];
  return v;
#endif
}

// Writes the first `count` elements of a vector, fewer than all.
template <class T>
inline void store_part(T* to, Vec<T> v, long count) {
#if defined(__AVX512F__)
  if constexpr (sizeof(T) == 4) _mm512_mask_storeu_ps(to, __mmask16((1 << count) - 1), v);
  else _mm512_mask_storeu_pd(to, __mmask8((1 << count) - 1), v);
#else
  for (long i = 0; i < count; i++) to[i] = v[i];
#endif
}

// Writes past the caches, for results that are much larger than they are. `to` must be aligned to a vector.
template <class T>
inline void stream(T* to, Vec<T> v) {
#if defined(__AVX512F__)
  _mm512_stream_si512(reinterpret_cast<__m512i*>(to), reinterpret_cast<__m512i>(v));
#elif defined(__AVX__)
  _mm256_stream_si256(reinterpret_cast<__m256i*>(to), reinterpret_cast<__m256i>(v));
#else
  store(to, v);
#endif
}

inline void end_of_stream() {  // must run before another thread reads what was streamed
#if defined(__AVX__)
  _mm_sfence();
#endif
}

// Reads and writes one vector, or one element where V is the type of an element.
template <class V, class T>
inline V take(const T* from) {
  V v;
  __builtin_memcpy(&v, from, sizeof(V));
  return v;
}

template <bool PAST, class V, class T>
inline void put(T* to, V v) {
  if constexpr (PAST && sizeof(V) == VECTOR) stream<T>(to, v);
  else __builtin_memcpy(to, &v, sizeof(V));
}

// Keeps the compiler from masking a load by a comparison: a load that waits for a comparison cannot be issued early.
template <class V>
inline V loaded(V v) {
#if defined(__AVX512F__)
  __asm__("" : "+v"(v));
#elif defined(__SSE2__)
  __asm__("" : "+x"(v));
#endif
  return v;
}

template <class T>
inline Vec<T> splat(T value) {
  return value - Vec<T>{};
}

template <class T>
inline T sum(Vec<T> v) {
  T total = 0;
  for (int i = 0; i < WIDTH<T>; i++) total += v[i];
  return total;
}

// The same, halving the vector again and again: another order of the sums, and fewer of them one after the other.
template <class T>
inline T folded_sum(Vec<T> v) {
#if defined(__AVX512F__)
  if constexpr (sizeof(T) == 4) return _mm512_reduce_add_ps(v);
  else return _mm512_reduce_add_pd(v);
#else
  return sum<T>(v);
#endif
}

}  // namespace dctps::DCTPS_ISA
