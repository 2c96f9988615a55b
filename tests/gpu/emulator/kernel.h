// The environment of a kernel's source when the host's compiler takes the place of NVRTC: CUDA's keywords and
// built-in functions, as far as the sources of src/cuda/kernels use them. The threads of a block run one
// after another. If they wait for each other or for other GPUs, each has its own execution context.
#pragma once

// C headers, because the compiler reads them for each kernel and they are short.
#include <math.h>
#include <setjmp.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>
#include <ucontext.h>

#define __device__
#define __global__
#define __forceinline__ inline
#define __grid_constant__
#define __launch_bounds__(...)
// Each host thread runs one block at a time.
#define __shared__ static thread_local

struct dim3 { unsigned x = 1, y = 1, z = 1; };
// Aligned as on the device, where a misaligned vector access is a fault.
struct alignas(8) uint2 { unsigned x, y; };
struct alignas(16) uint4 { unsigned x, y, z, w; };

static thread_local dim3 threadIdx, blockIdx, blockDim, gridDim;

namespace host {

// Where a thread of the block, and what resumes them in turns, go on. A context is entered once; afterwards `_longjmp` changes
// between them, which in contrast to `swapcontext` makes no system call.
static thread_local jmp_buf scheduler;
static thread_local jmp_buf* threads;
static thread_local const void* parameters;
static thread_local unsigned finished;
static thread_local char* ended;
static thread_local unsigned* meetings;
static thread_local bool* votes;

// How the threads of a block run: one after another; together, from one __syncthreads to the next; or in turns,
// where a thread that polls lets the others run.
enum class Threads { APART, TOGETHER, IN_TURNS };

// Pauses a thread that polls, more and more rarely. It sleeps instead of calling sched_yield, because that would let other
// processes that use the processor run for a whole time slice, once for each poll.
inline void pause(unsigned polls) {
  if (polls < 16) return;
  const timespec time = {0, polls < 256 ? 10'000 : 100'000};
  nanosleep(&time, nullptr);
}

// Called before each load from memory that other ranks write. A thread that loads from the same address again polls.
static thread_local unsigned long long polled;
static thread_local unsigned polls;
inline void poll(unsigned long long at) {
  polls = at == polled ? polls + 1 : 0;
  polled = at;
  pause(polls);
}
// The number of votes in succession that had a no.
static thread_local unsigned incomplete;

// Lets the other threads of the block go on up to their next call.
[[gnu::noinline]] void barrier() {
  const unsigned own = threadIdx.x;
  if (_setjmp(threads[own]) == 0) _longjmp(scheduler, 1);
  threadIdx.x = own;
}

// A thread of each block of a launch.
template <auto KERNEL, class P> void thread() {
  for (;;) {
    KERNEL(*static_cast<const P*>(parameters));
    ++finished;
    ended[threadIdx.x] = 1;
    barrier();
  }
}

constexpr size_t STACK = 64 << 10;

// Begins a thread of the block, which runs up to its first barrier.
[[gnu::noinline]] void begin(unsigned number, void (*thread)(), char* stacks) {
  threadIdx.x = number;
  if (_setjmp(scheduler) != 0) return;
  ucontext_t context;
  getcontext(&context);
  context.uc_stack.ss_sp = stacks + STACK * number;
  context.uc_stack.ss_size = STACK;
  makecontext(&context, thread, 0);
  setcontext(&context);
}

// Resumes a thread of the block up to its next barrier.
[[gnu::noinline]] void resume(unsigned number) {
  threadIdx.x = number;
  if (_setjmp(scheduler) == 0) _longjmp(threads[number], 1);
}

// Runs a block whose threads wait for each other; those of the first block of a launch begin here. Returns false if some
// wait at __syncthreads for threads that have ended.
inline bool run_together(unsigned block, void (*thread)(), char* stacks, Threads kind) {
  finished = 0;
  memset(ended, 0, block);
  memset(meetings, 0, block * sizeof(unsigned));
  for (bool begins = blockIdx.x == 0; finished < block; begins = false) {
    for (unsigned number = 0; number < block; ++number) {
      if (begins) {
        begin(number, thread, stacks);
      } else if (ended[number] == 0) {
        resume(number);
      }
    }
    if (kind == Threads::TOGETHER && finished > 0 && finished < block) return false;
  }
  return true;
}

template <auto KERNEL, class P> bool run(const void* words, unsigned grid, unsigned block, Threads kind) {
  const bool meets = kind != Threads::APART;
  gridDim.x = grid;
  blockDim.x = block;
  parameters = words;
  char* stacks = nullptr;
  if (meets) {
    threads = static_cast<jmp_buf*>(malloc(sizeof(jmp_buf) * block));
    stacks = static_cast<char*>(malloc(STACK * block));
    ended = static_cast<char*>(malloc(block));
    meetings = static_cast<unsigned*>(malloc(block * sizeof(unsigned)));
    votes = static_cast<bool*>(malloc(block * sizeof(bool)));
  }
  bool fine = true;
  for (unsigned at = 0; at < grid && fine; ++at) {
    blockIdx.x = at;
    if (meets) {
      fine = run_together(block, thread<KERNEL, P>, stacks, kind);
      continue;
    }
    for (unsigned number = 0; number < block; ++number) {
      threadIdx.x = number;
      KERNEL(*static_cast<const P*>(words));
    }
  }
  if (meets) {
    free(stacks);
    free(threads);
    free(ended);
    free(meetings);
    free(votes);
  }
  return fine;
}

}  // namespace host

