// Running combinations along the lanes. carry is what came before and takes in the first lanes, those that count; with
// BACK the last lane comes first. "before" and "behind" are a vector moved by K lanes, with those of another coming in.
template <int K, class H, int... I> static INLINE H before(H a, H x, Each<I...>) {
  return __builtin_shufflevector(a, x, ((int)sizeof...(I) - K + I)...);
}
template <int K, class H, int... I> static INLINE H behind(H x, H b, Each<I...>) { return __builtin_shufflevector(x, b, (K + I)...); }
template <int K, bool BACK> static INLINE vf32 moved(vf32 x, vf32 in) {
  if constexpr (BACK) return behind<K>(x, in, EachLane{}); else return before<K>(in, x, EachLane{});
}
template <int K, bool BACK> static INLINE vi32 moved(vi32 x, vi32 in) {
  if constexpr (BACK) return behind<K>(x, in, EachLane{}); else return before<K>(in, x, EachLane{});
}
template <int K, bool BACK, class P> static INLINE P moved(P x, P in) {
  if constexpr (K == HALF) { if constexpr (BACK) return P{x.hi, in.lo}; else return P{in.hi, x.lo}; }
  else if constexpr (BACK) return P{behind<K>(x.lo, x.hi, EachOfHalf{}), behind<K>(x.hi, in.lo, EachOfHalf{})};
  else return P{before<K>(in.hi, x.lo, EachOfHalf{}), before<K>(x.lo, x.hi, EachOfHalf{})};
}
// The lanes of x combined with those before them, in log2(LANES) steps; start changes nothing.
template <bool BACK, class V, class F> static INLINE V upto(V x, V start, const F& join) {
  x = join(moved<1, BACK>(x, start), x);
  x = join(moved<2, BACK>(x, start), x);
  x = join(moved<4, BACK>(x, start), x);
#if LANES == 16
  x = join(moved<8, BACK>(x, start), x);
#endif
  return x;
}
static constexpr int last_lane(bool back) { return back ? 0 : LANES - 1; }
// Combinations that give the same in any grouping: maxima, and sums and products of integers.
template <bool BACK, class V, class T, class N, class F> static INLINE V running(V x, T& carry, N n, T start, const F& join) {
  V s = splat_as(x, start);
  if constexpr (!N::full) x = select(lanes(n), x, s);
  x = join(splat_as(x, carry), upto<BACK>(x, s, join));
  carry = lane(x, last_lane(BACK));
  return x;
}
// Any other, one lane after the other.
template <bool BACK, class V, class T, class N, class F> static INLINE V running_lanes(V x, T& carry, N n, const F& join) {
  T a[LANES];
  __builtin_memcpy(a, &x, sizeof x);
  int64 count = lane_count(n);
  for (int64 j = 0; j < count; ++j) {
    int64 k = BACK ? count - 1 - j : j;
    a[k] = carry = join(carry, a[k]);
  }
  __builtin_memcpy(&x, a, sizeof x);
  return x;
}
template <bool BACK, class N> static INLINE vf64 running_sum(vf64 x, f64& carry, N n) {
  return running<BACK>(x, carry, n, 0.0, [](vf64 p, vf64 q) STEP { return p + q; });
}
// Products and logarithms of sums in another grouping differ where what is between them overflows or underflows: then lanes.
template <bool BACK, class N> static INLINE vf64 running_prod_lanes(vf64 x, f64& carry, N n) {
  return running_lanes<BACK>(x, carry, n, [](f64 p, f64 q) STEP { return p * q; });
}
template <bool BACK, class N> static INLINE vf64 running_logaddexp_lanes(vf64 x, f64& carry, N n) {
  return running_lanes<BACK>(x, carry, n, [](f64 p, f64 q) STEP { return logaddexp(p, q); });
}
#ifdef LAMINA_PRECISE
template <bool BACK, class N> static INLINE vf64 running_prod(vf64 x, f64& carry, N n) { return running_prod_lanes<BACK>(x, carry, n); }
template <bool BACK, class N> static INLINE vf64 running_logaddexp(vf64 x, f64& carry, N n) {
  return running_logaddexp_lanes<BACK>(x, carry, n);
}
#else
// Whether the magnitudes of all lanes are in a range, by their bits: differences of those of two numbers do not overflow.
static INLINE bool within(vf64 x, f64 low, f64 high) {
  vf64 t = abs_(x);
  hi64 under = ((hi64)t.lo - bits_of<int64>(low)) | ((hi64)t.hi - bits_of<int64>(low));
  hi64 outside = (under | (bits_of<int64>(high) - (hi64)t.lo) | (bits_of<int64>(high) - (hi64)t.hi)) < 0;
#if LANES == 8
  return __builtin_ia32_movmskpd256((hf64)outside) == 0;
#else
  typedef long long w64 __attribute__((vector_size(WIDTH)));
  return __builtin_ia32_cvtq2mask512((w64)outside) == 0;
#endif
}
// Products of LANES numbers within 1e-15 and 1e15 neither overflow nor lose digits, nor does one of them and what came before.
template <bool BACK, class N> static INLINE vf64 running_prod(vf64 x, f64& carry, N n) {
  vf64 one = splat_f64(1), y = x;
  if constexpr (!N::full) y = select(lanes(n), x, one);
  f64 size = carry < 0 ? -carry : carry;
  if (__builtin_expect(!(size > 1e-40 && size < 1e40), 0)) {
    if (size != 0 || !within(y, 0.0, 1e300)) return running_prod_lanes<BACK>(x, carry, n);
    y = copysign_(one, y);
  } else if (__builtin_expect(!within(y, 1e-15, 1e15), 0)) {
    return running_prod_lanes<BACK>(x, carry, n);
  }
  y = splat_f64(carry) * upto<BACK>(y, one, [](vf64 p, vf64 q) STEP { return p * q; });
  carry = lane(y, last_lane(BACK));
  return y;
}
// Relative to the greatest lane; sums of tiny parts of it keep their digits, those of smaller ones do not.
template <bool BACK, class N> static INLINE vf64 running_logaddexp(vf64 x, f64& carry, N n) {
  vf64 y = x;
  if constexpr (!N::full) y = select(lanes(n), x, splat_f64(-__builtin_inf()));
  vf64 most = splat_f64(maximum(fold_max(y), carry));
  vf64 s = splat_f64(exp_(carry - lane(most, 0)));
  s = s + upto<BACK>(exp_(y - most), vf64{}, [](vf64 p, vf64 q) STEP { return p + q; });
  if (__builtin_expect(!within(s, 1e-280, 1e280), 0)) return running_logaddexp_lanes<BACK>(x, carry, n);
  s = most + log_(s);
  carry = lane(s, last_lane(BACK));
  return s;
}
#endif
