// Operations on vectors that follow torch to the letter: NaN, signed zeros, integer wrap-around, division by zero.
static INLINE vi32 shift_left(vi32 a, vi32 b) { return (vi32)((vu32)a << (vu32)(b & 31)) & (vi32)((vu32)b < 32u); }
static INLINE vi32 shift_right(vi32 a, vi32 b) { return a >> ((vu32)b < 32u ? b : vi32{} + 31); }
static INLINE hi64 shift_left(hi64 a, hi64 b) { return (hi64)((hu64)a << (hu64)(b & 63)) & (hi64)((hu64)b < 64ull); }
static INLINE hi64 shift_right(hi64 a, hi64 b) { return a >> ((hu64)b < 64ull ? b : hi64{} + 63); }
static INLINE vi64 shift_left(vi64 a, vi64 b) { return vi64{shift_left(a.lo, b.lo), shift_left(a.hi, b.hi)}; }
static INLINE vi64 shift_right(vi64 a, vi64 b) { return vi64{shift_right(a.lo, b.lo), shift_right(a.hi, b.hi)}; }
static INLINE vi32 maximum_int(vi32 a, vi32 b) { return a > b ? a : b; }
static INLINE vi32 minimum_int(vi32 a, vi32 b) { return a < b ? a : b; }
static INLINE vi64 maximum_int(vi64 a, vi64 b) { return vi64{a.lo > b.lo ? a.lo : b.lo, a.hi > b.hi ? a.hi : b.hi}; }
static INLINE vi64 minimum_int(vi64 a, vi64 b) { return vi64{a.lo < b.lo ? a.lo : b.lo, a.hi < b.hi ? a.hi : b.hi}; }
static INLINE vi32 bits_of_vi32(vf32 x) { return (vi32)x; }
static INLINE vf32 bits_of_vf32(vi32 x) { return (vf32)x; }
static INLINE vi64 bits_of_vi64(vf64 x) { return vi64{(hi64)x.lo, (hi64)x.hi}; }
static INLINE vf64 bits_of_vf64(vi64 x) { return vf64{(hf64)x.lo, (hf64)x.hi}; }
#define INTEGERS(V, T)                                                                                       \
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
static INLINE vf32 opposite_(vf32 x) { return (vf32)((vi32)x ^ (int32)0x80000000); }
static INLINE vf64 opposite_(vf64 x) { return vf64{(hf64)((hi64)x.lo ^ INT64_MIN), (hf64)((hi64)x.hi ^ INT64_MIN)}; }
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
  static INLINE V fmax_(V a, V b) { return select(a != a, b, larger(b, a)); }                                 \
  static INLINE V fmin_(V a, V b) { return select(a != a, b, smaller(b, a)); }                                \
  static INLINE V relu(V x) { return select(x < V{}, V{}, x); }                                               \
  static INLINE V sign_of(V x) { return select(x > V{}, splat_##T(1), select(x < V{}, splat_##T(-1), V{})); } \
  static INLINE vflag isinf_(V x) { return abs_(x) == splat_##T(INF); }                                         \
  static INLINE V rsqrt_(V x) { return splat_##T(1) / sqrt_(x); }                                             \
  static INLINE V trunc_div_float(V a, V b) { return trunc_(a / b); }
FLOATS(vf32, f32, __builtin_inff()) FLOATS(vf64, f64, __builtin_inf())

// ---- combining lanes, always in the same order ----------------------------------------------------------------------
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
FOLD(fold_max, vi64, int64, , p > q ? p : q) FOLD(fold_min, vi64, int64, , p < q ? p : q)
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
#define FOLD_EXTREME(NAME, PICK)                                               \
  template <class T, class V> static INLINE T NAME##_of_half(V h) {            \
    T a[HALF];                                                                 \
    __builtin_memcpy(a, &h, sizeof h);                                         \
    for (int w = HALF / 2; w; w /= 2)                                          \
      for (int k = 0; k < w; ++k) a[k] = a[k] PICK a[k + w] ? a[k] : a[k + w]; \
    return a[0];                                                               \
  }                                                                            \
  static INLINE f32 NAME(vf32 x) {                                             \
    if (any_lane(x != x)) return __builtin_nanf("");                           \
    hf32 l = low_half(x), r = high_half(x), h = l PICK r ? l : r;              \
    f32 best = h[0];                                                           \
    for (int k = 1; k < HALF; ++k) best = h[k] PICK best ? h[k] : best;        \
    return best;                                                               \
  }                                                                            \
  static INLINE f64 NAME(vf64 x) {                                             \
    if (any_lane(x != x)) return __builtin_nan("");                            \
    return NAME##_of_half<f64>(x.lo PICK x.hi ? x.lo : x.hi);                  \
  }                                                                            \
  static INLINE int32 NAME(vi32 x) {                                           \
    hi32 l = low_half(x), r = high_half(x);                                    \
    return NAME##_of_half<int32>(l PICK r ? l : r);                            \
  }
FOLD_EXTREME(fold_max, >) FOLD_EXTREME(fold_min, <)

// strip(begin, end, step): step(i, n, k) on LANES elements at a time, UNROLL of them before k starts again at 0.
template <int UNROLL, class F> static INLINE void strip(int64 begin, int64 end, const F& step) {
  int64 i = begin;
  if constexpr (UNROLL == 8)
    for (; i + 8 * LANES <= end; i += 8 * LANES) {
      step(i, all, 0); step(i + LANES, all, 1); step(i + 2 * LANES, all, 2); step(i + 3 * LANES, all, 3);
      step(i + 4 * LANES, all, 4); step(i + 5 * LANES, all, 5); step(i + 6 * LANES, all, 6); step(i + 7 * LANES, all, 7);
    }
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
  if constexpr (UNROLL == 8)
    for (; i + 8 * LANES <= end; i += 8 * LANES) {
      step(i, all, 0); step(i + LANES, all, 1); step(i + 2 * LANES, all, 2); step(i + 3 * LANES, all, 3);
      step(i + 4 * LANES, all, 4); step(i + 5 * LANES, all, 5); step(i + 6 * LANES, all, 6); step(i + 7 * LANES, all, 7);
    }
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
// Random numbers for consecutive indices: LANES blocks of four at a time, kept until they are used up.
static INLINE void wide_product(vu32 a, uint32 m, vu32& high, vu32& low) {
  vi32 x = (vi32)a, y = (vi32)((vu32){} + m);
#if LANES == 8
  vi32 even = (vi32)__builtin_ia32_pmuludq256(x, y), odd = (vi32)__builtin_ia32_pmuludq256(__builtin_shufflevector(x, x, 1, 1, 3, 3, 5, 5, 7, 7), y);
  high = (vu32)__builtin_shufflevector(even, odd, 1, 9, 3, 11, 5, 13, 7, 15);
#else
  typedef long long w64 __attribute__((vector_size(WIDTH)));
  vi32 even = (vi32)__builtin_ia32_pmuludq512_mask(x, y, w64{}, -1);
  vi32 turned = __builtin_shufflevector(x, x, 1, 1, 3, 3, 5, 5, 7, 7, 9, 9, 11, 11, 13, 13, 15, 15);
  vi32 odd = (vi32)__builtin_ia32_pmuludq512_mask(turned, y, w64{}, -1);
  high = (vu32)__builtin_shufflevector(even, odd, 1, 17, 3, 19, 5, 21, 7, 23, 9, 25, 11, 27, 13, 29, 15, 31);
#endif
  low = a * m;
}
struct PhiloxRun {
  alignas(64) f32 values[4 * LANES];
  int64 start = INT64_MIN / 2;
  __attribute__((noinline)) void refill(int64 index, int64 seed, uint32 stream) {
    start = index & ~(int64)3;
    uint64 block = (uint64)start >> 2;
    vu32 first = (vu32){} + (uint32)block, c0 = first + (vu32)LANE, c1 = (vu32){} + (uint32)(block >> 32);
    c1 = c1 + ((vu32)(c0 < first) & 1u);
    vu32 c2 = (vu32){} + stream, c3 = {};
    uint32 k0 = (uint32)seed, k1 = (uint32)((uint64)seed >> 32);
    for (int round = 0; round < 10; ++round) {
      vu32 h0, l0, h1, l1;
      wide_product(c0, 0xD2511F53u, h0, l0);
      wide_product(c2, 0xCD9E8D57u, h1, l1);
      c0 = h1 ^ c1 ^ k0; c1 = l1; c2 = h0 ^ c3 ^ k1; c3 = l0;
      k0 += 0x9E3779B9u; k1 += 0xBB67AE85u;
    }
    alignas(64) f32 words[4][LANES];
    vu32 c[4] = {c0, c1, c2, c3};
    for (int w = 0; w < 4; ++w) *(vf32*)words[w] = to_vf32((vi32)(c[w] >> 8)) * 0x1p-24f;
    for (int b = 0; b < LANES; ++b)
      for (int w = 0; w < 4; ++w) values[4 * b + w] = words[w][b];
  }
  INLINE vf32 at(int64 index, int64 seed, uint32 stream) {
    if (index < start || index + LANES > start + 4 * LANES) refill(index, seed, stream);
    return *(const uf32*)(values + (index - start));
  }
};
// The strip from its end to its beginning.
template <class F> static INLINE void strip_back(int64 begin, int64 end, const F& step) {
  int64 i = begin + (end - begin) / LANES * LANES;
  if (i < end) step(i, Some{end - i}, 0);
  for (i -= LANES; i >= begin; i -= LANES) step(i, all, 0);
}
MAP2(pow_int, vi32, int32, pow_int<int32>) MAP2(pow_int, vi64, int64, pow_int<int64>)
// Accumulators change in the lanes that count.
template <class V> static INLINE V counted(V, V fresh, All) { return fresh; }
template <class V> static INLINE V counted(V old, V fresh, Some n) { return select(lanes(n), fresh, old); }
template <bool MAX, class V, class I>
static INLINE Best<MAX, V, I> counted(const Best<MAX, V, I>& old, const Best<MAX, V, I>& fresh, Some n) {
  return {select(lanes(n), fresh.value, old.value), select(lanes(n), fresh.at, old.at)};
}
template <bool MAX, class V, class I, class N> static INLINE void meet(Best<MAX, V, I>& b, V x, I i, N n) {
  auto c = b; c.meet(x, i); b = counted(b, c, n);
}
template <bool MAX, class V, class I, class N> static INLINE void join(Best<MAX, V, I>& b, V x, I i, N n) {
  auto c = b; c.join(x, i); b = counted(b, c, n);
}
static INLINE vf32 splat_as(vf32, f32 x) { return splat_f32(x); }
static INLINE vf64 splat_as(vf64, f64 x) { return splat_f64(x); }
static INLINE vi32 splat_as(vi32, int32 x) { return splat_int32(x); }
static INLINE vi64 splat_as(vi64, int64 x) { return splat_int64(x); }
// The best of all lanes first, then which of them have it: mostly one.
template <bool MAX, class T, class V> static INLINE Best<MAX, T, int64> fold_best(const Best<MAX, V, vi64>& b) {
  auto most = [&] { if constexpr (MAX) return fold_max(b.value); else return fold_min(b.value); }();
  V all_of = splat_as(b.value, most);
  vflag have = (b.value == all_of) | ((b.value != b.value) & (all_of != all_of));
  int32 bits = mask_bits(have);
  if (__builtin_expect((bits & (bits - 1)) == 0, 1)) return {(T)most, lane(b.at, __builtin_ctz(bits))};
  return {(T)most, fold_min(select(have, b.at, splat_int64(INT64_MAX)))};
}
// to[j * pitch + i] = from[i * stride + j] for 0 <= i < columns, 0 <= j < rows: eight by eight in registers where it fits.
template <class V, class T> static INLINE void transpose_eight(T* to, int64 pitch, const T* from, int64 stride) {
  V r[8], t[8];
  for (int k = 0; k < 8; ++k) __builtin_memcpy(&r[k], from + k * stride, sizeof(V));
  for (int round = 0; round < 3; ++round) {
    for (int k = 0; k < 4; ++k) {
      t[2 * k] = __builtin_shufflevector(r[k], r[k + 4], 0, 8, 1, 9, 2, 10, 3, 11);
      t[2 * k + 1] = __builtin_shufflevector(r[k], r[k + 4], 4, 12, 5, 13, 6, 14, 7, 15);
    }
    for (int k = 0; k < 8; ++k) r[k] = t[k];
  }
  for (int k = 0; k < 8; ++k) __builtin_memcpy(to + k * pitch, &r[k], sizeof(V));
}
template <class T> static inline void transpose(T* to, int64 pitch, const T* from, int64 stride, int64 rows, int64 columns) {
  typedef int32 w4 __attribute__((vector_size(32)));
  typedef int16 w2 __attribute__((vector_size(16)));
  int64 whole_rows = 0, whole_columns = 0;
  if constexpr (sizeof(T) == 4 || sizeof(T) == 2) {
    whole_rows = rows & ~(int64)7;
    whole_columns = columns & ~(int64)7;
    for (int64 i = 0; i < whole_columns; i += 8)
      for (int64 j = 0; j < whole_rows; j += 8) {
        if constexpr (sizeof(T) == 4) transpose_eight<w4>(to + j * pitch + i, pitch, from + i * stride + j, stride);
        else transpose_eight<w2>(to + j * pitch + i, pitch, from + i * stride + j, stride);
      }
  }
  for (int64 i = 0; i < columns; ++i)
    for (int64 j = i < whole_columns ? whole_rows : 0; j < rows; ++j) to[j * pitch + i] = from[i * stride + j];
}

// p[0], p[-1], p[-2], ... as a vector.
template <class V> static INLINE V turned(V x) {
#if LANES == 8
  return __builtin_shufflevector(x, x, 7, 6, 5, 4, 3, 2, 1, 0);
#else
  return __builtin_shufflevector(x, x, 15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
#endif
}
template <class H> static INLINE H half_turned(H x) {
#if LANES == 8
  return __builtin_shufflevector(x, x, 3, 2, 1, 0);
#else
  return __builtin_shufflevector(x, x, 7, 6, 5, 4, 3, 2, 1, 0);
#endif
}
template <> INLINE vf64 turned(vf64 x) { return vf64{half_turned(x.hi), half_turned(x.lo)}; }
template <> INLINE vi64 turned(vi64 x) { return vi64{half_turned(x.hi), half_turned(x.lo)}; }
#define BACKWARD(T, GATHER)                                                                          \
  static INLINE auto backward_##T(const T* p, All) { return turned(load_##T(p - (LANES - 1), all)); } \
  static INLINE auto backward_##T(const T* p, Some n) {                                              \
    return GATHER(n.count, [&](int64 k) STEP { return load_##T(p - k); });                           \
  }
BACKWARD(f32, lanes_f32) BACKWARD(bf16, lanes_f32) BACKWARD(f16, lanes_f32) BACKWARD(f64, lanes_f64) BACKWARD(e4m3, lanes_f32) BACKWARD(e5m2, lanes_f32)
BACKWARD(int8, lanes_int32) BACKWARD(uint8, lanes_int32) BACKWARD(int16, lanes_int32) BACKWARD(int32, lanes_int32)
BACKWARD(int64, lanes_int64) BACKWARD(flag, lanes_flag)
