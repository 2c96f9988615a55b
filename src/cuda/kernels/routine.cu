
// Routines: elements at places that depend on other elements; see `routine.rs`. An index outside of its dimension gives NaN, or 0
// for integers, and changes nothing.
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
#define EACH(N, g, n) for (N g = blockIdx.x * (N)blockDim.x + threadIdx.x; g < (N)(n); g += gridDim.x * (N)blockDim.x)
constexpr int TILE = 256;

// Views: source (without the dimension), index, out. Constants: the extent and the step of the dimension, the first index, and the
// bytes between neighbours of the source in the last dimension. With ONE, all elements of a pack have one index.
template<class S, class I, class O, class C, class N, int V, bool PART, bool ONE> D void gather(const Elementwise<3, 4>& p) {
  EACH(N, g, p.count) {
    u64 at[3];
    locate<N, 3, 4>(p, g, at);
    const C missing = PART ? (C)0 : invalid<C>();
    Pack<O, V> y;
    if (ONE) {
      const u64 own = (u64)read_as<I, i64>(at[1]) - p.constant[2];
      if (own < p.constant[0]) {
        const Pack<S, ONE ? V : 1> x = load<S, ONE ? V : 1>(at[0] + own * p.constant[1]);
#pragma unroll
        for (int v = 0; v < V; ++v) y.e[v] = narrow(To<O>(), widen<C>(x.e[ONE ? v : 0]));
      } else {
#pragma unroll
        for (int v = 0; v < V; ++v) y.e[v] = narrow(To<O>(), missing);
      }
    } else {
      const Pack<I, ONE ? 1 : V> index = load<I, ONE ? 1 : V>(at[1]);
      C x[V];
#pragma unroll
      for (int v = 0; v < V; ++v) {
        const u64 own = (u64)widen<i64>(index.e[ONE ? 0 : v]) - p.constant[2];
        x[v] = missing;
        if (own < p.constant[0]) x[v] = read_as<S, C>(at[0] + own * p.constant[1] + v * p.constant[3]);
      }
#pragma unroll
      for (int v = 0; v < V; ++v) y.e[v] = narrow(To<O>(), x[v]);
    }
    save<O, V>(at[2], y);
  }
}

// One index for all lines: a block has a line of the source in shared memory, and a thread the indices of PER elements of many lines.
// Views of lines: source, out. Constants: the index and its step, the length, the extent of the source, the first index. Of the source, W
// elements are one access, of out, V.
template<class S, class I, class O, class C, u32 CAPACITY, u32 W, u32 V, bool PART> D void gather_in_block(const Elementwise<2, 5>& p) {
  constexpr u32 PER = 16, STRIP = PER * TILE, NONE = 0xffff;
  alignas(16) __shared__ S line[CAPACITY];
  const u32 length = (u32)p.constant[2], extent = (u32)p.constant[3], strips = (length + STRIP - 1) / STRIP;
  const C missing = PART ? (C)0 : invalid<C>();
  if (p.count == 0) return;
  // The blocks of a strip of elements share its lines.
  for (u32 strip = blockIdx.x % strips; strip < strips; strip += gridDim.x) {
    const u32 blocks = (gridDim.x + strips - 1 - blockIdx.x % strips) / strips;
    u32 own[PER / 2];
#pragma unroll
    for (u32 k = 0; k < PER; ++k) {
      const u32 i = strip * STRIP + (k / V * TILE + threadIdx.x) * V + k % V;
      u32 place = NONE;
      if (i < length) {
        const u64 at = (u64)read_as<I, i64>(p.constant[0] + i * p.constant[1]) - p.constant[4];
        if (at < extent) place = (u32)at;
      }
      own[k / 2] = k % 2 ? own[k / 2] | place << 16 : place;
    }
    for (u32 number = blockIdx.x / strips; number < (u32)p.count; number += blocks) {
      u64 at[2];
      locate<u32, 2, 5>(p, number, at);
      __syncthreads();
      for (u32 k = threadIdx.x * W; k < extent; k += TILE * W)
        *reinterpret_cast<typename Pack<S, W>::Raw*>(&line[k]) = load<S, W>(at[0] + k * sizeof(S)).raw;
      __syncthreads();
#pragma unroll
      for (u32 q = 0; q < PER / V; ++q) {
        const u32 i = strip * STRIP + (q * TILE + threadIdx.x) * V;
        if (i >= length) continue;
        Pack<O, V> y;
#pragma unroll
        for (u32 v = 0; v < V; ++v) {
          const u32 k = q * V + v, place = own[k / 2] >> k % 2 * 16 & 0xffff;
          y.e[v] = narrow(To<O>(), place == NONE ? missing : widen<C>(line[place]));
        }
        save<O, V>(at[1] + i * sizeof(O), y);
      }
    }
  }
}

template<class A, class B, class E, class O, class C, int DIM> D void grouped_gemm(const GroupedGemm& p) {
  EACH(u64, g, p.count) {
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
