// cuDNN's graph interface, as far as attention needs it: a graph of operations on tensors of four dimensions is kept when it is finalized, and a
// plan evaluates one operation after the other, with all tensors inside of the kernel in memory. The real library recognises some graphs and
// refuses the others; here, every graph of these operations runs.
//
//   HIR_EMULATED_CUDNN  the version: default 91900

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <map>
#include <memory>
#include <vector>

#include "emulator.h"
#include "numbers.h"

using namespace emulator;

namespace {

// cudnnStatus_t.
enum : Status { BAD_PARAM = 2000, NOT_SUPPORTED = 3000, EXECUTION_FAILED = 5000 };

// cudnnBackendDescriptorType_t.
enum Kind : int {
  POINTWISE = 0, ENGINECFG = 3, ENGINEHEUR = 4, PLAN = 5, OP_POINTWISE = 13, GRAPH = 15, VARIANT = 16, TENSOR = 17, MATMUL = 18,
  OP_MATMUL = 19, REDUCTION = 21, OP_REDUCTION = 22, OP_RESHAPE = 31,
};

// cudnnBackendAttributeName_t.
enum Name : int {
  POINTWISE_MODE = 0, POINTWISE_AXIS = 9, HEUR_GRAPH = 201, HEUR_RESULTS = 202, PLAN_CONFIG = 401, PLAN_WORKSPACE = 402, PW_DETAIL = 750,
  PW_X = 751, PW_B = 752, PW_Y = 753, PW_T = 758, GRAPH_OPS = 801, T_TYPE = 901, T_DIMS = 902, T_STRIDES = 903, T_ID = 906, T_VIRTUAL = 907,
  T_BY_VALUE = 908, PACK_IDS = 1000, PACK_POINTERS = 1001, PACK_WORKSPACE = 1003, MM_A = 1520, MM_B = 1521, MM_C = 1522, RED_MODE = 1600,
  RED_X = 1610, RED_Y = 1611, RED_DETAIL = 1612, RESHAPE_X = 2200, RESHAPE_Y = 2201,
};

// cudnnBackendAttributeType_t, as far as the size of an element is not 4.
constexpr size_t size_of_type(int type) {
  switch (type) {
    case 2: return 1;                                       // Booleans.
    case 0: case 3: case 5: case 6: case 15: return 8;      // Handles, numbers, pointers, descriptors.
    default: return 4;
  }
}

// cudnnPointwiseMode_t and cudnnReduceTensorOp_t.
enum : int { ADD = 0, MUL = 1, DIV = 6, SUB = 9, EXP = 13, LOG = 15, CMP_GE = 303, GEN_INDEX = 501, SELECT = 601 };
enum : int { REDUCE_ADD = 0, REDUCE_MAX = 3 };
// cudnnDataType_t.
enum : int { F32 = 0, F16 = 2, I32 = 4, BF16 = 9, BOOLEAN = 11 };

using Extents = std::array<int64_t, 4>;

struct Tensor {
  int64_t id;
  int type;
  Extents dims, strides;
  bool is_virtual, is_by_value;

  size_t len() const { return static_cast<size_t>(dims[0] * dims[1] * dims[2] * dims[3]); }
  size_t bytes() const {
    int64_t last = 0;
    for (size_t at = 0; at < 4; ++at) last += (dims[at] - 1) * strides[at];
    return static_cast<size_t>(last + 1) * (type == F32 ? 4 : 2);
  }
};

struct Operation {
  Kind kind;
  int mode = 0;
  int64_t axis = 0;
  std::vector<Tensor> from;
  Tensor to;
};

using Program = std::vector<Operation>;

struct Descriptor {
  Kind kind;
  std::map<int, std::vector<char>> attributes;
  std::shared_ptr<Program> program;
  bool is_final = false;

