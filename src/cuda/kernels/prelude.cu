// Code that all kernels share: element types, conversions to and from the compute type, packed accesses.
// No header is included, so NVRTC alone compiles this.
//
// Arithmetic follows src/sim/kernels: it is done in binary32 (binary64, integers) and rounded once, to
// nearest even. Integers wrap when converted from integers and saturate when converted from floats.

typedef signed char i8;
typedef unsigned char u8;
typedef short i16;
typedef unsigned short u16;
typedef int i32;
typedef unsigned int u32;
typedef long long i64;
typedef unsigned long long u64;
typedef float f32;
typedef double f64;
struct b8 { u8 bits; };
struct f16 { u16 bits; };
struct bf16 { u16 bits; };
// Floats of E exponent and S significand bits, one a byte; see src/tensor/data/small_floats.rs.
template<int E, int S> struct small { u8 bits; };
typedef small<4, 3> e4m3;
typedef small<5, 2> e5m2;
typedef small<8, 0> e8m0;
typedef small<2, 1> e2m1;

#define D __device__ __forceinline__

// Instructions without a name in C++. A compiler for another machine provides functions of the same names.
#ifdef __CUDACC_RTC__
D f32 half_to_float(u16 v) { f32 r; asm("cvt.f32.f16 %0, %1;" : "=f"(r) : "h"(v)); return r; }
D u16 float_to_half(f32 v) { u16 r; asm("cvt.rn.f16.f32 %0, %1;" : "=h"(r) : "f"(v)); return r; }
D u16 float_to_bfloat(f32 v) { u16 r; asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(r) : "f"(v)); return r; }
D void fence_system() { asm volatile("fence.acq_rel.sys;" ::: "memory"); }
D void store_relaxed(u64 at, u32 v) {
  asm volatile("st.relaxed.sys.global.u32 [%0], %1;" ::"l"(at), "r"(v) : "memory");
}
D u32 load_acquire(u64 at) {
  u32 r;
  asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(r) : "l"(at) : "memory");
  return r;
}
// Increments a block counter and returns its old value. Earlier writes of the block are visible, at system
// scope, to every observer of a write by a block that increments the counter later.
D u32 arrive(u64 at) {
  u32 r;
  asm volatile("fence.acq_rel.sys; atom.add.acq_rel.gpu.global.u32 %0, [%1], 1;" : "=r"(r) : "l"(at) : "memory");
  return r;
}
// Increments a counter and returns its old value. Earlier writes of the block are visible to blocks of this GPU that increment it later, and
// to their threads behind the next __syncthreads.
D u32 arrive_on_device(u64 at) {
  u32 r;
  asm volatile("atom.add.acq_rel.gpu.global.u32 %0, [%1], 1;" : "=r"(r) : "l"(at) : "memory");
  return r;
}
// 16 bytes of packets. Each half of 8 bytes is one access, and so are the 128 bytes that eight threads store together.
D void store_16(u64 at, uint4 v) {
  asm volatile("st.volatile.global.v4.u32 [%0], {%1, %2, %3, %4};"
               ::"l"(at), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w) : "memory");
}
D uint4 load_16(u64 at) {
  uint4 r;
  asm volatile("ld.volatile.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(r.x), "=r"(r.y), "=r"(r.z), "=r"(r.w) : "l"(at) : "memory");
  return r;
}
// The threads that handle the 128 bytes of this thread. They meet before each access, so that it is one instruction
// for all of them.
D u32 line_mask() { return 0xffu << (threadIdx.x & 24); }
D void meet_line() { __syncwarp(line_mask()); }
D void store_line(u64 at, uint4 v) {
  meet_line();
  store_16(at, v);
}
// Returns whether all threads that handle the 128 bytes say yes.
D bool all_of_line(bool yes) { return __all_sync(line_mask(), yes) != 0; }
// Returns the value of another thread of the warp. All threads of the block call it.
template<class C> D C of_lane(C v, u32 thread) { return __shfl_sync(~0u, v, thread & 31); }
#if __CUDA_ARCH__ >= 890
constexpr bool HAS_FLOAT_TO_SMALL = true;
template<int E> D u8 float_to_small(f32 v) {
  u16 r;
  if (E == 4) asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(r) : "f"(0.0f), "f"(v));
  else asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(r) : "f"(0.0f), "f"(v));
  return (u8)r;
}
#else
constexpr bool HAS_FLOAT_TO_SMALL = false;
template<int E> D u8 float_to_small(f32) { return 0; }
#endif
// Adds to a tile of 16 × 8 elements the product of tiles of 16 × 16 and 16 × 8, which a warp has in its registers (PTX ISA, "mma.m16n8k16").
// All threads of the block call it.
#define MULTIPLY_TILES(T, NAME) \
  D void multiply_tiles(T, f32 (&c)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) { \
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." NAME "." NAME ".f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};" \
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1)); \
  }
