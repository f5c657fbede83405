// Operations on vectors that follow torch to the letter: NaN, signed zeros, integer wrap-around, division by zero.
#define MAP_INT(V, T)                                                                                        \
  MAP2(trunc_div, V, T, trunc_div<T>) MAP2(floor_div, V, T, floor_div<T>)                                    \
  MAP2(fmod_int, V, T, fmod_int<T>) MAP2(floor_mod, V, T, floor_mod<T>)                                      \
  MAP2(shift_left, V, T, shift_left<T>) MAP2(shift_right, V, T, shift_right<T>)
MAP_INT(vi32, int32) MAP_INT(vi64, int64)
#define INTEGERS(V, T)                                                                                       \
  static INLINE V maximum_int(V a, V b) { return select(a > b, a, b); }                                      \
  static INLINE V minimum_int(V a, V b) { return select(a < b, a, b); }                                      \
  static INLINE V abs_int(V a) { return select(a < V{}, V{} - a, a); }                                       \
  static INLINE V sign_of(V a) { return select(a > V{}, splat_##T(1), select(a < V{}, splat_##T(-1), V{})); } \
  static INLINE V relu_int(V a) { return select(a < V{}, V{}, a); }
INTEGERS(vi32, int32) INTEGERS(vi64, int64)

static INLINE vf32 abs_(vf32 x) { return (vf32)((vi32)x & 0x7fffffff); }
static INLINE vf64 abs_(vf64 x) { return vf64{(hf64)((hi64)x.lo & INT64_MAX), (hf64)((hi64)x.hi & INT64_MAX)}; }
static INLINE vf32 copysign_(vf32 x, vf32 y) { return (vf32)(((vi32)x & 0x7fffffff) | ((vi32)y & (int32)0x80000000)); }
static INLINE vf64 copysign_(vf64 x, vf64 y) {
  return vf64{(hf64)(((hi64)x.lo & INT64_MAX) | ((hi64)y.lo & INT64_MIN)), (hf64)(((hi64)x.hi & INT64_MAX) | ((hi64)y.hi & INT64_MIN))};
}
static INLINE vflag signbit_(vf32 x) { return (vi32)x < 0; }
static INLINE vflag signbit_(vf64 x) { return vi64{(hi64)x.lo, (hi64)x.hi} < vi64{}; }
#if LANES == 8
static INLINE vf32 larger(vf32 a, vf32 b) { return __builtin_ia32_maxps256(a, b); }  // b where either is NaN
static INLINE vf32 smaller(vf32 a, vf32 b) { return __builtin_ia32_minps256(a, b); }
static INLINE hf64 larger(hf64 a, hf64 b) { return __builtin_ia32_maxpd256(a, b); }
static INLINE hf64 smaller(hf64 a, hf64 b) { return __builtin_ia32_minpd256(a, b); }
static INLINE vf32 sqrt_(vf32 x) { return __builtin_ia32_sqrtps256(x); }
static INLINE vf64 sqrt_(vf64 x) { return vf64{__builtin_ia32_sqrtpd256(x.lo), __builtin_ia32_sqrtpd256(x.hi)}; }
#define ROUNDING(NAME, MODE)                                                                                  \
  static INLINE vf32 NAME(vf32 x) { return __builtin_ia32_roundps256(x, MODE); }                              \
  static INLINE vf64 NAME(vf64 x) { return vf64{__builtin_ia32_roundpd256(x.lo, MODE), __builtin_ia32_roundpd256(x.hi, MODE)}; }
#else
static INLINE vf32 larger(vf32 a, vf32 b) { return __builtin_ia32_maxps512_mask(a, b, vf32{}, -1, 4); }
static INLINE vf32 smaller(vf32 a, vf32 b) { return __builtin_ia32_minps512_mask(a, b, vf32{}, -1, 4); }
static INLINE hf64 larger(hf64 a, hf64 b) { return __builtin_ia32_maxpd512_mask(a, b, hf64{}, -1, 4); }
static INLINE hf64 smaller(hf64 a, hf64 b) { return __builtin_ia32_minpd512_mask(a, b, hf64{}, -1, 4); }
static INLINE vf32 sqrt_(vf32 x) { return __builtin_ia32_sqrtps512_mask(x, vf32{}, -1, 4); }
static INLINE hf64 sqrt_half(hf64 x) { return __builtin_ia32_sqrtpd512_mask(x, hf64{}, -1, 4); }
static INLINE vf64 sqrt_(vf64 x) { return vf64{sqrt_half(x.lo), sqrt_half(x.hi)}; }
#define ROUNDING(NAME, MODE)                                                                                  \
  static INLINE vf32 NAME(vf32 x) { return __builtin_ia32_rndscaleps_mask(x, MODE, vf32{}, -1, 4); }          \
  static INLINE vf64 NAME(vf64 x) {                                                                           \
    return vf64{__builtin_ia32_rndscalepd_mask(x.lo, MODE, hf64{}, -1, 4), __builtin_ia32_rndscalepd_mask(x.hi, MODE, hf64{}, -1, 4)}; \
  }
#endif
ROUNDING(round_, 8) ROUNDING(floor_, 9) ROUNDING(ceil_, 10) ROUNDING(trunc_, 11)
static INLINE vf64 larger(vf64 a, vf64 b) { return vf64{larger(a.lo, b.lo), larger(a.hi, b.hi)}; }
static INLINE vf64 smaller(vf64 a, vf64 b) { return vf64{smaller(a.lo, b.lo), smaller(a.hi, b.hi)}; }

#define FLOATS(V, T, INF)                                                                                     \
  static INLINE V maximum(V a, V b) { return select(a != a, a, larger(a, b)); }                               \
  static INLINE V minimum(V a, V b) { return select(a != a, a, smaller(a, b)); }                              \
  static INLINE V fmax_(V a, V b) { return select(b != b, a, larger(a, b)); }                                 \
  static INLINE V fmin_(V a, V b) { return select(b != b, a, smaller(a, b)); }                                \
  static INLINE V relu(V x) { return select(x < V{}, V{}, x); }                                               \
  static INLINE V sign_of(V x) { return select(x > V{}, splat_##T(1), select(x < V{}, splat_##T(-1), V{})); } \
  static INLINE vflag isinf_(V x) { return abs_(x) == splat_##T(INF); }                                         \
  static INLINE V rsqrt_(V x) { return splat_##T(1) / sqrt_(x); }                                             \
  static INLINE V trunc_div_float(V a, V b) { return trunc_(a / b); }
FLOATS(vf32, f32, __builtin_inff()) FLOATS(vf64, f64, __builtin_inf())
MAP2(fmod_, vf32, f32, fmod_) MAP2(fmod_, vf64, f64, fmod_)
MAP2(mod_, vf32, f32, mod_) MAP2(mod_, vf64, f64, mod_)
MAP2(floor_div_float, vf32, f32, floor_div_float) MAP2(floor_div_float, vf64, f64, floor_div_float)
MAP2(nextafter_, vf32, f32, nextafter_) MAP2(nextafter_, vf64, f64, nextafter_)
MAP1(erfinv_, vf32, f32, erfinv_) MAP1(erfinv_, vf64, f64, erfinv_)
MAP1(digamma_, vf32, f32, digamma_) MAP1(digamma_, vf64, f64, digamma_)
MAP1(lgamma_, vf32, f32, lgamma_) MAP1(lgamma_, vf64, f64, lgamma_)

// ---- combining lanes, always in the same order ----------------------------------------------------------------------
template <class V> static INLINE V lanes_swapped(V x, int by) {
  V y = x;
  for (int k = 0; k < LANES; ++k) y[k] = x[k ^ by];
  return y;
}
#define FOLD(NAME, V, T, H, EXPR)                                         \
  static INLINE T NAME(V x) {                                             \
    T a[LANES];                                                           \
    __builtin_memcpy(a, &x, sizeof x);                                    \
    for (int w = LANES / 2; w; w /= 2)                                    \
      for (int k = 0; k < w; ++k) { T p = a[k], q = a[k + w]; a[k] = EXPR; } \
    return a[0];                                                          \
  }
FOLD(fold_prod, vf32, f32, , p * q) FOLD(fold_prod, vf64, f64, , p * q)
FOLD(fold_prod, vi32, int32, , wrap_mul(p, q)) FOLD(fold_prod, vi64, int64, , wrap_mul(p, q))
FOLD(fold_sum, vi32, int32, , wrap_add(p, q)) FOLD(fold_sum, vi64, int64, , wrap_add(p, q)) FOLD(fold_sum, vf64, f64, , p + q)
FOLD(fold_max, vi32, int32, , p > q ? p : q) FOLD(fold_max, vi64, int64, , p > q ? p : q) FOLD(fold_max, vf64, f64, , maximum(p, q))
FOLD(fold_min, vi32, int32, , p < q ? p : q) FOLD(fold_min, vi64, int64, , p < q ? p : q) FOLD(fold_min, vf64, f64, , minimum(p, q))
typedef f32 qf32 __attribute__((vector_size(16)));
static INLINE qf32 quarter(hf32 x, int which) {
#if LANES == 8
  return (qf32)x;
#else
  return which ? __builtin_shufflevector(x, x, 4, 5, 6, 7) : __builtin_shufflevector(x, x, 0, 1, 2, 3);
#endif
}
static INLINE f32 fold_sum(vf32 x) {
  hf32 h = low_half(x) + high_half(x);
#if LANES == 8
  qf32 q = h;
#else
  qf32 q = quarter(h, 0) + quarter(h, 1);
#endif
  q = q + __builtin_shufflevector(q, q, 2, 3, 0, 1);
  return q[0] + q[1];
}
#define FOLD_EXTREME(NAME, PICK)                                                            \
  static INLINE f32 NAME(vf32 x) {                                                          \
    if (any_lane(x != x)) return __builtin_nanf("");                                        \
    hf32 l = low_half(x), r = high_half(x), h = l PICK r ? l : r;                           \
    f32 best = h[0];                                                                        \
    for (int k = 1; k < HALF; ++k) best = h[k] PICK best ? h[k] : best;                     \
    return best;                                                                            \
  }
FOLD_EXTREME(fold_max, >) FOLD_EXTREME(fold_min, <)

// strip(begin, end, step): step(i, n, k) on LANES elements at a time, UNROLL of them before k starts again at 0.
template <int UNROLL, class F> static INLINE void strip(int64 begin, int64 end, const F& step) {
  int64 i = begin;
  if constexpr (UNROLL == 4)
    for (; i + 4 * LANES <= end; i += 4 * LANES) {
      step(i, all, 0); step(i + LANES, all, 1); step(i + 2 * LANES, all, 2); step(i + 3 * LANES, all, 3);
    }
  if constexpr (UNROLL == 2)
    for (; i + 2 * LANES <= end; i += 2 * LANES) { step(i, all, 0); step(i + LANES, all, 1); }
  for (; i + LANES <= end; i += LANES) step(i, all, 0);
  if (i < end) step(i, Some{end - i}, 0);
}
// The same where end - begin is known to be a multiple of LANES.
template <int UNROLL, class F> static INLINE void strip_even(int64 begin, int64 end, const F& step) {
  int64 i = begin;
  if constexpr (UNROLL == 4)
    for (; i + 4 * LANES <= end; i += 4 * LANES) {
      step(i, all, 0); step(i + LANES, all, 1); step(i + 2 * LANES, all, 2); step(i + 3 * LANES, all, 3);
    }
  if constexpr (UNROLL == 2)
    for (; i + 2 * LANES <= end; i += 2 * LANES) { step(i, all, 0); step(i + LANES, all, 1); }
  for (; i + LANES <= end; i += LANES) step(i, all, 0);
}
static INLINE vi64 index_lanes(int64 first, int64 stride) {
  vi64 k = to_vi64(LANE);
  return splat_int64(first) + k * splat_int64(stride);
}
static INLINE vi32 index_lanes32(int32 first, int32 stride) { return first + LANE * stride; }
static INLINE vf32 philox(vi64 index, int64 seed, uint32 stream) {
  vf32 r;
  for (int k = 0; k < LANES; ++k) r[k] = philox(lane(index, k), seed, stream);
  return r;
}
MAP2(pow_int, vi32, int32, pow_int<int32>) MAP2(pow_int, vi64, int64, pow_int<int64>)
// Accumulators change in the lanes that count.
template <class V> static INLINE V counted(V, V fresh, All) { return fresh; }
template <class V> static INLINE V counted(V old, V fresh, Some n) { return select(lanes(n), fresh, old); }
template <bool MAX, class V, class I> static INLINE void meet(Best<MAX, V, I>& b, V x, I i, All) { b.meet(x, i); }
template <bool MAX, class V, class I> static INLINE void meet(Best<MAX, V, I>& b, V x, I i, Some n) {
  Best<MAX, V, I> c = b;
  c.meet(x, i);
  b.value = select(lanes(n), c.value, b.value);
  b.at = select(lanes(n), c.at, b.at);
}
template <bool MAX, class T, class V> static INLINE Best<MAX, T, int64> fold_best(const Best<MAX, V, vi64>& b) {
  Best<MAX, T, int64> r{(T)lane(b.value, 0), lane(b.at, 0)};
  for (int k = 1; k < LANES; ++k) r.join((T)lane(b.value, k), lane(b.at, k));
  return r;
}
// Loads under a mask: memory is touched only where it holds.
#define MASKED(T, V)                                                                              \
  template <class N> static INLINE V masked_##T(const T* p, vflag m, V fill, N n) {                  \
    vflag in = lanes(n);                                                                            \
    if (every_lane(m | ~in)) return load_##T(p, n);                                               \
    if (!any_lane(m & in)) return fill;                                                           \
    return select(m, lanes_##T##_at(p, m, lane_count(n)), fill);                                  \
  }                                                                                               \
  template <class N> static INLINE void store_masked_##T(T* p, V x, vflag m, N n) {                  \
    if (every_lane(m | ~lanes(n))) return store_##T(p, x, n);                                     \
    for (int64 k = 0; k < lane_count(n); ++k) if (m[k]) store_##T(p + k, lane(x, k));               \
  }
#define LANES_AT(T, E, GATHER)                                                                    \
  static INLINE auto lanes_##T##_at(const T* p, vflag m, int64 count) {                               \
    return GATHER(count, [&](int64 k) STEP { return m[k] ? load_##T(p + k) : (E)0; });               \
  }
LANES_AT(f32, f32, lanes_f32) LANES_AT(bf16, f32, lanes_f32) LANES_AT(f16, f32, lanes_f32) LANES_AT(f64, f64, lanes_f64)
LANES_AT(int8, int32, lanes_int32) LANES_AT(uint8, int32, lanes_int32) LANES_AT(int16, int32, lanes_int32) LANES_AT(int32, int32, lanes_int32)
LANES_AT(int64, int64, lanes_int64) LANES_AT(flag, bool, lanes_flag)
MASKED(f32, vf32) MASKED(bf16, vf32) MASKED(f16, vf32) MASKED(f64, vf64)
MASKED(int8, vi32) MASKED(uint8, vi32) MASKED(int16, vi32) MASKED(int32, vi32) MASKED(int64, vi64) MASKED(flag, vflag)
MAP2(logaddexp, vf32, f32, logaddexp) MAP2(logaddexp, vf64, f64, logaddexp)