  template <typename T>
  T one(int name) const {
    T found{};
    const auto it = attributes.find(name);
    if (it != attributes.end() && it->second.size() >= sizeof(T)) memcpy(&found, it->second.data(), sizeof(T));
    return found;
  }
  template <typename T>
  std::vector<T> all(int name) const {
    const auto it = attributes.find(name);
    if (it == attributes.end()) return {};
    std::vector<T> found(it->second.size() / sizeof(T));
    memcpy(found.data(), it->second.data(), found.size() * sizeof(T));
    return found;
  }
  Tensor tensor() const {
    Tensor it{one<int64_t>(T_ID), one<int>(T_TYPE), {}, {}, one<bool>(T_VIRTUAL), one<bool>(T_BY_VALUE)};
    it.dims = one<Extents>(T_DIMS);
    it.strides = one<Extents>(T_STRIDES);
    return it;
  }
};

struct Handle {
  Stream* stream = nullptr;
};

Status refuse(const char* what) {
  fprintf(stderr, "emulated cuDNN: %s\n", what);
  return BAD_PARAM;
}

Operation operation_of(const Descriptor& it) {
  Operation found{.kind = it.kind, .from = {}, .to = {}};
  const auto tensor = [&](int name) {
    const auto* descriptor = it.one<Descriptor*>(name);
    if (descriptor != nullptr) found.from.push_back(descriptor->tensor());
  };
  const auto result = [&](int name) { found.to = it.one<Descriptor*>(name)->tensor(); };
  switch (it.kind) {
    case OP_POINTWISE: {
      const auto* detail = it.one<Descriptor*>(PW_DETAIL);
      found.mode = detail->one<int>(POINTWISE_MODE);
      found.axis = detail->one<int64_t>(POINTWISE_AXIS);
      for (int name : {PW_X, PW_B, PW_T}) tensor(name);
      result(PW_Y);
      break;
    }
    case OP_MATMUL:
      tensor(MM_A);
      tensor(MM_B);
      result(MM_C);
      break;
    case OP_REDUCTION:
      found.mode = it.one<Descriptor*>(RED_DETAIL)->one<int>(RED_MODE);
      tensor(RED_X);
      result(RED_Y);
      break;
    default:
      tensor(RESHAPE_X);
      result(RESHAPE_Y);
  }
  return found;
}

// The values of tensors while a plan runs: contiguous, in binary32.
struct Run {
  std::map<int64_t, char*> memory;
  std::map<int64_t, float> constants;
  std::map<int64_t, std::vector<float>> inner;

