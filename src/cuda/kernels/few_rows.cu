// Attention of a few rows of the query, as of a token that is decoded: softmax(scale · q · kᵀ) · v. The keys of a member of the batch are
// split over blocks, and the last block of a member joins their results in the order of the keys (Dao et al., "Flash-Decoding for
// long-context inference", 2023).
//
// A warp has 16 keys at a time. It loads them and their values straight into the registers in which the tensor cores expect them: a sum over
// columns or over keys may have any order, so a thread takes 8 columns that are neighbours, 16 bytes. The products are q · kᵀ, whose result
// has the rows and keys of a thread where vᵀ · weightsᵀ expects them. As in `attention.cu`, a row keeps its largest score so far, the sum of
// exponentials relative to it, and the sum of values weighted with them, in binary32.

constexpr u32 ROWS = 8, KEYS = 16;
struct FewRows {
  // Addresses: `scratch` has what a block leaves for the last one; `arrived` has for each member the number of blocks that have, 0 between runs.
  u64 q, k, v, out, scratch, arrived;
  u64 rows, keys, heads, members, splits;
  // Strides in elements: of the batch without the heads, of the heads, of the rows.
  u64 q_stride[3], k_stride[3], v_stride[3], out_stride[3];
  f64 scale;
};

D u64 address(u64 base, const FewRows& p, u64 member, const u64 (&stride)[3]) {
  return base + 2 * (member / p.heads * stride[0] + member % p.heads * stride[1]);
}
D uint4 load_if(bool inside, u64 at) { return inside ? *reinterpret_cast<const uint4*>(at) : uint4(); }
D u32 word(const uint4& it, int n) { return n == 0 ? it.x : n == 1 ? it.y : n == 2 ? it.z : it.w; }
// The lower and the upper halves of two words.
D u32 lower_halves(u32 a, u32 b) { return (a & 0xffff) | b << 16; }
D u32 upper_halves(u32 a, u32 b) { return a >> 16 | (b & 0xffff0000u); }
template<class T> D u32 rounded(f32 low, f32 high) { return narrow(To<T>(), low).bits | (u32)narrow(To<T>(), high).bits << 16; }

// A block computes a member of the batch, for its part of the keys.
template<class T, int COLUMNS, u32 WARPS> D void few_rows(const FewRows& p) {
  constexpr int CHUNKS = COLUMNS / 32, HALVES = COLUMNS / 64;
  constexpr u32 THREADS = WARPS * 32;
  __shared__ f32 values_of[WARPS][ROWS][COLUMNS], largest_of[WARPS][ROWS], sum_of[WARPS][ROWS];
  __shared__ u32 number;
  if (p.members == 0) return;
  const u64 member = blockIdx.x / p.splits, split = blockIdx.x % p.splits;
  const u64 each = (p.keys + p.splits - 1) / p.splits, first = split * each;
  const u64 last = first + each < p.keys ? first + each : p.keys;
  // Of the scores, a thread has row `group` and keys 2 · place and 2 · place + 1 of each 8; of the values, it has rows 2 · place and
  // 2 · place + 1, and 8 columns of each 64.
  const u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32, group = lane / 4, place = lane % 4;
  const u64 q_at = address(p.q, p, member, p.q_stride) + 2 * group * p.q_stride[2] + 16 * place;
  const u64 k_at = address(p.k, p, member, p.k_stride) + 16 * place;
  const u64 v_at = address(p.v, p, member, p.v_stride) + 16 * group;
  const f32 factor = (f32)p.scale * LOG2_E;
  uint4 q[CHUNKS], k[2][CHUNKS];
#pragma unroll
  for (int c = 0; c < CHUNKS; ++c) q[c] = load_if(group < p.rows, q_at + 64 * c);
  auto load_keys = [&](u64 from) {
#pragma unroll
    for (u32 t = 0; t < 2; ++t) {
      const u64 key = from + 8 * t + group;
#pragma unroll
      for (int c = 0; c < CHUNKS; ++c) k[t][c] = load_if(key < last, k_at + 2 * key * p.k_stride[2] + 64 * c);
    }
  };
  f32 values[HALVES][4][4] = {}, largest = negative_infinity(), sum = 0;
  load_keys(first + warp * KEYS);
  // All threads of the block go through the loop equally often.
  for (u64 start = first; start < last; start += KEYS * WARPS) {
    const u64 from = start + warp * KEYS;
    // Keys 2 · place, 2 · place + 1, and those 8 after them.
    uint4 v[4][HALVES];
#pragma unroll
    for (u32 n = 0; n < 4; ++n) {
      const u64 key = from + 8 * (n / 2) + 2 * place + n % 2;
#pragma unroll
      for (int h = 0; h < HALVES; ++h) v[n][h] = load_if(key < last, v_at + 2 * key * p.v_stride[2] + 128 * h);
    }
    f32 score[2][4] = {};
#pragma unroll
    for (int c = 0; c < CHUNKS; ++c)
#pragma unroll
      for (int t = 0; t < 2; ++t) {
        multiply_tiles(T(), score[t], q[c].x, 0, q[c].y, 0, k[t][c].x, k[t][c].y);
        multiply_tiles(T(), score[t], q[c].z, 0, q[c].w, 0, k[t][c].z, k[t][c].w);
      }
    // The next keys arrive meanwhile.
    load_keys(from + KEYS * WARPS);
    f32 most = negative_infinity();
#pragma unroll
    for (u32 n = 0; n < 4; ++n) {
      f32& it = score[n / 2][n % 2];
      it = from + 8 * (n / 2) + 2 * place + n % 2 < last ? it * factor : negative_infinity();
      most = fmaxf(most, it);
    }
    most = fmaxf(most, of_lane(most, threadIdx.x ^ 1));
    most = fmaxf(most, of_lane(most, threadIdx.x ^ 2));
    const f32 before = largest;
    largest = fmaxf(largest, most);
    const f32 reference = reference_score(largest), shrink = exp2f(before - reference);
    sum *= shrink;
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      f32& it = score[n / 2][n % 2];
      it = exp2f(it - reference);
      sum += it;
    }
    const u32 even = threadIdx.x - lane + 8 * place;
    const f32 shrinks[2] = {of_lane(shrink, even), of_lane(shrink, even + 4)};
    const u32 weights[2] = {rounded<T>(score[0][0], score[0][1]), rounded<T>(score[1][0], score[1][1])};
#pragma unroll
    for (int h = 0; h < HALVES; ++h)
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        u32 w[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          values[h][n][i] *= shrinks[i % 2];
          w[i] = word(v[i][h], n);
        }
        multiply_tiles(T(), values[h][n], lower_halves(w[0], w[1]), upper_halves(w[0], w[1]), lower_halves(w[2], w[3]),
                       upper_halves(w[2], w[3]), weights[0], weights[1]);
      }
  }
  sum += of_lane(sum, threadIdx.x ^ 1);
  sum += of_lane(sum, threadIdx.x ^ 2);