#if __CUDA_ARCH__ >= 800
MULTIPLY_TILES(bf16, "bf16")
MULTIPLY_TILES(f16, "f16")
#endif
// Returns the largest value, and the threads whose condition holds, in a warp. All threads of the block call them.
D u32 largest_of_warp(u32 v) { return __reduce_max_sync(~0u, v); }
D u32 votes_of_warp(bool yes) { return __ballot_sync(~0u, yes); }
// Words of 8 bytes that the blocks of a kernel exchange, and a counter of theirs.
D void store_word(u64 at, u64 v) { asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(at), "l"(v) : "memory"); }
D u64 load_word(u64 at) { u64 r; asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(r) : "l"(at) : "memory"); return r; }
D u32 next_number(u64 at) { return atomicAdd(reinterpret_cast<u32*>(at), 1u); }
D u64 clock_nanoseconds() { u64 r; asm volatile("mov.u64 %0, %globaltimer;" : "=l"(r)); return r; }
#endif

// Exponentials are computed as powers of 2: the base-2 logarithm of e.
constexpr f32 LOG2_E = 1.4426950408889634f;
D f32 negative_infinity() { return __uint_as_float(0xff800000u); }
// The score relative to which the exponentials of a softmax are computed. If all scores are -∞, so are all differences, not NaN: a later
// key may have a finite score.
D f32 reference_score(f32 largest) { return largest == negative_infinity() ? 0.0f : largest; }
// The sum of the exponentials of a row, by which they are divided: a row whose scores are all -∞ has weights of 0, not NaN.
D f32 divisor_of_row(f32 sum) { return sum == 0 ? 1.0f : sum; }

// Stores a value with release semantics at system scope.
D void store_release(u64 at, u32 v) {
  fence_system();
  store_relaxed(at, v);
}

D f32 wide(f32 v) { return v; }
D f64 wide(f64 v) { return v; }
D f32 wide(bf16 v) { return __uint_as_float((u32)v.bits << 16); }
D f32 wide(f16 v) { return half_to_float(v.bits); }
template<int E, int S> D f32 wide(small<E, S> v) {
  const u32 top = (1u << E) - 1, fraction = v.bits & ((1u << S) - 1), exponent = v.bits >> S & top;
  const f32 nan = __int_as_float(0x7fc00000);
  if (E == 8) return v.bits == 255 ? nan : __uint_as_float(v.bits ? (u32)v.bits << 23 : 0x400000u);
  f32 r = exponent ? __uint_as_float((exponent + 128 - (1 << (E - 1))) << 23 | fraction << (23 - S))
                   : (f32)fraction * __uint_as_float((u32)(129 - (1 << (E - 1)) - S) << 23);
  if (S == 3 && exponent == top && fraction == 7) r = nan;
  if (S == 2 && exponent == top) r = fraction ? nan : __int_as_float(0x7f800000);
  return v.bits >> (E + S) & 1 ? -r : r;
}
D i32 wide(b8 v) { return v.bits != 0; }
D i8 wide(i8 v) { return v; }
D u8 wide(u8 v) { return v; }
D i16 wide(i16 v) { return v; }
D u16 wide(u16 v) { return v; }
D i32 wide(i32 v) { return v; }
D u32 wide(u32 v) { return v; }
D i64 wide(i64 v) { return v; }
D u64 wide(u64 v) { return v; }
template<class C, class T> D C widen(T v) { return (C)wide(v); }
template<class T, class F> D T bits(F v) { union { F from; T to; } it; it.from = v; return it.to; }

