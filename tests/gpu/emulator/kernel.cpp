// NVRTC and modules. A source is compiled to a library of the host, whose bytes stand for the machine code.
//
// Libraries are kept beside this one, under a name derived from the source, and a rank that needs a library which
// another one compiles waits for it: a program is compiled once.
//
//   HIR_EMULATED_FAULT    the number of the launch, from 1, whose kernel accesses an invalid address; 0: none

#include <dlfcn.h>
#include <fcntl.h>
#include <spawn.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstring>
#include <elf.h>
#include <fstream>
#include <regex>
#include <sstream>
#include <string>
#include <vector>

#include "emulator.h"
#include "stream.h"

using namespace emulator;

extern char** environ;

namespace {

enum : Status { NVRTC_INVALID_INPUT = 3, NVRTC_INVALID_PROGRAM = 4, NVRTC_INVALID_OPTION = 5, NVRTC_COMPILATION = 6 };

struct Program {
  std::string source, log, image;
};

std::string folder_of(const std::string& path) { return path.substr(0, path.rfind('/')); }

// The sources of the emulator are in the folder in which it was built.
std::string shim() { return folder_of(__FILE__) + "/kernel.h"; }

std::string kernels() {
  Dl_info info;
  dladdr(reinterpret_cast<const void*>(&kernels), &info);
  return folder_of(info.dli_fname);
}

std::string read(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

// Adds two functions for every kernel: one returns the size of its parameter, the other runs a grid.
std::string with_entries(const std::string& source) {
  static const std::regex kernel(
      R"re(extern "C" __global__ void (?:__launch_bounds__\(\d+\) )?(\w+)\(const __grid_constant__ ([^)]*?) p\))re");
  std::vector<std::smatch> found;
  for (std::sregex_iterator it(source.begin(), source.end(), kernel), end; it != end; ++it) found.push_back(*it);
  std::string entries;
  for (size_t at = 0; at < found.size(); ++at) {
    const auto start = static_cast<size_t>(found[at].position());
    const size_t end = at + 1 < found.size() ? static_cast<size_t>(found[at + 1].position()) : source.size();
    const std::string text = source.substr(start, end - start);
    const auto has = [&text](const char* word) { return text.find(word) != std::string::npos; };
    const bool meets = has("__syncthreads") || has("of_lane(");
    const std::string threads = meets ? "TOGETHER" : has("typedef Ll128 F") ? "IN_TURNS" : "APART";
    const std::string name = found[at][1], type = found[at][2];
    entries += "extern \"C\" unsigned long size_" + name + "() { return sizeof(" + type + "); }\n";
    entries += "extern \"C\" bool run_" + name + "(const void* words, unsigned grid, unsigned block) {\n  return host::run<&" +
               name + ", " + type + ">(words, grid, block, " + "host::Threads::" + threads + ");\n}\n";
  }
  return "#include \"kernel.h\"\n" + source + "\n" + entries;
}

int run(const std::vector<std::string>& words, const std::string& log) {
  std::vector<char*> arguments;
  for (const auto& word : words) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, 2, log.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
  pid_t child;
  int status = -1;
  if (posix_spawnp(&child, arguments[0], &actions, nullptr, arguments.data(), environ) == 0) waitpid(child, &status, 0);
  posix_spawn_file_actions_destroy(&actions);
  return status;
}

// Holds a lock of all processes until it is destroyed.
struct Lock {
  int file;
  explicit Lock(const std::string& path) : file(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600)) { flock(file, LOCK_EX); }
  ~Lock() { close(file); }
};

// Runs the compiler with the options of kernels. No contraction, as with the options for NVRTC: a product and a sum
// are rounded separately.
int compiler(std::vector<std::string> words, const std::string& log) {
  std::vector<std::string> all = {"c++", "-std=c++20", "-O1", "-ffp-contract=off", "-w", "-fPIC"};
  all.insert(all.end(), words.begin(), words.end());
  return run(all, log);
}

// Writes the compiled form of the shim, whose standard headers take longer to read than most kernels, beside a copy
// of it. The compiler takes the compiled form in place of the copy, or the copy if it cannot.
void compile_shim(const std::string& copy) {
  if (access(copy.c_str(), R_OK) == 0) return;
  const Lock lock(copy + ".lock");
  if (access(copy.c_str(), R_OK) == 0) return;
  const std::string compiled = copy + ".gch";
  if (compiler({"-x", "c++-header", "-o", compiled, shim()}, "/dev/null") != 0) unlink(compiled.c_str());
  std::ofstream(copy + ".new") << read(shim());
  rename((copy + ".new").c_str(), copy.c_str());
}

bool compile(Program& program) {
  const std::string text = with_entries(program.source);
  const std::string stem =
      kernels() + "/kernel-" + std::to_string(std::hash<std::string>()(text + read(shim())));
  const std::string library = stem + ".so";
  program.image = read(library);
  if (!program.image.empty()) return true;
  compile_shim(kernels() + "/kernel.h");
  const Lock lock(stem + ".lock");
  program.image = read(library);
  if (!program.image.empty()) return true;
  const std::string own = stem + "-" + std::to_string(getpid());
  std::ofstream(own + ".cpp") << text;
  const int status = compiler({"-shared", "-o", own + ".so", own + ".cpp"}, own + ".log");
  program.log = read(own + ".log");
  unlink((own + ".log").c_str());
  if (status != 0) return false;
  unlink((own + ".cpp").c_str());
  program.image = read(own + ".so");
  return rename((own + ".so").c_str(), library.c_str()) == 0;
}

}  // namespace