  static size_t index(const Extents& at, const Extents& dims) {
    return static_cast<size_t>(((at[0] * dims[1] + at[1]) * dims[2] + at[2]) * dims[3] + at[3]);
  }
  static int64_t offset(const Extents& at, const Extents& strides) {
    return at[0] * strides[0] + at[1] * strides[1] + at[2] * strides[2] + at[3] * strides[3];
  }
  // An operand with one element in a dimension has it for all; heads that share keys are neighbours.
  float get(const Tensor& it, Extents at, const Extents& of) const {
    if (it.is_by_value) return constants.at(it.id);
    for (size_t dim = 0; dim < 4; ++dim) {
      if (it.dims[dim] != of[dim]) at[dim] = dim == 1 ? at[1] / (of[1] / it.dims[1]) : 0;
    }
    if (it.is_virtual) return inner.at(it.id)[index(at, it.dims)];
    const char* from = memory.at(it.id);
    const int64_t place = offset(at, it.strides);
    if (it.type == F32) return reinterpret_cast<const float*>(from)[place];
    if (it.type == F16) return reinterpret_cast<const Half*>(from)[place];
    return reinterpret_cast<const BFloat*>(from)[place];
  }
  void put(const Tensor& it, const Extents& at, float value) {
    if (it.type == F16) value = Half(value);
    if (it.type == BF16) value = BFloat(value);
    if (it.is_virtual) {
      inner[it.id][index(at, it.dims)] = value;
      return;
    }
    char* to = memory.at(it.id);
    const int64_t place = offset(at, it.strides);
    if (it.type == F32) reinterpret_cast<float*>(to)[place] = value;
    if (it.type == F16) reinterpret_cast<Half*>(to)[place] = Half(value);
    if (it.type == BF16) reinterpret_cast<BFloat*>(to)[place] = BFloat(value);
  }
  float value(const Operation& it, const Extents& at) const {
    const Extents& dims = it.to.dims;
    const auto operand = [&](size_t number) { return get(it.from[number], at, dims); };
    if (it.kind == OP_MATMUL) {
      const Tensor &a = it.from[0], &b = it.from[1];
      float sum = 0;
      for (int64_t k = 0; k < a.dims[3]; ++k) {
        sum += get(a, {at[0], at[1], at[2], k}, {dims[0], dims[1], dims[2], a.dims[3]}) *
               get(b, {at[0], at[1], k, at[3]}, {dims[0], dims[1], a.dims[3], dims[3]});
      }
      return sum;
    }
    if (it.kind == OP_REDUCTION) {
      const Tensor& x = it.from[0];
      Extents step;
      for (size_t dim = 0; dim < 4; ++dim) step[dim] = x.dims[dim] / dims[dim];
      float found = it.mode == REDUCE_MAX ? -INFINITY : 0;
      for (int64_t h = at[1] * step[1]; h < (at[1] + 1) * step[1]; ++h) {
        for (int64_t l = at[2] * step[2]; l < (at[2] + 1) * step[2]; ++l) {
          for (int64_t s = at[3] * step[3]; s < (at[3] + 1) * step[3]; ++s) {
            const float one = get(x, {at[0], h, l, s}, x.dims);
            found = it.mode == REDUCE_MAX ? std::max(found, one) : found + one;
          }
        }
      }
      return found;
    }
    // The only reshapes are transpositions of matrices.
    if (it.kind == OP_RESHAPE) return get(it.from[0], {at[0], at[1], at[3], at[2]}, it.from[0].dims);
    switch (it.mode) {
      case ADD: return operand(0) + operand(1);
      case MUL: return operand(0) * operand(1);
      case DIV: return operand(1) == 0 ? 0 : operand(0) / operand(1);
      case SUB: return operand(0) == -INFINITY ? -INFINITY : operand(0) - operand(1);
      case EXP: return std::exp(operand(0));
      case LOG: return std::log(operand(0));
      case CMP_GE: return operand(0) >= operand(1) ? 1 : 0;
      case GEN_INDEX: return static_cast<float>(at[static_cast<size_t>(it.axis)]);
      case SELECT: return operand(2) != 0 ? operand(0) : operand(1);
      default: return NAN;
    }
  }
  void operator()(const Program& program) {
    for (const Operation& it : program) {
      if (it.to.is_virtual) inner[it.to.id].assign(it.to.len(), NAN);
      const Extents& dims = it.to.dims;
      for (int64_t b = 0; b < dims[0]; ++b) {
        for (int64_t h = 0; h < dims[1]; ++h) {
          for (int64_t l = 0; l < dims[2]; ++l) {
            for (int64_t s = 0; s < dims[3]; ++s) put(it.to, {b, h, l, s}, value(it, {b, h, l, s}));
          }
        }
      }
    }
  }
};

// Bytes that a plan wants: gradients keep scores of 2 bytes.
int64_t workspace_of(const Program& program) {
  const auto is_product = [](const Operation& it) { return it.kind == OP_MATMUL; };
  if (std::count_if(program.begin(), program.end(), is_product) < 5) return 0;
  for (const Operation& it : program) {
    if (is_product(it) && it.to.is_virtual) return static_cast<int64_t>(it.to.len()) * 2;
  }
  return 0;
}

}  // namespace

API size_t cudnnGetVersion() { return setting("HIR_EMULATED_CUDNN", 91900); }

API const char* cudnnGetErrorString(Status status) {
  return status == NOT_SUPPORTED ? "CUDNN_STATUS_NOT_SUPPORTED" : "CUDNN_STATUS_BAD_PARAM";
}

API void cudnnGetLastErrorString(char* to, size_t bytes) { snprintf(to, bytes, "emulated"); }

API Status cudnnCreate(Handle** handle) {
  MAY_FAIL;
  if (enter() != SUCCESS) return EXECUTION_FAILED;
  *handle = new Handle;
  return SUCCESS;
}

API Status cudnnSetStream(Handle* handle, Stream* stream) {
  MAY_FAIL;
  handle->stream = stream;
  return SUCCESS;
}

API Status cudnnBackendCreateDescriptor(int kind, Descriptor** to) {
  MAY_FAIL;
  *to = new Descriptor{.kind = static_cast<Kind>(kind), .attributes = {}, .program = nullptr};
  return SUCCESS;
}

