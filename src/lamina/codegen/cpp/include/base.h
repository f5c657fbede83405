// What every kernel may use: fixed-width types, conversions, scalar operations, threads and scratch memory.
#pragma GCC diagnostic ignored "-Wpsabi"
#include <stddef.h>
#include <stdint.h>

#define INLINE inline __attribute__((always_inline))
#define STEP __attribute__((always_inline))
#define APART __attribute__((noinline, unused))

typedef float f32;
typedef double f64;
typedef bool flag;
typedef int8_t int8;
typedef int16_t int16;
typedef int32_t int32;
typedef int64_t int64;
typedef uint8_t uint8;
typedef uint16_t uint16;
typedef uint32_t uint32;
typedef uint64_t uint64;
struct bf16 { uint16 bits; };
struct f16 { uint16 bits; };
struct e4m3 { uint8 bits; };
struct e5m2 { uint8 bits; };

extern "C" {
int omp_get_max_threads(void);
int omp_get_thread_num(void);
int omp_get_num_threads(void);
int omp_in_parallel(void);
void* aligned_alloc(size_t, size_t) noexcept;
void free(void*) noexcept;
}

template <class To, class From> static INLINE To bits_of(From x) {
  static_assert(sizeof(To) == sizeof(From), "sizes differ");
  To y;
  __builtin_memcpy(&y, &x, sizeof y);
  return y;
}

// ---- half types: stored as 16 bits, computed with as float ----------------------------------------------------------
static INLINE f32 widen(bf16 x) { return bits_of<f32>((uint32)x.bits << 16); }
static INLINE bf16 to_bf16(f32 x) {
  uint32 u = bits_of<uint32>(x);
  return bf16{x != x ? (uint16)0x7fc0 : (uint16)((u + 0x7fff + ((u >> 16) & 1)) >> 16)};
}
static INLINE f32 widen(f16 x) {
#ifdef __F16C__
  typedef short v8 __attribute__((vector_size(16)));
  v8 h = {(short)x.bits};
  return __builtin_ia32_vcvtph2ps(h)[0];
#else
  uint32 sign = (uint32)(x.bits & 0x8000) << 16, rest = x.bits & 0x7fff;
  if (rest >= 0x7c00) return bits_of<f32>(sign | 0x7f800000 | ((rest & 0x3ff) << 13) | ((rest & 0x3ff) ? 0x400000 : 0));
  f32 magnitude = bits_of<f32>(rest << 13) * 0x1p112f;
  return bits_of<f32>(bits_of<uint32>(magnitude) | sign);
#endif
}
static INLINE f16 to_f16(f32 x) {
#ifdef __F16C__
  typedef f32 v4 __attribute__((vector_size(16)));
  v4 v = {x};
  return f16{(uint16)__builtin_ia32_vcvtps2ph(v, 0)[0]};
#else
  uint32 u = bits_of<uint32>(x), sign = (u >> 16) & 0x8000, a = u & 0x7fffffff;
  if (a > 0x7f800000) return f16{(uint16)(sign | 0x7e00)};
  if (a >= 0x477ff000) return f16{(uint16)(sign | 0x7c00)};
  if (a < 0x38800000) {
    f32 t = bits_of<f32>(a) + 0.5f;
    return f16{(uint16)(sign | (bits_of<uint32>(t) - 0x3f000000))};
  }
  return f16{(uint16)(sign | ((a + 0xfff + ((a >> 13) & 1) - 0x38000000) >> 13))};
#endif
}

