// NCCL: communicators of processes on one host, and the rules for calls. messages.cpp executes the calls.

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <chrono>
#include <cstdarg>
#include <cstdio>
#include <utility>

#include "nccl.h"

using namespace emulator;
using namespace emulator::nccl;

API Status cuEventRecord(Event* event, Stream* stream);
API Status cuStreamWaitEvent(Stream* stream, Event* event, unsigned flags);

namespace {

// ncclUniqueId: a file of the process that created it. Nothing remains when the processes are gone.
struct Identifier {
  static constexpr uint64_t MAGIC = 0x6879'6d6e'6363'6c31;
  uint64_t magic;
  int process, file;
  char rest[112];
};
static_assert(sizeof(Identifier) == 128);

// The texts are never freed, since callers keep pointers to them.
std::atomic<const char*> told = "";

// A call that waits for the end of its group.
struct Pending {
  Comm* comm;
  Stream* stream;
  Call call;
};

struct Group {
  int depth = 0;
  std::vector<Pending> calls;
  // Status of the first call that was refused.
  Status status = SUCCESS;
};

thread_local Group group;

struct Range {
  const char* at;
  size_t bytes;

  bool overlaps(const Range& other) const {
    return bytes > 0 && other.bytes > 0 && at < other.at + other.bytes && other.at < at + bytes;
  }
  bool operator==(const Range&) const = default;
};

Range read_by(const Comm& comm, const Call& it) {
  if (it.kind == RECV || (it.kind == BROADCAST && it.peer != comm.rank)) return {nullptr, 0};
  return {it.from, it.bytes() * (it.kind == REDUCE_SCATTER ? static_cast<size_t>(comm.members) : 1)};
}

Range written_by(const Comm& comm, const Call& it) {
  if (it.kind == SEND || (it.kind == REDUCE && it.peer != comm.rank)) return {nullptr, 0};
  return {it.to, it.bytes() * (it.kind == ALL_GATHER ? static_cast<size_t>(comm.members) : 1)};
}

// Returns true if input and output are placed as NCCL documents it for in-place calls.
bool is_in_place(const Comm& comm, const Call& it) {
  const size_t mine = static_cast<size_t>(comm.rank) * it.bytes();
  return it.from + (it.kind == REDUCE_SCATTER ? mine : 0) == it.to + (it.kind == ALL_GATHER ? mine : 0);
}

// The calls of a group run in no particular order, so none may write what another one accesses.
Status check_overlaps(const std::vector<Pending>& calls) {
  for (const Pending& writer : calls) {
    const Range written = written_by(*writer.comm, writer.call);
    for (const Pending& other : calls) {
      const Range read = read_by(*other.comm, other.call);
      bool clash = written.overlaps(read);
      if (&other == &writer) {
        clash &= !is_in_place(*writer.comm, writer.call);
      } else {
        // A message to the same rank may stay in place.
        const int self = writer.comm->rank;
        const bool is_own = writer.comm == other.comm && writer.call.kind == RECV && other.call.kind == SEND &&
                            writer.call.peer == self && other.call.peer == self && written == read;
        // Messages from one rank arrive in order, so one may replace another one.
        const Range also = written_by(*other.comm, other.call);
        const bool replaces = writer.comm == other.comm && writer.call.kind == RECV && other.call.kind == RECV &&
                              writer.call.peer == other.call.peer && written == also;
        clash = (clash && !is_own) || (written.overlaps(also) && !replaces);
      }
      if (clash) {
        return refuse(BAD_ARGUMENT, "rank %d: %s writes %zu bytes at %p, which %s", writer.comm->rank,
                      NAMES[writer.call.kind], written.bytes, static_cast<const void*>(written.at),
                      &other == &writer ? "it reads, and not in place" : "another call of its group uses");
      }
    }
  }
  return SUCCESS;
}

// Enqueues the calls of one communicator on the first call's stream. The streams of the other calls join it
// before and after. It also waits for the communicator's previous work on any stream. A capture begins a
// separate order.
Status launch(Comm& comm, const std::vector<Pending>& pending) {
  const std::lock_guard lock(api());
  Stream* stream = pending[0].stream;
  std::set<Stream*> others;
  for (const Pending& it : pending) others.insert(it.stream);
  others.erase(stream);
  Status status = SUCCESS;
  const auto next = [&](Status result) { status = status == SUCCESS ? result : status; };
  if (comm.issued.last && comm.issued.last->graph == stream->graph) next(cuStreamWaitEvent(stream, &comm.issued, 0));
  for (Stream* other : others) {
    Event event = {};
    next(cuEventRecord(&event, other));
    next(cuStreamWaitEvent(stream, &event, 0));
  }
  std::vector<Call> calls;
  for (const Pending& it : pending) calls.push_back(it.call);
  // Members need not issue the two kinds in the same order.
  std::stable_partition(calls.begin(), calls.end(), [](const Call& it) { return it.is_collective(); });
  const char* what = calls.size() == 1 ? NAMES[calls[0].kind] : "group of communications";
  next(enqueue(stream, what, [&comm, calls] { run(comm, calls); }));
  next(cuEventRecord(&comm.issued, stream));
  for (Stream* other : others) next(cuStreamWaitEvent(other, &comm.issued, 0));
  return status == SUCCESS ? static_cast<Status>(SUCCESS) : refuse(CUDA_FAILED, "the driver returned %u", status);
}

// The first collective connects all members, and therefore waits for their hosts, for ever if they do not
// come. Messages do not: on H200s, the host of a receive without a send continues.
void connect(Comm& comm, const std::vector<Pending>& pending) {
  const bool meets = std::any_of(pending.begin(), pending.end(), [](const Pending& it) { return it.call.is_collective(); });
  if (!meets) return;
  comm.region->connected.fetch_or(only(comm.rank));
  while (comm.region->connected != all_of(comm.members)) usleep(50);
}

Status issue(std::vector<Pending> calls) {
  if (const Status status = check_overlaps(calls)) return status;
  while (!calls.empty()) {
    Comm& comm = *calls[0].comm;
    const auto is_ours = [&](const Pending& it) { return it.comm == &comm; };
    const auto rest = std::stable_partition(calls.begin(), calls.end(), is_ours);
    const std::vector<Pending> own(calls.begin(), rest);
    calls.erase(calls.begin(), rest);
    int waiting = 0;
    for (const auto& [_, stream, it] : own) {
      if (!it.is_collective() && it.peer == comm.rank) waiting += it.kind == SEND ? 1 : -1;
    }
    if (waiting != 0) {
      return refuse(BAD_USAGE, "rank %d sends to itself what it does not receive in the same group", comm.rank);
    }
    connect(comm, own);
    if (const Status status = launch(comm, own)) return status;
  }
  return SUCCESS;
}

Status check(const Comm* comm, const Stream* stream, const Call& it) {
  if (comm == nullptr || comm->kind != Comm::KIND) {
    return refuse(BAD_ARGUMENT, "%s without a communicator", NAMES[it.kind]);
  }
  if (const Status status = enter()) return refuse(CUDA_FAILED, "%s: the driver returned %u", NAMES[it.kind], status);
  const auto bad = [&](const char* what, unsigned number) {
    return refuse(BAD_ARGUMENT, "rank %d: %s with %s %u", comm->rank, NAMES[it.kind], what, number);
  };
  if (stream == nullptr) return bad("the default stream, number", 0);
  if (it.type >= TYPES) return bad("element type", it.type);
  if (it.combines() && it.op > AVG) return bad("operation", it.op);
  if (it.combines() && (it.type == E4M3 || it.type == E5M2)) return bad("8-bit floating-point type", it.type);
  if (it.peer < 0 || it.peer >= comm->members) return bad("peer or root", static_cast<unsigned>(it.peer));
  for (const Range& range : {read_by(*comm, it), written_by(*comm, it)}) {
    if (range.bytes > 0 && !is_mapped(range.at, range.bytes)) {
      return refuse(BAD_ARGUMENT, "rank %d: %s of %zu bytes at %p, which is not GPU memory", comm->rank, NAMES[it.kind],
                    range.bytes, static_cast<const void*>(range.at));
    }
  }
  return SUCCESS;
}

Status call(Comm* comm, Stream* stream, const Call& it) {
  const Status status = check(comm, stream, it);
  if (group.depth == 0) return status == SUCCESS ? issue({Pending{comm, stream, it}}) : status;
  if (status == SUCCESS) group.calls.push_back(Pending{comm, stream, it});
  if (group.status == SUCCESS) group.status = status;
  return status;
}

}  // namespace

