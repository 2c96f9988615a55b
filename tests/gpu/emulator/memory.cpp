// GPU memory: files in memory, which other processes map as with CUDA IPC. Copies check their bounds.
//
//   HIR_EMULATED_ANY_MEMORY   1 if all memory of the process counts as GPU memory; default: 0

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <map>
#include <mutex>

#include "emulator.h"

using namespace emulator;

namespace {

constexpr uint64_t MAGIC = 0x6879'6d65'6d6f'7279;
// The contents of new memory. Nothing may rely on zeros.
constexpr int GARBAGE = 0xa5;
constexpr size_t GARBAGE_BYTES = 8 << 20;

enum class Kind { DEVICE, HOST, PEER };

struct Region {
  size_t bytes;
  Kind kind;
  // The file descriptor; -1 for host memory and for memory of other processes.
  int file;
};

struct Handle {
  uint64_t magic, bytes;
  int process, file;
  char rest[40];
};
static_assert(sizeof(Handle) == 64);

std::mutex& guard() {
  static auto* it = new std::mutex;
  return *it;
}

std::map<uint64_t, Region>& regions() {
  static auto* it = new std::map<uint64_t, Region>;
  return *it;
}

size_t taken = 0;

size_t capacity() { return setting("HIR_EMULATED_MEMORY", size_t{4} << 30); }

void remember(const void* at, size_t bytes, Kind kind, int file) {
  const std::lock_guard lock(guard());
  regions()[reinterpret_cast<uint64_t>(at)] = Region{bytes, kind, file};
}

// Frees the region of this kind that begins here. A later use of it is detected.
Status forget(uint64_t at, Kind kind) {
  const std::lock_guard lock(guard());
  const auto found = regions().find(at);
  if (found == regions().end() || found->second.kind != kind) return INVALID_VALUE;
  const Region region = found->second;
  regions().erase(found);
  munmap(reinterpret_cast<void*>(at), region.bytes);
  if (region.file >= 0) close(region.file);
  if (kind == Kind::DEVICE) taken -= region.bytes;
  return SUCCESS;
}

}  // namespace

bool emulator::is_mapped(const void* at, size_t bytes) {
  if (setting("HIR_EMULATED_ANY_MEMORY", 0) != 0) return at != nullptr || bytes == 0;
  const std::lock_guard lock(guard());
  const auto start = reinterpret_cast<uint64_t>(at);
  auto next = regions().upper_bound(start);
  if (next == regions().begin()) return false;
  const auto& [base, region] = *std::prev(next);
  return start - base <= region.bytes && bytes <= region.bytes - (start - base);
}

API Status cuMemAlloc_v2(uint64_t* address, size_t bytes) {
  MAY_FAIL;
  if (const Status status = enter_unsafe()) return status;
  if (bytes == 0) return INVALID_VALUE;
  if (bytes > capacity() - taken) return OUT_OF_MEMORY;
  const int file = memfd_create("gpu", MFD_CLOEXEC);
  if (file < 0 || ftruncate(file, static_cast<off_t>(bytes)) != 0) return OUT_OF_MEMORY;
  void* at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (at == MAP_FAILED) return OUT_OF_MEMORY;
  memset(at, GARBAGE, bytes < GARBAGE_BYTES ? bytes : GARBAGE_BYTES);
  taken += bytes;
  remember(at, bytes, Kind::DEVICE, file);
  *address = reinterpret_cast<uint64_t>(at);
  return SUCCESS;
}

API Status cuMemFree_v2(uint64_t address) {
  MAY_FAIL;
  if (const Status status = enter_unsafe()) return status;
  return forget(address, Kind::DEVICE);
}

API Status cuMemGetInfo_v2(size_t* available, size_t* total) {
  MAY_FAIL;
  *total = capacity();
  *available = capacity() - taken;
  return enter();
}

API Status cuMemHostAlloc(void** pointer, size_t bytes, unsigned flags) {
  MAY_FAIL;
  if (const Status status = enter_unsafe()) return status;
  if (bytes == 0 || flags > 7) return INVALID_VALUE;
  void* at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (at == MAP_FAILED) return OUT_OF_MEMORY;
  remember(at, bytes, Kind::HOST, -1);
  *pointer = at;
  return SUCCESS;
}

API Status cuMemFreeHost(void* pointer) {
  MAY_FAIL;
  if (const Status status = enter_unsafe()) return status;
  return forget(reinterpret_cast<uint64_t>(pointer), Kind::HOST);
}

API Status cuIpcGetMemHandle(Handle* handle, uint64_t address) {
  MAY_FAIL;
  if (const Status status = enter()) return status;
  const std::lock_guard lock(guard());
  const auto found = regions().find(address);
  if (found == regions().end() || found->second.file < 0) return INVALID_VALUE;
  *handle = Handle{MAGIC, found->second.bytes, getpid(), found->second.file, {}};
  return SUCCESS;
}

