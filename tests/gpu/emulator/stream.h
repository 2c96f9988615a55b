// Streams, events and graphs, for the code that enqueues work on them.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "emulator.h"

namespace emulator {

// CUstreamBatchMemOpParams of cuda.h.
struct MemoryOperation {
  unsigned operation;
  uint64_t address;
  uint64_t value;
  unsigned flags;
  uint64_t alias, rest;
};
static_assert(sizeof(MemoryOperation) == 48);

// A node of a graph. It runs after the nodes that it needs, which have smaller indices.
struct Node {
  std::string what;
  std::function<void()> work;
  std::set<size_t> needs;
  // Nodes of one lane run in order, like the work of one stream.
  const void* lane;
  // Of a node of memory operations: what it does in the next launch.
  std::shared_ptr<const std::vector<MemoryOperation>> operations = nullptr;
};

struct Graph {
  std::vector<Node> nodes;
  Stream* origin = nullptr;
  // The streams whose work is captured.
  std::set<Stream*> members;
  bool open = true, spoilt = false;
  std::thread::id thread;
};

// One record of an event.
struct Record {
  std::atomic<bool> done = false;
  double seconds = 0;
  // If the record was captured: the graph, and the nodes that precede it.
  std::shared_ptr<Graph> graph;
  std::set<size_t> nodes;
};

struct Event {
  bool timed;
  // The last record. A wait refers to the last record at the time of the call.
  std::shared_ptr<Record> last;
};

struct Stream {
  std::mutex guard;
  std::condition_variable changed;
  std::deque<std::function<void()>> queue;
  // Amount of work that is queued or running.
  size_t open = 0;
  // During a capture: the graph, and the nodes that the next node needs.
  std::shared_ptr<Graph> graph;
  std::set<size_t> last;
};

// The lock for all driver calls.
std::recursive_mutex& api();

// Waits until a condition holds, without using a core all the time.
void wait_until(const std::function<bool()>& holds);

}  // namespace emulator