// ---- floats of 8 bits: e4m3 has no infinity, what does not fit becomes E4M3_BEYOND; e5m2 is the upper half of f16 -----
// Subnormal results are rounded by an addition whose sum has their unit as its own, subnormal values are products.
static INLINE e4m3 to_e4m3(f32 x) {
  uint32 u = bits_of<uint32>(x), a = u & 0x7fffffff, r;
  if (a >= 0x43e80001) r = a > 0x7f800000 ? 0x7f : E4M3_BEYOND;
  else if (a < 0x3c800000) r = bits_of<uint32>(bits_of<f32>(a) + 0x1p14f) - 0x46800000;
  else r = (a - 0x3c000000 + 0x7ffff + ((a >> 20) & 1)) >> 20;
  return e4m3{(uint8)((u >> 24 & 0x80) | r)};
}
static INLINE f32 widen(e4m3 x) {
  uint32 m = x.bits & 0x7f, sign = (uint32)(x.bits & 0x80) << 24;
  uint32 r = m == 0x7f ? 0x7fc00000 : m < 8 ? bits_of<uint32>((f32)m * 0x1p-9f) : (m << 20) + 0x3c000000;
  return bits_of<f32>(r | sign);
}
static INLINE e5m2 to_e5m2(f32 x) {
  uint32 u = bits_of<uint32>(x), a = u & 0x7fffffff, r;
  if (a >= 0x47800000) r = a > 0x7f800000 ? 0x7f : 0x7c;
  else if (a < 0x38800000) r = bits_of<uint32>(bits_of<f32>(a) + 0x1p7f) - 0x43000000;
  else r = (a - 0x38000000 + 0xfffff + ((a >> 21) & 1)) >> 21;
  return e5m2{(uint8)((u >> 24 & 0x80) | r)};
}
static INLINE f32 widen(e5m2 x) { return widen(f16{(uint16)(x.bits << 8)}); }

// ---- scalar loads and stores: half types widen, bool is any non-zero byte -------------------------------------------
#define SCALAR_MEMORY(T)                                    \
  static INLINE T load_##T(const T* p) { return *p; }       \
  static INLINE void store_##T(T* p, T x) { *p = x; }
SCALAR_MEMORY(f32) SCALAR_MEMORY(f64) SCALAR_MEMORY(int8) SCALAR_MEMORY(int16) SCALAR_MEMORY(int32) SCALAR_MEMORY(int64)
SCALAR_MEMORY(uint8) SCALAR_MEMORY(uint16) SCALAR_MEMORY(uint32) SCALAR_MEMORY(uint64)
static INLINE bool load_flag(const flag* p) { return *(const uint8*)p != 0; }
static INLINE void store_flag(flag* p, bool x) { *p = x; }
static INLINE f32 load_bf16(const bf16* p) { return widen(*p); }
static INLINE void store_bf16(bf16* p, f32 x) { *p = to_bf16(x); }
static INLINE f32 load_f16(const f16* p) { return widen(*p); }
static INLINE void store_f16(f16* p, f32 x) { *p = to_f16(x); }
static INLINE f32 load_e4m3(const e4m3* p) { return widen(*p); }
static INLINE void store_e4m3(e4m3* p, f32 x) { *p = to_e4m3(x); }
static INLINE f32 load_e5m2(const e5m2* p) { return widen(*p); }
static INLINE void store_e5m2(e5m2* p, f32 x) { *p = to_e5m2(x); }
static INLINE f32 round_e4m3(f32 x) { return widen(to_e4m3(x)); }
static INLINE f32 round_e5m2(f32 x) { return widen(to_e5m2(x)); }
static INLINE f32 round_bf16(f32 x) { return widen(to_bf16(x)); }
static INLINE f32 round_f16(f32 x) { return widen(to_f16(x)); }

