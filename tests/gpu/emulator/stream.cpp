// Streams and events. Each stream is a thread that runs its work in order. Nothing orders streams except
// explicit synchronisation.
//
//   HIR_EMULATED_DELAY    maximum random delay of each piece of work, in microseconds; default: 0

#include "stream.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <random>

using namespace emulator;

namespace {

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

void delay() {
  static const uint64_t most = setting("HIR_EMULATED_DELAY", 0);
  thread_local std::mt19937_64 dice(
      static_cast<uint64_t>(getpid()) ^ std::hash<std::thread::id>()(std::this_thread::get_id()));
  if (most > 0) std::this_thread::sleep_for(std::chrono::microseconds(dice() % (most + 1)));
}

void work(Stream* stream) {
  for (;;) {
    std::unique_lock lock(stream->guard);
    stream->changed.wait(lock, [&] { return !stream->queue.empty(); });
    const auto next = std::move(stream->queue.front());
    stream->queue.pop_front();
    lock.unlock();
    delay();
    // After a fault the GPU does no more work.
    if (failed() == SUCCESS) next();
    lock.lock();
    --stream->open;
    lock.unlock();
    stream->changed.notify_all();
  }
}

void spoil(const std::shared_ptr<Graph>& graph) {
  if (graph) graph->spoilt = true;
}

// All streams; `api` protects the list.
std::vector<Stream*>& streams() {
  static auto* it = new std::vector<Stream*>;
  return *it;
}

// The graph into which this thread captures.
std::weak_ptr<Graph>& captured() {
  thread_local std::weak_ptr<Graph> it;
  return it;
}

}  // namespace

std::recursive_mutex& emulator::api() {
  static auto* it = new std::recursive_mutex;
  return *it;
}

void emulator::wait_until(const std::function<bool()>& holds) {
  // Many threads wait while one works, on few cores, so threads that have waited for long poll rarely.
  constexpr std::chrono::microseconds MOST(1000);
  std::chrono::microseconds pause(10);
  for (int round = 0; !holds() && failed() == SUCCESS; ++round) {
    // Not a yield, which would let other processes that use the processor run for a whole time slice.
    if (round < 20) continue;
    std::this_thread::sleep_for(pause);
    pause = std::min(pause * 2, MOST);
  }
}

Status emulator::enter_unsafe() {
  const std::lock_guard lock(api());
  const auto graph = captured().lock();
  if (graph && graph->open) {
    spoil(graph);
    return STREAM_CAPTURE_UNSUPPORTED;
  }
  return enter();
}

Status emulator::enqueue(Stream* stream, const char* what, std::function<void()> work) {
  if (stream == nullptr) return INVALID_HANDLE;
  const std::lock_guard api_lock(api());
  if (stream->graph) {
    if (stream->graph->spoilt) return STREAM_CAPTURE_INVALIDATED;
    stream->graph->nodes.push_back(Node{what, std::move(work), stream->last, stream});
    stream->last = {stream->graph->nodes.size() - 1};
    return SUCCESS;
  }
  {
    const std::lock_guard lock(stream->guard);
    stream->queue.push_back(std::move(work));
    ++stream->open;
  }
  stream->changed.notify_all();
  return SUCCESS;
}

API Status cuStreamCreateWithPriority(Stream** stream, unsigned flags, int priority) {
  MAY_FAIL;
  if (const Status status = enter()) return status;
  // Only non-blocking streams are supported: the rules of the default stream are not emulated.
  if (flags != 1 || priority < -5 || priority > 0) return INVALID_VALUE;
  *stream = new Stream;
  {
    const std::lock_guard lock(api());
    streams().push_back(*stream);
  }
  std::thread(work, *stream).detach();
  return SUCCESS;
}

API Status cuCtxSynchronize() {
  MAY_FAIL;
  if (const Status status = enter_unsafe()) return status;
  const std::vector<Stream*> all = [] {
    const std::lock_guard lock(api());
    return streams();
  }();
  for (Stream* stream : all) {
    std::unique_lock lock(stream->guard);
    stream->changed.wait(lock, [&] { return stream->open == 0; });
  }
  return failed();
}

// Callers poll, which costs a GPU nothing. Here the work needs the core, so a poll takes until the work ends, or a millisecond.
API Status cuStreamQuery(Stream* stream) {
  MAY_FAIL;
  if (const Status status = enter()) return status;
  {
    const std::lock_guard api_lock(api());
    if (stream->graph) {
      spoil(stream->graph);
      return STREAM_CAPTURE_UNSUPPORTED;
    }
  }
  std::unique_lock lock(stream->guard);
  const bool idle = stream->changed.wait_for(lock, std::chrono::milliseconds(1), [&] { return stream->open == 0; });
  return idle ? failed() : static_cast<Status>(NOT_READY);
}