inline void __syncthreads() { host::barrier(); }

// Max and min as PTX defines them: a number is selected over any NaN, and +0 is larger than -0. The functions
// of C leave both open.
namespace host {
template <class V> V larger(V a, V b) { return a != a ? b : b != b ? a : a == b ? (signbit(a) ? b : a) : a > b ? a : b; }
template <class V> V smaller(V a, V b) { return a != a ? b : b != b ? a : a == b ? (signbit(a) ? a : b) : a < b ? a : b; }
}  // namespace host
#define fmaxf host::larger<float>
#define fminf host::smaller<float>
#define fmax host::larger<double>
#define fmin host::smaller<double>

inline float __uint_as_float(unsigned bits) { float r; memcpy(&r, &bits, 4); return r; }
inline float __int_as_float(int bits) { float r; memcpy(&r, &bits, 4); return r; }
inline unsigned __float_as_uint(float v) { unsigned r; memcpy(&r, &v, 4); return r; }

// Rounds towards zero.
namespace host {
template <class V> float toward_zero(V v) {
  const float r = static_cast<float>(v);
  const auto wide = static_cast<long double>(v), rounded = static_cast<long double>(r);
  return fabsl(rounded) > fabsl(wide) ? nextafterf(r, 0.0f) : r;
}
}  // namespace host
inline float __double2float_rz(double v) { return host::toward_zero(v); }
inline float __ll2float_rz(long long v) { return host::toward_zero(v); }
inline float __ull2float_rz(unsigned long long v) { return host::toward_zero(v); }