Status nccl::refuse(Status status, const char* format, ...) {
  char text[400];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  fprintf(stderr, "emulated NCCL, process %d: %s\n", getpid(), text);
  told = strdup(text);
  return status;
}

API Status ncclGetVersion(int* version) {
  MAY_FAIL;
  if (version == nullptr) return BAD_ARGUMENT;
  *version = 22803;
  return SUCCESS;
}

API const char* ncclGetErrorString(Status status) {
  switch (status) {
    case SUCCESS: return "no error";
    case CUDA_FAILED: return "unhandled cuda error";
    case SYSTEM_FAILED: return "unhandled system error";
    case BAD_ARGUMENT: return "invalid argument";
    case BAD_USAGE: return "invalid usage";
    default: return "unknown result code";
  }
}

API const char* ncclGetLastError(const Comm*) { return told; }

API Status ncclCommGetAsyncError(const Comm* comm, Status* status) {
  MAY_FAIL;
  if (comm == nullptr || comm->kind != Comm::KIND || status == nullptr) return BAD_ARGUMENT;
  *status = comm->error;
  return SUCCESS;
}

API Status ncclGetUniqueId(Identifier* id) {
  MAY_FAIL;
  if (id == nullptr) return BAD_ARGUMENT;
  const int file = memfd_create("nccl", MFD_CLOEXEC);
  if (file < 0 || ftruncate(file, Region::bytes(MOST_MEMBERS)) != 0) return refuse(SYSTEM_FAILED, "no shared memory");
  *id = Identifier{Identifier::MAGIC, getpid(), file, {}};
  return SUCCESS;
}

