// Elements that lie a few apart, and vectors whose elements take turns in memory. Nothing before the first
// element or behind the last is touched: of the S vectors that hold a vector's elements the last ends with its last.
template <int... K> struct Each {};
#if LANES == 8
typedef Each<0, 1, 2, 3> EachOfHalf;
typedef Each<0, 1, 2, 3, 4, 5, 6, 7> EachLane;
#else
typedef Each<0, 1, 2, 3, 4, 5, 6, 7> EachOfHalf;
typedef Each<0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15> EachLane;
#endif
constexpr int held_from(int s, int l, int j) { return j < s - 1 ? j * l : s * (l - 1) + 1 - l; }
// Where lane k comes from when the j-th of the vectors joins those before it: what is there already stays.
constexpr int taken_from(int s, int l, int j, int k) {
  int at = s * k, in = at / l < s - 1 ? at / l : s - 1;
  if (in == j) return l + at - held_from(s, l, j);
  return j > 1 ? k : in == 0 ? at : 0;
}
template <int S, int L, int J, class V, class LOAD, int... K> static INLINE V joined(V v, const LOAD& load, Each<K...> each) {
  if constexpr (J == S) return v;
  else return joined<S, L, J + 1, V>(__builtin_shufflevector(v, load(held_from(S, L, J)), taken_from(S, L, J, K)...), load, each);
}
template <int S, int L, class V, class LOAD, int... K> static INLINE V stepped(const LOAD& load, Each<K...> each) {
  return joined<S, L, 1, V>(load(0), load, each);
}
// Where lane k of the j-th vector in memory comes from when the q-th of S vectors joins those before it.
constexpr int put_from(int s, int l, int j, int q, int k) {
  int at = j * l + k;
  if (at % s == q) return l + at / s;
  return q > 1 ? k : at % s == 0 ? at / s : 0;
}
template <int S, int L, int J, int Q, class V, int... K> static INLINE V turn(V v, const V* x, Each<K...> each) {
  if constexpr (Q == S) return v;
  else return turn<S, L, J, Q + 1, V>(__builtin_shufflevector(v, x[Q], put_from(S, L, J, Q, K)...), x, each);
}
template <int S, int L, int J, class V, class STORE, class EACH> static INLINE void take_turns(const V* x, const STORE& store, EACH each) {
  store(J * L, turn<S, L, J, 1, V>(x[0], x, each));
  if constexpr (J + 1 < S) take_turns<S, L, J + 1>(x, store, each);
}
// stepped_T<S>(p, n): p[0], p[S], p[2 * S], ...; turns_T<S>(p, x, n): p[S * k + j] = lane k of x[j].
#define STEPS(T, V, GATHER)                                                                         \
  template <int S> static INLINE V stepped_##T(const T* p, All) {                                   \
    return stepped<S, LANES, V>([&](int64 k) STEP { return load_##T(p + k, all); }, EachLane{});    \
  }                                                                                                 \
  template <int S> static INLINE void turns_##T(T* p, const V* x, All) {                            \
    take_turns<S, LANES, 0>(x, [&](int64 k, V v) STEP { store_##T(p + k, v, all); }, EachLane{});      \
  }                                                                                                 \
  STEPS_REST(T, V, GATHER)
#define STEPS_LEFT(T, V, GATHER)                                                                    \
  template <int S> static INLINE V stepped_##T(const T* p, Some n) {                                \
    return GATHER(n.count, [&](int64 k) STEP { return load_##T(p + k * S); });                      \
  }                                                                                                 \
  template <int S> static INLINE void turns_##T(T* p, const V* x, Some n) {                         \
    for (int64 k = 0; k < n.count; ++k)                                                             \
      for (int j = 0; j < S; ++j) store_##T(p + k * S + j, lane(x[j], k));                          \
  }
#if LANES == 16
// Where lane k comes from when the j-th of the vectors from the first element on joins those before it.
constexpr int left_from(int s, int l, int j, int k) {
  int at = s * k, in = at / l;
  if (in == j) return l + at % l;
  return j > 1 ? k : in == 0 ? at : 0;
}
template <int S, int J, class V, class LOAD, int... K> static INLINE V left_joined(V v, const LOAD& load, Each<K...> each) {
  if constexpr (J == S) return v;
  else return left_joined<S, J + 1, V>(__builtin_shufflevector(v, load(J * LANES), left_from(S, LANES, J, K)...), load, each);
}
// The first few: vectors are loaded and stored under masks.
#define STEPS_REST(T, V, GATHER)                                                                    \
  template <int S> static INLINE V stepped_##T(const T* p, Some n) {                                \
    const int64 left = (n.count - 1) * S + 1;                                                       \
    auto load = [&](int64 k) STEP { return load_##T(p + k, some_of(left - k)); };                   \
    return left_joined<S, 1, V>(load(0), load, EachLane{});                                         \
  }                                                                                                 \
  template <int S> static INLINE void turns_##T(T* p, const V* x, Some n) {                         \
    auto store = [&](int64 k, V v) STEP { store_##T(p + k, v, some_of(n.count * S - k)); };         \
    take_turns<S, LANES, 0>(x, store, EachLane{});                                                  \
  }
#else
#define STEPS_REST(T, V, GATHER) STEPS_LEFT(T, V, GATHER)
#endif
#define WIDE_STEPS(T, V, H, U, GATHER)                                                              \
  template <int S> static INLINE V stepped_##T(const T* p, All) {                                   \
    auto half = [&](const T* q) STEP {                                                              \
      return stepped<S, HALF, H>([&](int64 k) STEP { return (H) * (const U*)(q + k); }, EachOfHalf{}); \
    };                                                                                              \
    return V{half(p), half(p + S * HALF)};                                                          \
  }                                                                                                 \
  template <int S> static INLINE void turns_##T(T* p, const V* x, All) {                            \
    H low[S], high[S];                                                                              \
    for (int j = 0; j < S; ++j) { low[j] = x[j].lo; high[j] = x[j].hi; }                            \
    take_turns<S, HALF, 0>(low, [&](int64 k, H v) STEP { *(U*)(p + k) = v; }, EachOfHalf{});           \
    take_turns<S, HALF, 0>(high, [&](int64 k, H v) STEP { *(U*)(p + S * HALF + k) = v; }, EachOfHalf{}); \
  }                                                                                                 \
  STEPS_LEFT(T, V, GATHER)