API Status cudnnBackendDestroyDescriptor(Descriptor* it) {
  MAY_FAIL;
  delete it;
  return SUCCESS;
}

API Status cudnnBackendSetAttribute(Descriptor* it, int name, int type, int64_t count, const void* from) {
  MAY_FAIL;
  if (it->is_final) return refuse("an attribute is set after the descriptor was finalized");
  const char* bytes = static_cast<const char*>(from);
  it->attributes[name].assign(bytes, bytes + static_cast<size_t>(count) * size_of_type(type));
  return SUCCESS;
}

API Status cudnnBackendFinalize(Descriptor* it) {
  MAY_FAIL;
  if (it->kind == GRAPH) {
    it->program = std::make_shared<Program>();
    for (const Descriptor* each : it->all<Descriptor*>(GRAPH_OPS)) it->program->push_back(operation_of(*each));
  }
  if (it->kind == ENGINEHEUR) it->program = it->one<Descriptor*>(HEUR_GRAPH)->program;
  if (it->kind == PLAN) it->program = it->one<Descriptor*>(PLAN_CONFIG)->program;
  it->is_final = true;
  return SUCCESS;
}

API Status cudnnBackendGetAttribute(Descriptor* it, int name, int, int64_t wanted, int64_t* count, void* to) {
  MAY_FAIL;
  if (!it->is_final) return refuse("an attribute is read before the descriptor was finalized");
  *count = 1;
  if (name == PLAN_WORKSPACE) {
    const int64_t bytes = workspace_of(*it->program);
    memcpy(to, &bytes, sizeof bytes);
  }
  if (name == HEUR_RESULTS && wanted > 0) (*static_cast<Descriptor**>(to))->program = it->program;
  return SUCCESS;
}

API Status cudnnBackendExecute(Handle* handle, const Descriptor* plan, const Descriptor* pack) {
  MAY_FAIL;
  if (enter() != SUCCESS) return EXECUTION_FAILED;
  const auto ids = pack->all<int64_t>(PACK_IDS);
  const auto pointers = pack->all<char*>(PACK_POINTERS);
  std::map<int64_t, char*> given;
  for (size_t at = 0; at < ids.size() && at < pointers.size(); ++at) given[ids[at]] = pointers[at];
  Run run;
  for (const Operation& it : *plan->program) {
    std::vector<Tensor> tensors = it.from;
    tensors.push_back(it.to);
    for (const Tensor& tensor : tensors) {
      if (tensor.is_virtual) continue;
      char* at = given[tensor.id];
      if (tensor.is_by_value) {
        if (at == nullptr) return refuse("a number is missing");
        memcpy(&run.constants[tensor.id], at, sizeof(float));
        continue;
      }
      if (!is_mapped(at, tensor.bytes())) return refuse("a tensor is not in GPU memory");
      if (reinterpret_cast<uintptr_t>(at) % 16 != 0) return refuse("a tensor is not aligned to 16 bytes");
      // The matrices of keys are transposed; logarithms of sums have one column.
      if (tensor.dims[3] > 1 && tensor.strides[3] != 1 && tensor.strides[2] != 1) return refuse("rows are not contiguous");
      for (size_t dim = 0; dim < 4; ++dim) {
        if (tensor.dims[dim] > 1 && tensor.strides[dim] == 0) return refuse("an element stands for several");
      }
      run.memory[tensor.id] = at;
    }
  }
  const auto bytes = static_cast<size_t>(workspace_of(*plan->program));
  char* workspace = pack->one<char*>(PACK_WORKSPACE);
  if (bytes > 0 && !is_mapped(workspace, bytes)) return refuse("the workspace is not in GPU memory");
  const Status status = enqueue(handle->stream, "attention of cuDNN", [run, workspace, bytes, program = plan->program] {
    // What it holds is lost.
    if (bytes > 0) memset(workspace, 0xff, bytes);
    Run own = run;
    own(*program);
  });
  return status == SUCCESS ? static_cast<Status>(SUCCESS) : static_cast<Status>(EXECUTION_FAILED);
}
