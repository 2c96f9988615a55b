// A GPU and its vendor's libraries on the host, for tests: what `src/cuda` calls, with the rules of the real ones as far as
// they are documented, and none of their speed. Streams are threads, GPU memory is host memory that processes share,
// kernels are compiled by the host's C++ compiler.
//
// One library stands for all four: HIR_CUDA, HIR_NVRTC, HIR_CUBLASLT and HIR_NCCL name the same file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

#define API extern "C" __attribute__((visibility("default")))

namespace emulator {

// A status of any of the libraries; 0 is success.
using Status = unsigned;

// CUresult, as cuda.h numbers them.
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

// Work that runs behind all that is on the stream, on a thread of the stream; while the stream is captured, a node of the
// graph. `what` names it in messages.
Status enqueue(Stream* stream, const char* what, std::function<void()> work);

// Whether all bytes are GPU memory of this process, mapped memory of another one, or page-locked host memory.
bool is_mapped(const void* at, size_t bytes);

// What a GPU finds while it works: told on stderr, and the status of every later call, as a sticky error is.
void fail(Status status, const char* format, ...) __attribute__((format(printf, 2, 3)));

// The sticky error, or success.
Status failed();

// What every call of the driver begins with: a context has to be current on the calling thread, and nothing has failed.
Status enter();

// As `enter`, for calls that a thread must not make while it captures; they spoil the capture.
Status enter_unsafe();

// A number from the environment.
uint64_t setting(const char* name, uint64_t otherwise);

}  // namespace emulator
