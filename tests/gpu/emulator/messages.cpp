// The execution of NCCL calls when their stream reaches them: messages between processes. Every message
// describes its call, so a member that makes another call than the others is detected. A member that waits
// for a message that never comes waits for ever, as with the real library.

#include <cmath>
#include <type_traits>

#include "nccl.h"
#include "numbers.h"

using namespace emulator;
using namespace emulator::nccl;

namespace {

// The beginning of a message.
struct Header {
  Kind kind;
  Type type;
  Op op;
  int root;
  // Collectives are numbered per communicator, messages per direction.
  uint64_t number, bytes;

  bool operator==(const Header&) const = default;
};

// A message in transit. The header goes first.
struct Transfer {
  Header header;
  const char* from;
  char* to;
  size_t done = 0;
  Header come = {};

  size_t total() const { return sizeof(Header) + header.bytes; }
};

std::string describe(const Header& it) {
  static const char* const TYPE_NAMES[] = {"int8", "uint8", "int32", "uint32", "int64", "uint64",
                                           "f16",  "f32",   "f64",   "bf16",   "e4m3",  "e5m2"};
  static const char* const OP_NAMES[] = {"sum", "prod", "max", "min", "avg"};
  if (it.kind > REDUCE_SCATTER || it.type >= TYPES || it.op > NONE) return "something unknown";
  std::string text = it.kind == SEND ? "message" : NAMES[it.kind];
  text += " " + std::to_string(it.number) + " (" + std::to_string(it.bytes) + " bytes of " + TYPE_NAMES[it.type];
  if (it.op != NONE) text += std::string(", ") + OP_NAMES[it.op];
  if (it.root >= 0) text += ", root " + std::to_string(it.root);
  return text + ")";
}

// Numbers are combined in their own type, 16-bit ones in binary32.
template <class T>
struct Wide {
  using type = T;
};
template <>
struct Wide<Half> {
  using type = float;
};
template <>
struct Wide<BFloat> {
  using type = float;
};

template <class T>
T combine(Op op, T a, T b) {
  if constexpr (std::is_floating_point_v<T>) {
    if (op == MAX) return std::fmax(a, b);
    if (op == MIN) return std::fmin(a, b);
    return op == PROD ? a * b : a + b;
  } else {
    // Overflow wraps.
    using Bits = std::make_unsigned_t<T>;
    if (op == MAX) return std::max(a, b);
    if (op == MIN) return std::min(a, b);
    const auto x = static_cast<Bits>(a), y = static_cast<Bits>(b);
    return static_cast<T>(op == PROD ? x * y : x + y);
  }
}

// Combines the consecutive parts of all members, and rounds once.
template <class T>
void combine(Op op, const char* parts, size_t members, size_t count, char* to) {
  using Number = typename Wide<T>::type;
  const auto* values = reinterpret_cast<const T*>(parts);
  for (size_t at = 0; at < count; ++at) {
    auto result = static_cast<Number>(values[at]);
    for (size_t member = 1; member < members; ++member) {
      result = combine<Number>(op, result, static_cast<Number>(values[member * count + at]));
    }
    if (op == AVG) result = static_cast<Number>(result / static_cast<Number>(members));
    reinterpret_cast<T*>(to)[at] = static_cast<T>(result);
  }
}

void combine(Type type, Op op, const char* parts, size_t members, size_t count, char* to) {
  switch (type) {
    case I8: return combine<int8_t>(op, parts, members, count, to);
    case U8: return combine<uint8_t>(op, parts, members, count, to);
    case I32: return combine<int32_t>(op, parts, members, count, to);
    case U32: return combine<uint32_t>(op, parts, members, count, to);
    case I64: return combine<int64_t>(op, parts, members, count, to);
    case U64: return combine<uint64_t>(op, parts, members, count, to);
    case F16: return combine<Half>(op, parts, members, count, to);
    case F32: return combine<float>(op, parts, members, count, to);
    case F64: return combine<double>(op, parts, members, count, to);
    case BF16: return combine<BFloat>(op, parts, members, count, to);
    case E4M3:
    case E5M2:
    case TYPES: return;  // refused when they are issued
  }
}

// Calls that run as one unit. All messages move concurrently, those of one direction in order.
class Work {
 public:
  Work(Comm& comm, const std::vector<Call>& calls) : comm(comm), sends(members()), receives(members()) {
    parts.resize(calls.size());
    for (size_t at = 0; at < calls.size(); ++at) add(calls[at], parts[at]);
  }

  // Runs until everything is sent and received. Returns false if that can never happen.
  bool run() {
    while (left > 0) {
      if (failed() != SUCCESS || comm.error != SUCCESS) return false;
      wait_until([&] { return advance() || comm.error != SUCCESS; });
    }
    return true;
  }

  // Returns the data received for a call that combines.
  const char* came(size_t call) const { return parts[call].data(); }

