// Attention in one kernel: softmax(scale · q · kᵀ) · v, without scores in memory (Dao et al., "FlashAttention", 2022).
//
// A row keeps its largest score so far, the sum of exponentials relative to it, and the sum of values weighted with them.
// When a later key has a larger score, both sums are multiplied by the exponential of the difference. Weights are
// rounded to the element type before their product with the values; sums are binary32.
//
// A query block has 128 rows. Row i of a causal attention attends to the keys 0 to i. Tiles of later keys are not read, so their
// infinite values do not make the row NaN, which 0 · ∞ does in the composition.

constexpr u32 QUERY_ROWS = 128;
struct Attention {
  // Addresses; `logsumexp` is 0 if nobody needs it.
  u64 q, k, v, out, logsumexp;
  u64 rows, keys, heads, batch;
  // Strides in elements: of the batch without the heads, of the heads, of the rows.
  u64 q_stride[3], k_stride[3], v_stride[3], out_stride[3], logsumexp_stride[3];
  f64 scale;
};

// 0 for a row whose scores are all -∞; NaN if one is ∞, as the softmax of the row.
D f32 logsumexp(f32 largest, f32 scale, f32 sum) {
  const f32 reference = reference_score(largest);
  return reference * scale + logf(sum) + (reference - reference);
}

// What a block works on.
struct AttentionBlock {
  u64 q, k, v, out, logsumexp;
  u32 first;
};
D u64 attention_address(u64 base, u32 size, u64 outer, u64 head, const u64 (&stride)[3]) {
  return base + size * (outer * stride[0] + head * stride[1]);
}
template<bool CAUSAL> D AttentionBlock attention_block(const Attention& p) {
  const u64 blocks = (p.rows + QUERY_ROWS - 1) / QUERY_ROWS, number = blockIdx.x % blocks, member = blockIdx.x / blocks;
  const u64 outer = member / p.heads, head = member % p.heads;
  AttentionBlock it;
  it.q = attention_address(p.q, 2, outer, head, p.q_stride);
  it.k = attention_address(p.k, 2, outer, head, p.k_stride);
  it.v = attention_address(p.v, 2, outer, head, p.v_stride);
  it.out = attention_address(p.out, 2, outer, head, p.out_stride);
  it.logsumexp = p.logsumexp ? attention_address(p.logsumexp, 4, outer, head, p.logsumexp_stride) : 0;
  // The last rows have the most keys, so they come first.
  it.first = (u32)(CAUSAL ? blocks - 1 - number : number) * QUERY_ROWS;
  return it;
}

#ifndef __CUDA_ARCH_FEAT_SM90_ALL

// For machines without the instructions of the other form: a thread computes one row.
template<class T, int COLUMNS, bool CAUSAL> D void attention(const Attention& p) {
  if (p.batch == 0 || threadIdx.x >= QUERY_ROWS) return;
  const AttentionBlock it = attention_block<CAUSAL>(p);
  const u64 row = it.first + threadIdx.x;
  if (row >= p.rows) return;
  const f32 factor = (f32)p.scale * LOG2_E;
  const T* q = reinterpret_cast<const T*>(it.q) + row * p.q_stride[2];
  f32 largest = negative_infinity(), sum = 0, values[COLUMNS] = {};
  const u64 keys = CAUSAL && row + 1 < p.keys ? row + 1 : p.keys;
  for (u64 key = 0; key < keys; ++key) {
    const T* k = reinterpret_cast<const T*>(it.k) + key * p.k_stride[2];
    const T* v = reinterpret_cast<const T*>(it.v) + key * p.v_stride[2];
    f32 score = 0;
    for (int column = 0; column < COLUMNS; ++column) score += wide(q[column]) * wide(k[column]);
    const f32 before = largest;
    largest = fmaxf(largest, score);
    const f32 reference = reference_score(largest);
    const f32 shrink = exp2f((before - reference) * factor), weight = exp2f((score - reference) * factor);
    sum = sum * shrink + weight;
    const f32 rounded = wide(narrow(To<T>(), weight));
    for (int column = 0; column < COLUMNS; ++column) values[column] = values[column] * shrink + rounded * wide(v[column]);
  }
  sum = divisor_of_row(sum);
  T* out = reinterpret_cast<T*>(it.out) + row * p.out_stride[2];
  for (int column = 0; column < COLUMNS; ++column) out[column] = narrow(To<T>(), values[column] / sum);
  if (it.logsumexp)
    reinterpret_cast<f32*>(it.logsumexp)[row * p.logsumexp_stride[2]] = logsumexp(largest, (f32)p.scale, sum);
}

#else

