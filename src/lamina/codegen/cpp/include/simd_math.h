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
S1(sleef_exp, exp, u10) S1(exp2_, exp2, u10) S1(sleef_expm1, expm1, u10)
S1(sleef_log, log, u10) S1(log2_, log2, u10) S1(log10_, log10, u10) S1(sleef_log1p, log1p, u10)
S1(sleef_sin, sin, u10) S1(sleef_cos, cos, u10) S1(tan_, tan, u10)
S1(asin_, asin, u10) S1(acos_, acos, u10) S1(atan_, atan, u10)
S1(sleef_tanh, tanh, u10)
S1(sleef_asinh, asinh, u10) S1(sleef_acosh, acosh, u10) S1(sleef_atanh, atanh, u10)
S1(sleef_erf, erf, u10) S1(sleef_erfc, erfc, u15)
S2(sleef_pow, pow, u10) S2(atan2_, atan2, u10) S2(hypot_, hypot, u05)
#define AS_SLEEF(V, NAME) static INLINE V NAME##_(V x) { return sleef_##NAME(x); }
#define MOST_AS_SLEEF(V)                                                                         \
  AS_SLEEF(V, exp) AS_SLEEF(V, log) AS_SLEEF(V, log1p) AS_SLEEF(V, sin) AS_SLEEF(V, cos)         \
  AS_SLEEF(V, tanh) AS_SLEEF(V, erf)
MOST_AS_SLEEF(vf64) AS_SLEEF(vf64, erfc)
static INLINE vf64 sigmoid_(vf64 x) { return splat_f64(1) / (splat_f64(1) + sleef_exp(-x)); }
static INLINE vf64 pow_(vf64 x, vf64 y) { return sleef_pow(x, y); }

#ifdef LAMINA_PRECISE
MOST_AS_SLEEF(vf32)
AS_SLEEF(vf32, expm1) AS_SLEEF(vf32, atanh) AS_SLEEF(vf64, expm1) AS_SLEEF(vf64, atanh)
MAP2(logaddexp, vf64, f64, logaddexp)
static INLINE vf32 pow_(vf32 x, vf32 y) { return sleef_pow(x, y); }
static INLINE vf32 coarse_sin_(vf32 x) { return sin_(x); }
static INLINE vf32 coarse_cos_(vf32 x) { return cos_(x); }
static INLINE vf32 coarse_erf_(vf32 x) { return erf_(x); }
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
// (expm1(r) - r) / r^2 for doubles within ln(2) / 2.
static constexpr f64 EXPM1_F64[] = {
  2.0914707069612355e-09, 2.510524515390137e-08, 2.7557273594799413e-07, 2.755725533255441e-06,
  2.480158732558584e-05, 0.00019841269874873975, 0.0013888888888883737, 0.00833333333332612, 0.04166666666666667,
  0.1666666666666667, 0.5};
