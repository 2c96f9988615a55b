
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

// Views of lines along the dimension: index, value, out. Constants: the length, the steps of the three, and the extent of out.
template<class I, class V, class O, class C, bool ADD> D void scatter_line(const Elementwise<3, 5>& p, u64 line) {
  u64 at[3];
  locate<u64, 3, 5>(p, line, at);
  for (u64 i = 0; i < p.constant[0]; ++i, at[0] += p.constant[1], at[1] += p.constant[2]) {
    const u64 own = (u64)read_as<I, i64>(at[0]);
    if (own >= p.constant[4]) continue;
    const C v = read_as<V, C>(at[1]);
    const u64 to = at[2] + own * p.constant[3];
    write_as<O, C>(to, ADD ? read_as<O, C>(to) + v : v);
  }
}
template<class I, class V, class O, class C, bool ADD> D void scatter(const Elementwise<3, 5>& p) {
  EACH(u64, line, p.count) scatter_line<I, V, O, C, ADD>(p, line);
}
// A block for each line of up to CAPACITY elements, which it keeps in shared memory; the values come in parts. Views of lines: base,
// index, value, out. Constants: the length, the extent of out, and the steps of the four.
constexpr u32 PART = 1024;
template<class B, class I, class T, class O, class C, int CAPACITY, bool ADD> D void scatter_in_block(const Elementwise<4, 6>& p) {
  __shared__ C line[CAPACITY], value[PART];
  __shared__ u32 place[PART];
  const u64 length = p.constant[0];
  const u32 extent = (u32)p.constant[1];
  for (u64 number = blockIdx.x; number < p.count; number += gridDim.x) {
    u64 at[4];
    locate<u64, 4, 6>(p, number, at);
    for (u32 i = threadIdx.x; i < extent; i += TILE) line[i] = read_as<B, C>(at[0] + i * p.constant[2]);
    for (u64 first = 0; first < length; first += PART) {
      const u32 count = (u32)(length - first < PART ? length - first : PART);
      for (u32 i = threadIdx.x; i < count; i += TILE) {
        const u64 own = (u64)read_as<I, i64>(at[1] + (first + i) * p.constant[3]);
        place[i] = own < extent ? (u32)own : ~0u;
        value[i] = read_as<T, C>(at[2] + (first + i) * p.constant[4]);
      }
      __syncthreads();
#ifdef __CUDACC_RTC__
      // A warp writes 32 neighbours at a time, in ascending order.
      for (u32 i = threadIdx.x; threadIdx.x < 32 && i - threadIdx.x < count; i += 32) {
        const u32 own = i < count ? place[i] : ~0u;
        u32 same = __match_any_sync(~0u, own);
        const C v = i < count ? value[i] : (C)0;
        if (ADD) {
          // The first of those with the same index adds them in order.
          const bool leads = own != ~0u && (u32)__ffs(same) - 1 == threadIdx.x;
          C sum = leads ? line[own] : (C)0;
          if (!leads) same = 0;
          while (__any_sync(~0u, same != 0)) {
            const C term = __shfl_sync(~0u, v, same ? __ffs(same) - 1 : (int)threadIdx.x);
            if (same) sum = sum + term;
            same &= same - 1;
          }
          if (leads) line[own] = sum;
        } else if (own != ~0u && 31 - (u32)__clz(same) == threadIdx.x) {
          line[own] = v;
        }
        __syncwarp();
      }
#else
      // The threads of another machine do not run in lock-step.
      for (u32 i = 0; threadIdx.x == 0 && i < count; ++i)
        if (place[i] != ~0u) line[place[i]] = ADD ? line[place[i]] + value[i] : value[i];
#endif
      __syncthreads();
    }
    for (u32 i = threadIdx.x; i < extent; i += TILE) write_as<O, C>(at[3] + i * p.constant[5], line[i]);
    __syncthreads();
  }
}
// One index for all lines, as of rows: a block has some rows of the result and packs of 256 lines, and selects the values for its
// rows in parts. Views of lines: base, value, out. Constants: the index and its step, the length, the steps of the three, the extent of out.
constexpr u32 ROWS = 16, INDICES = 8 * TILE;
template<class B, class I, class T, class O, class C, int V, bool ADD> D void scatter_rows(const Elementwise<3, 7>& p) {
  __shared__ u8 rows[INDICES];
  __shared__ u32 chosen[INDICES / 32];
  const u64 packs = (p.count + TILE - 1) / TILE, extent = p.constant[6], all = (extent + ROWS - 1) / ROWS * packs;
  for (u64 b = blockIdx.x; b < all; b += gridDim.x) {
    const u64 line = b % packs * TILE + threadIdx.x, row = b / packs * ROWS;
    u64 at[3] = {0, 0, 0};
    if (line < p.count) {
      locate<u64, 3, 7>(p, line, at);
#pragma unroll 4
      for (u64 k = row; k < row + ROWS && k < extent; ++k) {
        const Pack<B, V> x = load<B, V>(at[0] + k * p.constant[3]);
        Pack<O, V> y;
#pragma unroll
        for (int v = 0; v < V; ++v) y.e[v] = narrow(To<O>(), widen<C>(x.e[v]));
        save<O, V>(at[2] + k * p.constant[5], y);
      }
    }
    for (u64 first = 0; first < p.constant[2]; first += INDICES) {
#pragma unroll
      for (u32 k = threadIdx.x; k < INDICES; k += TILE) {
        u64 own = ~0ull;
        if (first + k < p.constant[2]) own = (u64)read_as<I, i64>(p.constant[0] + (first + k) * p.constant[1]);
        rows[k] = own < extent && own - row < ROWS ? (u8)(own - row) : (u8)255;
      }
      __syncthreads();
      if (threadIdx.x < INDICES / 32) {
        u32 word = 0;
        for (u32 k = 0; k < 32; ++k) word |= (u32)(rows[threadIdx.x * 32 + k] != 255) << k;
        chosen[threadIdx.x] = word;
      }
      __syncthreads();
      for (u32 w = 0; w < INDICES / 32; ++w) {
        for (u32 word = chosen[w], k = w * 32; word; word >>= 1, ++k) {
          if (!(word & 1) || line >= p.count) continue;
          const u64 to = at[2] + (row + rows[k]) * p.constant[5];
          const Pack<T, V> x = load<T, V>(at[1] + (first + k) * p.constant[4]);
          Pack<O, V> y;
          if (ADD) y = load<O, V>(to);
#pragma unroll
          for (int v = 0; v < V; ++v) {
            const C term = widen<C>(x.e[v]);
            y.e[v] = narrow(To<O>(), ADD ? widen<C>(y.e[v]) + term : term);
          }
          save<O, V>(to, y);
        }
      }
      __syncthreads();
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
// Views of lines: input, values, indices. Constants: the length, the number of kept elements, and the steps of the three.
template<class T, class O, class I, class C, bool DESCENDING> D void sort(const Elementwise<3, 5>& p) {
  EACH(u64, g, p.count * p.constant[0]) {
    u64 own = g % p.constant[0], rank = 0, at[3];
    locate<u64, 3, 5>(p, g / p.constant[0], at);
    C value = read_as<T, C>(at[0] + own * p.constant[2]);
    for (u64 i = 0; i < p.constant[0]; ++i)
      rank += i != own && is_before(read_as<T, C>(at[0] + i * p.constant[2]), value, i < own, DESCENDING);
    if (rank < p.constant[1]) {
      write_as<O, C>(at[1] + rank * p.constant[3], value);
      write_as<I, i64>(at[2] + rank * p.constant[4], (i64)own);
    }
  }
}
// Lines of up to LENGTH elements, a power of two: a block sorts as many as fit into shared memory, by bitonic merges (Batcher, "Sorting
// networks and their applications", 1968). Places behind the end of a line come last.
template<class T, class O, class I, class C, u32 LENGTH, bool DESCENDING> D void sort_in_block(const Elementwise<3, 5>& p) {
  constexpr u32 ALL = 2048, LINES = ALL / LENGTH, END = 1u << 31;
  __shared__ C key[ALL];
  __shared__ u32 own[ALL];
  const u32 length = (u32)p.constant[0], kept = (u32)p.constant[1];
  for (u64 first = blockIdx.x * (u64)LINES; first < p.count; first += gridDim.x * (u64)LINES) {
    for (u32 k = threadIdx.x; k < ALL; k += TILE) {
      const u64 line = first + k / LENGTH;
      const u32 i = k % LENGTH;
      const bool is_in = line < p.count && i < length;
      own[k] = is_in ? i : END | i;
      if (!is_in) continue;
      u64 at[3];
      locate<u64, 3, 5>(p, line, at);
      key[k] = read_as<T, C>(at[0] + i * p.constant[2]);
    }
    __syncthreads();
    for (u32 size = 2; size <= LENGTH; size *= 2) {
      for (u32 distance = size / 2; distance > 0; distance /= 2) {
        for (u32 k = threadIdx.x; k < ALL / 2; k += TILE) {
          const u32 a = 2 * k - (k & (distance - 1)), b = a + distance;
          const C x = key[a], y = key[b];
          const u32 i = own[a], j = own[b];
          const bool swapped = (i | j) & END ? j < i : is_before(y, x, j < i, DESCENDING);
          if (swapped == ((a % LENGTH & size) == 0)) {
            key[a] = y, key[b] = x;
            own[a] = j, own[b] = i;
          }
        }
        __syncthreads();
      }
    }
    for (u32 k = threadIdx.x; k < ALL; k += TILE) {
      const u64 line = first + k / LENGTH;
      const u32 i = k % LENGTH;
      if (line >= p.count || i >= kept) continue;
      u64 at[3];
      locate<u64, 3, 5>(p, line, at);
      write_as<O, C>(at[1] + i * p.constant[3], key[k]);
      write_as<I, i64>(at[2] + i * p.constant[4], (i64)own[k]);
    }
    __syncthreads();
  }
}

// Views of lines: input, out. Constants: the length, and the steps of both.
template<int OP, class C> D C combine(C a, C b) {
  return OP == 0 ? a + b : OP == 1 ? smaller(a, b) : OP == 2 ? larger(a, b) : OP == 3 ? smaller_number(a, b) : larger_number(a, b);
}
template<class T, class O, class C, int OP> D void scan(const Elementwise<2, 3>& p) {
  EACH(u64, line, p.count) {
    u64 at[2];
    locate<u64, 2, 3>(p, line, at);
    C sum = 0;
    constexpr int AHEAD = 16;
    for (u64 i = 0; i < p.constant[0]; i += AHEAD) {
      C x[AHEAD];
#pragma unroll
      for (int k = 0; k < AHEAD; ++k)
        if (i + k < p.constant[0]) x[k] = read_as<T, C>(at[0] + (i + k) * p.constant[1]);
#pragma unroll
      for (int k = 0; k < AHEAD; ++k) {
        if (i + k >= p.constant[0]) break;
        sum = i + k == 0 ? x[k] : combine<OP, C>(sum, x[k]);
        write_as<O, C>(at[1] + (i + k) * p.constant[2], sum);
      }
    }
  }
}
// A block for each line, of which each thread has V neighbours.
template<class T, class O, class C, int V, int OP> D void scan_by_block(const Elementwise<2, 3>& p) {
  __shared__ C sums[2][TILE];
  for (u64 line = blockIdx.x; line < p.count; line += gridDim.x) {
    u64 at[2];
    locate<u64, 2, 3>(p, line, at);
    C carry = 0;
    for (u64 first = 0; first < p.constant[0]; first += TILE * V) {
      const u64 i = first + threadIdx.x * V;
      const bool is_own = i < p.constant[0];
      Pack<T, V> x = zeros<T, V>();
      if (is_own) x = load<T, V>(at[0] + i * sizeof(T));
      C own[V];
#pragma unroll
      for (int v = 0; v < V; ++v) own[v] = v == 0 ? widen<C>(x.e[0]) : combine<OP, C>(own[v - 1], widen<C>(x.e[v]));
      sums[0][threadIdx.x] = own[V - 1];
      __syncthreads();
      int from = 0;
#pragma unroll
      for (u32 distance = 1; distance < TILE; distance *= 2, from ^= 1) {
        const C sum = sums[from][threadIdx.x];
        sums[from ^ 1][threadIdx.x] = threadIdx.x < distance ? sum : combine<OP, C>(sums[from][threadIdx.x - distance], sum);
        __syncthreads();
      }
      const bool has_before = first > 0 || threadIdx.x > 0;
      C before = carry;
      if (threadIdx.x > 0) before = first > 0 ? combine<OP, C>(carry, sums[from][threadIdx.x - 1]) : sums[from][threadIdx.x - 1];
      carry = first > 0 ? combine<OP, C>(carry, sums[from][TILE - 1]) : sums[from][TILE - 1];
      Pack<O, V> y;
#pragma unroll
      for (int v = 0; v < V; ++v) y.e[v] = narrow(To<O>(), has_before ? combine<OP, C>(before, own[v]) : own[v]);
      if (is_own) save<O, V>(at[1] + i * sizeof(O), y);
      __syncthreads();
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
#undef EACH
