// Streams, events and graphs, for those who put work on them.
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

// Work of a graph; it runs after the nodes that it needs, which have smaller numbers.
struct Node {
  std::string what;
  std::function<void()> work;
  std::set<size_t> needs;
  // Nodes of one lane run one after another, as those of one stream.
  const Stream* lane;
};

struct Graph {
  std::vector<Node> nodes;
  Stream* origin = nullptr;
  // Streams whose work is captured.
  std::set<Stream*> members;
  bool open = true, spoilt = false;
  std::thread::id thread;
};

// One record of an event.
struct Record {
  std::atomic<bool> done = false;
  double seconds = 0;
  // What came before it, where it was captured.
  std::shared_ptr<Graph> graph;
  std::set<size_t> nodes;
};

struct Event {
  bool timed;
  // Waits mean the last record at the time of the call, not later ones.
  std::shared_ptr<Record> last;
};

struct Stream {
  std::mutex guard;
  std::condition_variable changed;
  std::deque<std::function<void()>> queue;
  // Work that is queued or running.
  size_t open = 0;
  // While it is captured: the graph and the nodes that the next one needs.
  std::shared_ptr<Graph> graph;
  std::set<size_t> last;
};

// One thing at a time is asked of the driver.
std::recursive_mutex& api();

// Waits politely until something holds.
void wait_until(const std::function<bool()>& holds);

}  // namespace emulator
