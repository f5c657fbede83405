// element(k) for each lane that counts and is chosen, fill in the others; often there are none, or few.
template <class V, class T, class N, class F> static INLINE V gathered_where(vflag m, V fill, N n, const F& element) {
  int32 left = mask_bits(m & lanes(n));
  if (!left) return fill;
  alignas(WIDTH) T out[LANES];
  __builtin_memcpy(out, &fill, sizeof fill);
  if (left == (1 << LANES) - 1) {
    for (int64 k = 0; k < LANES; ++k) out[k] = element(k);
  } else {
    for (; left; left &= left - 1) { int64 k = __builtin_ctz(left); out[k] = element(k); }
  }
  V v;
  __builtin_memcpy(&v, out, sizeof v);
  return v;
}
#define CHOSEN(T, V, E)                                                                           \
  template <class N, class F> static INLINE V chosen_##T(vflag m, V fill, N n, const F& e) {      \
    return gathered_where<V, E>(m, fill, n, e);                                                   \
  }
CHOSEN(f32, vf32, f32) CHOSEN(int32, vi32, int32) CHOSEN(f64, vf64, f64) CHOSEN(int64, vi64, int64)
template <class N, class F> static INLINE vflag chosen_flag(vflag m, vflag fill, N n, const F& e) {
  return gathered_where<vi32, int32>(m, fill, n, [&](int64 k) STEP { return -(int32)(bool)e(k); });
}
// Loads and stores under a mask: memory is touched only where it holds. masked_T: fill in the other lanes. jumped_T: the
// first lanes lie from p on, the others from q on, that of lane k at q[k]; under a mask, too.
#if LANES == 8
#define MASKED(T, V, E, LANES_OF)                                                                        \
  template <class N> static INLINE V masked_##T(const T* p, vflag m, V fill, N n) {                      \
    vflag in = lanes(n);                                                                                 \
    if (every_lane(m | ~in)) return load_##T(p, n);                                                      \
    if (!any_lane(m & in)) return fill;                                                                  \
    return select(m, lanes_##LANES_OF(lane_count(n), [&](int64 k) STEP { return m[k] ? load_##T(p + k) : (E)0; }), fill); \
  }                                                                                                      \
  template <class N> static INLINE void store_masked_##T(T* p, V x, vflag m, N n) {                      \
    if (every_lane(m | ~lanes(n))) return store_##T(p, x, n);                                            \
    for (int64 k = 0; k < lane_count(n); ++k) if (m[k]) store_##T(p + k, lane(x, k));                    \
  }                                                                                                      \
  template <class N> static INLINE V jumped_##T(const T* p, const T* q, int64 first, vflag m, V fill, N n) { \
    return chosen_##LANES_OF(m, fill, n, [&](int64 k) STEP { return load_##T((k < first ? p : q) + k); }); \
  }                                                                                                      \
  template <class N> static INLINE V jumped_##T(const T* p, const T* q, int64 first, N n) {              \
    return lanes_##LANES_OF(lane_count(n), [&](int64 k) STEP { return load_##T((k < first ? p : q) + k); }); \
  }
#else
// Lane k of the result is lane k - first. What is loaded begins with the first lane that counts: memory before it, though
// no lane counts there, may be without a page, and to find that out takes a processor a hundred nanoseconds.
static INLINE vf32 moved_up(vf32 x, int64 first) { return taken(x, LANE - (int32)first); }
static INLINE vi32 moved_up(vi32 x, int64 first) { return taken(x, LANE - (int32)first); }
template <class V> static INLINE V pair_moved_up(V x, int64 first) {
  alignas(WIDTH) V held[2] = {V{}, x};
  V moved;
  __builtin_memcpy(&moved, (const char*)(held + 1) - first * 8, sizeof moved);
  return moved;
}
static INLINE vf64 moved_up(vf64 x, int64 first) { return pair_moved_up(x, first); }
static INLINE vi64 moved_up(vi64 x, int64 first) { return pair_moved_up(x, first); }
#define MASKED(T, V, E, LANES_OF)                                                                        \
  template <class N> static INLINE V masked_##T(const T* p, vflag m, V fill, N n) {                      \
    const int32 bits = mask_bits(m & lanes(n));                                                          \
    return bits ? select(m, load_##T(p, Few(bits)), fill) : fill;                                        \
  }                                                                                                      \
  template <class N> static INLINE void store_masked_##T(T* p, V x, vflag m, N n) {                      \
    store_##T(p, x, Few(mask_bits(m & lanes(n))));                                                       \
  }                                                                                                      \
  template <class N> static INLINE V jumped_##T(const T* p, const T* q, int64 first, vflag m, V fill, N n) { \
    const int32 bits = mask_bits(m & lanes(n)), low = bits & ((1 << first) - 1);                         \
    const V a = load_##T(p, Few(low)), b = moved_up(load_##T(q + first, Few(bits >> first)), first);     \
    return select(m, select(first_lanes(first), a, b), fill);                                            \
  }                                                                                                      \
  template <class N> static INLINE V jumped_##T(const T* p, const T* q, int64 first, N n) {              \
    return jumped_##T(p, q, first, lanes(n), V{}, n);                                                    \
  }
#endif
MASKED(f32, vf32, f32, f32) MASKED(bf16, vf32, f32, f32) MASKED(f16, vf32, f32, f32) MASKED(f64, vf64, f64, f64)
MASKED(e4m3, vf32, f32, f32) MASKED(e5m2, vf32, f32, f32) MASKED(int8, vi32, int32, int32) MASKED(uint8, vi32, int32, int32)
MASKED(int16, vi32, int32, int32) MASKED(int32, vi32, int32, int32) MASKED(int64, vi64, int64, int64) MASKED(flag, vflag, bool, flag)
