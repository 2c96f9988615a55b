// GPUs, contexts and errors.
//
//   HIR_EMULATED_GPUS     number of GPUs of the host; default: 8
//   HIR_EMULATED_MEMORY   bytes of memory per GPU; default: 4 GiB
//   HIR_EMULATED_NAME     the name of the GPUs; default: Emulated GPU

#include <unistd.h>

#include <atomic>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "emulator.h"

using namespace emulator;

namespace {

std::atomic<Status> sticky = SUCCESS;
std::atomic<bool> started = false;
thread_local char* current = nullptr;
// One for each GPU.
char contexts[64];

// The GPUs that CUDA_VISIBLE_DEVICES selects, by their numbers on the host.
const std::vector<int>& visible() {
  static const auto* list = [] {
    auto* found = new std::vector<int>;
    const int count = static_cast<int>(setting("HIR_EMULATED_GPUS", 8));
    const char* text = getenv("CUDA_VISIBLE_DEVICES");
    for (int at = 0; text == nullptr && at < count; ++at) found->push_back(at);
    // As in the driver, the list ends at the first entry that is not a GPU.
    while (text != nullptr && *text != '\0') {
      char* end;
      const long number = strtol(text, &end, 10);
      if (end == text || number < 0 || number >= count) break;
      found->push_back(static_cast<int>(number));
      text = *end == ',' ? end + 1 : end;
    }
    return found;
  }();
  return *list;
}

bool is_device(int device) { return device >= 0 && device < static_cast<int>(visible().size()); }

}  // namespace

uint64_t emulator::setting(const char* name, uint64_t otherwise) {
  const char* text = getenv(name);
  return text == nullptr ? otherwise : strtoull(text, nullptr, 10);
}

Status emulator::injected(const char* function) {
  static const char* wanted = getenv("HIR_EMULATED_FAIL");
  if (wanted == nullptr) return SUCCESS;
  static const bool is_here = [] {
    const char* rank = getenv("RANK");
    return setting("HIR_EMULATED_FAIL_RANK", 0) == (rank == nullptr ? 0 : strtoull(rank, nullptr, 10));
  }();
  static std::atomic<uint64_t> calls{0};
  static std::atomic<bool> is_over{false};
  const uint64_t call = ++calls;
  const bool is_it = strcmp(wanted, function) == 0 || strtoull(wanted, nullptr, 10) == call;
  if (!is_here || !is_it || is_over.exchange(true)) return SUCCESS;
  fprintf(stderr, "emulated fault: call %llu, %s\n", static_cast<unsigned long long>(call), function);
  // An unknown error of the driver, and internal errors of NVRTC, cuBLASLt and NCCL.
  return strncmp(function, "cu", 2) == 0 && strncmp(function, "cublas", 6) != 0 ? 999 : strncmp(function, "cublas", 6) == 0 ? 14
         : strncmp(function, "nvrtc", 5) == 0                                                                           ? 11
                                                                                                                        : 3;
}

void emulator::fail(Status status, const char* format, ...) {
  char text[1024];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  fprintf(stderr, "emulated GPU, process %d: %s\n", getpid(), text);
  Status none = SUCCESS;
  sticky.compare_exchange_strong(none, status);
}

Status emulator::failed() { return sticky; }

Status emulator::enter() {
  if (!started) return NOT_INITIALIZED;
  return current == nullptr ? static_cast<Status>(INVALID_CONTEXT) : failed();
}

API Status cuInit(unsigned flags) {
  MAY_FAIL;
  if (flags != 0) return INVALID_VALUE;
  if (visible().empty()) return 100;  // CUDA_ERROR_NO_DEVICE
  started = true;
  return SUCCESS;
}

API Status cuDriverGetVersion(int* version) {
  MAY_FAIL;
  *version = 13000;
  return SUCCESS;
}

API Status cuDeviceGetCount(int* count) {
  MAY_FAIL;
  if (!started) return NOT_INITIALIZED;
  *count = static_cast<int>(visible().size());
  return SUCCESS;
}

API Status cuDeviceGet(int* device, int ordinal) {
  MAY_FAIL;
  if (!started) return NOT_INITIALIZED;
  if (!is_device(ordinal)) return INVALID_DEVICE;
  *device = ordinal;
  return SUCCESS;
}

API Status cuDeviceGetName(char* name, int length, int device) {
  MAY_FAIL;
  if (!is_device(device)) return INVALID_DEVICE;
  const char* text = getenv("HIR_EMULATED_NAME");
  snprintf(name, static_cast<size_t>(length), "%s", text == nullptr ? "Emulated GPU" : text);
  return SUCCESS;
}