// Round-to-odd: a second rounding to fewer bits then gives the correctly rounded result.
D f32 round_to_odd(f32 v) { return v; }
D f32 round_to_odd(f64 v) {
  f32 r = __double2float_rz(v);
  return v != v || (f64)r == v ? r : __uint_as_float(__float_as_uint(r) | 1u);
}
D f32 round_to_odd(i64 v) { f32 r = __ll2float_rz(v); return (i64)r == v ? r : __uint_as_float(__float_as_uint(r) | 1u); }
D f32 round_to_odd(u64 v) { f32 r = __ull2float_rz(v); return (u64)r == v ? r : __uint_as_float(__float_as_uint(r) | 1u); }

template<class T> struct To {};
template<class C> D bf16 narrow(To<bf16>, C v) { bf16 r; r.bits = float_to_bfloat(round_to_odd(v)); return r; }
template<class C> D f16 narrow(To<f16>, C v) { f16 r; r.bits = float_to_half(round_to_odd(v)); return r; }
// Saturates, as the simulator does. `float_to_small` is the instruction of compute capability 8.9.
template<int E, int S, class C> D small<E, S> narrow(To<small<E, S>>, C value) {
  const f32 v = round_to_odd(value);
  const u32 last = E == 8 ? 254 : E == 5 ? 0x7b : E == 4 ? 0x7e : 7, word = __float_as_uint(v) & 0x7fffffffu;
  small<E, S> r;
  if (HAS_FLOAT_TO_SMALL && (E == 4 || E == 5)) {
    r.bits = float_to_small<E>(v);
  } else if (v != v) {
    r.bits = E == 8 ? 255 : E == 2 ? 7 : 0x7f;
  } else if (E == 8) {
    const u32 down = word >> 23, rest = word & 0x7fffffu, half = down ? 0x400000u : 0x600000u;
    const u32 near = down + (rest > half || (rest == half && down % 2));
    r.bits = v <= 0 ? 0 : near < last ? near : last;
  } else {
    // The exponent and the significand round as one number. Below the smallest normal number, a sum rounds to the unit.
    constexpr int F = E == 8 ? 4 : E, lowest = 2 - (1 << (F - 1));
    const u32 normal = ((word + ((1u << (22 - S)) - 1) + (word >> (23 - S) & 1)) >> (23 - S)) - ((u32)(126 + lowest) << S);
    const u32 unit = (u32)(150 + lowest - S) << 23;
    const u32 near = word < (u32)(127 + lowest) << 23
                         ? __float_as_uint(__uint_as_float(word) + __uint_as_float(unit)) - unit : normal;
    r.bits = (near < last ? near : last) | (__float_as_uint(v) >> 31 << (E + S));
  }
  return r;
}
template<class C> D f32 narrow(To<f32>, C v) { return (f32)v; }
template<class C> D f64 narrow(To<f64>, C v) { return (f64)v; }
template<class C> D b8 narrow(To<b8>, C v) { b8 r; r.bits = v != (C)0; return r; }
template<class T, class F> D T saturate(F v) {
  const bool negative = (T)-1 < (T)0;
  const int bits = 8 * (int)sizeof(T) - (negative ? 1 : 0);
  const F top = (F)((u64)1 << (bits - 1)) * (F)2;
  const T most = (T)(~(u64)0 >> (64 - bits));
  if (v != v) return (T)0;
  if (v >= top) return most;
  if (negative) { if (v <= -top) return (T)(-(i64)most - 1); }
  else if (v <= (F)0) return (T)0;
  return (T)v;
}
#define INTEGER(T) \
  D T narrow(To<T>, i64 v) { return (T)v; } \
  D T narrow(To<T>, u64 v) { return (T)v; } \
  D T narrow(To<T>, f32 v) { return saturate<T>(v); } \
  D T narrow(To<T>, f64 v) { return saturate<T>(v); }