#pragma unroll
  for (int h = 0; h < HALVES; ++h)
#pragma unroll
    for (int n = 0; n < 4; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) values_of[warp][2 * place + i % 2][64 * h + 8 * group + 2 * n + i / 2] = values[h][n][i];
  if (place == 0) largest_of[warp][group] = largest, sum_of[warp][group] = sum;
  __syncthreads();
  // In scratch memory: the values of each block, then the largest score and the sum of each row of each block.
  const u64 rows = p.rows, parts = p.members * p.splits;
  f32* const scratch = reinterpret_cast<f32*>(p.scratch);
  f32* const ends = scratch + parts * rows * COLUMNS;
  const u64 out = address(p.out, p, member, p.out_stride);
  for (u32 at = threadIdx.x; at < rows * COLUMNS; at += THREADS) {
    const u32 row = at / COLUMNS, column = at % COLUMNS;
    f32 top = negative_infinity(), total = 0, value = 0;
#pragma unroll
    for (u32 it = 0; it < WARPS; ++it) top = fmaxf(top, largest_of[it][row]);
    const f32 reference = reference_score(top);
#pragma unroll
    for (u32 it = 0; it < WARPS; ++it) {
      const f32 shrink = exp2f(largest_of[it][row] - reference);
      total += sum_of[it][row] * shrink;
      value += values_of[it][row][column] * shrink;
    }
    if (p.splits == 1) {
      reinterpret_cast<T*>(out)[row * p.out_stride[2] + column] = narrow(To<T>(), value / divisor_of_row(total));
      continue;
    }
    const u64 own = (member * p.splits + split) * rows + row;
    scratch[own * COLUMNS + column] = value;
    if (column == 0) ends[2 * own] = top, ends[2 * own + 1] = total;
  }
  if (p.splits == 1) return;
  __syncthreads();
  const u64 arrived = p.arrived + 4 * member;
  if (threadIdx.x == 0) number = arrive_on_device(arrived);
  __syncthreads();
  if (number + 1 != p.splits) return;
  if (threadIdx.x == 0) *reinterpret_cast<u32*>(arrived) = 0;
  // Elements of a thread, and parts that it loads at the same time.
  constexpr u32 GROUP = 4, LOADS = 16;
  for (u32 at = threadIdx.x; at < rows * COLUMNS / GROUP; at += THREADS) {
    const u32 row = at / (COLUMNS / GROUP), column = at % (COLUMNS / GROUP) * GROUP;
    f32 top = negative_infinity(), total = 0, value[GROUP] = {};
    for (u64 part = 0; part < p.splits; part += LOADS) {
      Pack<f32, GROUP> found[LOADS];
      f32 tops[LOADS], totals[LOADS];
      const f32 before = top;
#pragma unroll
      for (u32 it = 0; it < LOADS; ++it) {
        const u64 own = (member * p.splits + part + it) * rows + row;
        const bool inside = part + it < p.splits;
        found[it] = inside ? load<f32, GROUP>(p.scratch + 4 * (own * COLUMNS + column)) : zeros<f32, GROUP>();
        tops[it] = inside ? ends[2 * own] : negative_infinity();
        totals[it] = inside ? ends[2 * own + 1] : 0.0f;
      }
#pragma unroll
      for (u32 it = 0; it < LOADS; ++it) top = fmaxf(top, tops[it]);
      const f32 reference = reference_score(top), shrink = exp2f(before - reference);
      total *= shrink;
#pragma unroll
      for (u32 n = 0; n < GROUP; ++n) value[n] *= shrink;
#pragma unroll
      for (u32 it = 0; it < LOADS; ++it) {
        const f32 weight = exp2f(tops[it] - reference);
        total += totals[it] * weight;
#pragma unroll
        for (u32 n = 0; n < GROUP; ++n) value[n] += found[it].e[n] * weight;
      }
    }
    Pack<T, GROUP> it;
    total = divisor_of_row(total);
#pragma unroll
    for (u32 n = 0; n < GROUP; ++n) it.e[n] = narrow(To<T>(), value[n] / total);
    save<T, GROUP>(out + 2 * (row * p.out_stride[2] + column), it);
  }
}