API Status cuDeviceGetUuid_v2(char (*uuid)[16], int device) {
  MAY_FAIL;
  if (!is_device(device)) return INVALID_DEVICE;
  memset(*uuid, 0, sizeof *uuid);
  (*uuid)[0] = 'E';
  (*uuid)[15] = static_cast<char>(visible()[static_cast<size_t>(device)]);
  return SUCCESS;
}

API Status cuDeviceGetAttribute(int* value, int attribute, int device) {
  MAY_FAIL;
  if (!is_device(device)) return INVALID_DEVICE;
  switch (attribute) {
    case 16: *value = 4; return SUCCESS;  // MULTIPROCESSOR_COUNT: few, so that blocks take turns
    case 75: *value = 9; return SUCCESS;  // COMPUTE_CAPABILITY_MAJOR
    case 76: *value = 0; return SUCCESS;  // COMPUTE_CAPABILITY_MINOR
    case 98: *value = setting("HIR_EMULATED_FLUSH", 0); return SUCCESS;  // CAN_FLUSH_REMOTE_WRITES
    default: return INVALID_VALUE;
  }
}

API Status cuDeviceGetP2PAttribute(int* value, int attribute, int device, int peer) {
  MAY_FAIL;
  if (!is_device(device) || !is_device(peer) || device == peer) return INVALID_DEVICE;
  if (attribute != 3) return INVALID_VALUE;  // NATIVE_ATOMIC_SUPPORTED
  *value = setting("HIR_EMULATED_PCIE", 0) == 0;
  return SUCCESS;
}

API Status cuDevicePrimaryCtxRetain(void** context, int device) {
  MAY_FAIL;
  if (!started) return NOT_INITIALIZED;
  if (!is_device(device)) return INVALID_DEVICE;
  *context = &contexts[device % 64];
  return SUCCESS;
}

API Status cuCtxSetCurrent(void* context) {
  MAY_FAIL;
  current = static_cast<char*>(context);
  return failed();
}

// All memory of a process is that of the GPU whose context is current.
API Status cuPointerGetAttribute(void* data, int attribute, uint64_t address) {
  MAY_FAIL;
  constexpr int DEVICE_ORDINAL = 9;
  if (const Status status = enter()) return status;
  if (attribute != DEVICE_ORDINAL || !is_mapped(reinterpret_cast<void*>(address), 1)) return INVALID_VALUE;
  *static_cast<int*>(data) = static_cast<int>(current - contexts);
  return SUCCESS;
}

API Status cuCtxGetStreamPriorityRange(int* least, int* greatest) {
  MAY_FAIL;
  *least = 0;
  *greatest = -5;
  return enter();
}

namespace {

const char* name_of(Status status) {
  switch (status) {
    case SUCCESS: return "CUDA_SUCCESS";
    case INVALID_VALUE: return "CUDA_ERROR_INVALID_VALUE";
    case OUT_OF_MEMORY: return "CUDA_ERROR_OUT_OF_MEMORY";
    case NOT_INITIALIZED: return "CUDA_ERROR_NOT_INITIALIZED";
    case 100: return "CUDA_ERROR_NO_DEVICE";
    case INVALID_DEVICE: return "CUDA_ERROR_INVALID_DEVICE";
    case INVALID_IMAGE: return "CUDA_ERROR_INVALID_IMAGE";
    case INVALID_CONTEXT: return "CUDA_ERROR_INVALID_CONTEXT";
    case INVALID_HANDLE: return "CUDA_ERROR_INVALID_HANDLE";
    case NOT_FOUND: return "CUDA_ERROR_NOT_FOUND";
    case NOT_READY: return "CUDA_ERROR_NOT_READY";
    case ILLEGAL_ADDRESS: return "CUDA_ERROR_ILLEGAL_ADDRESS";
    case STREAM_CAPTURE_UNSUPPORTED: return "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED";
    case STREAM_CAPTURE_INVALIDATED: return "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED";
    case STREAM_CAPTURE_UNMATCHED: return "CUDA_ERROR_STREAM_CAPTURE_UNMATCHED";
    case STREAM_CAPTURE_UNJOINED: return "CUDA_ERROR_STREAM_CAPTURE_UNJOINED";
    case STREAM_CAPTURE_ISOLATION: return "CUDA_ERROR_STREAM_CAPTURE_ISOLATION";
    case CAPTURED_EVENT: return "CUDA_ERROR_CAPTURED_EVENT";
    default: return nullptr;
  }
}

}  // namespace

API Status cuGetErrorName(Status status, const char** text) {
  MAY_FAIL;
  *text = name_of(status);
  return *text == nullptr ? INVALID_VALUE : SUCCESS;
}

API Status cuGetErrorString(Status status, const char** text) {
  MAY_FAIL;
  *text = name_of(status) == nullptr ? nullptr : "of the emulated GPU";
  return *text == nullptr ? INVALID_VALUE : SUCCESS;
}