INTEGER(i8) INTEGER(u8) INTEGER(i16) INTEGER(u16) INTEGER(i32) INTEGER(u32) INTEGER(i64) INTEGER(u64)

// V elements that are read and written as one word of up to 16 bytes.
template<int BYTES> struct Word;
template<> struct Word<1> { typedef u8 type; };
template<> struct Word<2> { typedef u16 type; };
template<> struct Word<4> { typedef u32 type; };
template<> struct Word<8> { typedef uint2 type; };
template<> struct Word<16> { typedef uint4 type; };
template<class T, int V> struct Pack {
  typedef typename Word<(int)sizeof(T) * V>::type Raw;
  union { Raw raw; T e[V]; };
  D Pack() {}
};
template<class T, int V> D Pack<T, V> load(u64 at) {
  Pack<T, V> r;
  r.raw = *reinterpret_cast<const typename Pack<T, V>::Raw*>(at);
  return r;
}
template<class T, int V> D Pack<T, V> repeat(u64 at) {
  const T one = *reinterpret_cast<const T*>(at);
  Pack<T, V> r;
#pragma unroll
  for (int v = 0; v < V; ++v) r.e[v] = one;
  return r;
}
template<class T, int V> D void save(u64 at, const Pack<T, V>& it) {
  *reinterpret_cast<typename Pack<T, V>::Raw*>(at) = it.raw;
}
// Elements `k * V` to `k * V + V - 1` of `count` elements; those beyond the last one are zero, and are not written.
// `whole`: `count` is a multiple of V, and the address allows access to V elements at once.
template<class T, int V> D Pack<T, V> zeros() {
  Pack<T, V> r;
  r.raw = typename Pack<T, V>::Raw();
  return r;
}
template<class T, int V> D Pack<T, V> load_whole(u64 at, u64 k, u64 count) {
  return k * V < count ? load<T, V>(at + k * (V * sizeof(T))) : zeros<T, V>();
}
template<class T, int V> D void save_whole(u64 at, u64 k, u64 count, const Pack<T, V>& it) {
  if (k * V < count) save<T, V>(at + k * (V * sizeof(T)), it);
}
template<class T, int V> D Pack<T, V> load_some(u64 at, u64 k, u64 count) {
  Pack<T, V> r = zeros<T, V>();
#pragma unroll
  for (int v = 0; v < V; ++v)
    if (k * V + v < count) r.e[v] = reinterpret_cast<const T*>(at)[k * V + v];
  return r;
}
template<class T, int V> D void save_some(u64 at, u64 k, u64 count, const Pack<T, V>& it) {
#pragma unroll
  for (int v = 0; v < V; ++v)
    if (k * V + v < count) reinterpret_cast<T*>(at)[k * V + v] = it.e[v];
}