API Status ncclCommInitRank(Comm** result, int members, Identifier id, int rank) {
  MAY_FAIL;
  constexpr auto LIMIT = std::chrono::seconds(30);
  if (const Status status = enter_unsafe()) return refuse(CUDA_FAILED, "a communicator: the driver returned %u", status);
  if (result == nullptr || id.magic != Identifier::MAGIC) return refuse(BAD_ARGUMENT, "not an identifier of a communicator");
  if (members < 1 || members > MOST_MEMBERS || rank < 0 || rank >= members) {
    return refuse(BAD_ARGUMENT, "rank %d of %d members", rank, members);
  }
  const std::string path = "/proc/" + std::to_string(id.process) + "/fd/" + std::to_string(id.file);
  const int file = open(path.c_str(), O_RDWR | O_CLOEXEC);
  void* at = mmap(nullptr, Region::bytes(members), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (file >= 0) close(file);
  if (at == MAP_FAILED) return refuse(SYSTEM_FAILED, "%s cannot be opened", path.c_str());
  auto* region = static_cast<Region*>(at);
  int none = 0;
  if (!region->members.compare_exchange_strong(none, members) && none != members) {
    return refuse(BAD_USAGE, "rank %d sees %d members, another one %d", rank, members, none);
  }
  const uint64_t all = all_of(members), mine = only(rank);
  if ((region->present.fetch_or(mine) & mine) != 0) return refuse(BAD_USAGE, "rank %d joined twice", rank);
  const auto begin = std::chrono::steady_clock::now();
  while (region->present != all) {
    if (std::chrono::steady_clock::now() - begin > LIMIT) {
      return refuse(SYSTEM_FAILED, "rank %d of %d: other ranks have not joined (set of those that have: %#lx)", rank, members,
                    region->present.load());
    }
    usleep(100);
  }
  *result = new Comm{.rank = rank, .members = members, .region = region};
  return SUCCESS;
}

API Status ncclCommDestroy(Comm* comm) {
  MAY_FAIL;
  if (const Status status = enter_unsafe()) return refuse(CUDA_FAILED, "the end of a communicator: the driver returned %u", status);
  if (comm == nullptr) return refuse(BAD_ARGUMENT, "ncclCommDestroy without a communicator");
  munmap(comm->region, Region::bytes(comm->members));
  delete comm;
  return SUCCESS;
}

API Status ncclGroupStart() {
  MAY_FAIL;
  ++group.depth;
  return SUCCESS;
}

API Status ncclGroupEnd() {
  MAY_FAIL;
  if (group.depth == 0) return refuse(BAD_USAGE, "the end of a group that was not started");
  if (--group.depth > 0) return SUCCESS;
  const Group ended = std::exchange(group, {});
  return ended.status == SUCCESS ? issue(ended.calls) : ended.status;
}

API Status ncclSend(const char* from, size_t count, Type type, int peer, Comm* comm, Stream* stream) {
  MAY_FAIL;
  return call(comm, stream, {SEND, from, nullptr, count, type, NONE, peer});
}

API Status ncclRecv(char* to, size_t count, Type type, int peer, Comm* comm, Stream* stream) {
  MAY_FAIL;
  return call(comm, stream, {RECV, nullptr, to, count, type, NONE, peer});
}

API Status ncclBroadcast(const char* from, char* to, size_t count, Type type, int root, Comm* comm, Stream* stream) {
  MAY_FAIL;
  return call(comm, stream, {BROADCAST, from, to, count, type, NONE, root});
}

API Status ncclAllGather(const char* from, char* to, size_t count, Type type, Comm* comm, Stream* stream) {
  MAY_FAIL;
  return call(comm, stream, {ALL_GATHER, from, to, count, type, NONE, 0});
}

API Status ncclAllReduce(const char* from, char* to, size_t count, Type type, Op op, Comm* comm, Stream* stream) {
  MAY_FAIL;
  return call(comm, stream, {ALL_REDUCE, from, to, count, type, op, 0});
}

API Status ncclReduce(const char* from, char* to, size_t count, Type type, Op op, int root, Comm* comm, Stream* stream) {
  MAY_FAIL;
  return call(comm, stream, {REDUCE, from, to, count, type, op, root});
}

API Status ncclReduceScatter(const char* from, char* to, size_t count, Type type, Op op, Comm* comm, Stream* stream) {
  MAY_FAIL;
  return call(comm, stream, {REDUCE_SCATTER, from, to, count, type, op, 0});
}
