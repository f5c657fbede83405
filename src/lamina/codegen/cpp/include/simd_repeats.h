// Places that go on in the same way after every few points: at[k] is that of lane k. Nothing but the elements from the
// lowest place to the highest of the lanes that count is touched.
#if LANES == 16
#ifdef __clang__
static INLINE vf32 taken(vf32 a, vi32 at) { return __builtin_ia32_permvarsf512(a, at); }
static INLINE vf32 taken(vf32 a, vf32 b, vi32 at) { return __builtin_ia32_vpermi2varps512(a, at, b); }
#else
static INLINE vf32 taken(vf32 a, vi32 at) { return __builtin_shuffle(a, at); }
static INLINE vf32 taken(vf32 a, vf32 b, vi32 at) { return __builtin_shuffle(a, b, at); }
#endif
static INLINE vi32 taken(vi32 a, vi32 at) { return (vi32)taken((vf32)a, at); }
static INLINE vi32 taken(vi32 a, vi32 b, vi32 at) { return (vi32)taken((vf32)a, (vf32)b, at); }
// rising_T<W>: places rise, W vectors hold those of any vector. near_T<W>: they lie as near to each other, perhaps they
// rise, and lanes that are not chosen are filled. cyclic_T<S>: places are below S in all vectors.
static INLINE int32 least_of(vi32 x) {
  hi32 h = low_half(x) < high_half(x) ? low_half(x) : high_half(x), g = __builtin_shufflevector(h, h, 4, 5, 6, 7, 0, 1, 2, 3);
  h = h < g ? h : g;
  g = __builtin_shufflevector(h, h, 2, 3, 0, 1, 6, 7, 4, 5);
  h = h < g ? h : g;
  return h[0] < h[1] ? h[0] : h[1];
}
#define REPEATS(T)                                                                                          \
  template <int W, class N> static INLINE auto rising_##T(const T* p, const int32* at, N n) {               \
    const int64 begin = at[0], count = at[lane_count(n) - 1] - begin + 1;                                   \
    const vi32 from = load_int32(at, all) - splat_int32(at[0]);                                             \
    if constexpr (W == 1) return taken(load_##T(p + begin, some_of(count)), from);                          \
    else return taken(load_##T(p + begin, some_of(count)), load_##T(p + begin + LANES, some_of(count - LANES)), from); \
  }                                                                                                         \
  template <int W, bool RISES, class V, class N>                                                            \
  static INLINE V near_##T(const T* p, const int32* at, vflag m, V fill, N n) {                             \
    m = m & lanes(n);                                                                                       \
    const int32 bits = mask_bits(m);                                                                        \
    if (!bits) return fill;                                                                                 \
    const vi32 places = load_int32(at, all), none = splat_int32(0x7fffffff);                                \
    const int64 begin = RISES ? at[__builtin_ctz(bits)] : least_of(select(m, places, none));                \
    const int64 end = RISES ? at[31 - __builtin_clz(bits)] : ~least_of(select(m, ~places, none));           \
    const int64 count = end - begin + 1;                                                                    \
    const vi32 from = places - splat_int32((int32)begin);                                                   \
    const V low = load_##T(p + begin, some_of(count));                                                      \
    if constexpr (W == 1) return select(m, taken(low, from), fill);                                         \
    else return select(m, taken(low, load_##T(p + begin + LANES, some_of(count - LANES)), from), fill);     \
  }                                                                                                         \
  template <int S> static INLINE auto cyclic_##T(const T* p, const int32* at) {                             \
    if constexpr (S <= LANES) return taken(load_##T(p, Some{S}), load_int32(at, all));                      \
    else return taken(load_##T(p, all), load_##T(p + LANES, Some{S - LANES}), load_int32(at, all));         \
  }
REPEATS(f32) REPEATS(bf16) REPEATS(f16) REPEATS(int8) REPEATS(uint8) REPEATS(int16) REPEATS(int32) REPEATS(flag)
REPEATS(e4m3) REPEATS(e5m2)
#endif