// The instructions that have no name in C++; see src/cuda/kernels/prelude.cu.
inline float half_to_float(unsigned short bits) {
  const int exponent = bits >> 10 & 31, fraction = bits & 1023;
  const float size = exponent == 31  ? (fraction != 0 ? NAN : INFINITY)
                     : exponent == 0 ? ldexpf(static_cast<float>(fraction), -24)
                                     : ldexpf(static_cast<float>(fraction + 1024), exponent - 25);
  return (bits & 0x8000) != 0 ? -size : size;
}
inline unsigned short float_to_half(float v) {
  const unsigned short sign = signbit(v) ? 0x8000 : 0;
  if (v != v) return 0x7fff;
  const float size = fabsf(v);
  if (size >= 65520.0f) return sign | 0x7c00;
  // Steps of 2^-24 below the smallest normal number, and of 2^(exponent - 10) above it. Ties go to the even
  // step.
  int exponent = size < 6.103515625e-5f ? -14 : ilogbf(size);
  const auto steps = static_cast<unsigned>(nearbyintf(ldexpf(size, 10 - exponent)));
  return static_cast<unsigned short>(sign | (steps + (static_cast<unsigned>(exponent + 14) << 10)));
}
inline unsigned short float_to_bfloat(float v) {
  if (v != v) return 0x7fff;
  const unsigned bits = __float_as_uint(v);
  return static_cast<unsigned short>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
inline void fence_system() { __atomic_thread_fence(__ATOMIC_ACQ_REL); }
inline void store_relaxed(unsigned long long at, unsigned value) {
  // The compiler must not move earlier accesses of other threads behind it.
  __atomic_store_n(reinterpret_cast<unsigned*>(at), value, __ATOMIC_RELEASE);
}
inline unsigned load_acquire(unsigned long long at) {
  host::poll(at);
  return __atomic_load_n(reinterpret_cast<unsigned*>(at), __ATOMIC_ACQUIRE);
}
inline void store_16(unsigned long long at, uint4 v) {
  const auto half = [](unsigned low, unsigned high) { return static_cast<unsigned long long>(high) << 32 | low; };
  auto* to = reinterpret_cast<unsigned long long*>(at);
  __atomic_store_n(to, half(v.x, v.y), __ATOMIC_RELEASE);
  __atomic_store_n(to + 1, half(v.z, v.w), __ATOMIC_RELEASE);
}
inline uint4 load_16(unsigned long long at) {
  host::poll(at);
  const auto* from = reinterpret_cast<const unsigned long long*>(at);
  const unsigned long long low = __atomic_load_n(from, __ATOMIC_ACQUIRE);
  const unsigned long long high = __atomic_load_n(from + 1, __ATOMIC_ACQUIRE);
  uint4 r;
  r.x = static_cast<unsigned>(low), r.y = static_cast<unsigned>(low >> 32);
  r.z = static_cast<unsigned>(high), r.w = static_cast<unsigned>(high >> 32);
  return r;
}
// Waits until all of eight threads have come here as often as this one.
inline void meet_line() {
  const unsigned own = threadIdx.x, first = own & ~7u, count = ++host::meetings[own];
  for (unsigned it = first; it < first + 8; ++it) {
    while (host::meetings[it] < count) host::barrier();
  }
}
// The last thread stores the flag, after the others have stored their data.
inline void store_line(unsigned long long at, uint4 v) {
  const bool last = threadIdx.x % 8 == 7;
  if (!last) store_16(at, v);
  meet_line();
  if (last) store_16(at, v);
}
inline bool all_of_line(bool yes) {
  const unsigned own = threadIdx.x, first = own & ~7u;
  host::votes[own] = yes;
  meet_line();
  bool all = true;
  for (unsigned it = first; it < first + 8; ++it) all = all && host::votes[it];
  if (own == first) {
    host::incomplete = all ? 0 : host::incomplete + 1;
    host::pause(host::incomplete);
  }
  // No thread votes again before all have counted.
  meet_line();
  return all;
}
template <class C> C of_lane(C v, unsigned thread) {
  static thread_local C all[1024];
  all[threadIdx.x] = v;
  host::barrier();
  const C r = all[thread];
  host::barrier();
  return r;
}
// What all threads of a block say, by thread.
namespace host {
template <class C, class F> auto of_all(C v, F reduce) {
  static thread_local C all[1024];
  all[threadIdx.x] = v;
  barrier();
  const auto r = reduce(all);
  barrier();
  return r;
}
}  // namespace host
// As PTX distributes the elements of tiles over the threads of a warp ("mma.m16n8k16").
template <class T> void multiply_tiles(T, float (&c)[4], unsigned a0, unsigned a1, unsigned a2, unsigned a3, unsigned b0, unsigned b1) {
  struct Own { unsigned a[4], b[2]; };
  const Own own = {{a0, a1, a2, a3}, {b0, b1}};
  host::of_all(own, [&c](const Own* all) {
    const Own* warp = all + (threadIdx.x & ~31u);
    const unsigned lane = threadIdx.x & 31;
    const auto element = [](unsigned word, unsigned half) { return wide(T{static_cast<unsigned short>(word >> 16 * half)}); };
    for (unsigned i = 0; i < 4; ++i) {
      const unsigned row = lane / 4, column = lane % 4 * 2 + i % 2;
      for (unsigned k = 0; k < 16; ++k) {
        const unsigned place = k % 8 / 2;
        c[i] += element(warp[row * 4 + place].a[i / 2 + k / 8 * 2], k % 2) * element(warp[column * 4 + place].b[k / 8], k % 2);
      }
    }
    return 0;
  });
}
// All threads of the block call it.
inline void __syncwarp() { host::barrier(); }
inline int __syncthreads_or(int yes) {
  return host::of_all(yes, [](const int* all) {
    int any = 0;
    for (unsigned it = 0; it < blockDim.x; ++it) any |= all[it];
    return any;
  });
}
inline unsigned largest_of_warp(unsigned v) {
  return host::of_all(v, [](const unsigned* all) {
    unsigned r = 0;
    for (unsigned it = threadIdx.x & ~31u; it <= (threadIdx.x | 31u); ++it) r = all[it] > r ? all[it] : r;
    return r;
  });
}
inline unsigned votes_of_warp(bool yes) {
  return host::of_all(yes, [](const bool* all) {
    unsigned r = 0;
    for (unsigned it = 0; it < 32; ++it) r |= static_cast<unsigned>(all[(threadIdx.x & ~31u) + it]) << it;
    return r;
  });
}
inline int __ffs(unsigned v) { return ffs(static_cast<int>(v)); }
// Threads run one after another between two barriers, so plain accesses to shared memory are atomic.
inline unsigned atomicMax(unsigned* at, unsigned v) { const unsigned r = *at; *at = r > v ? r : v; return r; }
inline unsigned atomicMin(unsigned* at, unsigned v) { const unsigned r = *at; *at = r < v ? r : v; return r; }
inline unsigned atomicOr(unsigned* at, unsigned v) { const unsigned r = *at; *at = r | v; return r; }
inline void store_word(unsigned long long at, unsigned long long v) { *reinterpret_cast<unsigned long long*>(at) = v; }
inline unsigned long long load_word(unsigned long long at) { return *reinterpret_cast<unsigned long long*>(at); }
inline unsigned next_number(unsigned long long at) { return (*reinterpret_cast<unsigned*>(at))++; }
// The software of the prelude converts to floats of 8 bits.
constexpr bool HAS_FLOAT_TO_SMALL = false;
template <int E> unsigned char float_to_small(float) { return 0; }
inline unsigned arrive(unsigned long long at) {
  return __atomic_fetch_add(reinterpret_cast<unsigned*>(at), 1u, __ATOMIC_ACQ_REL);
}
inline unsigned arrive_on_device(unsigned long long at) { return next_number(at); }
inline unsigned long long clock_nanoseconds() {
  const timespec pause = {0, 10'000};
  nanosleep(&pause, nullptr);
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return 1000000000ull * static_cast<unsigned long long>(now.tv_sec) + static_cast<unsigned long long>(now.tv_nsec);
}

// Inverse functions by bisection, in a wider type than that of the result: accurate to the last bits, but
// slow.
namespace host {
inline double inverse(long double (*falling)(long double), long double v, long double low, long double high) {
  for (int round = 0; round < 100; ++round) {
    const long double middle = 0.5L * (low + high);
    (falling(middle) > v ? low : high) = middle;
  }
  return static_cast<double>(0.5L * (low + high));
}
}  // namespace host
namespace host {
// The inverse of erfc for small values, and of erf for values up to a half, where each is accurate.
inline double tail(double v) { return v == 0 ? INFINITY : inverse(erfcl, v, 0, 30); }
inline double centre(double v) {
  // The tangent at 0, near which the next term vanishes.
  if (fabs(v) < 1e-9) return v * 0.886226925452758;
  return copysign(inverse([](long double x) { return -erfl(x); }, -fabs(v), 0, 1), v);
}
}  // namespace host
inline double erfcinv(double v) {
  if (!(v >= 0 && v <= 2)) return NAN;
  return v < 0.5 ? host::tail(v) : v > 1.5 ? -host::tail(2 - v) : host::centre(1 - v);
}
inline double erfinv(double v) {
  if (!(fabs(v) <= 1)) return NAN;
  return fabs(v) <= 0.5 ? host::centre(v) : copysign(host::tail(1 - fabs(v)), v);
}
inline float erfcinvf(float v) { return static_cast<float>(erfcinv(v)); }
inline float erfinvf(float v) { return static_cast<float>(erfinv(v)); }
