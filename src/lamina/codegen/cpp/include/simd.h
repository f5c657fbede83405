// Vectors of LANES elements, whatever the element: 4-byte elements fill one register, 8-byte elements a pair of them,
// 1- and 2-byte elements are widened to 32 bits in registers. A bool vector is 0 or -1 in each 32-bit lane.
// Memory operations take how many lanes count: all of them, or the first few (the end of a row).
#if defined(__AVX512F__) && defined(LAMINA_AVX512)
#define LANES 16
#else
#define LANES 8
#endif
#define HALF (LANES / 2)
#define WIDTH (LANES * 4)
typedef f32 vf32 __attribute__((vector_size(WIDTH)));
typedef int32 vi32 __attribute__((vector_size(WIDTH)));
typedef uint32 vu32 __attribute__((vector_size(WIDTH)));
typedef f64 hf64 __attribute__((vector_size(WIDTH)));
typedef int64 hi64 __attribute__((vector_size(WIDTH)));
typedef uint64 hu64 __attribute__((vector_size(WIDTH)));
typedef f32 hf32 __attribute__((vector_size(WIDTH / 2)));
typedef int32 hi32 __attribute__((vector_size(WIDTH / 2)));
typedef f32 uf32 __attribute__((vector_size(WIDTH), aligned(4), may_alias));
typedef int32 ui32 __attribute__((vector_size(WIDTH), aligned(4), may_alias));
typedef f64 uf64 __attribute__((vector_size(WIDTH), aligned(8), may_alias));
typedef int64 ui64 __attribute__((vector_size(WIDTH), aligned(8), may_alias));
typedef vi32 vflag;
struct vf64 { hf64 lo, hi; };
struct vi64 { hi64 lo, hi; };

struct All { static constexpr bool full = true; };
struct Some { static constexpr bool full = false; int64 count; };
static constexpr All all{};