API Status nvrtcVersion(int* major, int* minor) {
  MAY_FAIL;
  *major = 13;
  *minor = 0;
  return SUCCESS;
}

API Status nvrtcGetNumSupportedArchs(int* count) {
  MAY_FAIL;
  *count = 3;
  return SUCCESS;
}

API Status nvrtcGetSupportedArchs(int* list) {
  MAY_FAIL;
  const int known[] = {80, 90, 100};
  memcpy(list, known, sizeof known);
  return SUCCESS;
}

API Status nvrtcCreateProgram(Program** program, const char* source, const char*, int headers, const char* const*,
                              const char* const*) {
  MAY_FAIL;
  if (headers != 0) return NVRTC_INVALID_INPUT;
  *program = new Program{source, {}, {}};
  return SUCCESS;
}

API Status nvrtcCompileProgram(Program* program, int count, const char* const* options) {
  MAY_FAIL;
  for (int at = 0; at < count; ++at) {
    const std::string option = options[at];
    const bool known = option.starts_with("--gpu-architecture=sm_") || option == "--std=c++17" || option == "--fmad=false" ||
                       option == "--disable-warnings";
    if (!known) return NVRTC_INVALID_OPTION;
  }
  if (injected("nvrtcSource") != SUCCESS) program->source += "\n#error a fault of the source\n";
  return compile(*program) ? static_cast<Status>(SUCCESS) : static_cast<Status>(NVRTC_COMPILATION);
}

API Status nvrtcGetCUBINSize(const Program* program, size_t* size) {
  MAY_FAIL;
  *size = program->image.size();
  return program->image.empty() ? static_cast<Status>(NVRTC_INVALID_PROGRAM) : static_cast<Status>(SUCCESS);
}

API Status nvrtcGetCUBIN(const Program* program, char* bytes) {
  MAY_FAIL;
  memcpy(bytes, program->image.data(), program->image.size());
  return SUCCESS;
}

API Status nvrtcGetProgramLogSize(const Program* program, size_t* size) {
  MAY_FAIL;
  *size = program->log.size() + 1;
  return SUCCESS;
}

API Status nvrtcGetProgramLog(const Program* program, char* bytes) {
  MAY_FAIL;
  memcpy(bytes, program->log.c_str(), program->log.size() + 1);
  return SUCCESS;
}

API Status nvrtcDestroyProgram(Program** program) {
  MAY_FAIL;
  delete *program;
  *program = nullptr;
  return SUCCESS;
}

API const char* nvrtcGetErrorString(Status status) {
  switch (status) {
    case SUCCESS: return "NVRTC_SUCCESS";
    case NVRTC_INVALID_INPUT: return "NVRTC_ERROR_INVALID_INPUT";
    case NVRTC_INVALID_PROGRAM: return "NVRTC_ERROR_INVALID_PROGRAM";
    case NVRTC_INVALID_OPTION: return "NVRTC_ERROR_INVALID_OPTION";
    case NVRTC_COMPILATION: return "NVRTC_ERROR_COMPILATION";
    default: return "NVRTC_ERROR_INTERNAL_ERROR";
  }
}