// Functions without a C++ operator. Comparisons and logic return 0 or 1 of the compute type.
template<class C> D C smaller(C a, C b) { return a != a || a <= b ? a : b; }
template<class C> D C larger(C a, C b) { return a != a || a >= b ? a : b; }
D f32 smaller_number(f32 a, f32 b) { return fminf(a, b); }
D f64 smaller_number(f64 a, f64 b) { return fmin(a, b); }
D i64 smaller_number(i64 a, i64 b) { return a < b ? a : b; }
D u64 smaller_number(u64 a, u64 b) { return a < b ? a : b; }
D f32 larger_number(f32 a, f32 b) { return fmaxf(a, b); }
D f64 larger_number(f64 a, f64 b) { return fmax(a, b); }
D i64 larger_number(i64 a, i64 b) { return a > b ? a : b; }
D u64 larger_number(u64 a, u64 b) { return a > b ? a : b; }
// Integer division by zero does not trap in CUDA; these functions return 0 for it.
template<class C> D C quotient(C a, C b) { return b == 0 ? (C)0 : b == (C)-1 ? (C)0 - a : a / b; }
D u64 quotient(u64 a, u64 b) { return b == 0 ? 0 : a / b; }
template<class C> D C rest(C a, C b) { return b == 0 || b == (C)-1 ? (C)0 : a % b; }
D u64 rest(u64 a, u64 b) { return b == 0 ? 0 : a % b; }
D i64 remainder_of(i64 a, i64 b) { i64 r = rest(a, b); return r != 0 && (b < 0) != (r < 0) ? r + b : r; }
D u64 remainder_of(u64 a, u64 b) { return rest(a, b); }
D f32 remainder_of(f32 a, f32 b) { f32 r = fmodf(a, b); return r != 0 && (b < 0) != (r < 0) ? r + b : r; }
D f64 remainder_of(f64 a, f64 b) { f64 r = fmod(a, b); return r != 0 && (b < 0) != (r < 0) ? r + b : r; }
D i64 ceil_div(i64 a, i64 b) { i64 q = quotient(a, b); return q + (b != 0 && rest(a, b) != 0 && (a < 0) == (b < 0)); }
D u64 ceil_div(u64 a, u64 b) { return quotient(a, b) + (b != 0 && rest(a, b) != 0); }
// Words 0 and 1 of Philox4x32-10 for the key `seed` and the counter `offset` (words 0 and 1), `index` (words 2 and 3).
D u64 philox(u64 index, u64 seed, u64 offset) {
  u32 k0 = (u32)seed, k1 = (u32)(seed >> 32), c0 = (u32)offset, c1 = (u32)(offset >> 32);
  u32 c2 = (u32)index, c3 = (u32)(index >> 32);
  for (int round = 0; round < 10; ++round) {
    u64 a = (u64)c0 * 0xd2511f53u, b = (u64)c2 * 0xcd9e8d57u;
    c0 = (u32)(b >> 32) ^ c1 ^ k0, c1 = (u32)b, c2 = (u32)(a >> 32) ^ c3 ^ k1, c3 = (u32)a;
    k0 += 0x9e3779b9u, k1 += 0xbb67ae85u;
  }
  return (u64)c1 << 32 | c0;
}
template<class C> D C shifted_left(C a, C b) { return b >= 0 && b < 64 ? (C)((u64)a << b) : (C)0; }
template<class C> D C shifted_right(C a, C b) { return a >> (b >= 0 && b < 64 ? b : (C)63); }
D u64 shifted_right(u64 a, u64 b) { return b < 64 ? a >> b : 0; }
template<class C> D C power(C a, C b) {
  C r = 1;
  if (b < 0) return a == 1 ? 1 : a == (C)-1 ? (b % 2 ? (C)-1 : (C)1) : (C)0;
  for (; b > 0; b >>= 1) { if (b & 1) r = (C)((u64)r * (u64)a); a = (C)((u64)a * (u64)a); }
  return r;
}
D u64 common(u64 x, u64 y) { while (y) { u64 t = x % y; x = y; y = t; } return x; }
D u64 common(i64 a, i64 b) { return common(a < 0 ? (u64)0 - (u64)a : (u64)a, b < 0 ? (u64)0 - (u64)b : (u64)b); }
// Returns 0 if the type cannot hold the result.
D u64 next_power(u64 a) { u64 r = 1; while (r < a && r != 0) r <<= 1; return r; }
D i64 next_power(i64 a) { return a <= 1 ? 1 : (i64)next_power((u64)a); }