#if LANES == 8
static const vi32 LANE = {0, 1, 2, 3, 4, 5, 6, 7};
static INLINE hi32 low_half(vi32 x) { return __builtin_shufflevector(x, x, 0, 1, 2, 3); }
static INLINE hi32 high_half(vi32 x) { return __builtin_shufflevector(x, x, 4, 5, 6, 7); }
static INLINE hf32 low_half(vf32 x) { return __builtin_shufflevector(x, x, 0, 1, 2, 3); }
static INLINE hf32 high_half(vf32 x) { return __builtin_shufflevector(x, x, 4, 5, 6, 7); }
static INLINE vi32 joined(hi32 a, hi32 b) { return __builtin_shufflevector(a, b, 0, 1, 2, 3, 4, 5, 6, 7); }
static INLINE vf32 joined(hf32 a, hf32 b) { return __builtin_shufflevector(a, b, 0, 1, 2, 3, 4, 5, 6, 7); }
static INLINE vi32 low_words(hi64 a, hi64 b) { return __builtin_shufflevector((vi32)a, (vi32)b, 0, 2, 4, 6, 8, 10, 12, 14); }
#define EACH_LANE(E) {E(0), E(1), E(2), E(3), E(4), E(5), E(6), E(7)}
#else
static const vi32 LANE = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
#define LOWS 0, 1, 2, 3, 4, 5, 6, 7
#define HIGHS 8, 9, 10, 11, 12, 13, 14, 15
static INLINE hi32 low_half(vi32 x) { return __builtin_shufflevector(x, x, LOWS); }
static INLINE hi32 high_half(vi32 x) { return __builtin_shufflevector(x, x, HIGHS); }
static INLINE hf32 low_half(vf32 x) { return __builtin_shufflevector(x, x, LOWS); }
static INLINE hf32 high_half(vf32 x) { return __builtin_shufflevector(x, x, HIGHS); }
static INLINE vi32 joined(hi32 a, hi32 b) { return __builtin_shufflevector(a, b, LOWS, HIGHS); }
static INLINE vf32 joined(hf32 a, hf32 b) { return __builtin_shufflevector(a, b, LOWS, HIGHS); }
static INLINE vi32 low_words(hi64 a, hi64 b) {
  return __builtin_shufflevector((vi32)a, (vi32)b, 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
}
#define EACH_LANE(E) {E(0), E(1), E(2), E(3), E(4), E(5), E(6), E(7), E(8), E(9), E(10), E(11), E(12), E(13), E(14), E(15)}
#endif

// ---- arithmetic on pairs of registers -------------------------------------------------------------------------------
#define PAIR(T, OP) static INLINE T operator OP(T a, T b) { return T{a.lo OP b.lo, a.hi OP b.hi}; }
PAIR(vf64, +) PAIR(vf64, -) PAIR(vf64, *) PAIR(vf64, /)
PAIR(vi64, +) PAIR(vi64, -) PAIR(vi64, *) PAIR(vi64, &) PAIR(vi64, |) PAIR(vi64, ^)
static INLINE vf64 operator-(vf64 a) { return vf64{-a.lo, -a.hi}; }
static INLINE vi64 operator-(vi64 a) { return vi64{-a.lo, -a.hi}; }
static INLINE vi64 operator~(vi64 a) { return vi64{~a.lo, ~a.hi}; }
static INLINE vf64& operator+=(vf64& a, vf64 b) { return a = a + b; }
static INLINE vi64& operator+=(vi64& a, vi64 b) { return a = a + b; }
#define COMPARE(T, OP) static INLINE vflag operator OP(T a, T b) { return low_words((hi64)(a.lo OP b.lo), (hi64)(a.hi OP b.hi)); }
#define COMPARES(T) COMPARE(T, ==) COMPARE(T, !=) COMPARE(T, <) COMPARE(T, <=) COMPARE(T, >) COMPARE(T, >=)
COMPARES(vf64) COMPARES(vi64)

static INLINE vf32 splat_f32(f32 x) { return x - vf32{}; }
static INLINE vi32 splat_int32(int32 x) { return x - vi32{}; }
static INLINE vi32 splat_int8(int8 x) { return splat_int32(x); }
static INLINE vi32 splat_uint8(uint8 x) { return splat_int32(x); }
static INLINE vi32 splat_int16(int16 x) { return splat_int32(x); }
static INLINE vflag splat_flag(bool x) { return splat_int32(-(int32)x); }
static INLINE vf64 splat_f64(f64 x) { hf64 h = x - hf64{}; return vf64{h, h}; }
static INLINE vi64 splat_int64(int64 x) { hi64 h = x - hi64{}; return vi64{h, h}; }

// GCC 12 writes a constant such as {1, 1, 0, 0, 0, 0, 0, 0} of a masked remainder as eight ones: no mask is a constant.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define NO_CONSTANT(m) asm("" : "+x"(m))
#else
#define NO_CONSTANT(m)
#endif
static INLINE vi64 wide_mask(vflag m) {
  NO_CONSTANT(m);
  return vi64{__builtin_convertvector(low_half(m), hi64), __builtin_convertvector(high_half(m), hi64)};
}
static INLINE vf32 select(vflag c, vf32 a, vf32 b) { return c ? a : b; }
static INLINE vi32 select(vflag c, vi32 a, vi32 b) { return c ? a : b; }
static INLINE vf64 select(vflag c, vf64 a, vf64 b) {
  vi64 m = wide_mask(c);
  return vf64{m.lo ? a.lo : b.lo, m.hi ? a.hi : b.hi};
}
static INLINE vi64 select(vflag c, vi64 a, vi64 b) {
  vi64 m = wide_mask(c);
  return vi64{m.lo ? a.lo : b.lo, m.hi ? a.hi : b.hi};
}
static INLINE vflag first_lanes(int64 count) { return LANE < (int32)count; }
static INLINE vflag lanes(All) { return LANE >= 0; }
static INLINE vflag lanes(Some n) { return first_lanes(n.count); }
#if LANES == 8
static INLINE int32 mask_bits(vflag m) { return __builtin_ia32_movmskps256((vf32)m); }
#else
static INLINE int32 mask_bits(vflag m) { return (int32)(uint16)__builtin_ia32_cvtd2mask512((vi32)m); }
#endif
static INLINE bool any_lane(vflag m) { return mask_bits(m) != 0; }
static INLINE bool every_lane(vflag m) { return mask_bits(m) == (1 << LANES) - 1; }
static INLINE int64 lane_count(All) { return LANES; }
static INLINE int64 lane_count(Some n) { return n.count; }

// ---- conversions ----------------------------------------------------------------------------------------------------
static INLINE vf64 to_vf64(vf32 x) {
  return vf64{__builtin_convertvector(low_half(x), hf64), __builtin_convertvector(high_half(x), hf64)};
}
static INLINE vf64 to_vf64(vi32 x) {
  return vf64{__builtin_convertvector(low_half(x), hf64), __builtin_convertvector(high_half(x), hf64)};
}
#if LANES == 16
static INLINE vf64 to_vf64(vi64 x) { return vf64{__builtin_convertvector(x.lo, hf64), __builtin_convertvector(x.hi, hf64)}; }
static INLINE vf32 to_vf32(vi64 x) { return joined(__builtin_convertvector(x.lo, hf32), __builtin_convertvector(x.hi, hf32)); }
#else
// 64-bit integers up to 2^51 go through the mantissa of 2^52 + 2^51; larger ones lane by lane.
static INLINE bool mantissa_holds(vi64 x) {
  hi64 far = ((x.lo + (1ll << 51)) | (x.hi + (1ll << 51))) >> 52;
  bool any = false;
  for (int k = 0; k < HALF; ++k) any |= far[k] != 0;
  return !any;
}
static INLINE vf64 to_vf64(vi64 x) {
  if (__builtin_expect(mantissa_holds(x), 1)) {
    const f64 magic = 6755399441055744.0;
    return vf64{(hf64)(x.lo + 0x4338000000000000ll) - magic, (hf64)(x.hi + 0x4338000000000000ll) - magic};
  }
  vf64 r;
  for (int k = 0; k < HALF; ++k) { r.lo[k] = (f64)x.lo[k]; r.hi[k] = (f64)x.hi[k]; }
  return r;
}
static INLINE vf32 to_vf32(vf64 x);
static INLINE vf32 to_vf32(vi64 x) {
  if (__builtin_expect(mantissa_holds(x), 1)) return to_vf32(to_vf64(x));
  vf32 r;
  for (int k = 0; k < HALF; ++k) { r[k] = (f32)x.lo[k]; r[k + HALF] = (f32)x.hi[k]; }
  return r;
}
#endif
static INLINE vf32 to_vf32(vf64 x) { return joined(__builtin_convertvector(x.lo, hf32), __builtin_convertvector(x.hi, hf32)); }
static INLINE vf32 to_vf32(vi32 x) { return __builtin_convertvector(x, vf32); }
static INLINE vi64 to_vi64(vi32 x) { return wide_mask(x); }
static INLINE vi64 to_vi64(vf64 x) {
  vi64 r;
  for (int k = 0; k < HALF; ++k) { r.lo[k] = to_int<int64>(x.lo[k]); r.hi[k] = to_int<int64>(x.hi[k]); }
  return r;
}
static INLINE vi64 to_vi64(vf32 x) { return to_vi64(to_vf64(x)); }
static INLINE vi32 to_vi32(vi64 x) { return low_words(x.lo, x.hi); }
static INLINE vi32 to_vi32(vf32 x) { return __builtin_convertvector(x, vi32); }
static INLINE vi32 to_vi32(vf64 x) { return joined(__builtin_convertvector(x.lo, hi32), __builtin_convertvector(x.hi, hi32)); }
static INLINE vi32 wrap_int8(vi32 x) { return (x << 24) >> 24; }
static INLINE vi32 wrap_uint8(vi32 x) { return x & 255; }
static INLINE vi32 wrap_int16(vi32 x) { return (x << 16) >> 16; }
static INLINE vi32 number(vflag m) { return m & 1; }
static INLINE vf32 round_bf16(vf32 x) {
  vu32 u = (vu32)x;
  vu32 r = (u + 0x7fffu + ((u >> 16) & 1u)) & 0xffff0000u;
  return x != x ? splat_f32(__builtin_nanf("")) : (vf32)r;
}
// Floats of 8 bits, as in base.h: DROP bits of a float's fraction go; from and to are the bits in 32-bit lanes.
#define BYTE_FLOATS(T, DROP, REBIAS, LEAST, UNIT, HELD, MOST, BEYOND, STRANGE, STRANGER)          \
  static INLINE vi32 bits_##T(vf32 x) {                                                          \
    vi32 a = (vi32)x & 0x7fffffff;                                                               \
    vi32 r = (a - REBIAS + ((1 << (DROP - 1)) - 1) + ((a >> DROP) & 1)) >> DROP;                 \
    r = select(a < LEAST, (vi32)((vf32)a + UNIT) - HELD, r);                                     \
    return select(a >= MOST, BEYOND, r) | (((vi32)x >> 24) & 0x80);                              \
  }                                                                                              \
  static INLINE vf32 value_##T(vi32 b) {                                                         \
    vi32 m = b & 0x7f, r = (m << DROP) + REBIAS;                                                 \
    r = select(m < 1 << (23 - DROP), (vi32)(to_vf32(m) * (UNIT * 0x1p-23f)), r);                 \
    return (vf32)(select(STRANGE, STRANGER, r) | ((b & 0x80) << 24));                            \
  }                                                                                              \
  static INLINE vf32 round_##T(vf32 x) { return value_##T(bits_##T(x)); }