// One warpgroup of a block loads keys and values, the other two compute 64 rows each, with the asynchronous matrix
// products of compute capability 9.0 (PTX ISA, "wgmma"). The product of the weights with one tile of values runs beside
// that of the queries with the next tile of keys.
constexpr u32 KEY_ROWS = 128, STAGES = 2, GROUPS = 2;
// Bytes of a row of half a tile: tiles of 128 columns are two tiles of 64, because a swizzled row has 128 bytes.
constexpr u32 ROW = 128;

D void copy_16(u32 to, u64 from, bool valid) {
  const int bytes = valid ? 16 : 0;
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
}
D void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Waits until at most N groups of copies are incomplete, and shows the rest to matrix products.
template<int N> D void await_copies() {
  asm volatile("cp.async.wait_group %0; fence.proxy.async.shared::cta;" ::"n"(N) : "memory");
}
D void begin_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
D void commit_products() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template<int N> D void await_products() { asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory"); }
D void init_barrier(u32 at, u32 arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(at), "r"(arrivals) : "memory");
}
D void arrive_at(u32 at) { asm volatile("{ .reg .b64 s; mbarrier.arrive.shared::cta.b64 s, [%0]; }" ::"r"(at) : "memory"); }
D void await_phase(u32 at, u32 parity) {
  asm volatile("{ .reg .pred p;\nTRY: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n@p bra DONE;\nbra TRY;\nDONE: }"
               ::"r"(at), "r"(parity) : "memory");
}
// Barrier 1 + group: when both groups have reached it, `group` may issue its products.
D void await_turn(u32 group) { asm volatile("bar.sync %0, 256;" ::"r"(1 + group) : "memory"); }
D void give_turn(u32 group) { asm volatile("bar.arrive %0, 256;" ::"r"(1 + group) : "memory"); }
D f32 fast_exp2(f32 v) { f32 r; asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(v)); return r; }
template<class T> D u32 pack(f32 low, f32 high);
template<> D u32 pack<bf16>(f32 low, f32 high) { u32 r; asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low)); return r; }
template<> D u32 pack<f16>(f32 low, f32 high) { u32 r; asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low)); return r; }

// The descriptor of a matrix in shared memory whose rows of 128 bytes are swizzled.
D u64 descriptor(u32 address, u32 leading, u32 stride) {
  return (u64)((address & 0x3ffff) >> 4) | (u64)(leading >> 4) << 16 | (u64)(stride >> 4) << 32 | 1ull << 62;
}
#define REGISTERS_8(c, i) \
  "+f"(c[i]), "+f"(c[i + 1]), "+f"(c[i + 2]), "+f"(c[i + 3]), "+f"(c[i + 4]), "+f"(c[i + 5]), "+f"(c[i + 6]), "+f"(c[i + 7])
#define REGISTERS_32(c) REGISTERS_8(c, 0), REGISTERS_8(c, 8), REGISTERS_8(c, 16), REGISTERS_8(c, 24)
#define REGISTERS_64(c) REGISTERS_32(c), REGISTERS_8(c, 32), REGISTERS_8(c, 40), REGISTERS_8(c, 48), REGISTERS_8(c, 56)
#define NAMES_32 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define NAMES_64 NAMES_32 \
  ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