// p[0], p[step], p[2 * step], ... = the lanes of x that count: converted together, then stored one by one. picked_T loads
// from such places; elements that are converted or wider take less time where they are loaded. Both are calls: a network
// that sorts has dozens, and each written out took the compiler 0.05 s.
#define SPREAD(T, V)                                                                                  \
  static __attribute__((noinline)) void spread_##T(T* p, int64 step, V x, int64 n) {                  \
    alignas(64) T a[LANES];                                                                           \
    store_##T(a, x, all);                                                                             \
    for (int64 k = 0; k < n; ++k) p[k * step] = a[k];                                                 \
  }
SPREAD(f32, vf32) SPREAD(bf16, vf32) SPREAD(f16, vf32) SPREAD(f64, vf64) SPREAD(int8, vi32) SPREAD(uint8, vi32)
SPREAD(int16, vi32) SPREAD(int32, vi32) SPREAD(int64, vi64) SPREAD(flag, vflag) SPREAD(e4m3, vf32) SPREAD(e5m2, vf32)
#define PICKED(T, V)                                                                                  \
  static __attribute__((noinline)) V picked_##T(const T* p, int64 step, int64 n) {                    \
    alignas(64) T a[LANES] = {};                                                                      \
    for (int64 k = 0; k < n; ++k) a[k] = p[k * step];                                                 \
    return load_##T(a, all);                                                                          \
  }
PICKED(f32, vf32) PICKED(int32, vi32)
STEPS(f32, vf32, lanes_f32) STEPS(bf16, vf32, lanes_f32) STEPS(f16, vf32, lanes_f32)
STEPS(int8, vi32, lanes_int32) STEPS(uint8, vi32, lanes_int32) STEPS(int16, vi32, lanes_int32) STEPS(int32, vi32, lanes_int32)
STEPS(flag, vflag, lanes_flag) STEPS(e4m3, vf32, lanes_f32) STEPS(e5m2, vf32, lanes_f32)
WIDE_STEPS(f64, vf64, hf64, uf64, lanes_f64) WIDE_STEPS(int64, vi64, hi64, ui64, lanes_int64)
