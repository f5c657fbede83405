// A long sum without growing error: what each addition rounds away is kept apart (Knuth's two-sum).
template <class V> struct Total { V sum, lost; };
template <class V> static INLINE void add_to(Total<V>& t, V x) {
  V s = t.sum + x, back = s - t.sum;
  t.lost = t.lost + ((t.sum - (s - back)) + (x - back));
  t.sum = s;
}
template <class V> static INLINE V value_of(const Total<V>& t) { V s = t.sum + t.lost; return select(t.lost == t.lost, s, t.sum); }
// The place of the largest (or smallest) value; NaN is beyond every number, of equals the first counts.
template <bool MAX, class V> static INLINE auto beats(V x, V y) {
  if constexpr (MAX) return (x > y) | ((x != x) & (y == y));
  else return (x < y) | ((x != x) & (y == y));
}
template <bool MAX, class V, class I> struct Best {
  V value; I at;
  INLINE void meet(V x, I i) { auto c = beats<MAX>(x, value); value = select(c, x, value); at = select(c, i, at); }
  INLINE void join(V x, I i) {  // in any order of places
    auto c = beats<MAX>(x, value), same = (x == value) | ((x != x) & (value != value));
    at = select(c, i, select(same, select(i < at, i, at), at)); value = select(c, x, value);
  }
};
