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
S1(sinh_, sinh, u10) S1(cosh_, cosh, u10) S1(sleef_tanh, tanh, u10)
S1(sleef_asinh, asinh, u10) S1(sleef_acosh, acosh, u10) S1(atanh_, atanh, u10)
S1(sleef_erf, erf, u10) S1(erfc_, erfc, u15)
S2(pow_, pow, u10) S2(atan2_, atan2, u10) S2(hypot_, hypot, u05)
MAP1(asinh_, vf32, f32, asinh_) MAP1(asinh_, vf64, f64, asinh_) MAP1(acosh_, vf32, f32, acosh_) MAP1(acosh_, vf64, f64, acosh_)
static INLINE vf64 exp_(vf64 x) { return sleef_exp(x); }
static INLINE vf64 log_(vf64 x) { return sleef_log(x); }
static INLINE vf64 tanh_(vf64 x) { return sleef_tanh(x); }
static INLINE vf64 erf_(vf64 x) { return sleef_erf(x); }
static INLINE vf64 sigmoid_(vf64 x) { return splat_f64(1) / (splat_f64(1) + sleef_exp(-x)); }

#ifdef LAMINA_PRECISE
static INLINE vf32 exp_(vf32 x) { return sleef_exp(x); }
static INLINE vf32 log_(vf32 x) { return sleef_log(x); }
static INLINE vf32 tanh_(vf32 x) { return sleef_tanh(x); }
static INLINE vf32 erf_(vf32 x) { return sleef_erf(x); }
static INLINE vf32 sigmoid_(vf32 x) { return 1.0f / (1.0f + sleef_exp(-x)); }
#else
// exp(x) = 2^n exp(r), |r| <= ln(2)/2; 2^n in two factors, so that results may be infinite or denormal.
static INLINE vf32 exp_(vf32 x) {
  vf32 c = smaller(splat_f32(89.0f), larger(splat_f32(-104.0f), x));
  vf32 n = round_(c * 1.44269504088896341f);
  vf32 r = c - n * 0.693145751953125f;
  r = r - n * 1.42860682030941723212e-6f;
  vf32 p = r * 1.98756991e-4f + 1.39819994e-3f;
  p = p * r + 8.33345205e-3f;
  p = p * r + 4.16657962e-2f;
  p = p * r + 1.66666657e-1f;
  p = p * r + 0.5f;
  p = p * (r * r) + r + 1.0f;
  vi32 k = to_vi32(n), a = k >> 1;
  return p * (vf32)((a + 127) << 23) * (vf32)((k - a + 127) << 23);
}
static INLINE vf32 sigmoid_(vf32 x) { return 1.0f / (1.0f + exp_(-x)); }
static INLINE vf32 log_(vf32 x) { return sleef_log(x); }
static INLINE vf32 tanh_(vf32 x) { return sleef_tanh(x); }
static INLINE vf32 erf_(vf32 x) { return sleef_erf(x); }
#endif
