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


// Numbers in the order of floats: equal for +0 and -0, and above all others for NaN. 0 and the largest number are not among them.
constexpr u32 ORDERED_ZERO = 0x80000000, ORDERED_NAN = 0xff800001;
D u32 ordered(f32 v) {
  const u32 word = __float_as_uint(v);
  return v != v ? ORDERED_NAN : v == 0 ? ORDERED_ZERO : word >> 31 ? ~word : word | 0x80000000u;
}
// The first elements of lines of up to 32 * PER floats: a warp for each line takes the largest one again and again. A thread has PER
// neighbours, of which V are one access.
template<class T, class O, class I, u32 PER, u32 V, bool DESCENDING> D void top_in_warp(const Elementwise<3, 5>& p) {
  constexpr u32 WARPS = TILE / 32;
  const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, length = (u32)p.constant[0], kept = (u32)p.constant[1];
  for (u32 first = blockIdx.x * WARPS; first < (u32)p.count; first += gridDim.x * WARPS) {
    const bool is_in = first + warp < (u32)p.count;
    u64 at[3];
    locate<u32, 3, 5>(p, is_in ? first + warp : 0, at);
    u32 key[PER], most = 0, own = 0;
#pragma unroll
    for (u32 k = 0; k < PER; k += V) {
      const u32 i = lane * PER + k;
      const Pack<T, V> x = i < length ? load<T, V>(at[0] + i * p.constant[2]) : zeros<T, V>();
#pragma unroll
      for (u32 v = 0; v < V; ++v) {
        const u32 number = ordered(widen<f32>(x.e[v]));
        key[k + v] = i < length ? (DESCENDING ? number : ~number) : 0;
        most = key[k + v] > most ? key[k + v] : most;
      }
    }
    for (u32 rank = 0; rank < kept; ++rank) {
      const u32 top = largest_of_warp(most), leader = (u32)__ffs(votes_of_warp(most == top)) - 1;
      u32 place = 0;
      if (lane == leader) {
        bool is_taken = false;
        most = 0;
#pragma unroll
        for (u32 k = 0; k < PER; ++k) {
          if (!is_taken && key[k] == top) is_taken = true, key[k] = 0, place = lane * PER + k;
          most = key[k] > most ? key[k] : most;
        }
      }
      place = of_lane(place, warp * 32 + leader);
      if (rank == lane) own = place;
    }
    if (!is_in || lane >= kept) continue;
    write_as<O, f32>(at[1] + lane * p.constant[3], read_as<T, f32>(at[0] + own * p.constant[2]));
    write_as<I, i64>(at[2] + lane * p.constant[4], (i64)own);
  }
}