BYTE_FLOATS(e4m3, 20, 0x3c000000, 0x3c800000, 0x1p14f, 0x46800000, 0x43e80001,
            select(a > 0x7f800000, splat_int32(0x7f), splat_int32(E4M3_BEYOND)), m == 0x7f, splat_int32(0x7fc00000))
BYTE_FLOATS(e5m2, 21, 0x38000000, 0x38800000, 0x1p7f, 0x43000000, 0x47800000, select(a > 0x7f800000, splat_int32(0x7f), splat_int32(0x7c)),
            m >= 0x7c, (m << 21) | 0x7f800000)

// ---- memory ---------------------------------------------------------------------------------------------------------
typedef uint16 h16 __attribute__((vector_size(LANES * 2)));
typedef uint16 uh16 __attribute__((vector_size(LANES * 2), aligned(2), may_alias));
typedef int8 h8 __attribute__((vector_size(LANES)));
typedef int8 uh8 __attribute__((vector_size(LANES), aligned(1), may_alias));
typedef char bytes16 __attribute__((vector_size(16)));
#if LANES == 8
typedef short s8x16 __attribute__((vector_size(16)));
// By way of an integer: copied into half of a vector in memory, the bytes would be stored and loaded again, and stall.
static INLINE bytes16 widened8(h8 x) {
  typedef long long pair __attribute__((vector_size(16)));
  long long bits;
  __builtin_memcpy(&bits, &x, 8);
  return (bytes16)pair{bits, 0};
}
static INLINE vi32 signed8(h8 x) { return (vi32)__builtin_ia32_pmovsxbd256(widened8(x)); }
static INLINE vi32 unsigned8(h8 x) { return (vi32)__builtin_ia32_pmovzxbd256(widened8(x)); }
static INLINE vi32 signed16(h16 x) { return (vi32)__builtin_ia32_pmovsxwd256((s8x16)x); }
static INLINE vu32 unsigned16(h16 x) { return (vu32)__builtin_ia32_pmovzxwd256((s8x16)x); }
static INLINE vf32 half_to_float(h16 x) { return __builtin_ia32_vcvtph2ps256((s8x16)x); }
static INLINE h16 float_to_half(vf32 x) { return (h16)__builtin_ia32_vcvtps2ph256(x, 0); }
static INLINE h16 narrow16(vi32 x) {
  x = x & 0xffff;
  return (h16)__builtin_ia32_packusdw128(low_half(x), high_half(x));
}
static INLINE h8 narrow8(vi32 x) {
  bytes16 a = (bytes16)__builtin_shufflevector(x, x, 0, 1, 2, 3), b = (bytes16)__builtin_shufflevector(x, x, 4, 5, 6, 7);
  bytes16 c = __builtin_shufflevector(a, b, 0, 4, 8, 12, 16, 20, 24, 28, 0, 0, 0, 0, 0, 0, 0, 0);
  h8 r;
  __builtin_memcpy(&r, &c, 8);
  return r;
}
#else
// GCC 12 writes a conversion of a vector of bytes, either way, as sixteen moves of one byte.
#ifdef __clang__
typedef uint8 n8 __attribute__((vector_size(LANES)));
static INLINE vi32 signed8(h8 x) { return __builtin_convertvector(x, vi32); }
static INLINE vi32 unsigned8(h8 x) { return __builtin_convertvector((n8)x, vi32); }
static INLINE h8 narrow8(vi32 x) { return __builtin_convertvector(x, h8); }
#else
static INLINE vi32 signed8(h8 x) { return (vi32)__builtin_ia32_pmovsxbd512_mask((bytes16)x, vi32{}, -1); }
static INLINE vi32 unsigned8(h8 x) { return (vi32)__builtin_ia32_pmovzxbd512_mask((bytes16)x, vi32{}, -1); }
static INLINE h8 narrow8(vi32 x) { return (h8)__builtin_ia32_pmovdb512_mask(x, bytes16{}, -1); }
#endif
static INLINE vi32 signed16(h16 x) { typedef int16 t __attribute__((vector_size(32))); return __builtin_convertvector((t)x, vi32); }
static INLINE vu32 unsigned16(h16 x) { return __builtin_convertvector(x, vu32); }
static INLINE vf32 half_to_float(h16 x) {
  typedef short t __attribute__((vector_size(32)));
  return __builtin_ia32_vcvtph2ps512_mask((t)x, vf32{}, -1, 4);
}
static INLINE h16 float_to_half(vf32 x) {
  typedef short t __attribute__((vector_size(32)));
  return (h16)__builtin_ia32_vcvtps2ph512_mask(x, 0, t{}, -1);
}
static INLINE h16 narrow16(vi32 x) { return __builtin_convertvector(x, h16); }
#endif
static INLINE vf32 round_f16(vf32 x) { return half_to_float(float_to_half(x)); }