 private:
  Comm& comm;
  std::vector<std::deque<Transfer>> sends, receives;
  std::vector<std::vector<char>> parts;
  size_t left = 0;

  size_t members() const { return static_cast<size_t>(comm.members); }

  void send(int to, const Header& header, const char* from) {
    sends[static_cast<size_t>(to)].push_back(Transfer{header, from, nullptr});
    ++left;
  }

  void receive(int from, const Header& header, char* to) {
    receives[static_cast<size_t>(from)].push_back(Transfer{header, nullptr, to});
    ++left;
  }

  void add(const Call& it, std::vector<char>& gathered) {
    const size_t bytes = it.bytes();
    const bool is_rooted = it.kind == BROADCAST || it.kind == REDUCE;
    Header header{it.kind, it.type, it.op, is_rooted ? it.peer : -1, 0, bytes};
    if (it.is_collective()) header.number = ++comm.collectives;
    // The destination of a member's part.
    const auto place = [&](int member) { return static_cast<size_t>(member) * bytes; };
    const bool is_root = it.peer == comm.rank;
    if (it.combines() && (it.kind != REDUCE || is_root)) gathered.resize(members() * bytes);
    switch (it.kind) {
      case SEND:
        header.number = ++comm.sent[static_cast<size_t>(it.peer)];
        return send(it.peer, header, it.from);
      case RECV:
        header.kind = SEND;
        header.number = ++comm.received[static_cast<size_t>(it.peer)];
        return receive(it.peer, header, it.to);
      case BROADCAST:
        for (int member = 0; is_root && member < comm.members; ++member) send(member, header, it.from);
        return receive(it.peer, header, it.to);
      case REDUCE:
        for (int member = 0; is_root && member < comm.members; ++member) {
          receive(member, header, gathered.data() + place(member));
        }
        return send(it.peer, header, it.from);
      case ALL_GATHER:
      case ALL_REDUCE:
      case REDUCE_SCATTER:
        for (int member = 0; member < comm.members; ++member) {
          send(member, header, it.from + (it.kind == REDUCE_SCATTER ? place(member) : 0));
          receive(member, header, (it.combines() ? gathered.data() : it.to) + place(member));
        }
        return;
    }
  }

  // Returns true if anything moved.
  bool advance() {
    size_t moved = 0;
    for (int peer = 0; peer < comm.members; ++peer) {
      auto& out = sends[static_cast<size_t>(peer)];
      while (!out.empty() && push(out.front(), comm.ring(comm.rank, peer), moved)) out.pop_front(), --left;
      auto& in = receives[static_cast<size_t>(peer)];
      while (!in.empty() && pull(in.front(), comm.ring(peer, comm.rank), peer, moved)) in.pop_front(), --left;
    }
    return moved > 0;
  }

  // Returns true when the message is complete.
  bool push(Transfer& it, Ring& ring, size_t& moved) {
    while (it.done < it.total()) {
      const bool in_header = it.done < sizeof(Header);
      const auto* header = reinterpret_cast<const char*>(&it.header);
      const char* from = in_header ? header + it.done : it.from + (it.done - sizeof(Header));
      const size_t part = ring.put(from, (in_header ? sizeof(Header) : it.total()) - it.done);
      if (part == 0) return false;
      it.done += part;
      moved += part;
    }
    return true;
  }

  bool pull(Transfer& it, Ring& ring, int peer, size_t& moved) {
    while (it.done < it.total()) {
      const bool in_header = it.done < sizeof(Header);
      auto* header = reinterpret_cast<char*>(&it.come);
      char* to = in_header ? header + it.done : it.to + (it.done - sizeof(Header));
      const size_t part = ring.take(to, (in_header ? sizeof(Header) : it.total()) - it.done);
      if (part == 0) return false;
      it.done += part;
      moved += part;
      if (it.done == sizeof(Header) && it.come != it.header) {
        comm.error = refuse(BAD_USAGE, "rank %d of %d waits for %s from rank %d, which sends %s", comm.rank, comm.members,
                            describe(it.header).c_str(), peer, describe(it.come).c_str());
        return false;
      }
    }
    return true;
  }
};

}  // namespace

void nccl::run(Comm& comm, const std::vector<Call>& calls) {
  const std::lock_guard lock(comm.running);
  const char* part = comm.collectives == 0 ? "ncclConnection" : "ncclNetwork";
  if (injected(part) != SUCCESS) comm.error = refuse(SYSTEM_FAILED, "rank %d: the network has failed", comm.rank);
  Work work(comm, calls);
  if (!work.run()) {
    // As in the real library, the call does not end, and its error can be queried.
    wait_until([] { return false; });
    return;
  }
  for (size_t at = 0; at < calls.size(); ++at) {
    const Call& it = calls[at];
    if (!it.combines() || (it.kind == REDUCE && it.peer != comm.rank)) continue;
    combine(it.type, it.op, work.came(at), static_cast<size_t>(comm.members), it.count, it.to);
  }
}