// expm1(x) = 2^n (expm1(r) + 1) - 1; what rounding r lost is added, and half of all is computed, which does not overflow.
static INLINE vf32 expm1_(vf32 x) {
  vf32 n = round_(larger(splat_f32(-18.0f), x) * 1.44269504088896341f);
  vf32 whole = larger(splat_f32(-18.0f), x) - n * 0.693145751953125f, r = whole - n * 1.42860682030941723212e-6f;
  vf32 lost = (whole - r) - n * 1.42860682030941723212e-6f;
  vf32 p = (r * 1.994425547e-4f + 1.393268583e-3f) * r + 8.333208039e-3f;
  p = p * r + 4.166648909e-2f;
  p = p * r + 1.666666716e-1f;
  p = p * r + 0.5f;
  vf32 half = (vf32)((to_vi32(n) << 23) + 0x3f000000), less = half - 0.5f;
  vf32 y = (half * r + less) + (half * (r * r * p + lost) + ((half - less) - 0.5f));
  y = select(x > 88.7228317f, splat_f32(__builtin_inff()), y + y);
  return select(abs_(x) < 0x1p-25f, x, y);
}
// The last bits of an integer as those of its sum with this; shifted they are an exponent.
static constexpr f64 INTEGER_F64 = 6755399441055744.0;
static INLINE vf64 expm1_(vf64 x) {
  const vf64 shift = splat_f64(INTEGER_F64);
  vf64 low = larger(splat_f64(-40), x), k = low * splat_f64(1.44269504088896341) + shift, n = k - shift;
  vf64 whole = low - n * splat_f64(0.693147180369123816490), r = whole - n * splat_f64(1.90821492927058770002e-10);
  vf64 lost = (whole - r) - n * splat_f64(1.90821492927058770002e-10), p = splat_f64(EXPM1_F64[0]);
  for (unsigned i = 1; i < sizeof EXPM1_F64 / sizeof EXPM1_F64[0]; ++i) p = p * r + splat_f64(EXPM1_F64[i]);
  vf64 half{(hf64)(((hi64)k.lo << 52) + 0x3fe0000000000000ll), (hf64)(((hi64)k.hi << 52) + 0x3fe0000000000000ll)};
  vf64 less = half - splat_f64(0.5);
  vf64 y = (half * r + less) + (half * (r * r * p + lost) + ((half - less) - splat_f64(0.5)));
  y = select(x > splat_f64(709.782712893383996), splat_f64(__builtin_inf()), y + y);
  return select(abs_(x) < splat_f64(0x1p-54), x, y);
}
// log(1 + f) + n log(2) + rest, where f is within sqrt(1/2) - 1 and sqrt(2) - 1, and rest is small.
static INLINE vf32 log_sum(vf32 f, vf32 n, vf32 rest) {
  vf32 p = f * 6.914580613e-2f - 1.178940684e-1f;
  p = p * f + 1.187311783e-1f;
  p = p * f - 1.238442659e-1f;
  p = p * f + 1.421864927e-1f;
  p = p * f - 1.666924655e-1f;
  p = p * f + 2.000222653e-1f;
  p = p * f - 2.499998659e-1f;
  p = p * f + 3.333331048e-1f;
  vf32 q = f * f;
  return (q * f * p + rest - q * 0.5f) + f + n * 0.693145751953125f;
}
static constexpr f32 LOG2_LOW = 1.42860682030941723212e-6f;
static INLINE vf32 log_(vf32 x) {
  vflag tiny = x < 0x1p-126f;
  vi32 bits = (vi32)select(tiny, x * 0x1p23f, x);
  vi32 e = (bits - 0x3f3504f3) >> 23;
  vf32 n = to_vf32(e - (tiny & 23));
  vf32 y = log_sum((vf32)(bits - (e << 23)) - 1.0f, n, n * LOG2_LOW);
  y = select(x < __builtin_inff(), y, x);
  y = select(x == 0.0f, splat_f32(-__builtin_inff()), y);
  return select(x < 0.0f, splat_f32(__builtin_nanf("")), y);
}
// log(u) of u = 1 + x, rounded, and what that lost.
static INLINE vf32 log1p_(vf32 x) {
  vf32 u = 1.0f + x;
  vi32 bits = (vi32)u, e = (bits - 0x3f3504f3) >> 23;
  vf32 f = (vf32)(bits - (e << 23)) - 1.0f, n = to_vf32(e);
  vf32 lost = (x - (u - 1.0f)) * larger(vf32{}, (vf32)(0x3f800000 - (e << 23)));
  vf32 y = log_sum(f, n, n * LOG2_LOW + (lost - lost * f));
  y = copysign_(select(x < __builtin_inff(), y, x), x);
  y = select(x == -1.0f, splat_f32(-__builtin_inff()), y);
  return select(x < -1.0f, splat_f32(__builtin_nanf("")), y);
}
// atanh(s) / s as a polynomial of s^2 for |s| up to 0.172, times 2 / ln(2), and 2^r for |r| up to 1/2.
static constexpr f64 LOG2_POW[] = {
  0.3407300836017089, 0.41167272031420504, 0.5770835849427097, 0.9617966733419103, 2.885390081790088};