// The first few elements of a row, without touching what lies behind them.
#if LANES == 8
template <class V, class T> static INLINE V first_few(const T* p, int64 count) {
  V v = {};
  int64 k = 0;
  if (count & 4) { __builtin_memcpy(&v, p, 4 * sizeof(T)); k = 4; }
  if (count & 2) { __builtin_memcpy((T*)&v + k, p + k, 2 * sizeof(T)); k += 2; }
  if (count & 1) ((T*)&v)[k] = p[k];
  return v;
}
template <class V, class T> static INLINE void keep_few(T* p, V v, int64 count) {
  int64 k = 0;
  if (count & 4) { __builtin_memcpy(p, &v, 4 * sizeof(T)); k = 4; }
  if (count & 2) { __builtin_memcpy(p + k, (T*)&v + k, 2 * sizeof(T)); k += 2; }
  if (count & 1) p[k] = ((T*)&v)[k];
}
#endif
static INLINE vf32 load_f32(const f32* p, All) { return *(const uf32*)p; }
static INLINE vi32 load_int32(const int32* p, All) { return *(const ui32*)p; }
static INLINE vf64 load_f64(const f64* p, All) { return vf64{*(const uf64*)p, *(const uf64*)(p + HALF)}; }
static INLINE vi64 load_int64(const int64* p, All) { return vi64{*(const ui64*)p, *(const ui64*)(p + HALF)}; }
static INLINE void store_f32(f32* p, vf32 x, All) { *(uf32*)p = x; }
static INLINE void store_int32(int32* p, vi32 x, All) { *(ui32*)p = x; }
static INLINE void store_f64(f64* p, vf64 x, All) { *(uf64*)p = x.lo; *(uf64*)(p + HALF) = x.hi; }
static INLINE void store_int64(int64* p, vi64 x, All) { *(ui64*)p = x.lo; *(ui64*)(p + HALF) = x.hi; }
// Whole aligned vectors go past the caches, others by them; settle_streams() comes before another thread reads them.
#if defined(__x86_64__)
static INLINE void stream_f32(f32* p, vf32 x, All n) {
  if ((uint64)p % WIDTH) return store_f32(p, x, n);
#if LANES == 8
  __builtin_ia32_movntps256(p, x);
#else
  __builtin_ia32_movntps512(p, x);
#endif
}
static INLINE void settle_streams() { __builtin_ia32_sfence(); }
#else
static INLINE void stream_f32(f32* p, vf32 x, All n) { store_f32(p, x, n); }
static INLINE void settle_streams() {}
#endif
static INLINE void stream_int32(int32* p, vi32 x, All n) { stream_f32((f32*)p, (vf32)x, n); }
#if LANES == 8
typedef Some Few;
typedef long long m64 __attribute__((vector_size(WIDTH)));
static INLINE vf32 load_f32(const f32* p, Some n) { return __builtin_ia32_maskloadps256((const vf32*)p, lanes(n)); }
static INLINE vi32 load_int32(const int32* p, Some n) { return (vi32)load_f32((const f32*)p, n); }
static INLINE void store_f32(f32* p, vf32 x, Some n) { __builtin_ia32_maskstoreps256((vf32*)p, lanes(n), x); }
static INLINE void store_int32(int32* p, vi32 x, Some n) { store_f32((f32*)p, (vf32)x, n); }
static INLINE vf64 load_f64(const f64* p, Some n) {
  vi64 m = wide_mask(lanes(n));
  return vf64{__builtin_ia32_maskloadpd256((const hf64*)p, (m64)m.lo), __builtin_ia32_maskloadpd256((const hf64*)(p + HALF), (m64)m.hi)};
}
static INLINE void store_f64(f64* p, vf64 x, Some n) {
  vi64 m = wide_mask(lanes(n));
  __builtin_ia32_maskstorepd256((hf64*)p, (m64)m.lo, x.lo);
  __builtin_ia32_maskstorepd256((hf64*)(p + HALF), (m64)m.hi, x.hi);
}
#else
// Masked moves touch no memory in lanes that do not count, the first few or any.
struct Few {
  static constexpr bool full = false;
  int32 bits;
  INLINE Few(Some n) : bits((1 << n.count) - 1) {}
  explicit INLINE Few(int32 bits) : bits(bits) {}
};
static INLINE Some some_of(int64 count) { return Some{count < 0 ? 0 : count > LANES ? LANES : count}; }
static INLINE vf32 load_f32(const f32* p, Few n) { return __builtin_ia32_loadups512_mask(p, vf32{}, n.bits); }
static INLINE vi32 load_int32(const int32* p, Few n) { return (vi32)load_f32((const f32*)p, n); }
static INLINE void store_f32(f32* p, vf32 x, Few n) { __builtin_ia32_storeups512_mask(p, x, n.bits); }
static INLINE void store_int32(int32* p, vi32 x, Few n) { store_f32((f32*)p, (vf32)x, n); }
static INLINE vf64 load_f64(const f64* p, Few n) {
  int32 m = n.bits;
  return vf64{__builtin_ia32_loadupd512_mask(p, hf64{}, m & 255), __builtin_ia32_loadupd512_mask(p + HALF, hf64{}, m >> 8)};
}
static INLINE void store_f64(f64* p, vf64 x, Few n) {
  int32 m = n.bits;
  __builtin_ia32_storeupd512_mask(p, x.lo, m & 255);
  __builtin_ia32_storeupd512_mask(p + HALF, x.hi, m >> 8);
}
#endif
static INLINE void stream_f32(f32* p, vf32 x, Some n) { store_f32(p, x, n); }
static INLINE void stream_int32(int32* p, vi32 x, Some n) { store_int32(p, x, n); }
static INLINE vi64 load_int64(const int64* p, Few n) { vf64 x = load_f64((const f64*)p, n); return vi64{(hi64)x.lo, (hi64)x.hi}; }
static INLINE void store_int64(int64* p, vi64 x, Few n) { store_f64((f64*)p, vf64{(hf64)x.lo, (hf64)x.hi}, n); }

