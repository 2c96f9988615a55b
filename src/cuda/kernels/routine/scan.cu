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
// Combines the value of each thread of a warp with those of the threads before it.
template<int OP, class C> D C scan_of_warp(C sum) {
  const u32 lane = threadIdx.x % 32;
#pragma unroll
  for (u32 distance = 1; distance < 32; distance *= 2) {
    const C before = of_lane(sum, threadIdx.x - (lane < distance ? 0 : distance));
    if (lane >= distance) sum = combine<OP, C>(before, sum);
  }
  return sum;
}
// A block for each line. A thread has V neighbours in each of PACKS parts.
template<class T, class O, class C, u32 V, int OP> D void scan_by_block(const Elementwise<2, 3>& p) {
  constexpr u32 PACKS = 4, WARPS = TILE / 32;
  __shared__ C totals[PACKS * WARPS];
  const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  for (u32 line = blockIdx.x; line < (u32)p.count; line += gridDim.x) {
    u64 at[2];
    locate<u32, 2, 3>(p, line, at);
    C carry = 0;
    for (u64 first = 0; first < p.constant[0]; first += TILE * V * PACKS) {
      C own[PACKS][V], before[PACKS];
      Pack<T, V> x[PACKS];
#pragma unroll
      for (u32 k = 0; k < PACKS; ++k) {
        const u64 i = first + (k * TILE + threadIdx.x) * V;
        x[k] = i < p.constant[0] ? load<T, V>(at[0] + i * sizeof(T)) : zeros<T, V>();
      }
#pragma unroll
      for (u32 k = 0; k < PACKS; ++k) {
#pragma unroll
        for (u32 v = 0; v < V; ++v) own[k][v] = v == 0 ? widen<C>(x[k].e[0]) : combine<OP, C>(own[k][v - 1], widen<C>(x[k].e[v]));
        const C sum = scan_of_warp<OP, C>(own[k][V - 1]);
        before[k] = of_lane(sum, threadIdx.x - (lane > 0));
        if (lane == 31) totals[k * WARPS + warp] = sum;
      }
      __syncthreads();
      const C all = scan_of_warp<OP, C>(totals[lane]);
#pragma unroll
      for (u32 k = 0; k < PACKS; ++k) {
        const u32 part = k * WARPS + warp;
        const C earlier = of_lane(all, warp * 32 + (part > 0 ? part - 1 : 0));
        bool has_before = lane > 0;
        if (part > 0) before[k] = has_before ? combine<OP, C>(earlier, before[k]) : earlier, has_before = true;
        if (first > 0) before[k] = has_before ? combine<OP, C>(carry, before[k]) : carry, has_before = true;
        Pack<O, V> y;
#pragma unroll
        for (u32 v = 0; v < V; ++v) y.e[v] = narrow(To<O>(), has_before ? combine<OP, C>(before[k], own[k][v]) : own[k][v]);
        const u64 i = first + (k * TILE + threadIdx.x) * V;
        if (i < p.constant[0]) save<O, V>(at[1] + i * sizeof(O), y);
      }
      const C last = of_lane(all, warp * 32 + 31);
      carry = first > 0 ? combine<OP, C>(carry, last) : last;
      __syncthreads();
    }
  }
}