// ---- integers wrap around, also where C++ calls it undefined --------------------------------------------------------
template <class T> struct unsigned_of { typedef T type; };
template <> struct unsigned_of<int8> { typedef uint32 type; };
template <> struct unsigned_of<int16> { typedef uint32 type; };
template <> struct unsigned_of<uint8> { typedef uint32 type; };
template <> struct unsigned_of<uint16> { typedef uint32 type; };
template <> struct unsigned_of<int32> { typedef uint32 type; };
template <> struct unsigned_of<int64> { typedef uint64 type; };
template <class T> static INLINE T wrap_add(T a, T b) { typedef typename unsigned_of<T>::type U; return (T)((U)a + (U)b); }
template <class T> static INLINE T wrap_sub(T a, T b) { typedef typename unsigned_of<T>::type U; return (T)((U)a - (U)b); }
template <class T> static INLINE T wrap_mul(T a, T b) { typedef typename unsigned_of<T>::type U; return (T)((U)a * (U)b); }
// Division by zero gives zero; the lowest integer divided by minus one wraps around.
template <class T> static INLINE bool minus_one(T b) { return (T)-1 < (T)0 && b == (T)-1; }
template <class T> static INLINE T trunc_div(T a, T b) { return b == 0 ? (T)0 : minus_one(b) ? wrap_sub((T)0, a) : (T)(a / b); }
template <class T> static INLINE T fmod_int(T a, T b) { return b == 0 || minus_one(b) ? (T)0 : (T)(a % b); }
template <class T> static INLINE T floor_div(T a, T b) {
  T q = trunc_div(a, b);
  return fmod_int(a, b) != 0 && (a < 0) != (b < 0) ? (T)(q - 1) : q;
}
template <class T> static INLINE T floor_mod(T a, T b) {
  T r = fmod_int(a, b);
  return r != 0 && (r < 0) != (b < 0) ? (T)(r + b) : r;
}
template <class T> static INLINE T shift_left(T a, T b) {
  typedef typename unsigned_of<T>::type U;
  return (b < 0 || (uint64)b >= 8 * sizeof(T)) ? (T)0 : (T)((U)a << b);
}
template <class T> static INLINE T shift_right(T a, T b) {
  return (b < 0 || (uint64)b >= 8 * sizeof(T)) ? (T)(a < 0 ? -1 : 0) : (T)(a >> b);
}
static INLINE int64 index_div(int64 a, int64 b) { int64 q = a / b; return q - (q * b > a); }
static INLINE int64 index_mod(int64 a, int64 b) { return a - index_div(a, b) * b; }