static INLINE h16 raw16(const void* p, All) { return *(const uh16*)p; }
static INLINE void keep16(void* p, h16 x, All) { *(uh16*)p = x; }
static INLINE h8 raw8(const void* p, All) { return *(const uh8*)p; }
static INLINE void keep8(void* p, h8 x, All) { *(uh8*)p = x; }
#if LANES == 8
static INLINE h16 raw16(const void* p, Some n) { return first_few<h16>((const uint16*)p, n.count); }
static INLINE void keep16(void* p, h16 x, Some n) { keep_few((uint16*)p, x, n.count); }
static INLINE h8 raw8(const void* p, Some n) { return first_few<h8>((const int8*)p, n.count); }
static INLINE void keep8(void* p, h8 x, Some n) { keep_few((int8*)p, x, n.count); }
#else
typedef short s16x16 __attribute__((vector_size(32)));
static INLINE h16 raw16(const void* p, Few n) { return (h16)__builtin_ia32_loaddquhi256_mask((const short*)p, s16x16{}, n.bits); }
static INLINE void keep16(void* p, h16 x, Few n) { __builtin_ia32_storedquhi256_mask((short*)p, (s16x16)x, n.bits); }
static INLINE h8 raw8(const void* p, Few n) { return (h8)__builtin_ia32_loaddquqi128_mask((const char*)p, bytes16{}, n.bits); }
static INLINE void keep8(void* p, h8 x, Few n) { __builtin_ia32_storedquqi128_mask((char*)p, (bytes16)x, n.bits); }
#endif
#define MEMORY(T, V, LOAD, KEEP)                                                                    \
  template <class N> static INLINE V load_##T(const T* p, N n) { return LOAD; }                     \
  template <class N> static INLINE void store_##T(T* p, V x, N n) { KEEP; }