// `scores`: 64 rows of queries times 128 keys, 16 columns at a time; the first 16 overwrite the result.
// `weighted`: 64 rows of weights in registers times 16 rows of values.
#define PRODUCTS(T, NAME) \
  D void scores(T, f32 (&c)[64], u64 a, u64 b, int add) { \
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %66, 0;\n" \
                 "wgmma.mma_async.sync.aligned.m64n128k16.f32." NAME "." NAME " {" NAMES_64 "}, %64, %65, p, 1, 1, 0, 0; }" \
                 : REGISTERS_64(c) : "l"(a), "l"(b), "r"(add)); \
  } \
  D void weighted(T, f32 (&c)[64], const u32* a, u64 b) { \
    asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32." NAME "." NAME " {" NAMES_64 "}, {%64,%65,%66,%67}, %68, 1, 1, 1, 1;" \
                 : REGISTERS_64(c) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b)); \
  } \
  D void weighted(T, f32 (&c)[32], const u32* a, u64 b) { \
    asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32." NAME "." NAME " {" NAMES_32 "}, {%32,%33,%34,%35}, %36, 1, 1, 1, 1;" \
                 : REGISTERS_32(c) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b)); \
  }
PRODUCTS(bf16, "bf16")
PRODUCTS(f16, "f16")

// Copies rows into swizzled rows of 128 bytes; those at `count` and beyond are zero.
template<int COLUMNS, u32 ROWS> D void load_rows(u32 to, u64 from, u64 stride, u32 first, u32 count) {
  // The rows that the threads load at a time are a multiple of 8 apart, so each thread's place in a swizzled row is fixed.
  constexpr u32 CHUNKS = COLUMNS / 8, STEP = 128 / CHUNKS;
  const u32 row = threadIdx.x / CHUNKS, chunk = threadIdx.x % CHUNKS;
  to += (chunk / 8) * ROWS * ROW + row * ROW + ((chunk % 8) ^ (row & 7)) * 16;
  from += (first + row) * stride * 2 + chunk * 16;
  if (first + ROWS <= count) {
#pragma unroll
    for (u32 i = 0; i < ROWS / STEP; ++i) copy_16(to + i * STEP * ROW, from + i * STEP * stride * 2, true);
  } else {
#pragma unroll 1
    for (u32 i = 0; i < ROWS / STEP; ++i) {
      const bool valid = first + row + i * STEP < count;
      copy_16(to + i * STEP * ROW, from + (valid ? i * STEP * stride * 2 : 0), valid);
    }
  }
}

template<class T, int COLUMNS, bool CAUSAL> D void attention(const Attention& p) {
  if (p.batch == 0) return;
  extern __shared__ char shared[];
  constexpr u32 TILE = KEY_ROWS * COLUMNS * 2;
  const u32 q_at = ((u32)__cvta_generic_to_shared(shared) + 1023) & ~1023u;
  const u32 k_at = q_at + QUERY_ROWS * COLUMNS * 2, v_at = k_at + STAGES * TILE, barriers = v_at + STAGES * TILE;
  enum Kind : u32 { KEYS_LOADED, VALUES_LOADED, KEYS_READ, VALUES_READ };
  auto barrier = [&](Kind kind, u32 tile) { return barriers + (kind * STAGES + tile % STAGES) * 8; };
  const AttentionBlock it = attention_block<CAUSAL>(p);
  const u32 rows = (u32)p.rows, keys = (u32)p.keys, first = it.first;
  u32 tiles = (keys + KEY_ROWS - 1) / KEY_ROWS;
  if (CAUSAL) {
    const u32 needed = (first + QUERY_ROWS + KEY_ROWS - 1) / KEY_ROWS;
    tiles = needed < tiles ? needed : tiles;
  }
  if (threadIdx.x == 0) {
    for (u32 stage = 0; stage < STAGES; ++stage) {
      init_barrier(barrier(KEYS_LOADED, stage), 128);
      init_barrier(barrier(VALUES_LOADED, stage), 128);
      init_barrier(barrier(KEYS_READ, stage), GROUPS);
      init_barrier(barrier(VALUES_READ, stage), GROUPS);
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  __syncthreads();
  if (threadIdx.x < 128) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
    load_rows<COLUMNS, QUERY_ROWS>(q_at, it.q, p.q_stride[2], first, rows);
    for (u32 tile = 0; tile < tiles; ++tile) {
      const u32 stage = tile % STAGES, parity = (tile / STAGES & 1) ^ 1;
      await_phase(barrier(KEYS_READ, tile), parity);
      load_rows<COLUMNS, KEY_ROWS>(k_at + stage * TILE, it.k, p.k_stride[2], tile * KEY_ROWS, keys);
      commit_copies();
      if (tile != 0) {
        await_copies<1>();
        arrive_at(barrier(VALUES_LOADED, tile - 1));
      }
      await_phase(barrier(VALUES_READ, tile), parity);
      load_rows<COLUMNS, KEY_ROWS>(v_at + stage * TILE, it.v, p.v_stride[2], tile * KEY_ROWS, keys);
      commit_copies();
      await_copies<1>();
      arrive_at(barrier(KEYS_LOADED, tile));
    }
    await_copies<0>();
    arrive_at(barrier(VALUES_LOADED, tiles - 1));
    return;
  }
  asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
  const u32 group = threadIdx.x / 128 - 1, warp = threadIdx.x % 128 / 32, lane = threadIdx.x % 32;
  const bool leads = threadIdx.x % 128 == 0;
  // The first of the two rows of this thread; the second is 8 rows below.
  const u32 own = first + group * 64 + warp * 16 + lane / 4;
  const f32 factor = (f32)p.scale * LOG2_E;
  f32 values[COLUMNS / 2], largest[2] = {negative_infinity(), negative_infinity()}, sum[2] = {0, 0}, shrink[2];
#pragma unroll
  for (int i = 0; i < COLUMNS / 2; ++i) values[i] = 0;
  f32 s[KEY_ROWS / 2];
  u32 weights[KEY_ROWS / 4];
  auto multiply_keys = [&](u32 tile) {
    await_phase(barrier(KEYS_LOADED, tile), tile / STAGES & 1);
    begin_products();
#pragma unroll
    for (u32 d = 0; d < COLUMNS / 16; ++d)
      scores(T(), s, descriptor(q_at + group * 64 * ROW + d / 4 * QUERY_ROWS * ROW + d % 4 * 32, 16, 8 * ROW),
             descriptor(k_at + tile % STAGES * TILE + d / 4 * KEY_ROWS * ROW + d % 4 * 32, 16, 8 * ROW), d != 0);
    commit_products();
  };
  auto multiply_values = [&](u32 tile) {
    await_phase(barrier(VALUES_LOADED, tile), tile / STAGES & 1);
    begin_products();
#pragma unroll
    for (u32 c = 0; c < KEY_ROWS / 16; ++c)
      weighted(T(), values, &weights[c * 4],
               descriptor(v_at + tile % STAGES * TILE + c * 16 * ROW, KEY_ROWS * ROW, 8 * ROW));
    commit_products();
  };
  auto softmax = [&](u32 tile) {
    // Keys behind the end, and those that a causal attention masks.
    const bool partial = (tile + 1) * KEY_ROWS > keys || (CAUSAL && (tile + 1) * KEY_ROWS > first + group * 64);
    if (partial)
#pragma unroll
      for (u32 n = 0; n < KEY_ROWS / 8; ++n)
#pragma unroll
        for (u32 i = 0; i < 4; ++i) {
          const u32 key = tile * KEY_ROWS + n * 8 + lane % 4 * 2 + i % 2;
          if (key >= keys || (CAUSAL && key > own + i / 2 * 8)) s[n * 4 + i] = negative_infinity();
        }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      f32 most = largest[i], total = 0;
#pragma unroll
      for (int n = 0; n < KEY_ROWS / 8; ++n) most = fmaxf(most, fmaxf(s[n * 4 + 2 * i], s[n * 4 + 2 * i + 1]));
      most = fmaxf(most, __shfl_xor_sync(~0u, most, 1));
      most = fmaxf(most, __shfl_xor_sync(~0u, most, 2));
      const f32 reference = reference_score(most), offset = reference * factor;
      shrink[i] = fast_exp2((largest[i] - reference) * factor);
      largest[i] = most;
#pragma unroll
      for (int n = 0; n < KEY_ROWS / 8; ++n) {
        const f32 x = fast_exp2(fmaf(s[n * 4 + 2 * i], factor, -offset));
        const f32 y = fast_exp2(fmaf(s[n * 4 + 2 * i + 1], factor, -offset));
        total += x + y;
        s[n * 4 + 2 * i] = x;
        s[n * 4 + 2 * i + 1] = y;
      }
      sum[i] = fmaf(sum[i], shrink[i], total);
    }
  };
  auto round_weights = [&]() {
#pragma unroll
    for (int n = 0; n < KEY_ROWS / 8; ++n) {
      weights[n * 2] = pack<T>(s[n * 4], s[n * 4 + 1]);
      weights[n * 2 + 1] = pack<T>(s[n * 4 + 2], s[n * 4 + 3]);
    }
  };
  multiply_keys(0);
  await_products<0>();
  if (leads) arrive_at(barrier(KEYS_READ, 0));
  softmax(0);
  round_weights();
  // The groups issue their products in turns, so that one computes its softmax while the products of the other run (Shah et
  // al., "FlashAttention-3", 2024).
  if (group == 1 && tiles > 1) give_turn(0);
  for (u32 tile = 1; tile < tiles; ++tile) {
    await_turn(group);
    multiply_keys(tile);
    multiply_values(tile - 1);
    if (group == 0 || tile + 1 < tiles) give_turn(1 - group);
    await_products<1>();
    if (leads) arrive_at(barrier(KEYS_READ, tile));
    softmax(tile);
    await_products<0>();
    if (leads) arrive_at(barrier(VALUES_READ, tile - 1));
#pragma unroll
    for (int i = 0; i < COLUMNS / 2; ++i) values[i] *= shrink[i / 2 % 2];
    round_weights();
  }
  multiply_values(tiles - 1);
  await_products<0>();
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    f32 total = sum[i];
    total += __shfl_xor_sync(~0u, total, 1);
    total = divisor_of_row(total + __shfl_xor_sync(~0u, total, 2));
    const u32 row = own + i * 8;
    const f32 inverse = 1 / total;
    if (row >= rows) continue;
#pragma unroll
    for (int n = 0; n < COLUMNS / 8; ++n)
      *reinterpret_cast<u32*>(it.out + 2 * (row * p.out_stride[2] + n * 8 + lane % 4 * 2)) =
          pack<T>(values[n * 4 + 2 * i] * inverse, values[n * 4 + 2 * i + 1] * inverse);
    if (it.logsumexp && lane % 4 == 0)
      reinterpret_cast<f32*>(it.logsumexp)[row * p.logsumexp_stride[2]] = logsumexp(largest[i], (f32)p.scale, total);
  }
}

#endif
