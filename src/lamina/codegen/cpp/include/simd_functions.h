// Rarer functions on vectors: remainders, neighbours, hyperbolic functions, the inverse error function, log-gamma.
MAP2(libm_fmod, vf32, f32, fmod_) MAP2(libm_fmod, vf64, f64, fmod_)
#if LANES == 8
SLEEF2(sleef_fmod, fmodf8, fmodd4)
#else
SLEEF2(sleef_fmod, fmodf16, fmodd8)
#endif
// SLEEF's is not a number where the quotient overflows.
static INLINE vf32 far_fmod(vf32 a, vf32 b) { return every_lane(abs_(a / b) < 0x1p60f) ? sleef_fmod(a, b) : libm_fmod(a, b); }
static INLINE vf64 far_fmod(vf64 a, vf64 b) {
  return every_lane(abs_(a / b) < splat_f64(0x1p60)) ? sleef_fmod(a, b) : libm_fmod(a, b);
}
// A quotient that needs fewer than the significant bits is right or one too great, and what is left over, computed with
// one rounding (products are contracted into sums), is exact.
#define FLOAT_REMAINDERS(V, T, MOST)                                                            \
  static INLINE bool left_over(V a, V b, V& whole, V& rest) {                                   \
    V d = abs_(b), q = abs_(a) / d;                                                             \
    whole = trunc_(q);                                                                          \
    rest = abs_(a) - whole * d;                                                                 \
    vflag over = rest < V{};                                                                    \
    whole = select(over, whole - splat_##T(1), whole);                                          \
    rest = select(q < splat_##T(1), abs_(a), select(over, rest + d, rest));                     \
    return every_lane(q < splat_##T(MOST));                                                     \
  }                                                                                             \
  static INLINE V fmod_(V a, V b) {                                                             \
    V whole, rest;                                                                              \
    return left_over(a, b, whole, rest) ? copysign_(rest, a) : far_fmod(a, b);                  \
  }                                                                                             \
  static INLINE V mod_(V a, V b) {                                                              \
    V r = fmod_(a, b);                                                                          \
    return select((r != V{}) & ((b < V{}) ^ (r < V{})), r + b, r);                              \
  }                                                                                             \
  static inline V far_floor_div(V a, V b) {                                                     \
    V m = far_fmod(a, b), q = a / b, d = (a - m) / b;                                           \
    d = select((m != V{}) & ((b < V{}) ^ (m < V{})), d - splat_##T(1), d);                      \
    V f = floor_(d);                                                                            \
    f = select(d - f > splat_##T(0.5), f + splat_##T(1), f);                                    \
    f = select(d == V{}, copysign_(V{}, q), f);                                                 \
    return select(b == V{}, q, f);                                                              \
  }                                                                                             \
  static INLINE V floor_div_float(V a, V b) {                                                   \
    V whole, rest;                                                                              \
    if (!left_over(a, b, whole, rest)) return far_floor_div(a, b);                              \
    vflag negative = signbit_(a) ^ signbit_(b);                                                 \
    return select(negative, -(whole + select(rest != V{}, splat_##T(1), V{})), whole);          \
  }
#ifdef LAMINA_PRECISE
#define LEFT_OVER_MOST 0
#else
#define LEFT_OVER_MOST 0x1p20
#endif
FLOAT_REMAINDERS(vf32, f32, LEFT_OVER_MOST) FLOAT_REMAINDERS(vf64, f64, LEFT_OVER_MOST)

// ---- integer quotients: doubles hold them exactly ---------------------------------------------------------------------
static INLINE vi32 quotient(vi32 a, vi32 b) { return to_vi32(to_vf64(a) / to_vf64(b)); }
static INLINE vi64 quotient(vi64 a, vi64 b) {
  const f64 magic = 6755399441055744.0;
  vf64 q = trunc_(to_vf64(a) / to_vf64(b)) + splat_f64(magic);
  return vi64{(hi64)q.lo - 0x4338000000000000ll, (hi64)q.hi - 0x4338000000000000ll};
}
static INLINE bool quotient_fits(vi32, vi32) { return true; }
// Up to 2^51 a rounded quotient of integers never reaches the next integer.
static INLINE bool quotient_fits(vi64 a, vi64 b) {
  hi64 far = ((a.lo + (1ll << 51)) | (a.hi + (1ll << 51)) | (b.lo + (1ll << 51)) | (b.hi + (1ll << 51))) >> 52;
  return !any_lane(low_words((hi64)(far != 0), (hi64)(far != 0)));
}
#define INT_DIVISIONS(V, T)                                                                                    \
  MAP2(far_trunc_div, V, T, trunc_div<T>) MAP2(far_floor_div, V, T, floor_div<T>)                              \
  MAP2(far_fmod_int, V, T, fmod_int<T>) MAP2(far_floor_mod, V, T, floor_mod<T>)                                \
  static INLINE V trunc_div(V a, V b) {                                                                        \
    if (!quotient_fits(a, b)) return far_trunc_div(a, b);                                                      \
    return select(b == V{}, V{}, quotient(a, b));                                                              \
  }                                                                                                            \
  static INLINE V fmod_int(V a, V b) {                                                                         \
    if (!quotient_fits(a, b)) return far_fmod_int(a, b);                                                       \
    return select(b == V{}, V{}, a - quotient(a, b) * b);                                                      \
  }                                                                                                            \
  static INLINE V floor_mod(V a, V b) {                                                                        \
    if (!quotient_fits(a, b)) return far_floor_mod(a, b);                                                      \
    V r = a - quotient(a, b) * b;                                                                              \
    r = select((r != V{}) & ((r < V{}) ^ (b < V{})), r + b, r);                                                \
    return select(b == V{}, V{}, r);                                                                           \
  }                                                                                                            \
  static INLINE V floor_div(V a, V b) {                                                                        \
    if (!quotient_fits(a, b)) return far_floor_div(a, b);                                                      \
    V q = quotient(a, b), r = a - q * b;                                                                       \
    q = select((r != V{}) & ((r < V{}) ^ (b < V{})), q - splat_##T(1), q);                                     \
    return select(b == V{}, V{}, q);                                                                           \
  }
INT_DIVISIONS(vi32, int32) INT_DIVISIONS(vi64, int64)

// ---- neighbours -------------------------------------------------------------------------------------------------------
static INLINE vf32 nextafter_(vf32 x, vf32 y) {
  vi32 bits = (vi32)x + select((x < y) ^ ((vi32)x < 0), splat_int32(1), splat_int32(-1));
  vi32 least = ((vi32)y & (int32)0x80000000) | 1;
  vf32 r = (vf32)select(x == 0.0f, least, bits);
  r = select(x == y, y, r);
  return select((x != x) | (y != y), x + y, r);
}
static INLINE vf64 nextafter_(vf64 x, vf64 y) {
  vi64 b{(hi64)x.lo, (hi64)x.hi}, to{(hi64)y.lo, (hi64)y.hi};
  vi64 r = b + select((x < y) ^ (b < vi64{}), splat_int64(1), splat_int64(-1));
  r = select(x == vf64{}, (to & splat_int64(INT64_MIN)) | splat_int64(1), r);
  vf64 near = select(x == y, y, vf64{(hf64)r.lo, (hf64)r.hi});
  return select((x != x) | (y != y), x + y, near);
}
S1(sleef_lgamma, lgamma, u10)

#ifdef LAMINA_PRECISE
#define ONE_BY_ONE(NAME) MAP1(NAME, vf32, f32, NAME) MAP1(NAME, vf64, f64, NAME)
ONE_BY_ONE(sinh_) ONE_BY_ONE(cosh_) ONE_BY_ONE(asinh_) ONE_BY_ONE(acosh_) ONE_BY_ONE(erfinv_) ONE_BY_ONE(lgamma_) ONE_BY_ONE(digamma_)
static INLINE vf32 erfc_(vf32 x) { return sleef_erfc(x); }
#else
static INLINE vf32 lgamma_(vf32 x) { return sleef_lgamma(x); }
static INLINE vf64 lgamma_(vf64 x) { return sleef_lgamma(x); }
// exp(t) / 2 for t >= 0, which overflows only where the half does.
#define HYPERBOLIC(V, T, HIGH, LOW, SERIES)                                                    \
  static INLINE V half_exp(V t) {                                                              \
    V e = exp_(t - splat_##T(HIGH));                                                           \
    return select(e < splat_##T(T##_MOST), e - e * splat_##T(LOW), e);                         \
  }                                                                                            \
  static INLINE V cosh_(V x) {                                                                 \
    V h = half_exp(abs_(x));                                                                   \
    return h + splat_##T(0.25) / h;                                                            \
  }                                                                                            \
  static INLINE V sinh_(V x) {                                                                 \
    V t = abs_(x), h = half_exp(t), s = x * x, p = splat_##T(SERIES[0]);                       \
    for (unsigned k = 1; k < sizeof SERIES / sizeof SERIES[0]; ++k) p = p * s + splat_##T(SERIES[k]); \
    return copysign_(select(t < splat_##T(2), t * s * p + t, h - splat_##T(0.25) / h), x);     \
  }                                                                                            \
  static INLINE V far_area(V t) { return log_(t) + splat_##T(0.69314718055994530942); }        \
  static INLINE V asinh_(V x) {                                                                \
    V t = abs_(x), y = sleef_asinh(t);                                                         \
    if (any_lane(t > splat_##T(1e9))) y = select(t > splat_##T(1e9), far_area(t), y);          \
    return copysign_(y, x);                                                                    \
  }                                                                                            \
  static INLINE V acosh_(V x) {                                                                \
    V y = sleef_acosh(x);                                                                      \
    return any_lane(x > splat_##T(1e9)) ? select(x > splat_##T(1e9), far_area(x), y) : y;      \
  }
static constexpr f32 f32_MOST = __FLT_MAX__;
static constexpr f64 f64_MOST = __DBL_MAX__;
// 1 / (2 k + 1)!, the last first.
static constexpr f32 SINH_F32[] = {
  7.647163732e-13f, 1.605904384e-10f, 2.505210839e-08f, 2.755731922e-06f, 1.984126984e-04f, 8.333333333e-03f,
  1.666666667e-01f};
static constexpr f64 SINH_F64[] = {
  6.44695028438447359e-26, 3.86817017063068413e-23, 1.95729410633912626e-20, 8.22063524662432950e-18,
  2.81145725434552060e-15, 7.64716373181981641e-13, 1.60590438368216133e-10, 2.50521083854417202e-08,
  2.75573192239858925e-06, 1.98412698412698413e-04, 8.33333333333333322e-03, 1.66666666666666657e-01};
HYPERBOLIC(vf32, f32, 0.693145751953125f, 1.42860682030941723212e-6f, SINH_F32)
HYPERBOLIC(vf64, f64, 0.693147180369123816490, 1.90821492927058770002e-10, SINH_F64)

// erfinv(x) / x as a polynomial of w = -log(1 - x^2), or of the root of w (Giles, 2012); those for float, in double, are own fits.
template <class T, int N> struct Series { T c[N]; };
template <class V, class T, int N> static INLINE V polynomial(V x, const Series<T, N>& s, V (*splat)(T)) {
  V p = splat(s.c[0]);
  for (int k = 1; k < N; ++k) p = p * x + splat(s.c[k]);
  return p;
}
static constexpr Series<f64, 11> ERFINV_F32{{
  3.657043806201e-10, -8.748171240948e-09, 1.757296354295e-08, 4.655460618484e-07, -3.432122697776e-06,
  -4.960293767839e-06, 2.182772237261e-04, -1.252747460465e-03, -4.177335342526e-03, 2.466402889409e-01,
  1.501409353036e+00}};
static constexpr Series<f64, 11> ERFINV_F32_FAR{{
  -2.940440348174e-05, 1.614165919977e-04, -2.782040613928e-04, -1.214419541064e-04, 1.475814901282e-03,
  -3.566302014073e-03, 5.687481563338e-03, -7.642933581678e-03, 9.445321193697e-03, 1.001675246371e+00,
  2.832976801338e+00}};
static constexpr Series<f64, 23> ERFINV_F64{{
  -3.64441206401782e-21, -1.6850591381820166e-19, 1.28584807152564e-18, 1.1157877678025181e-17,
  -1.333171662854621e-16, 2.0972767875968562e-17, 6.637638134358324e-15, -4.054566272975207e-14,
  -8.151934197605472e-14, 2.6335093153082323e-12, -1.2975133253453532e-11, -5.415412054294628e-11,
  1.0512122733215323e-09, -4.112633980346984e-09, -2.9070369957882005e-08, 4.2347877827932404e-07,
  -1.3654692000834679e-06, -1.3882523362786469e-05, 0.00018673420803405714, -0.000740702534166267,
  -0.006033670871430149, 0.24015818242558962, 1.6536545626831027}};
static constexpr Series<f64, 19> ERFINV_F64_FAR{{
  2.2137376921775787e-09, 9.075656193888539e-08, -2.7517406297064545e-07, 1.8239629214389228e-08,
  1.5027403968909828e-06, -4.013867526981546e-06, 2.9234449089955446e-06, 1.2475304481671779e-05,
  -4.7318229009055734e-05, 6.828485145957318e-05, 2.4031110387097894e-05, -0.0003550375203628475,
  0.0009532893797373805, -0.0016882755560235047, 0.002491442096107851, -0.003751208507569241, 0.005370914553590064,
  1.0052589676941592, 3.0838856104922208}};
static constexpr Series<f64, 17> ERFINV_F64_LAST{{
  -2.7109920616438573e-11, -2.555641816996525e-10, 1.5076572693500548e-09, -3.789465440126737e-09,
  7.61570120807834e-09, -1.496002662714924e-08, 2.914795345090108e-08, -6.771199775845234e-08,
  2.2900482228026655e-07, -9.9298272942317e-07, 4.526062597223154e-06, -1.968177810553167e-05, 7.599527703001776e-05,
  -0.00021503011930044477, -0.00013871931833623122, 1.0103004648645344, 4.849906401408584}};
static INLINE vf32 erfinv_(vf32 x) {
  vf64 one = splat_f64(1), v = to_vf64(x), w = -log_((one - v) * (one + v));
  vf64 p = polynomial(w - splat_f64(2.5), ERFINV_F32, splat_f64);
  vflag far = w >= splat_f64(5);
  if (any_lane(far)) p = select(far, polynomial(sqrt_(w) - splat_f64(3), ERFINV_F32_FAR, splat_f64), p);
  return select(abs_(x) == 1.0f, x * __builtin_inff(), to_vf32(p * v));
}
static INLINE vf64 erfinv_(vf64 x) {
  vf64 one = splat_f64(1), w = -log_((one - x) * (one + x));
  vf64 p = polynomial(w - splat_f64(3.125), ERFINV_F64, splat_f64);
  vflag far = w >= splat_f64(6.25), last = w >= splat_f64(16);
  if (any_lane(far)) {
    vf64 s = sqrt_(w);
    p = select(far, polynomial(s - splat_f64(3.25), ERFINV_F64_FAR, splat_f64), p);
    if (any_lane(last)) p = select(last, polynomial(s - splat_f64(5), ERFINV_F64_LAST, splat_f64), p);
  }
  return select(abs_(x) == one, x * splat_f64(__builtin_inf()), p * x);
}

// erfc(x) = exp(-x^2) Q(y) / (x + 3) with y = (x - 3) / (x + 3), for floats, in double; x^2 is exact.
static constexpr Series<f64, 8> EXP_NEAR{{
  0.00019907569310848288, 0.0013948578326459795, 0.008333283538708528, 0.041666218319291945, 0.16666666786308587,
  0.5000000107729166, 0.999999999995509, 0.9999999999595618}};
static constexpr Series<f64, 12> ERFC_F32{{
  4.044582949111931e-05, 9.793393487155918e-05, -0.00028666324430510267, -0.0005471304633073619,
  0.0030370645629112375, -0.0012122544509967426, -0.02682760669027172, 0.11952772725845573, -0.3104672454177095,
  0.5902283582802254, -0.8833944532814693, 1.0740069070849312}};
static INLINE vf32 erfc_(vf32 x) {
  const vf64 magic = splat_f64(6755399441055744.0), one = splat_f64(1);
  vf64 v = to_vf64(x), t = smaller(splat_f64(10.5), abs_(v)), s = t * t;
  vf64 n = round_(s * splat_f64(-1.44269504088896341)), k = n + magic;
  vf64 e = polynomial(n * splat_f64(-0.69314718055994530942) - s, EXP_NEAR, splat_f64);
  e = vf64{(hf64)((hi64)e.lo + ((hi64)k.lo << 52)), (hf64)((hi64)e.hi + ((hi64)k.hi << 52))};
  vf64 u = one / (t + splat_f64(3)), z = e * u * polynomial(one - splat_f64(6) * u, ERFC_F32, splat_f64);
  return to_vf32(select(v < vf64{}, splat_f64(2) - z, z));
}

// digamma(x) from that of x + k, within [10, 11) or beyond 10, where it is a series in 1 / x^2. Near 10.5 it is TOP, its
// rounding error and a polynomial times the distance: in what is small beside the sum little is lost where they cancel.
static constexpr f64 DIGAMMA_TOP = 2.3030010342976865, DIGAMMA_LOW = -1.69232674551662e-16;
static constexpr Series<f64, 10> DIGAMMA_NEAR{{
  -9.61049919583285e-12, 1.0763791732786627e-10, -1.213645397217338e-09, 1.396072155219115e-08,
  -1.6380954231561206e-07, 1.97539896954324e-06, -2.4794171625361953e-05, 0.00033168103952372865,
  -0.004987572123857585, 0.09991695605912673}};
static constexpr Series<f64, 7> DIGAMMA_FAR{{
  8.33333333333333333333e-2, -2.10927960927960927961e-2, 7.57575757575757575758e-3, -4.16666666666666666667e-3,
  3.96825396825396825397e-3, -8.33333333333333333333e-3, 8.33333333333333333333e-2}};
static inline vf64 digamma_far(vf64 x) {
  vf64 z = splat_f64(1) / (x * x);
  return log_(x) - splat_f64(0.5) / x - z * polynomial(z, DIGAMMA_FAR, splat_f64);
}
static inline vf64 digamma_reflected(vf64 x, vf64 positive) {
  vf64 part = x - trunc_(x), pi = splat_f64(3.14159265358979323846);
  vf64 y = positive - pi / tan_(pi * part);
  return select(part == vf64{}, splat_f64(__builtin_nan("")), y);
}
// With QUOTIENT the sum of 1 / (x + k) is one quotient, not as exact where it cancels: for floats.
template <bool QUOTIENT> static inline vf64 digamma_any(vf64 v) {
  const vf64 one = splat_f64(1), ten = splat_f64(10);
  vflag below = v < vf64{};
  vf64 x = select(below, one - v, v), sum = vf64{}, den = one, y = vf64{};
  vflag low = x < ten;
  if (any_lane(low)) {
    for (vflag more = low; any_lane(more); more = x < ten) {
      if constexpr (QUOTIENT) {
        sum = select(more, sum * x + den, sum);
        den = select(more, den * x, den);
      } else {
        sum = select(more, sum + one / x, sum);
      }
      x = select(more, x + one, x);
    }
    if constexpr (QUOTIENT) sum = sum / den;
    vf64 z = x - splat_f64(10.5), rest = z * polynomial(z, DIGAMMA_NEAR, splat_f64) + splat_f64(DIGAMMA_LOW);
    y = (splat_f64(DIGAMMA_TOP) - sum) + rest;
  }
  if (!every_lane(low)) y = select(low, y, digamma_far(x));
  if (any_lane(below)) y = select(below, digamma_reflected(v, y), y);
  return select(v == vf64{}, copysign_(splat_f64(__builtin_inf()), -v), y);
}
static inline vf64 digamma_(vf64 x) { return digamma_any<false>(x); }
static inline vf32 digamma_(vf32 x) { return to_vf32(digamma_any<true>(to_vf64(x))); }
#endif