// ---- scalar floating point ------------------------------------------------------------------------------------------
template <class T> static INLINE T maximum(T a, T b) { return a != a ? a : (b != b ? b : (a > b ? a : b)); }
template <class T> static INLINE T minimum(T a, T b) { return a != a ? a : (b != b ? b : (a < b ? a : b)); }
template <class T> static INLINE T select(bool c, T a, T b) { return c ? a : b; }
template <class T> static INLINE T sign_of(T x) { return (T)((x > 0) - (x < 0)); }
template <class T> static INLINE T relu(T x) { return x < 0 ? (T)0 : x; }
template <class T> static INLINE T abs_int(T x) { return x < 0 ? wrap_sub((T)0, x) : x; }
// The negation of a sum: compilers make -(a * b + c) one operation, -(a * b) - c, whose zero has the other sign.
static INLINE f32 opposite_(f32 x) { return bits_of<f32>(bits_of<uint32>(x) ^ 0x80000000u); }
static INLINE f64 opposite_(f64 x) { return bits_of<f64>(bits_of<uint64>(x) ^ (uint64)INT64_MIN); }
#define SCALAR_MATH(T, S, C)                                                                       \
  static INLINE T exp_(T x) { return __builtin_exp##S(x); }                                        \
  static INLINE T exp2_(T x) { return __builtin_exp2##S(x); }                                      \
  static INLINE T expm1_(T x) { return __builtin_expm1##S(x); }                                    \
  static INLINE T log_(T x) { return __builtin_log##S(x); }                                        \
  static INLINE T log2_(T x) { return __builtin_log2##S(x); }                                      \
  static INLINE T log10_(T x) { return __builtin_log10##S(x); }                                    \
  static INLINE T log1p_(T x) { return __builtin_log1p##S(x); }                                    \
  static INLINE T sin_(T x) { return __builtin_sin##S(x); }                                        \
  static INLINE T cos_(T x) { return __builtin_cos##S(x); }                                        \
  static INLINE T tan_(T x) { return __builtin_tan##S(x); }                                        \
  static INLINE T asin_(T x) { return __builtin_asin##S(x); }                                      \
  static INLINE T acos_(T x) { return __builtin_acos##S(x); }                                      \
  static INLINE T atan_(T x) { return __builtin_atan##S(x); }                                      \
  static INLINE T sinh_(T x) { return __builtin_sinh##S(x); }                                      \
  static INLINE T cosh_(T x) { return __builtin_cosh##S(x); }                                      \
  static INLINE T tanh_(T x) { return __builtin_tanh##S(x); }                                      \
  static INLINE T asinh_(T x) { return __builtin_asinh##S(x); }                                    \
  static INLINE T acosh_(T x) { return __builtin_acosh##S(x); }                                    \
  static INLINE T atanh_(T x) { return __builtin_atanh##S(x); }                                    \
  static INLINE T erf_(T x) { return __builtin_erf##S(x); }                                        \
  static INLINE T erfc_(T x) { return __builtin_erfc##S(x); }                                      \
  static INLINE T lgamma_(T x) { return __builtin_lgamma##S(x); }                                  \
  static INLINE T pow_(T x, T y) { return __builtin_pow##S(x, y); }                                \
  static INLINE T atan2_(T x, T y) { return __builtin_atan2##S(x, y); }                            \
  static INLINE T hypot_(T x, T y) { return __builtin_hypot##S(x, y); }                            \
  static INLINE T fmod_(T x, T y) { return __builtin_fmod##S(x, y); }                              \
  static INLINE T nextafter_(T x, T y) { return __builtin_nextafter##S(x, y); }                    \
  static INLINE T copysign_(T x, T y) { return __builtin_copysign##S(x, y); }                      \
  static INLINE T fmin_(T x, T y) { return y < x || x != x ? y : x; }                              \
  static INLINE T fmax_(T x, T y) { return y > x || x != x ? y : x; }                              \
  static INLINE T sqrt_(T x) { return __builtin_sqrt##S(x); }                                      \
  static INLINE T rsqrt_(T x) { return (T)1 / __builtin_sqrt##S(x); }                              \
  static INLINE T floor_(T x) { return __builtin_floor##S(x); }                                    \
  static INLINE T ceil_(T x) { return __builtin_ceil##S(x); }                                      \
  static INLINE T trunc_(T x) { return __builtin_trunc##S(x); }                                    \
  static INLINE T round_(T x) { return __builtin_nearbyint##S(x); }                                \
  static INLINE T abs_(T x) { return __builtin_fabs##S(x); }                                       \
  static INLINE T sigmoid_(T x) { return (T)1 / ((T)1 + __builtin_exp##S(-x)); }                   \
  static INLINE bool signbit_(T x) { return __builtin_signbit(x); }                                \
  static INLINE bool isinf_(T x) { return __builtin_fabs##S(x) == (T)C; }                          \
  static INLINE T trunc_div_float(T a, T b) { return __builtin_trunc##S(a / b); }                  \
  static INLINE T mod_(T a, T b) {                                                                 \
    T r = __builtin_fmod##S(a, b);                                                                 \
    return (r != 0 && ((b < 0) != (r < 0))) ? r + b : r;                                           \
  }                                                                                                \
  static INLINE T floor_div_float(T a, T b) {                                                      \
    if (b == 0) return a / b;                                                                      \
    T m = __builtin_fmod##S(a, b), d = (a - m) / b;                                                \
    if (m != 0 && (b < 0) != (m < 0)) d -= 1;                                                      \
    if (d == 0) return __builtin_copysign##S((T)0, a / b);                                         \
    T f = __builtin_floor##S(d);                                                                   \
    return d - f > (T)0.5 ? f + 1 : f;                                                             \
  }
SCALAR_MATH(f32, f, __builtin_inff())
SCALAR_MATH(f64, , __builtin_inf())

// A floating value as an integer, as the processor does it: what does not fit becomes the lowest integer.
template <class To> static INLINE To to_int(f64 x) { return x >= -0x1p63 && x < 0x1p63 ? (To)(int64)x : (To)INT64_MIN; }
template <> INLINE int32 to_int<int32>(f64 x) { return x > -2147483649.0 && x < 2147483648.0 ? (int32)x : INT32_MIN; }
template <> INLINE int8 to_int<int8>(f64 x) { return (int8)to_int<int32>(x); }
template <> INLINE int16 to_int<int16>(f64 x) { return (int16)to_int<int32>(x); }
template <> INLINE uint8 to_int<uint8>(f64 x) { return (uint8)to_int<int32>(x); }
template <> INLINE uint64 to_int<uint64>(f64 x) { return x >= 0x1p63 ? (uint64)x : (uint64)to_int<int64>(x); }

static const f64 DIGAMMA[] = {8.33333333333333333333e-2, -2.10927960927960927961e-2, 7.57575757575757575758e-3,
                              -4.16666666666666666667e-3, 3.96825396825396825397e-3, -8.33333333333333333333e-3,
                              8.33333333333333333333e-2};
static inline f64 digamma_(f64 x) {
  if (x == 0) return __builtin_copysign(__builtin_inf(), -x);
  f64 result = 0;
  if (x < 0) {
    f64 whole = __builtin_trunc(x);
    if (whole == x) return __builtin_nan("");
    f64 part = x - whole;
    result = -3.14159265358979323846 / __builtin_tan(3.14159265358979323846 * part);
    x = 1 - x;
  }
  while (x < 10) { result -= 1 / x; x += 1; }
  if (x == 10) return result + 2.25175258906672110764;
  f64 y = 0;
  if (x < 1.0e17) {
    f64 z = 1 / (x * x), p = 0;
    for (int k = 6; k >= 0; --k) p = p * z + DIGAMMA[6 - k];
    y = z * p;
  }
  return result + __builtin_log(x) - 0.5 / x - y;
}
static inline f32 digamma_(f32 x) { return (f32)digamma_((f64)x); }
// Inverse of the error function: a rational start (Giles, 2010), then two Newton steps in double.
static inline f64 erfinv_(f64 x) {
  if (!(x >= -1 && x <= 1)) return __builtin_nan("");
  if (x == 1 || x == -1) return x * __builtin_inf();
  f64 w = -__builtin_log((1 - x) * (1 + x)), p;
  if (w < 5) {
    w -= 2.5;
    p = 2.81022636e-08; p = 3.43273939e-07 + p * w; p = -3.5233877e-06 + p * w; p = -4.39150654e-06 + p * w;
    p = 0.00021858087 + p * w; p = -0.00125372503 + p * w; p = -0.00417768164 + p * w; p = 0.246640727 + p * w;
    p = 1.50140941 + p * w;
  } else {
    w = __builtin_sqrt(w) - 3;
    p = -0.000200214257; p = 0.000100950558 + p * w; p = 0.00134934322 + p * w; p = -0.00367342844 + p * w;
    p = 0.00573950773 + p * w; p = -0.0076224613 + p * w; p = 0.00943887047 + p * w; p = 1.00167406 + p * w;
    p = 2.83297682 + p * w;
  }
  f64 y = p * x;
  for (int k = 0; k < 2; ++k) {
    f64 residual = y < 0 ? __builtin_erfc(-y) - (1 + x) : (1 - x) - __builtin_erfc(y);
    y -= residual / (1.12837916709551257390 * __builtin_exp(-y * y));
  }
  return y;
}
static inline f32 erfinv_(f32 x) { return (f32)erfinv_((f64)x); }

// ---- Philox4x32-10 (Salmon et al., 2011) ----------------------------------------------------------------------------
static INLINE f32 philox(int64 index, int64 seed, uint32 stream) {
  uint64 block = (uint64)(index >> 2);
  uint32 c0 = (uint32)block, c1 = (uint32)(block >> 32), c2 = stream, c3 = 0, k0 = (uint32)seed, k1 = (uint32)((uint64)seed >> 32);
#pragma GCC unroll 10
  for (int round = 0; round < 10; ++round) {
    uint64 p0 = (uint64)0xD2511F53u * c0, p1 = (uint64)0xCD9E8D57u * c2;
    uint32 n0 = (uint32)(p1 >> 32) ^ c1 ^ k0, n2 = (uint32)(p0 >> 32) ^ c3 ^ k1;
    c0 = n0; c1 = (uint32)p1; c2 = n2; c3 = (uint32)p0;
    k0 += 0x9E3779B9u; k1 += 0xBB67AE85u;
  }
  uint32 word = (index & 2) ? ((index & 1) ? c3 : c2) : ((index & 1) ? c1 : c0);
  return (f32)(word >> 8) * 0x1p-24f;
}

// ---- threads and scratch memory -------------------------------------------------------------------------------------
static INLINE int64 least(int64 a, int64 b) { return a < b ? a : b; }
static INLINE int64 most(int64 a, int64 b) { return a > b ? a : b; }
static inline int64 thread_count(int64 points, int64 grain) {
  if (points < grain || omp_in_parallel()) return 1;
  return omp_get_max_threads();
}
// Runs part(begin, end, thread) on each thread's share of 0 <= i < count; returns 0 or the number of a failed check.
// Threads are started by one function for all kernels of a file: a copy of it in each takes a tenth of compilers' time.
static APART int64 share_out(int64 count, int64 threads, int64 (*part)(const void*, int64, int64, int64), const void* what) {
  if (threads <= 1) return part(what, (int64)0, count, (int64)0);
  int64 failed = 0;
#pragma omp parallel num_threads(threads)
  {
    int64 t = omp_get_thread_num(), team = omp_get_num_threads();
    int64 code = part(what, count * t / team, count * (t + 1) / team, t);
    if (code) __atomic_store_n(&failed, code, __ATOMIC_RELAXED);
  }
  return failed;
}
template <class F> static int64 call_part(const void* what, int64 begin, int64 end, int64 thread) {
  return (*(const F*)what)(begin, end, thread);
}
template <class F> static INLINE int64 share(int64 count, int64 threads, const F& part) {
  return share_out(count, threads, call_part<F>, &part);
}
// Adds the other threads' parts of sums to the first, in the order of the threads.
template <class T> static APART void add_parts(T* total, int64 threads, int64 count) {
  for (int64 t = 1; t < threads; ++t)
    for (int64 k = 0; k < count; ++k) total[k] = total[k] + total[t * count + k];
}
// Memory that a kernel's calls reuse: grown, never shrunk, one block for each thread that calls kernels.
static INLINE int64 rounded(int64 bytes) { return (bytes + 127) & ~(int64)127; }
static APART char* scratch(int64 bytes) {
  static thread_local char* block = nullptr;
  static thread_local int64 size = 0;
  if (bytes > size) {
    free(block);
    size = rounded(bytes + bytes / 4 + 4096);
    block = (char*)aligned_alloc(128, (size_t)size);
  }
  return block;
}
template <int N> struct Times { constexpr operator int64() const { return N; } };
template <class T> static inline void fill(T* to, int64 count, T value) { for (int64 k = 0; k < count; ++k) to[k] = value; }
// total += block; block = 0. What the addition rounds away is added up in lost (Knuth's two-sum).
// Called once in many rows: a copy of it at each call would take longer to compile than it saves.
static APART void drain(f32* __restrict total, f32* __restrict block, f32* __restrict lost, int64 count) {
  for (int64 k = 0; k < count; ++k) {
    f32 s = total[k] + block[k], back = s - total[k];
    lost[k] += (total[k] - (s - back)) + (block[k] - back);
    total[k] = s;
    block[k] = 0;
  }
}
static APART void settle(f32* __restrict total, f32* __restrict block, f32* __restrict lost, int64 count) {
  drain(total, block, lost, count);
  for (int64 k = 0; k < count; ++k) total[k] = lost[k] == lost[k] ? total[k] + lost[k] : total[k];
}
template <class T> static inline T pow_int(T a, T b) {
  if (b < 0) return a == 1 ? (T)1 : a == (T)-1 ? (T)((b & 1) ? -1 : 1) : (T)0;
  T r = 1;
  for (; b; b = (T)(b >> 1)) { if (b & 1) r = wrap_mul(r, a); a = wrap_mul(a, a); }
  return r;
}
static inline f64 logaddexp(f64 a, f64 b) {
  f64 high = maximum(a, b), low = minimum(a, b);
  return low != high || __builtin_isfinite(low) ? __builtin_log1p(__builtin_exp(low - high)) + high : a;
}
static inline f32 logaddexp(f32 a, f32 b) { return (f32)logaddexp((f64)a, (f64)b); }