static constexpr f64 EXP2_POW[] = {
  0.00015345794527621878, 0.0013399931078314027, 0.009618489022082784, 0.05550328777403871, 0.24022646890033772,
  0.6931472057369958, 1.0000000005542473};
// 2^(y log2(x)) in doubles, log2(x) = e + log2((1 + s) / (1 - s)), for positive normal x and finite y.
static INLINE vf32 pow_inside(vf32 x, vf32 y) {
  const vf64 shift = splat_f64(INTEGER_F64);
  vi32 bits = (vi32)x, e = (bits - 0x3f3504f3) >> 23;
  vf32 f = (vf32)(bits - (e << 23)) - 1.0f;
  vf64 g = to_vf64(f), part = to_vf64(1.0f / (f + 2.0f)), s = g * part;
  s = s + part * (g - s * (g + splat_f64(2)));
  vf64 t = s * s, p = splat_f64(LOG2_POW[0]);
  for (unsigned i = 1; i < sizeof LOG2_POW / sizeof LOG2_POW[0]; ++i) p = p * t + splat_f64(LOG2_POW[i]);
  vf64 z = (s * p + to_vf64(e)) * to_vf64(y);
  z = larger(splat_f64(-200), smaller(splat_f64(200), z));
  vf64 k = z + shift, r = z - (k - shift), q = splat_f64(EXP2_POW[0]);
  for (unsigned i = 1; i < sizeof EXP2_POW / sizeof EXP2_POW[0]; ++i) q = q * r + splat_f64(EXP2_POW[i]);
  return to_vf32(vf64{(hf64)((hi64)q.lo + ((hi64)k.lo << 52)), (hf64)((hi64)q.hi + ((hi64)k.hi << 52))});
}
static inline vf32 pow_elsewhere(vf32 x, vf32 y, vf32 found, vflag inside) {
  vflag zero = ((vi32)x == 0) & (abs_(y) < __builtin_inff());
  vf32 of_zero = select(y == 0.0f, splat_f32(1.0f), select(y < 0.0f, splat_f32(__builtin_inff()), vf32{}));
  found = select(zero, of_zero, found);
  return every_lane(inside | zero) ? found : select(inside | zero, found, sleef_pow(x, y));
}
static INLINE vf32 pow_(vf32 x, vf32 y) {
  vflag inside = (x >= 0x1p-126f) & (x < __builtin_inff()) & (abs_(y) < __builtin_inff());
  vf32 found = pow_inside(x, y);
  return __builtin_expect(every_lane(inside), 1) ? found : pow_elsewhere(x, y, found, inside);
}
// (atanh(s) - s) / s^3 as a polynomial of s^2 for doubles up to 0.36.
static constexpr f64 ATANH_F64[] = {
  0.08545260819740894, 0.025785162318517907, 0.05131845716579402, 0.05215378847910987, 0.0588637497912815,
  0.06666442559609927, 0.07692315870784258, 0.09090908902382096, 0.1111111111366824, 0.14285714285696408,
  0.20000000000000048, 0.3333333333333333};