// Element addresses. Dimensions are merged and strides are in bytes; the last dimension counts groups of V
// elements.
constexpr int DIMS = 8;
template<int N, int K, int R = DIMS> struct Elementwise {
  u64 base[N];
  i64 stride[N][R];
  u64 extent[R];
  u64 dims, count;
  u64 constant[K];
};
template<class I, int N, int K, int R> D void locate(const Elementwise<N, K, R>& p, I group, u64 (&at)[N]) {
#pragma unroll
  for (int n = 0; n < N; ++n) at[n] = p.base[n];
  for (int d = (R < DIMS ? R : (int)p.dims) - 1; d > 0; --d) {
    const I extent = (I)p.extent[d], next = group / extent, here = group - next * extent;
#pragma unroll
    for (int n = 0; n < N; ++n) at[n] += (i64)here * p.stride[n][d];
    group = next;
  }
#pragma unroll
  for (int n = 0; n < N; ++n) at[n] += (i64)group * p.stride[n][0];
}

// The parameters of a kernel that does two things.
template<class A, class B> struct Both : A, B {};

struct Reduce {
  u64 out, in;
  u64 kept[DIMS], reduced[DIMS];
  i64 out_stride[DIMS], in_kept[DIMS], in_reduced[DIMS];
  u64 kept_dims, reduced_dims, outputs, terms;
  // Number of parts, terms of each part, bytes between the results of two parts.
  u64 parts, share, between;
  // Used by the last pass: number of terms of a result, and the initial value.
  u64 count;
  f64 start_real;
  i64 start_whole;
};
D i64 offset(u64 at, u64 dims, const u64 (&extent)[DIMS], const i64 (&stride)[DIMS]) {
  i64 r = 0;
  for (int d = (int)dims - 1; d > 0; --d) {
    const u64 next = at / extent[d];
    r += (i64)(at - next * extent[d]) * stride[d];
    at = next;
  }
  return r + (i64)at * stride[0];
}

struct Matmul {
  u64 out, a, b, bias;
  u64 extent[DIMS];
  i64 out_stride[DIMS], a_stride[DIMS], b_stride[DIMS], bias_stride[DIMS];
  u64 dims, count, k;
  i64 a_step, b_step;
};

// A barrier of all ranks: each rank writes a signal on every other one and waits for theirs, all
// concurrently, so that the ranks leave at the same time.
constexpr int BARRIER_BLOCK = 32;
struct RankBarrier { u64 number, count, theirs[BARRIER_BLOCK], mine[BARRIER_BLOCK]; };
extern "C" __global__ void rank_barrier(const __grid_constant__ RankBarrier p) {
  if (threadIdx.x >= p.count) return;
  store_release(p.theirs[threadIdx.x], (u32)p.number);
  while ((i32)(load_acquire(p.mine[threadIdx.x]) - (u32)p.number) < 0) {}
}

// A collective over the memory of up to PEERS peers: addresses of the signals and of the elements.
template<int PEERS, int IN, int OUT> struct PeerMemory {
  u64 epoch, arrived, groups, elements, words, start_signals, start_waits, end_signals, end_waits;
  u64 start_signal[PEERS], start_wait[PEERS], end_signal[PEERS], end_wait[PEERS], in[IN], out[OUT];
};