API Status cuIpcOpenMemHandle_v2(uint64_t* address, Handle handle, unsigned flags) {
  MAY_FAIL;
  if (const Status status = enter()) return status;
  if (handle.magic != MAGIC || flags != 1) return INVALID_VALUE;
  // A process cannot open what it has exported itself.
  if (handle.process == getpid()) return INVALID_CONTEXT;
  char path[64];
  snprintf(path, sizeof path, "/proc/%d/fd/%d", handle.process, handle.file);
  const int file = open(path, O_RDWR | O_CLOEXEC);
  if (file < 0) return INVALID_HANDLE;
  void* at = mmap(nullptr, handle.bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  close(file);
  if (at == MAP_FAILED) return OUT_OF_MEMORY;
  remember(at, handle.bytes, Kind::PEER, -1);
  *address = reinterpret_cast<uint64_t>(at);
  return SUCCESS;
}

API Status cuIpcCloseMemHandle(uint64_t address) {
  MAY_FAIL;
  if (const Status status = enter()) return status;
  return forget(address, Kind::PEER);
}

API Status cuMemcpyDtoDAsync_v2(uint64_t to, uint64_t from, size_t bytes, Stream* stream) {
  MAY_FAIL;
  if (const Status status = enter()) return status;
  auto* target = reinterpret_cast<char*>(to);
  const auto* source = reinterpret_cast<const char*>(from);
  if (!is_mapped(target, bytes) || !is_mapped(source, bytes)) return INVALID_VALUE;
  if (target < source + bytes && source < target + bytes && bytes > 0) {
    fail(ILLEGAL_ADDRESS, "a copy of %zu bytes onto its own source", bytes);
    return failed();
  }
  return enqueue(stream, "copy", [=] { memcpy(target, source, bytes); });
}

// Host memory is read when the stream reaches the copy, so that freeing it too early is detected.
API Status cuMemcpyHtoDAsync_v2(uint64_t to, const void* source, size_t bytes, Stream* stream) {
  MAY_FAIL;
  if (const Status status = enter()) return status;
  auto* target = reinterpret_cast<char*>(to);
  if (!is_mapped(target, bytes)) return INVALID_VALUE;
  return enqueue(stream, "copy from the host", [=] { memcpy(target, source, bytes); });
}

API Status cuMemcpyDtoHAsync_v2(void* target, uint64_t from, size_t bytes, Stream* stream) {
  MAY_FAIL;
  if (const Status status = enter()) return status;
  const auto* source = reinterpret_cast<const char*>(from);
  if (!is_mapped(source, bytes)) return INVALID_VALUE;
  // For pageable memory the call would block until the copy is done, so it is refused.
  if (!is_mapped(target, bytes)) return INVALID_VALUE;
  return enqueue(stream, "copy to the host", [=] { memcpy(target, source, bytes); });
}

// The default stream does not wait for non-blocking streams.
API Status cuMemcpyDtoH_v2(void* target, uint64_t from, size_t bytes) {
  MAY_FAIL;
  if (const Status status = enter()) return status;
  const auto* source = reinterpret_cast<const char*>(from);
  if (!is_mapped(source, bytes)) return INVALID_VALUE;
  memcpy(target, source, bytes);
  return SUCCESS;
}

// CUDA_MEMCPY2D of cuda.h.
struct Copy2D {
  size_t from_x, from_y;
  unsigned from_kind;
  const void* from_host;
  uint64_t from;
  void* from_array;
  size_t from_pitch;
  size_t to_x, to_y;
  unsigned to_kind;
  void* to_host;
  uint64_t to;
  void* to_array;
  size_t to_pitch;
  size_t width, height;
};

API Status cuMemcpy2DAsync_v2(const Copy2D* copy, Stream* stream) {
  MAY_FAIL;
  constexpr unsigned DEVICE = 2;
  constexpr size_t MOST = (size_t{1} << 31) - 1;
  if (const Status status = enter()) return status;
  const Copy2D it = *copy;
  if (it.from_kind != DEVICE || it.to_kind != DEVICE || it.from_x + it.from_y + it.to_x + it.to_y != 0) {
    return INVALID_VALUE;
  }
  if (it.from_pitch < it.width || it.to_pitch < it.width) return INVALID_VALUE;
  if (it.from_pitch > MOST || it.to_pitch > MOST) return INVALID_VALUE;
  if (it.width == 0 || it.height == 0) return SUCCESS;
  auto* target = reinterpret_cast<char*>(it.to);
  const auto* source = reinterpret_cast<const char*>(it.from);
  const auto extent = [&](size_t pitch) { return (it.height - 1) * pitch + it.width; };
  if (!is_mapped(target, extent(it.to_pitch)) || !is_mapped(source, extent(it.from_pitch))) return INVALID_VALUE;
  return enqueue(stream, "copy of rows", [=] {
    for (size_t row = 0; row < it.height; ++row) {
      memcpy(target + row * it.to_pitch, source + row * it.from_pitch, it.width);
    }
  });
}

API Status cuMemsetD8Async(uint64_t to, unsigned char byte, size_t bytes, Stream* stream) {
  MAY_FAIL;
  if (const Status status = enter()) return status;
  auto* target = reinterpret_cast<char*>(to);
  if (!is_mapped(target, bytes)) return INVALID_VALUE;
  return enqueue(stream, "set", [=] { memset(target, byte, bytes); });
}