namespace {

struct Function {
  std::string name;
  size_t bytes;
  bool (*run)(const void* words, unsigned grid, unsigned block);
  // Bytes of shared memory that a launch may add.
  unsigned shared = 0;
};

}  // namespace

API Status cuModuleLoadData(void** module, const void* image) {
  MAY_FAIL;
  if (const Status status = enter_unsafe()) return status;
  const auto* header = static_cast<const Elf64_Ehdr*>(image);
  if (memcmp(header->e_ident, ELFMAG, SELFMAG) != 0) return INVALID_IMAGE;
  // The table of sections comes last.
  const size_t bytes = header->e_shoff + static_cast<size_t>(header->e_shnum) * header->e_shentsize;
  // The file is never closed, because the loader identifies a library by its path, which contains the
  // descriptor.
  const int file = memfd_create("module", MFD_CLOEXEC);
  if (file < 0 || write(file, image, bytes) != static_cast<ssize_t>(bytes)) return OUT_OF_MEMORY;
  *module = dlopen(("/proc/self/fd/" + std::to_string(file)).c_str(), RTLD_NOW | RTLD_LOCAL);
  if (*module == nullptr) fprintf(stderr, "emulated GPU: %s\n", dlerror());
  return *module == nullptr ? INVALID_IMAGE : SUCCESS;
}

API Status cuModuleUnload(void* module) {
  MAY_FAIL;
  if (const Status status = enter_unsafe()) return status;
  return dlclose(module) == 0 ? SUCCESS : INVALID_HANDLE;
}

API Status cuModuleGetFunction(Function** function, void* module, const char* name) {
  MAY_FAIL;
  if (const Status status = enter()) return status;
  void* size = dlsym(module, (std::string("size_") + name).c_str());
  void* run = dlsym(module, (std::string("run_") + name).c_str());
  if (size == nullptr || run == nullptr) return NOT_FOUND;
  *function = new Function{name, reinterpret_cast<unsigned long (*)()>(size)(),
                           reinterpret_cast<bool (*)(const void*, unsigned, unsigned)>(run)};
  return SUCCESS;
}

API Status cuFuncSetAttribute(Function* function, int attribute, int value) {
  MAY_FAIL;
  constexpr int MAX_DYNAMIC_SHARED_SIZE_BYTES = 8, MOST_SHARED = 227 << 10;
  if (const Status status = enter()) return status;
  if (attribute != MAX_DYNAMIC_SHARED_SIZE_BYTES || value < 0 || value > MOST_SHARED) return INVALID_VALUE;
  function->shared = static_cast<unsigned>(value);
  return SUCCESS;
}

API Status cuLaunchKernel(const Function* function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                          unsigned block_y, unsigned block_z, unsigned shared, Stream* stream, void** parameters,
                          void** extra) {
  MAY_FAIL;
  constexpr size_t MOST_PARAMETERS = 4096;
  if (const Status status = enter()) return status;
  if (grid_x == 0 || block_x == 0 || block_x > 1024 || grid_x > 0x7fffffff) return INVALID_VALUE;
  if (grid_y != 1 || grid_z != 1 || block_y != 1 || block_z != 1 || shared > function->shared || extra != nullptr) return INVALID_VALUE;
  if (function->bytes > MOST_PARAMETERS) return INVALID_VALUE;
  const auto* first = static_cast<const char*>(parameters[0]);
  const std::vector<char> words(first, first + function->bytes);
  static std::atomic<uint64_t> launches = 0;
  const bool faulty = ++launches == setting("HIR_EMULATED_FAULT", 0);
  return enqueue(stream, function->name.c_str(), [=] {
    if (faulty) return fail(ILLEGAL_ADDRESS, "%s accesses an invalid address", function->name.c_str());
    // Parameter structures consist of 8-byte words.
    const std::vector<uint64_t> aligned = [&] {
      std::vector<uint64_t> copy((words.size() + 7) / 8);
      memcpy(copy.data(), words.data(), words.size());
      return copy;
    }();
    if (!function->run(aligned.data(), grid_x, block_x)) {
      fail(ILLEGAL_ADDRESS, "threads of a block of %s wait for others that have ended", function->name.c_str());
    }
  });
}