// Lines that lie beside each other: a block has ROWS elements of each of 32 * V lines, combines them, and takes what those before them
// combine to from the blocks before it, the nearest of which have published at least what their own elements combine to (Merrill and
// Garland, "Single-pass parallel prefix scan with decoupled look-back", 2016). A number is published with its state in words of 8 bytes.
// Constants: the length, the steps of both, and the address of a counter and of the words, which are 0. The count is that of packs.
constexpr u32 CHUNK_GROUPS = TILE / 32;
template<class C, u32 V> struct Published {
  static constexpr u32 WORDS = sizeof(C) / 4 * V;
  u32 state;
  union { C value[V]; u32 bits[WORDS]; };
  D Published() {}
  D void store(u64 at) const {
#pragma unroll
    for (u32 k = 0; k < WORDS; ++k) store_word(at + k * 8, (u64)state << 32 | bits[k]);
  }
  D void wait(u64 at) {
    u64 word[WORDS];
    bool is_one;
    do {
#pragma unroll
      for (u32 k = 0; k < WORDS; ++k) word[k] = load_word(at + k * 8);
      state = (u32)(word[0] >> 32);
      is_one = state != 0;
#pragma unroll
      for (u32 k = 1; k < WORDS; ++k) is_one = is_one && (u32)(word[k] >> 32) == state;
    } while (!is_one);
#pragma unroll
    for (u32 k = 0; k < WORDS; ++k) bits[k] = (u32)word[k];
  }
};
template<class T, class O, class C, u32 V, u32 R, int OP> D void scan_by_rows(const Elementwise<2, 4>& p) {
  constexpr u32 ROWS = CHUNK_GROUPS * R, PARTIAL = 1, COMPLETE = 2;
  __shared__ C part[CHUNK_GROUPS][32][V];
  __shared__ u32 state[CHUNK_GROUPS][32], next;
  const u32 lane = threadIdx.x % 32, group = threadIdx.x / 32, length = (u32)p.constant[0];
  const u32 strips = ((u32)p.count + 31) / 32, chunks = (length + ROWS - 1) / ROWS;
  using Word = Published<C, V>;
  if (p.count == 0) return;
  for (;;) {
    // Blocks that have begun earlier have smaller numbers, so a block waits only for those that run.
    if (threadIdx.x == 0) next = next_number(p.constant[3]);
    __syncthreads();
    const u32 number = next;
    if (number >= strips * chunks) break;
    const u32 chunk = number / strips, pack = (number - chunk * strips) * 32 + lane;
    const bool is_own = pack < (u32)p.count;
    u64 at[2];
    locate<u32, 2, 4>(p, is_own ? pack : 0, at);
    const u32 row = chunk * ROWS + group * R;
    const u64 words = p.constant[3] + 16 + (u64)pack * (Word::WORDS * 8), step = (u64)strips * 32 * (Word::WORDS * 8);
    Pack<T, V> x[R];
#pragma unroll
    for (u32 r = 0; r < R; ++r)
      x[r] = is_own && row + r < length ? load<T, V>(at[0] + (row + r) * p.constant[1]) : zeros<T, V>();
    C sum[R][V];
#pragma unroll
    for (u32 r = 0; r < R; ++r) {
#pragma unroll
      for (u32 v = 0; v < V; ++v) sum[r][v] = r == 0 ? widen<C>(x[0].e[v]) : combine<OP, C>(sum[r - 1][v], widen<C>(x[r].e[v]));
    }
#pragma unroll
    for (u32 v = 0; v < V; ++v) part[group][lane][v] = sum[R - 1][v];
    __syncthreads();
    // What the groups before this one, and all groups, combine to.
    Word before, all;
#pragma unroll
    for (u32 v = 0; v < V; ++v) all.value[v] = before.value[v] = part[0][lane][v];
#pragma unroll
    for (u32 g = 1; g < CHUNK_GROUPS; ++g) {
#pragma unroll
      for (u32 v = 0; v < V; ++v) {
        all.value[v] = combine<OP, C>(all.value[v], part[g][lane][v]);
        if (g < group) before.value[v] = combine<OP, C>(before.value[v], part[g][lane][v]);
      }
    }
    bool has_before = group > 0;
    __syncthreads();
    if (chunk > 0) {
      all.state = PARTIAL;
      if (group == 0 && is_own) all.store(words + chunk * step);
      // Each group waits for another one of the blocks before this one.
      Word earlier;
      bool has_earlier = false, is_complete = false;
      for (u32 end = chunk;; end -= CHUNK_GROUPS) {
        if (end > group) {
          Word it;
          it.state = COMPLETE;
          if (is_own) it.wait(words + (end - 1 - group) * step);
          state[group][lane] = it.state;
#pragma unroll
          for (u32 v = 0; v < V; ++v) part[group][lane][v] = it.value[v];
        }
        __syncthreads();
#pragma unroll
        for (u32 g = 0; g < CHUNK_GROUPS; ++g) {
          if (is_complete || g >= end) continue;
#pragma unroll
          for (u32 v = 0; v < V; ++v)
            earlier.value[v] = has_earlier ? combine<OP, C>(part[g][lane][v], earlier.value[v]) : part[g][lane][v];
          has_earlier = true;
          is_complete = state[g][lane] == COMPLETE;
        }
        if (!__syncthreads_or(!is_complete)) break;
      }
#pragma unroll
      for (u32 v = 0; v < V; ++v) {
        all.value[v] = combine<OP, C>(earlier.value[v], all.value[v]);
        before.value[v] = has_before ? combine<OP, C>(earlier.value[v], before.value[v]) : earlier.value[v];
      }
      has_before = true;
    }
    all.state = COMPLETE;
    if (group == 0 && is_own && chunk + 1 < chunks) all.store(words + chunk * step);
#pragma unroll
    for (u32 r = 0; r < R; ++r) {
      if (!is_own || row + r >= length) continue;
      Pack<O, V> y;
#pragma unroll
      for (u32 v = 0; v < V; ++v) y.e[v] = narrow(To<O>(), has_before ? combine<OP, C>(before.value[v], sum[r][v]) : sum[r][v]);
      save<O, V>(at[1] + (row + r) * p.constant[2], y);
    }
    __syncthreads();
  }
}

