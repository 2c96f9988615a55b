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
// A block for each line, which it keeps in shared memory, CAPACITY elements at a time. A thread has OWN values at a time. Of the values
// with one index, the last one is written. Sums are in ascending order: in each of some rounds, the first remaining value of each index is
// added; what then remains, as of an index that most values have, a warp adds. Views of lines: base, index, value, out. Constants: the
// length, the extent of out, and the steps of the four. Of indices and values, W are one access, of base and out, V.
template<class B, class I, class T, class O, class C, u32 CAPACITY, u32 W, u32 V, bool ADD>
D void scatter_in_block(const Elementwise<4, 6>& p) {
  constexpr u32 OWN = 8, PART = OWN * TILE, NONE = ~0u, ROUNDS = 8;
  alignas(16) __shared__ C line[CAPACITY];
  __shared__ u32 slot[CAPACITY], left[PART / 32];
  const u32 length = (u32)p.constant[0], extent = (u32)p.constant[1], ranges = (extent + CAPACITY - 1) / CAPACITY;
  for (u32 number = blockIdx.x; number < (u32)p.count * ranges; number += gridDim.x) {
    const u32 begin = number % ranges * CAPACITY, count = extent - begin < CAPACITY ? extent - begin : CAPACITY;
    u64 at[4];
    locate<u32, 4, 6>(p, number / ranges, at);
    at[0] += begin * p.constant[2], at[3] += begin * p.constant[5];
    for (u32 i = threadIdx.x * V; i < count; i += TILE * V) {
      const Pack<B, V> x = load<B, V>(at[0] + i * p.constant[2]);
#pragma unroll
      for (u32 v = 0; v < V; ++v) line[i + v] = widen<C>(x.e[v]), slot[i + v] = ADD ? NONE : 0;
    }
    __syncthreads();
    for (u32 first = 0; first < length; first += PART) {
      u32 own[OWN];
      C value[OWN];
#pragma unroll
      for (u32 q = 0; q < OWN; q += W) {
        const u32 i = first + q * TILE + threadIdx.x * W;
        Pack<I, W> index = zeros<I, W>();
        Pack<T, W> x = zeros<T, W>();
        if (i < length) index = load<I, W>(at[1] + i * p.constant[3]), x = load<T, W>(at[2] + i * p.constant[4]);
#pragma unroll
        for (u32 w = 0; w < W; ++w) {
          const u64 place = (u64)widen<i64>(index.e[w]) - begin;
          own[q + w] = i < length && place < count ? (u32)place : NONE;
          value[q + w] = widen<C>(x.e[w]);
        }
      }
#define EACH_OWN(n) _Pragma("unroll") for (u32 k = 0, n = 0; n = first + k / W * W * TILE + threadIdx.x * W + k % W, k < OWN; ++k) if (own[k] != NONE)
      if (!ADD) {
        EACH_OWN(n) atomicMax(&slot[own[k]], n + 1);
        __syncthreads();
        EACH_OWN(n) if (slot[own[k]] == n + 1) line[own[k]] = value[k];
        continue;
      }
      bool more = true;
      for (u32 round = 0; round < ROUNDS && more; ++round) {
        EACH_OWN(n) atomicMin(&slot[own[k]], n);
        __syncthreads();
        more = false;
        EACH_OWN(n) {
          const u32 place = own[k];
          if (slot[place] == n) {
            line[place] = line[place] + value[k];
            slot[place] = own[k] = NONE;
          } else {
            more = true;
          }
        }
        more = __syncthreads_or(more);
      }
      if (!more) continue;
      for (u32 i = threadIdx.x; i < PART / 32; i += TILE) left[i] = 0;
      __syncthreads();
      EACH_OWN(n) atomicOr(&left[(n - first) / 32], 1u << (n - first) % 32);
      __syncthreads();
#undef EACH_OWN
      for (u32 part = 0; part < PART / 32 && threadIdx.x < 32; ++part) {
        if (left[part] == 0) continue;
#ifdef __CUDACC_RTC__
        // A warp adds 32 neighbours at a time; the first of those with the same index adds them in order.
        const u32 i = first + part * 32 + threadIdx.x;
        const bool is_left = left[part] >> threadIdx.x & 1;
        const u32 place = is_left ? (u32)((u64)read_as<I, i64>(at[1] + i * p.constant[3]) - begin) : NONE;
        const C v = is_left ? read_as<T, C>(at[2] + i * p.constant[4]) : (C)0;
        u32 same = __match_any_sync(~0u, place);
        const bool leads = is_left && (u32)__ffs(same) - 1 == threadIdx.x;
        C sum = leads ? line[place] : (C)0;
        if (!leads) same = 0;
        while (__any_sync(~0u, same != 0)) {
          const C term = __shfl_sync(~0u, v, same ? __ffs(same) - 1 : (int)threadIdx.x);
          if (same) sum = sum + term;
          same &= same - 1;
        }
        if (leads) line[place] = sum;
        __syncwarp();
#else
        // The threads of another machine do not run in lock-step.
        for (u32 k = 0; threadIdx.x == 0 && k < 32; ++k) {
          if (!(left[part] >> k & 1)) continue;
          const u32 i = first + part * 32 + k;
          const u64 place = (u64)read_as<I, i64>(at[1] + i * p.constant[3]) - begin;
          line[place] = line[place] + read_as<T, C>(at[2] + i * p.constant[4]);
        }
#endif
      }
      __syncthreads();
    }
    __syncthreads();
    for (u32 i = threadIdx.x * V; i < count; i += TILE * V) {
      Pack<O, V> y;
#pragma unroll
      for (u32 v = 0; v < V; ++v) y.e[v] = narrow(To<O>(), line[i + v]);
      save<O, V>(at[3] + i * p.constant[5], y);
    }
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
      // Each warp tests 32 neighbours at a time.
#pragma unroll
      for (u32 k = threadIdx.x; k < INDICES; k += TILE) {
        u64 own = ~0ull;
        if (first + k < p.constant[2]) own = (u64)read_as<I, i64>(p.constant[0] + (first + k) * p.constant[1]);
        const bool is_in = own < extent && own - row < ROWS;
        rows[k] = (u8)(own - row);
        const u32 word = votes_of_warp(is_in);
        if (threadIdx.x % 32 == 0) chosen[k / 32] = word;
      }
      __syncthreads();
      for (u32 part = 0; part < INDICES / 1024; ++part) {
        for (u32 words = votes_of_warp(chosen[part * 32 + threadIdx.x % 32] != 0); words; words &= words - 1) {
          const u32 w = part * 32 + (u32)__ffs(words) - 1;
          for (u32 word = chosen[w]; word; word &= word - 1) {
            const u32 k = w * 32 + (u32)__ffs(word) - 1;
            if (line >= p.count) continue;
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
      }
      __syncthreads();
    }
  }
}