MEMORY(bf16, vf32, (vf32)(unsigned16(raw16(p, n)) << 16), keep16(p, narrow16((vi32)((vu32)round_bf16(x) >> 16)), n))
MEMORY(f16, vf32, half_to_float(raw16(p, n)), keep16(p, float_to_half(x), n))
MEMORY(int16, vi32, signed16(raw16(p, n)), keep16(p, narrow16(x), n))
MEMORY(int8, vi32, signed8(raw8(p, n)), keep8(p, narrow8(x), n))
MEMORY(uint8, vi32, unsigned8(raw8(p, n)), keep8(p, narrow8(x), n))
MEMORY(e4m3, vf32, value_e4m3(unsigned8(raw8(p, n))), keep8(p, narrow8(bits_e4m3(x)), n))
MEMORY(e5m2, vf32, value_e5m2(unsigned8(raw8(p, n))), keep8(p, narrow8(bits_e5m2(x)), n))
MEMORY(flag, vflag, signed8(raw8(p, n)) != 0, keep8(p, narrow8(x & 1), n))

// ---- lane by lane: what has no vector form --------------------------------------------------------------------------
static INLINE f32 lane(vf32 x, int64 k) { return x[k]; }
static INLINE int32 lane(vi32 x, int64 k) { return x[k]; }
// A lane that only the run tells is read from memory: g++ 12 reads a wrong place for it where there are two halves.
template <class T, class V> static INLINE T lane_of_halves(V x, int64 k) {
  if (__builtin_constant_p(k)) return k < HALF ? x.lo[k] : x.hi[k - HALF];
  T a[LANES];
  __builtin_memcpy(a, &x, sizeof a);
  return a[k];
}
static INLINE f64 lane(vf64 x, int64 k) { return lane_of_halves<f64>(x, k); }
static INLINE int64 lane(vi64 x, int64 k) { return lane_of_halves<int64>(x, k); }
template <class T> struct EachOf { T x[LANES]; };
#define EACH_OF(V, T) static INLINE EachOf<T> each_of(V x) { EachOf<T> r; __builtin_memcpy(&r, &x, sizeof r); return r; }
EACH_OF(vf32, f32) EACH_OF(vi32, int32) EACH_OF(vf64, f64) EACH_OF(vi64, int64)
template <class V, class T, class F> static INLINE V gathered(int64 count, const F& element) {
  alignas(WIDTH) T out[LANES] = {};
  for (int64 k = 0; k < count; ++k) out[k] = element(k);
  V v;
  __builtin_memcpy(&v, out, sizeof v);
  return v;
}
// element(k) for each lane that counts, as a vector; scattered calls put(k) for each.
template <class F> static INLINE vf32 lanes_f32(int64 n, const F& e) { return gathered<vf32, f32>(n, e); }
template <class F> static INLINE vi32 lanes_int32(int64 n, const F& e) { return gathered<vi32, int32>(n, e); }
template <class F> static INLINE vflag lanes_flag(int64 n, const F& e) {
  return gathered<vi32, int32>(n, [&](int64 k) STEP { return -(int32)(bool)e(k); });
}
template <class F> static INLINE vf64 lanes_f64(int64 n, const F& e) { return gathered<vf64, f64>(n, e); }
template <class F> static INLINE vi64 lanes_int64(int64 n, const F& e) { return gathered<vi64, int64>(n, e); }
#define MAP1(NAME, V, T, CALL) \
  static inline V NAME(V x) { T a[LANES]; __builtin_memcpy(a, &x, sizeof x); for (int k = 0; k < LANES; ++k) a[k] = CALL(a[k]); __builtin_memcpy(&x, a, sizeof x); return x; }
#define MAP2(NAME, V, T, CALL)                                                            \
  static inline V NAME(V x, V y) {                                                        \
    T a[LANES], b[LANES];                                                                 \
    __builtin_memcpy(a, &x, sizeof x); __builtin_memcpy(b, &y, sizeof y);                 \
    for (int k = 0; k < LANES; ++k) a[k] = CALL(a[k], b[k]);                              \
    __builtin_memcpy(&x, a, sizeof x);                                                    \
    return x;                                                                             \
  }
