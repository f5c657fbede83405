// Elementary functions on vectors. float: own polynomials within about one unit in the last place; the rest and all of
// double: SLEEF, from the library torch itself uses.
#if LANES == 8
#define SLEEF1(NAME, F, D) \
  extern "C" vf32 Sleef_##F(vf32); extern "C" hf64 Sleef_##D(hf64);                    \
  static INLINE vf32 NAME(vf32 x) { return Sleef_##F(x); }                             \
  static INLINE vf64 NAME(vf64 x) { return vf64{Sleef_##D(x.lo), Sleef_##D(x.hi)}; }
#define S1(NAME, FN, U) SLEEF1(NAME, FN##f8_##U, FN##d4_##U)
#define SLEEF2(NAME, F, D) \
  extern "C" vf32 Sleef_##F(vf32, vf32); extern "C" hf64 Sleef_##D(hf64, hf64);        \
  static INLINE vf32 NAME(vf32 x, vf32 y) { return Sleef_##F(x, y); }                  \
  static INLINE vf64 NAME(vf64 x, vf64 y) { return vf64{Sleef_##D(x.lo, y.lo), Sleef_##D(x.hi, y.hi)}; }
#define S2(NAME, FN, U) SLEEF2(NAME, FN##f8_##U, FN##d4_##U)
#else
#define SLEEF1(NAME, F, D) \
  extern "C" vf32 Sleef_##F(vf32); extern "C" hf64 Sleef_##D(hf64);                    \
  static INLINE vf32 NAME(vf32 x) { return Sleef_##F(x); }                             \
  static INLINE vf64 NAME(vf64 x) { return vf64{Sleef_##D(x.lo), Sleef_##D(x.hi)}; }
#define S1(NAME, FN, U) SLEEF1(NAME, FN##f16_##U, FN##d8_##U)
#define SLEEF2(NAME, F, D) \
  extern "C" vf32 Sleef_##F(vf32, vf32); extern "C" hf64 Sleef_##D(hf64, hf64);        \
  static INLINE vf32 NAME(vf32 x, vf32 y) { return Sleef_##F(x, y); }                  \
  static INLINE vf64 NAME(vf64 x, vf64 y) { return vf64{Sleef_##D(x.lo, y.lo), Sleef_##D(x.hi, y.hi)}; }
#define S2(NAME, FN, U) SLEEF2(NAME, FN##f16_##U, FN##d8_##U)
#endif
S1(sleef_exp, exp, u10) S1(exp2_, exp2, u10) S1(expm1_, expm1, u10)
S1(sleef_log, log, u10) S1(log2_, log2, u10) S1(log10_, log10, u10) S1(log1p_, log1p, u10)
S1(sin_, sin, u10) S1(cos_, cos, u10) S1(tan_, tan, u10)
S1(asin_, asin, u10) S1(acos_, acos, u10) S1(atan_, atan, u10)
S1(sleef_tanh, tanh, u10)
S1(sleef_asinh, asinh, u10) S1(sleef_acosh, acosh, u10) S1(atanh_, atanh, u10)
S1(sleef_erf, erf, u10) S1(sleef_erfc, erfc, u15)
S2(pow_, pow, u10) S2(atan2_, atan2, u10) S2(hypot_, hypot, u05)
static INLINE vf64 exp_(vf64 x) { return sleef_exp(x); }
static INLINE vf64 log_(vf64 x) { return sleef_log(x); }
static INLINE vf64 tanh_(vf64 x) { return sleef_tanh(x); }
static INLINE vf64 erf_(vf64 x) { return sleef_erf(x); }
static INLINE vf64 erfc_(vf64 x) { return sleef_erfc(x); }
static INLINE vf64 sigmoid_(vf64 x) { return splat_f64(1) / (splat_f64(1) + sleef_exp(-x)); }

#ifdef LAMINA_PRECISE
static INLINE vf32 exp_(vf32 x) { return sleef_exp(x); }
static INLINE vf32 log_(vf32 x) { return sleef_log(x); }
static INLINE vf32 tanh_(vf32 x) { return sleef_tanh(x); }
static INLINE vf32 erf_(vf32 x) { return sleef_erf(x); }
static INLINE vf32 sigmoid_(vf32 x) { return 1.0f / (1.0f + sleef_exp(-x)); }
#else
// exp(x) = 2^n exp(r) with |r| <= ln(2)/2; gives exp(r) and leaves n in k. Polynomials here and below: own fits.
static INLINE vf32 exp_parts(vf32 x, vi32& k) {
  vf32 n = round_(x * 1.44269504088896341f);
  vf32 r = x - n * 0.693145751953125f;
  r = r - n * 1.42860682030941723212e-6f;
  vf32 p = r * 1.381460810e-3f + 8.368710056e-3f;
  p = p * r + 4.166838899e-2f;
  p = p * r + 1.666652113e-1f;
  p = p * r + 0.4999999404f;
  k = to_vi32(n);
  return p * (r * r) + r + 1.0f;
}
// Where the result is known to be a normal number.
static INLINE vf32 exp_inside(vf32 x) {
  vi32 k;
  vf32 p = exp_parts(x, k);
  return (vf32)((vi32)p + (k << 23));
}
// Results below the normal numbers are rounded as integers: arithmetic on them takes several times as long.
static inline vf32 exp_tiny(vf32 p, vi32 k) {
  vi32 bits = (vi32)p, drop = minimum_int(splat_int32(25), -126 - k + (127 - (bits >> 23)));
  vi32 whole = (bits & 0x7fffff) | 0x800000;
  return (vf32)((whole + ((1 << (drop - 1)) - 1) + ((whole >> drop) & 1)) >> drop);
}
static INLINE vf32 exp_(vf32 x) {
  vi32 k;
  vf32 p = exp_parts(larger(splat_f32(-104.0f), x), k);
  vf32 y = select(x > 88.7228317f, splat_f32(__builtin_inff()), (vf32)((vi32)p + (k << 23)));
  vflag low = x < -87.3365402f;
  if (__builtin_expect(any_lane(low), 0)) {
    y = select(low, vf32{}, y);
    low = low & (x > -103.98f);
    if (any_lane(low)) y = select(low, exp_tiny(p, k), y);
  }
  return y;
}
static INLINE vf32 sigmoid_(vf32 x) { return 1.0f / (1.0f + exp_(-x)); }
static INLINE vf32 log_(vf32 x) {
  vflag tiny = x < 0x1p-126f;
  vi32 bits = (vi32)select(tiny, x * 0x1p23f, x);
  vi32 e = (bits - 0x3f3504f3) >> 23;
  vf32 f = (vf32)(bits - (e << 23)) - 1.0f;
  vf32 n = to_vf32(e - (tiny & 23));
  vf32 p = f * 6.914580613e-2f - 1.178940684e-1f;
  p = p * f + 1.187311783e-1f;
  p = p * f - 1.238442659e-1f;
  p = p * f + 1.421864927e-1f;
  p = p * f - 1.666924655e-1f;
  p = p * f + 2.000222653e-1f;
  p = p * f - 2.499998659e-1f;
  p = p * f + 3.333331048e-1f;
  vf32 q = f * f;
  vf32 low = q * f * p + n * 1.42860682030941723212e-6f;
  vf32 y = (low - q * 0.5f) + f + n * 0.693145751953125f;
  y = select(x < __builtin_inff(), y, x);
  y = select(x == 0.0f, splat_f32(-__builtin_inff()), y);
  return select(x < 0.0f, splat_f32(__builtin_nanf("")), y);
}
static INLINE vf32 tanh_(vf32 x) {
  vf32 t = abs_(x), s = x * x;
  vf32 p = s * -5.660769530e-3f + 2.060198784e-2f;
  p = p * s - 5.372922495e-2f;
  p = p * s + 1.333132833e-1f;
  p = p * s - 3.333327770e-1f;
  vf32 large = 1.0f - 2.0f / (exp_inside(smaller(splat_f32(20.0f), t + t)) + 1.0f);
  return copysign_(select(t < 0.625f, t * s * p + t, large), x);
}
static INLINE vf32 erf_(vf32 x) {
  vf32 t = smaller(splat_f32(4.0f), abs_(x)), s = x * x;
  vf32 p = s * 7.889102562e-5f - 8.020836394e-4f;
  p = p * s + 5.189534742e-3f;
  p = p * s - 2.685444430e-2f;
  p = p * s + 1.128360033e-1f;
  p = p * s - 3.761262596e-1f;
  p = p * s + 1.283791661e-1f;
  vf32 q = t * 1.924272947e-4f - 3.008548636e-3f;
  q = q * t + 2.208768576e-2f;
  q = q * t - 1.036404073e-1f;
  q = q * t - 6.375169158e-1f;
  q = q * t - 1.127475023f;
  q = q * t - 2.447015722e-4f;
  return select(t < 1.0f, x * p + x, copysign_(1.0f - exp_inside(q), x));
}
#endif