// From 1/2 on half the logarithm of a quotient and of what rounding it lost; 1 / a is nearly a line from 1.5 to 2.
static INLINE vf32 atanh_(vf32 x) {
  vf32 t = abs_(x), z = x * x;
  vf32 p = z * 1.772429645e-1f + 5.094574019e-2f;
  p = p * z + 1.183524728e-1f;
  p = p * z + 1.422129422e-1f;
  p = p * z + 2.000260055e-1f;
  p = p * z + 3.333329856e-1f;
  vf32 a = 1.0f + t, b = 1.0f - t, q = a / b;
  vf32 lost = ((a - q * b) + (t - (a - 1.0f))) * (1.1607f - a * 0.33333f);
  vi32 bits = (vi32)q, e = (bits - 0x3f3504f3) >> 23;
  vf32 n = to_vf32(e), y = log_sum((vf32)(bits - (e << 23)) - 1.0f, n, n * LOG2_LOW + lost);
  y = select(t < 0.5f, t * z * p + t, y * 0.5f);
  y = select(t == 1.0f, splat_f32(__builtin_inff()), y);
  return copysign_(select(t <= 1.0f, y, splat_f32(__builtin_nanf(""))), x);
}
// (1 + t) / (1 - t) = 2^n (1 + s) / (1 - s), where s is about 0 to 1/3, and t itself below 1/3.
static INLINE vf64 atanh_(vf64 x) {
  vf64 one = splat_f64(1), t = abs_(x), a = one + t, b = one - t;
  vi64 k{((hi64)a.lo - (hi64)b.lo) >> 52, ((hi64)a.hi - (hi64)b.hi) >> 52};
  vf64 c{(hf64)((k.lo + 1023) << 52), (hf64)((k.hi + 1023) << 52)};
  vf64 n = vf64{(hf64)(k.lo + bits_of<int64>(INTEGER_F64)), (hf64)(k.hi + bits_of<int64>(INTEGER_F64))} - splat_f64(INTEGER_F64);
  vf64 over = select(c > splat_f64(0x1p20), a - c * b, t * (one + c) + (one - c));
  vf64 under = a + c * b, part = one / under, quotient = over * part;
  vf64 lost = (over - quotient * under - quotient * ((t - (a - one)) + (c * b - (under - a)))) * part;
  vflag near = n == vf64{};
  vf64 s = select(near, t, quotient), z = s * s, p = splat_f64(ATANH_F64[0]);
  for (unsigned i = 1; i < sizeof ATANH_F64 / sizeof ATANH_F64[0]; ++i) p = p * z + splat_f64(ATANH_F64[i]);
  vf64 y = n * splat_f64(0.693147180369123816490 / 2) + (s + (s * z * p + (n * splat_f64(1.90821492927058770002e-10 / 2) + select(near, vf64{}, lost))));
  y = select(t == one, splat_f64(__builtin_inf()), y);
  return copysign_(select(t <= one, y, splat_f64(__builtin_nan(""))), x);
}
static INLINE vf64 logaddexp(vf64 a, vf64 b) {
  vf64 high = maximum(a, b);
  return select(a == b, high + splat_f64(0.69314718055994530942), log1p_(exp_(minimum(a, b) - high)) + high);
}
// What comes behind knows nothing of how x was made: a product is rounded, and made again where its rounding is asked for.
#if defined(__x86_64__)
#define HELD_APART(x) asm("" : "+x"(x))
#else
#define HELD_APART(x)
#endif
// From the sine or the cosine of r, where x = n * pi / 2 + r, by the remainder of n (+ 1 for the cosine of x) by four. Adding
// MAGIC rounds to integers, which are then the last bits.
template <bool COS> static INLINE vf32 sine(vf32 x) {
  constexpr f32 MAGIC = 12582912.0f;
  vf32 shifted = abs_(x) * 0.636619772367581343f + MAGIC, n = shifted - MAGIC;
  vf32 near = abs_(x) - n * 0x1.921fb6p+0f, more = n * 0x1.777a5cp-25f;
  vi32 k = (vi32)shifted + (COS ? 1 : 0), sign = (k & 2) << 30;
  if (!COS) sign = sign ^ ((vi32)x & (int32)0x80000000);
  HELD_APART(more); HELD_APART(n);
  vf32 r = near + more, s = r * r;
  vf32 lost = ((near - r) + more) + (n * 0x1.777a5cp-25f - more + n * 0x1.ee59dap-50f);
  vf32 p = s * 2.837395186e-06f - 1.985350536e-04f;
  p = p * s + 8.333380334e-03f;
  p = p * s - 1.666666716e-01f;
  vf32 q = s * 2.443066842e-05f - 1.388730132e-03f;
  q = q * s + 4.166664556e-02f;
  vf32 high = 1.0f - s * 0.5f, low = (1.0f - high) - s * 0.5f;
  vf32 sine = r + (r * s * p + lost), cosine = high + (s * s * q + (low - r * lost));
  return (vf32)((vi32)select((k & 1) != 0, cosine, sine) ^ sign);
}
// Up to SINE_MOST the three parts of pi / 2 have digits enough.
static constexpr f32 SINE_MOST = 0x1p17f;
static INLINE vf32 sin_(vf32 x) {
  vflag near = abs_(x) <= SINE_MOST;
  vf32 y = sine<false>(x);
  return __builtin_expect(every_lane(near), 1) ? y : select(near, y, sleef_sin(x));
}
static INLINE vf32 cos_(vf32 x) {
  vflag near = abs_(x) <= SINE_MOST;
  vf32 y = sine<true>(x);
  return __builtin_expect(every_lane(near), 1) ? y : select(near, y, sleef_cos(x));
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

// Within two units in the last place of a float (erf: six), for what is kept in 16 bits: |x| = n pi + r, where n is a half more than an
// integer for COS; and a quotient of polynomials of x^2.
template <bool COS> static INLINE vf32 coarse_sine(vf32 x) {
  constexpr f32 MAGIC = 12582912.0f;
  vf32 t = abs_(x), shifted = COS ? (t * 0.318309886183790672f - 0.5f) + MAGIC : t * 0.318309886183790672f + MAGIC;
  vf32 n = COS ? (shifted - MAGIC) + 0.5f : shifted - MAGIC;
  vi32 sign = COS ? ~(vi32)shifted << 31 : ((vi32)shifted << 31) ^ ((vi32)x & (int32)0x80000000);
  vf32 r = (t - n * 0x1.921fb6p+1f) + n * 0x1.777a5cp-24f;
  r = r + n * 0x1.ee59dap-49f;
  vf32 s = r * r, p = s * 2.605133432e-6f - 1.980943925e-4f;
  p = p * s + 8.333066478e-3f;
  p = p * s - 1.666665971e-1f;
  return (vf32)((vi32)(r * s * p + r) ^ sign);
}
static INLINE vf32 coarse_sin_(vf32 x) {
  vflag near = abs_(x) <= SINE_MOST;
  vf32 y = coarse_sine<false>(x);
  return __builtin_expect(every_lane(near), 1) ? y : select(near, y, sleef_sin(x));
}
static INLINE vf32 coarse_cos_(vf32 x) {
  vflag near = abs_(x) <= SINE_MOST;
  vf32 y = coarse_sine<true>(x);
  return __builtin_expect(every_lane(near), 1) ? y : select(near, y, sleef_cos(x));
}
static INLINE vf32 coarse_erf_(vf32 x) {
  vf32 t = larger(splat_f32(-4.0f), smaller(splat_f32(4.0f), x)), z = t * t;
  vf32 p = z * 2.02591016e-06f + 2.84688209e-04f;
  p = p * z + 3.80817064e-03f;
  p = p * z + 5.28754741e-02f;
  p = p * z + 1.91550487e-01f;
  p = p * z + 1.12837914f;
  vf32 q = z * 3.78318485e-05f + 1.1707285e-03f;
  q = q * z + 1.50551072e-02f;
  q = q * z + 1.14559701e-01f;
  q = q * z + 5.03089875e-01f;
  q = q * z + 1.0f;
  return select(z >= 15.4f, copysign_(splat_f32(1.0f), x), t * p / q);
}
#endif