// A collective that exchanges packets; see packets.rs.
template<int N> struct Packets { u64 epoch, flags_per_run, flag, word[N]; };
D u64 longer(u64 a, u64 b) { return a > b ? a : b; }
template<class T, int V> D Pack<T, V> pack_of(u32 low, u32 high) {
  Pack<T, V> r;
  r.raw.x = low;
  r.raw.y = high;
  return r;
}
// The 16 bytes of a thread in packets of 16 bytes.
struct Ll {
  static constexpr int HALVES = 1;
  uint4 w;
  D static u64 half(u64 g, int) { return g; }
  D static bool has_data(u64, int) { return true; }
  D void load(u64 at) { w = load_16(at); }
  D bool is_complete(u32 flag) { return w.y == flag && w.w == flag; }
  template<class T, int V> D Pack<T, V> data(int) const { return pack_of<T, V>(w.x, w.z); }
  template<class P> D static void store(u64 at, u64, const P* y, u32 flag) {
    uint4 v;
    v.x = y[0].raw.x, v.y = flag, v.z = y[0].raw.y, v.w = flag;
    store_16(at, v);
  }
};
// The 16 bytes of a thread in packets of 128 bytes: 15 halves of data, and the flag in the last half.
struct Ll128 {
  static constexpr int HALVES = 2;
  uint4 w;
  u64 from;
  D static u64 half(u64 g, int h) { return g / 8 * 15 + g % 8 * 2 + h; }
  D static bool has_data(u64 g, int h) { return h == 0 || g % 8 != 7; }
  D void load(u64 at) {
    meet_line();
    from = at, w = load_16(at);
  }
  // A load of 128 bytes is not one access: its parts may be read at different times, above all if only some of them are
  // in the L2 cache. So the flag, which arrives last, may be newer than the data loaded with it, and once a thread has
  // seen the flag, the data is loaded again. NCCL's LL128 does the same.
  D bool is_complete(u32 flag) {
    if (!all_of_line((threadIdx.x & 7) != 7 || (w.z == flag && w.w == flag))) return false;
    w = load_16(from);
    return true;
  }
  template<class T, int V> D Pack<T, V> data(int h) const {
    return h == 0 ? pack_of<T, V>(w.x, w.y) : pack_of<T, V>(w.z, w.w);
  }
  template<class P> D static void store(u64 at, u64 g, const P* y, u32 flag) {
    const bool last = g % 8 == 7;
    uint4 v;
    v.x = y[0].raw.x, v.y = y[0].raw.y, v.z = last ? flag : y[1].raw.x, v.w = last ? flag : y[1].raw.y;
    store_line(at, v);
  }
};

// V elements in packets of 16 bytes, one for each 8 bytes.
template<class T, int V> struct PacketsOf {
  static constexpr int COUNT = V * (int)sizeof(T) / 8, BYTES = COUNT * 16;
  Ll part[COUNT];
  D void load(u64 at) {
#pragma unroll
    for (int c = 0; c < COUNT; ++c) part[c].load(at + c * 16);
  }
  D Pack<T, V> complete(u64 at, u32 flag) {
    Pack<T, V> r;
#pragma unroll
    for (int c = 0; c < COUNT; ++c) {
      while (!part[c].is_complete(flag)) part[c].load(at + c * 16);
      reinterpret_cast<uint2*>(&r.raw)[c] = part[c].template data<u32, 2>(0).raw;
    }
    return r;
  }
  D static void store(u64 at, const Pack<T, V>& y, u32 flag) {
#pragma unroll
    for (int c = 0; c < COUNT; ++c) {
      Pack<u32, 2> part;
      part.raw = reinterpret_cast<const uint2*>(&y.raw)[c];
      Ll::store(at + c * 16, 0, &part, flag);
    }
  }
};

// An all-gather behind a reduction; see row/exchange.rs.
template<int N> struct Gathered { u64 gathered_flags_per_run, gathered_flag, gathered[N]; };

struct Epoch { u64 epoch; };
extern "C" __global__ void advance_epoch(const __grid_constant__ Epoch p) {
  *reinterpret_cast<u32*>(p.epoch) += 1;
}

// Delays a stream by the nanoseconds at an address; an address of 0 means no delay. The structure begins with
// the epoch as those of the other common kernels do.
struct Delay { u64 epoch, nanoseconds; };
extern "C" __global__ void delay_stream(const __grid_constant__ Delay p) {
  if (p.nanoseconds == 0) return;
  const u64 begin = clock_nanoseconds(), wanted = *reinterpret_cast<const u64*>(p.nanoseconds);
  while (clock_nanoseconds() - begin < wanted) {}
}

// Negates floating-point elements of `size` bytes: inverts the highest bit of each.
struct Negate { u64 epoch, at, count, size; };
extern "C" __global__ void negate(const __grid_constant__ Negate p) {
  u8* highest = reinterpret_cast<u8*>(p.at) + p.size - 1;
  const u64 step = (u64)gridDim.x * blockDim.x;
  for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < p.count; i += step) highest[i * p.size] ^= 0x80;
}
