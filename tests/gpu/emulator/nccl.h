// Communicators and their calls.
#pragma once

#include <algorithm>
#include <array>
#include <cstring>

#include "stream.h"

namespace emulator::nccl {

// ncclResult_t.
enum : Status { CUDA_FAILED = 1, SYSTEM_FAILED = 2, BAD_ARGUMENT = 4, BAD_USAGE = 5 };

// ncclDataType_t.
enum Type : uint32_t { I8, U8, I32, U32, I64, U64, F16, F32, F64, BF16, E4M3, E5M2, TYPES };
constexpr size_t SIZES[TYPES] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};

// ncclRedOp_t. NONE is for calls that only move data.
enum Op : uint32_t { SUM, PROD, MAX, MIN, AVG, NONE };

enum Kind : uint32_t { SEND, RECV, BROADCAST, ALL_GATHER, ALL_REDUCE, REDUCE, REDUCE_SCATTER };
constexpr const char* NAMES[] = {"send", "receive", "broadcast", "all-gather", "all-reduce", "reduce", "reduce-scatter"};

// A buffer that one member writes and another reads. Both positions only increase.
struct Ring {
  static constexpr size_t BYTES = 64 << 10;
  alignas(64) std::atomic<uint64_t> written;
  alignas(64) std::atomic<uint64_t> read;
  alignas(64) char bytes[BYTES];

  // Writes as many bytes as there is space for.
  size_t put(const char* from, size_t bytes_left) {
    const uint64_t at = written.load(std::memory_order_relaxed);
    const size_t room = BYTES - (at - read.load(std::memory_order_acquire));
    const size_t part = std::min({bytes_left, room, BYTES - at % BYTES});
    if (part > 0) memcpy(bytes + at % BYTES, from, part);
    written.store(at + part, std::memory_order_release);
    return part;
  }

  // Reads as many bytes as have arrived.
  size_t take(char* to, size_t bytes_left) {
    const uint64_t at = read.load(std::memory_order_relaxed);
    const size_t come = written.load(std::memory_order_acquire) - at;
    const size_t part = std::min({bytes_left, come, BYTES - at % BYTES});
    if (part > 0) memcpy(to, bytes + at % BYTES, part);
    read.store(at + part, std::memory_order_release);
    return part;
  }
};

constexpr int MOST_MEMBERS = 64;
// Sets of members, with one bit per member.
constexpr uint64_t only(int rank) { return uint64_t{1} << rank; }
constexpr uint64_t all_of(int members) { return ~uint64_t{0} >> (64 - members); }

// The shared memory of a communicator. New pages are zero, which is a valid initial state, and take no memory
// until they are used.
struct Region {
  std::atomic<int> members;
  // One bit for each rank that has arrived.
  std::atomic<uint64_t> present;
  // One bit for each rank whose host has reached its first collective.
  std::atomic<uint64_t> connected;
  // One for each ordered pair of members.
  Ring rings[];

  static constexpr size_t bytes(int members) {
    return sizeof(Region) + static_cast<size_t>(members * members) * sizeof(Ring);
  }
};

struct Call {
  Kind kind;
  const char* from;
  char* to;
  // Number of elements, as the caller counts them.
  size_t count;
  Type type;
  Op op;
  // The root or the peer.
  int peer;

  bool is_collective() const { return kind != SEND && kind != RECV; }
  bool combines() const { return kind >= ALL_REDUCE; }
  size_t bytes() const { return count * SIZES[type]; }
};

struct Comm {
  static constexpr uint64_t KIND = 0x6e63'636c;
  uint64_t kind = KIND;
  int rank, members;
  Region* region;
  std::atomic<Status> error = SUCCESS;
  // Recorded after the last issued call, for the next call to wait for.
  Event issued = {};
  // Held by the work that runs, and protects the counts.
  std::mutex running = {};
  uint64_t collectives = 0;
  std::array<uint64_t, MOST_MEMBERS> sent = {}, received = {};

  Ring& ring(int from, int to) { return region->rings[from * members + to]; }
};

// Prints the error and returns the status.
Status refuse(Status status, const char* format, ...) __attribute__((format(printf, 2, 3)));

// Runs calls as one unit, on the thread of a stream.
void run(Comm& comm, const std::vector<Call>& calls);

}  // namespace emulator::nccl