API Status cuStreamSynchronize(Stream* stream) {
  MAY_FAIL;
  if (const Status status = enter()) return status;
  {
    const std::lock_guard api_lock(api());
    if (stream->graph) {
      spoil(stream->graph);
      return STREAM_CAPTURE_UNSUPPORTED;
    }
  }
  std::unique_lock lock(stream->guard);
  stream->changed.wait(lock, [&] { return stream->open == 0; });
  return failed();
}

API Status cuEventCreate(Event** event, unsigned flags) {
  MAY_FAIL;
  constexpr unsigned DISABLE_TIMING = 2;
  if (const Status status = enter()) return status;
  if ((flags & ~DISABLE_TIMING) != 0) return INVALID_VALUE;
  *event = new Event{(flags & DISABLE_TIMING) == 0, nullptr};
  return SUCCESS;
}

API Status cuEventRecord(Event* event, Stream* stream) {
  MAY_FAIL;
  if (const Status status = enter()) return status;
  const std::lock_guard lock(api());
  const auto record = std::make_shared<Record>();
  event->last = record;
  if (stream->graph) {
    record->graph = stream->graph;
    record->nodes = stream->last;
    return SUCCESS;
  }
  return enqueue(stream, "record", [record] {
    record->seconds = now();
    record->done = true;
  });
}

API Status cuStreamWaitEvent(Stream* stream, Event* event, unsigned flags) {
  MAY_FAIL;
  if (const Status status = enter()) return status;
  if (flags != 0) return INVALID_VALUE;
  const std::lock_guard lock(api());
  const auto record = event->last;
  // An event that was never recorded is complete.
  if (!record) return SUCCESS;
  if (record->graph) {
    if (!record->graph->open) return CAPTURED_EVENT;
    if (stream->graph && stream->graph != record->graph) return STREAM_CAPTURE_ISOLATION;
    if (!stream->graph) {
      stream->graph = record->graph;
      stream->graph->members.insert(stream);
      stream->last.clear();
    }
    stream->last.insert(record->nodes.begin(), record->nodes.end());
    return SUCCESS;
  }
  if (stream->graph) {
    spoil(stream->graph);
    return STREAM_CAPTURE_ISOLATION;
  }
  return enqueue(stream, "wait", [record] { wait_until([&] { return record->done.load(); }); });
}

API Status cuEventElapsedTime(float* milliseconds, const Event* from, const Event* to) {
  MAY_FAIL;
  if (const Status status = enter()) return status;
  if (!from->timed || !to->timed || !from->last || !to->last) return INVALID_HANDLE;
  if (!from->last->done || !to->last->done) return from->last->graph || to->last->graph ? CAPTURED_EVENT : NOT_READY;
  *milliseconds = static_cast<float>((to->last->seconds - from->last->seconds) * 1e3);
  return SUCCESS;
}

namespace {

constexpr unsigned WAIT_VALUE_32 = 1, WRITE_VALUE_32 = 2;
// A wait has this flag on a GPU that can flush remote writes, and only there.
constexpr unsigned FLUSH = 1 << 30;

bool is_valid(const MemoryOperation* operations, unsigned count) {
  constexpr unsigned MOST = 256;
  if (count == 0 || count > MOST) return false;
  return std::all_of(operations, operations + count, [](const MemoryOperation& it) {
    const bool waits = it.operation == WAIT_VALUE_32;
    const unsigned flags = waits && setting("HIR_EMULATED_FLUSH", 0) ? FLUSH : 0;
    return (waits || it.operation == WRITE_VALUE_32) && it.flags == flags && it.address % 4 == 0 &&
           is_mapped(reinterpret_cast<void*>(it.address), 4);
  });
}

void run(const MemoryOperation& it) {
  const std::atomic_ref flag(*reinterpret_cast<uint32_t*>(it.address));
  const auto value = static_cast<uint32_t>(it.value);
  if (it.operation == WRITE_VALUE_32) return flag.store(value);
  wait_until([=] { return static_cast<int32_t>(flag.load() - value) >= 0; });
}

// CUDA_BATCH_MEM_OP_NODE_PARAMS of cuda.h.
struct MemoryOperations {
  void* context;
  unsigned count;
  const MemoryOperation* list;
  unsigned flags;
};

// The handle of a node is its index, counted from 1.
size_t index_of(const void* node) { return reinterpret_cast<size_t>(node) - 1; }
void* handle_of(size_t index) { return reinterpret_cast<void*>(index + 1); }

}  // namespace

