// Emulates a GPU and NVIDIA's libraries on the host, for tests: the functions that `src/cuda` calls, with the
// documented rules of the real ones and none of their speed. Streams are threads, GPU memory is host memory
// that processes share, and the host's C++ compiler compiles the kernels.
//
// One library stands for all five: HIR_CUDA, HIR_NVRTC, HIR_CUBLASLT, HIR_CUDNN and HIR_NCCL name the same file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

// Begins each function of the libraries: tests let any call fail.
#define MAY_FAIL \
  if (const emulator::Status fault = emulator::injected(__func__)) return fault

#define API extern "C" __attribute__((visibility("default")))

namespace emulator {

// A status of any of the libraries. 0 is success.
using Status = unsigned;

// CUresult, with the numbers of cuda.h.
enum : Status {
  SUCCESS = 0,
  INVALID_VALUE = 1,
  OUT_OF_MEMORY = 2,
  NOT_INITIALIZED = 3,
  INVALID_DEVICE = 101,
  INVALID_IMAGE = 200,
  INVALID_CONTEXT = 201,
  INVALID_HANDLE = 400,
  NOT_FOUND = 500,
  NOT_READY = 600,
  ILLEGAL_ADDRESS = 700,
  STREAM_CAPTURE_UNSUPPORTED = 900,
  STREAM_CAPTURE_INVALIDATED = 901,
  STREAM_CAPTURE_UNMATCHED = 903,
  STREAM_CAPTURE_UNJOINED = 904,
  STREAM_CAPTURE_ISOLATION = 905,
  CAPTURED_EVENT = 907,
};

struct Stream;

// Enqueues work behind everything on the stream; a thread of the stream runs it. While the stream is
// captured, adds a node to the graph instead. `what` names the work in messages.
Status enqueue(Stream* stream, const char* what, std::function<void()> work);

// Returns true if all bytes are GPU memory of this process, mapped memory of another one, or page-locked host
// memory.
bool is_mapped(const void* at, size_t bytes);

// Reports an error that a GPU detects while it works: prints it to stderr, and makes every later call return
// it, as a sticky error.
void fail(Status status, const char* format, ...) __attribute__((format(printf, 2, 3)));

// Returns the sticky error, or success.
Status failed();

// Checks what every driver call requires: a context is current on the calling thread, and there is no sticky
// error.
Status enter();

// Does the same for calls that a thread must not make during a capture. They invalidate the capture.
Status enter_unsafe();

// Returns the status with which this call of a function fails, or success. HIR_EMULATED_FAIL is the number of the call in the process of the rank
// HIR_EMULATED_FAIL_RANK, or the name of a function whose first call fails. The call is printed to stderr. Three names are not those of functions:
// the network of the first communication of a communicator or of a later one fails while it runs (ncclConnection, ncclNetwork), and a source that is
// compiled has an error (nvrtcSource).
Status injected(const char* function);

// Returns a number from the environment.
uint64_t setting(const char* name, uint64_t otherwise);

}  // namespace emulator
