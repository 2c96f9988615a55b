
// Routines: elements at places that depend on other elements; see `routine.rs`. An index outside of its dimension gives NaN, or 0
// for integers, and changes nothing.
struct Gather {
  u64 source, index, out;
  u64 extent[DIMS];
  i64 source_stride[DIMS], index_stride[DIMS], out_stride[DIMS];
  u64 dims, count, source_extent, source_step, first;
};
struct Scatter {
  u64 index, value, out;
  u64 extent[DIMS];
  i64 index_stride[DIMS], value_stride[DIMS], out_stride[DIMS];
  u64 dims, count, length;
  u64 index_step, value_step, out_step, out_extent;
};
struct Sort {
  u64 input, values, indices;
  u64 extent[DIMS];
  i64 input_stride[DIMS], values_stride[DIMS], indices_stride[DIMS];
  u64 dims, count, length, kept;
  u64 input_step, values_step, indices_step;
};
struct GroupedGemm {
  u64 a, b, ends, out, ends_step;
  u64 a_step[3], b_step[3], out_step[3];
  u64 groups, rows, depth, columns, count;
};
template<class T, class C> D C read_as(u64 at) { return widen<C>(load<T, 1>(at).e[0]); }
template<class T, class C> D void write_as(u64 at, C v) {
  Pack<T, 1> y;
  y.e[0] = narrow(To<T>(), v);
  save<T, 1>(at, y);
}
template<class C> D C invalid() { return (C)0; }
template<> D f32 invalid<f32>() { return __int_as_float(0x7fc00000); }
template<> D f64 invalid<f64>() { return (f64)__int_as_float(0x7fc00000); }
#define EACH(g, n) for (u64 g = blockIdx.x * (u64)blockDim.x + threadIdx.x; g < n; g += gridDim.x * (u64)blockDim.x)
template<class S, class I, class O, class C, bool PART> D void gather(const Gather& p) {
  EACH(g, p.count) {
    u64 at = (u64)read_as<I, i64>(p.index + offset(g, p.dims, p.extent, p.index_stride)) - p.first;
    C value = PART ? (C)0 : invalid<C>();
    if (at < p.source_extent)
      value = read_as<S, C>(p.source + offset(g, p.dims, p.extent, p.source_stride) + at * p.source_step);
    write_as<O, C>(p.out + offset(g, p.dims, p.extent, p.out_stride), value);
  }
}
template<class I, class V, class O, class C, bool ADD> D void scatter(const Scatter& p) {
  EACH(g, p.count) {
    u64 index = p.index + offset(g, p.dims, p.extent, p.index_stride);
    u64 value = p.value + offset(g, p.dims, p.extent, p.value_stride);
    u64 out = p.out + offset(g, p.dims, p.extent, p.out_stride);
    for (u64 i = 0; i < p.length; ++i, index += p.index_step, value += p.value_step) {
      u64 at = (u64)read_as<I, i64>(index);
      if (at >= p.out_extent) continue;
      C v = read_as<V, C>(value);
      u64 to = out + at * p.out_step;
      write_as<O, C>(to, ADD ? read_as<O, C>(to) + v : v);
    }
  }
}
template<class C> D bool is_before(C a, C b, bool first, bool descending) {
  bool nan_a = a != a, nan_b = b != b;
  bool equal = nan_a || nan_b ? nan_a == nan_b : a == b;
  if (equal) return first;
  bool less = nan_a || nan_b ? nan_b : a < b;
  return less != descending;
}
template<class T, class O, class I, class C, bool DESCENDING> D void sort(const Sort& p) {
  EACH(g, p.count) {
    u64 line = g / p.length, own = g % p.length, rank = 0;
    u64 input = p.input + offset(line, p.dims, p.extent, p.input_stride);
    C value = read_as<T, C>(input + own * p.input_step);
    for (u64 i = 0; i < p.length; ++i)
      rank += i != own && is_before(read_as<T, C>(input + i * p.input_step), value, i < own, DESCENDING);
    if (rank < p.kept) {
      write_as<O, C>(p.values + offset(line, p.dims, p.extent, p.values_stride) + rank * p.values_step, value);
      write_as<I, i64>(p.indices + offset(line, p.dims, p.extent, p.indices_stride) + rank * p.indices_step, (i64)own);
    }
  }
}
template<class A, class B, class E, class O, class C, int DIM> D void grouped_gemm(const GroupedGemm& p) {
  EACH(g, p.count) {
    u64 column = g % p.columns, row = g / p.columns % p.rows, group = g / p.columns / p.rows;
    u64 out = p.out + group * p.out_step[0] + row * p.out_step[1] + column * p.out_step[2];
    u64 first = 0, last = p.depth;
    C sum = 0;
    if (DIM == 1) {
      first = group ? (u64)read_as<E, i64>(p.ends + (group - 1) * p.ends_step) : 0;
      last = (u64)read_as<E, i64>(p.ends + group * p.ends_step);
      if (last > p.depth) last = p.depth;
    } else {
      u64 own = DIM == 0 ? row : column;
      for (group = 0; group < p.groups && own >= (u64)read_as<E, i64>(p.ends + group * p.ends_step); ++group) {}
      if (group == p.groups) last = 0;
    }
    u64 a = p.a + (DIM == 2 ? group * p.a_step[0] : 0) + row * p.a_step[1];
    u64 b = p.b + (DIM == 0 ? group * p.b_step[0] : 0) + column * p.b_step[2];
    for (u64 k = first; k < last; ++k) sum = sum + read_as<A, C>(a + k * p.a_step[2]) * read_as<B, C>(b + k * p.b_step[1]);
    write_as<O, C>(out, sum);
  }
}
#undef EACH