// Runs the operations in the order of the list.
API Status cuStreamBatchMemOp_v2(Stream* stream, unsigned count, const MemoryOperation* operations, unsigned flags) {
  MAY_FAIL;
  if (const Status status = enter()) return status;
  if (flags != 0 || !is_valid(operations, count)) return INVALID_VALUE;
  for (unsigned at = 0; at < count; ++at) {
    const MemoryOperation it = operations[at];
    if (const Status status = enqueue(stream, "memory operation", [it] { run(it); })) return status;
  }
  return SUCCESS;
}

API Status cuStreamWriteValue32_v2(Stream* stream, uint64_t address, uint32_t value, unsigned flags) {
  MAY_FAIL;
  const MemoryOperation it{WRITE_VALUE_32, address, value, flags, 0, 0};
  return cuStreamBatchMemOp_v2(stream, 1, &it, 0);
}

API Status cuStreamWaitValue32_v2(Stream* stream, uint64_t address, uint32_t value, unsigned flags) {
  MAY_FAIL;
  const MemoryOperation it{WAIT_VALUE_32, address, value, flags, 0, 0};
  return cuStreamBatchMemOp_v2(stream, 1, &it, 0);
}

API Status cuStreamIsCapturing(Stream* stream, unsigned* state) {
  MAY_FAIL;
  if (const Status status = enter()) return status;
  const std::lock_guard lock(api());
  *state = stream->graph ? 1 : 0;
  return SUCCESS;
}

// Nodes that the next node of a captured stream follows. The list is valid until the next call.
API Status cuStreamGetCaptureInfo_v3(Stream* stream, unsigned* state, uint64_t* id, std::shared_ptr<Graph>** graph,
                                     void* const** before, const void** edges, size_t* count) {
  MAY_FAIL;
  constexpr unsigned NONE = 0, ACTIVE = 1;
  if (const Status status = enter()) return status;
  const std::lock_guard lock(api());
  *state = stream->graph ? ACTIVE : NONE;
  if (!stream->graph) return SUCCESS;
  thread_local std::vector<void*> nodes;
  nodes.clear();
  for (const size_t index : stream->last) nodes.push_back(handle_of(index));
  *id = 1;
  *graph = &stream->graph;
  *before = nodes.data();
  *edges = nullptr;
  *count = nodes.size();
  return SUCCESS;
}

API Status cuGraphAddBatchMemOpNode(void** node, std::shared_ptr<Graph>* graph, void* const* before, size_t count,
                                    const MemoryOperations* params) {
  MAY_FAIL;
  if (const Status status = enter()) return status;
  const std::lock_guard lock(api());
  if (graph == nullptr || params->flags != 0 || !is_valid(params->list, params->count)) return INVALID_VALUE;
  auto& nodes = (*graph)->nodes;
  std::set<size_t> needs;
  for (size_t at = 0; at < count; ++at) needs.insert(index_of(before[at]));
  // The node is in no stream: only its edges order it, so its lane is its own.
  const auto operations =
      std::make_shared<const std::vector<MemoryOperation>>(params->list, params->list + params->count);
  nodes.push_back(Node{"memory operations", [] {}, needs, operations.get(), operations});
  *node = handle_of(nodes.size() - 1);
  return SUCCESS;
}

API Status cuStreamUpdateCaptureDependencies_v2(Stream* stream, void* const* nodes, const void* edges, size_t count,
                                                unsigned flags) {
  MAY_FAIL;
  constexpr unsigned SET = 1;
  if (const Status status = enter()) return status;
  const std::lock_guard lock(api());
  if (!stream->graph || edges != nullptr || flags != SET) return INVALID_VALUE;
  stream->last.clear();
  for (size_t at = 0; at < count; ++at) stream->last.insert(index_of(nodes[at]));
  return SUCCESS;
}

// Changes what a node does in later launches.
API Status cuGraphExecBatchMemOpNodeSetParams(std::shared_ptr<Graph>* executable, void* node,
                                              const MemoryOperations* params) {
  MAY_FAIL;
  if (const Status status = enter()) return status;
  const std::lock_guard lock(api());
  const size_t index = index_of(node);
  if (index >= (*executable)->nodes.size() || params->flags != 0 || !is_valid(params->list, params->count)) {
    return INVALID_VALUE;
  }
  Node& it = (*executable)->nodes[index];
  if (!it.operations) return INVALID_VALUE;
  it.operations = std::make_shared<const std::vector<MemoryOperation>>(params->list, params->list + params->count);
  return SUCCESS;
}