// Lines of up to 32 * PER floats: a warp sorts each in registers, by bitonic merges whose first step compares with the mirror image, so
// that all are ascending. Numbers of the same order are sorted by their place.
D bool precedes(u32 key_a, u32 own_a, u32 key_b, u32 own_b) { return ((u64)key_a << 32 | own_a) < ((u64)key_b << 32 | own_b); }
D void order(u32& key_a, u32& own_a, u32& key_b, u32& own_b) {
  const bool swapped = precedes(key_b, own_b, key_a, own_a);
  const u32 key = swapped ? key_b : key_a, own = swapped ? own_b : own_a;
  key_b = swapped ? key_a : key_b, own_b = swapped ? own_a : own_b;
  key_a = key, own_a = own;
}
D void order_with(u32& key, u32& own, u32 other_key, u32 other_own, bool is_lower) {
  const bool taken = precedes(other_key, other_own, key, own) == is_lower;
  key = taken ? other_key : key, own = taken ? other_own : own;
}
template<u32 PER> D void merge_in_thread(u32 (&key)[PER], u32 (&own)[PER], u32 size) {
#pragma unroll
  for (u32 distance = size / 2; distance > 0; distance /= 2) {
#pragma unroll
    for (u32 k = 0; k < PER / 2; ++k) {
      const u32 a = 2 * k - (k & (distance - 1)), b = a + distance;
      order(key[a], own[a], key[b], own[b]);
    }
  }
}
template<class T, class O, class I, u32 PER, bool DESCENDING> D void sort_in_warp(const Elementwise<3, 5>& p) {
  constexpr u32 WARPS = TILE / 32;
  __shared__ u32 sorted[WARPS][33 * PER];
  const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, length = (u32)p.constant[0], kept = (u32)p.constant[1];
  for (u32 first = blockIdx.x * WARPS; first < (u32)p.count; first += gridDim.x * WARPS) {
    const bool is_in = first + warp < (u32)p.count;
    u64 at[3];
    locate<u32, 3, 5>(p, is_in ? first + warp : 0, at);
    u32 key[PER], own[PER];
#pragma unroll
    for (u32 k = 0; k < PER; ++k) {
      own[k] = k * 32 + lane;
      key[k] = ~0u;
      if (own[k] >= length) continue;
      const u32 number = ordered(read_as<T, f32>(at[0] + own[k] * p.constant[2]));
      key[k] = DESCENDING ? ~number : number;
    }
#pragma unroll
    for (u32 size = 2; size <= PER; size *= 2) {
#pragma unroll
      for (u32 k = 0; k < PER / 2; ++k) {
        const u32 a = k / (size / 2) * size + k % (size / 2), b = a / size * size + size - 1 - a % size;
        order(key[a], own[a], key[b], own[b]);
      }
      merge_in_thread<PER>(key, own, size / 2);
    }
#pragma unroll 1
    for (u32 lanes = 2; lanes <= 32; lanes *= 2) {
      const u32 mirror = warp * 32 + (lane ^ (lanes - 1));
#pragma unroll
      for (u32 k = 0; k < (PER + 1) / 2; ++k) {
        const u32 end = PER - 1 - k;
        const u32 high_key = of_lane(key[end], mirror), high_own = of_lane(own[end], mirror);
        const u32 low_key = of_lane(key[k], mirror), low_own = of_lane(own[k], mirror);
        const bool is_lower = (lane & (lanes / 2)) == 0;
        order_with(key[k], own[k], high_key, high_own, is_lower);
        if (end != k) order_with(key[end], own[end], low_key, low_own, is_lower);
      }
#pragma unroll 1
      for (u32 distance = lanes / 4; distance > 0; distance /= 2) {
        const u32 partner = warp * 32 + (lane ^ distance);
#pragma unroll
        for (u32 k = 0; k < PER; ++k) {
          const u32 other_key = of_lane(key[k], partner), other_own = of_lane(own[k], partner);
          order_with(key[k], own[k], other_key, other_own, (lane & distance) == 0);
        }
      }
      merge_in_thread<PER>(key, own, PER);
    }
    // Through shared memory, so that neighbouring threads write neighbours.
#pragma unroll
    for (u32 k = 0; k < PER; ++k) sorted[warp][(lane * PER + k) / 32 * 33 + (lane * PER + k) % 32] = own[k];
    __syncwarp();
#pragma unroll
    for (u32 k = 0; k < PER; ++k) {
      own[k] = sorted[warp][k * 33 + lane];
      if (is_in && k * 32 + lane < kept) write_as<I, i64>(at[2] + (k * 32 + lane) * p.constant[4], (i64)own[k]);
    }
    __syncwarp();
#pragma unroll
    for (u32 k = 0; k < PER; ++k) sorted[warp][(lane * PER + k) / 32 * 33 + (lane * PER + k) % 32] = key[k];
    __syncwarp();
#pragma unroll
    for (u32 k = 0; k < PER; ++k) {
      if (!is_in || k * 32 + lane >= kept) continue;
      const u32 word = sorted[warp][k * 33 + lane], number = DESCENDING ? ~word : word;
      f32 v = __uint_as_float(number >> 31 ? number & 0x7fffffffu : ~number);
      // The bits of zeros and NaNs are not among the numbers.
      if (number == ORDERED_ZERO || number == ORDERED_NAN) v = read_as<T, f32>(at[0] + own[k] * p.constant[2]);
      write_as<O, f32>(at[1] + (k * 32 + lane) * p.constant[3], v);
    }
    __syncwarp();
  }
}