API Status cuStreamBeginCapture_v2(Stream* stream, unsigned mode) {
  MAY_FAIL;
  if (const Status status = enter()) return status;
  const std::lock_guard lock(api());
  if (mode > 2 || stream->graph) return INVALID_VALUE;
  const auto graph = std::make_shared<Graph>();
  graph->origin = stream;
  graph->members = {stream};
  graph->thread = std::this_thread::get_id();
  stream->graph = graph;
  stream->last.clear();
  // A relaxed capture forbids no calls.
  if (mode != 2) captured() = graph;
  return SUCCESS;
}

API Status cuStreamEndCapture(Stream* stream, std::shared_ptr<Graph>** result) {
  MAY_FAIL;
  if (const Status status = enter()) return status;
  const std::lock_guard lock(api());
  *result = nullptr;
  const auto graph = stream->graph;
  if (!graph || graph->origin != stream || graph->thread != std::this_thread::get_id()) return STREAM_CAPTURE_UNMATCHED;
  // The nodes that precede the end of the origin stream.
  std::set<size_t> before = stream->last;
  for (size_t at = graph->nodes.size(); at-- > 0;) {
    if (before.contains(at)) before.insert(graph->nodes[at].needs.begin(), graph->nodes[at].needs.end());
  }
  bool joined = true;
  for (Stream* member : graph->members) {
    for (const size_t node : member->last) joined &= before.contains(node);
    member->graph = nullptr;
    member->last.clear();
  }
  graph->open = false;
  if (graph->spoilt) return STREAM_CAPTURE_INVALIDATED;
  if (!joined) return STREAM_CAPTURE_UNJOINED;
  *result = new std::shared_ptr<Graph>(graph);
  return SUCCESS;
}

API Status cuGraphGetNodes(const std::shared_ptr<Graph>* graph, void** nodes, size_t* count) {
  MAY_FAIL;
  if (const Status status = enter()) return status;
  if (nodes != nullptr) return INVALID_VALUE;
  *count = (*graph)->nodes.size();
  return SUCCESS;
}

API Status cuGraphInstantiateWithFlags(std::shared_ptr<Graph>** executable, const std::shared_ptr<Graph>* graph,
                                       unsigned long long flags) {
  MAY_FAIL;
  constexpr unsigned long long USE_NODE_PRIORITY = 8;
  if (const Status status = enter()) return status;
  if ((flags & ~USE_NODE_PRIORITY) != 0) return INVALID_VALUE;
  *executable = new std::shared_ptr<Graph>(std::make_shared<Graph>(**graph));
  return SUCCESS;
}

API Status cuGraphExecDestroy(std::shared_ptr<Graph>* executable) {
  MAY_FAIL;
  if (const Status status = enter()) return status;
  delete executable;
  return SUCCESS;
}

API Status cuGraphDestroy(std::shared_ptr<Graph>* graph) {
  MAY_FAIL;
  if (const Status status = enter()) return status;
  delete graph;
  return SUCCESS;
}

API Status cuGraphLaunch(const std::shared_ptr<Graph>* executable, Stream* stream) {
  MAY_FAIL;
  if (const Status status = enter()) return status;
  // Later changes of nodes do not affect this launch.
  const auto graph = std::make_shared<const Graph>(**executable);
  return enqueue(stream, "graph", [graph] {
    // Branches run concurrently: one may wait for a value that a branch of another rank writes.
    std::vector<std::atomic<bool>> done(graph->nodes.size());
    std::set<const void*> lanes;
    for (const Node& node : graph->nodes) lanes.insert(node.lane);
    std::vector<std::thread> threads;
    for (const void* lane : lanes) {
      threads.emplace_back([&, lane] {
        for (size_t at = 0; at < graph->nodes.size(); ++at) {
          if (graph->nodes[at].lane != lane) continue;
          for (const size_t need : graph->nodes[at].needs) wait_until([&, need] { return done[need].load(); });
          delay();
          const Node& node = graph->nodes[at];
          if (failed() == SUCCESS && !node.operations) node.work();
          for (size_t each = 0; node.operations && each < node.operations->size() && failed() == SUCCESS; ++each) {
            run((*node.operations)[each]);
          }
          done[at] = true;
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
  });
}
