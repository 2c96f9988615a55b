// cuBLASLt: products of matrices with contiguous columns. The rules are those of its documentation. Misuse
// that the real library does not detect is checked too: an algorithm must be used for the problem for which
// it was found, with the promised alignment, and nothing else may access the workspace meanwhile (it holds
// partial sums).
//
// Several algorithms are offered for a product. They compute the same; tests distinguish them by these settings:
//
//   HIR_EMULATED_ALGORITHMS         maximum number of algorithms of a product; default: 4
//   HIR_EMULATED_ALGORITHM_DELAY    microseconds that algorithm 0 takes more than algorithm 2, the fastest one;
//                                   default: 0
//   HIR_EMULATED_ALGORITHM_LOG      1: prints the algorithm of each call to stderr
//   HIR_EMULATED_REFUSED_ALGORITHM  an algorithm that is offered, but whose calls fail
//   HIR_EMULATED_WRONG_ALGORITHM    an algorithm that gives wrong results

#include <algorithm>
#include <array>
#include <bit>
#include <chrono>
#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <thread>
#include <utility>
#include <vector>

#include "emulator.h"
#include "numbers.h"

using namespace emulator;

namespace {

// cublasStatus_t.
enum : Status { NO_HANDLE = 1, REFUSED = 7, NOT_EXECUTED = 13, NOT_SUPPORTED = 15 };

// cudaDataType_t, as far as products support it here.
enum : int32_t { F32 = 0, F64 = 1, F16 = 2, BF16 = 14, F8 = 28 };

// cublasComputeType_t. The pedantic types behave the same here.
enum : int32_t { COMPUTE_32F = 68, COMPUTE_32F_PEDANTIC, COMPUTE_64F, COMPUTE_64F_PEDANTIC };

// cublasLtEpilogue_t.
enum : uint32_t { EPILOGUE_DEFAULT = 1, EPILOGUE_RELU = 2, EPILOGUE_BIAS = 4, EPILOGUE_RELU_BIAS = 6 };

// cublasLtReductionScheme_t: partial sums may be added in the compute type.
constexpr uint32_t SUMS_IN_WORKSPACE = 2;

// Objects begin with a word that identifies their type.
enum : uint64_t { HANDLE = 0x6c74'0001, OPERATION, LAYOUT, PREFERENCE, ALGORITHM };

struct Handle {
  uint64_t kind = HANDLE;
};

struct Operation {
  uint64_t kind = OPERATION;
  int32_t compute, scale;
  std::array<int32_t, 2> transposed = {0, 0};
  uint32_t epilogue = EPILOGUE_DEFAULT;
  const char* bias = nullptr;
  // The type of the result, unless it is set.
  int32_t bias_type = -1;
  int64_t bias_stride = 0;
};

struct Layout {
  uint64_t kind = LAYOUT;
  int32_t type;
  uint64_t rows, columns;
  int64_t leading;
  int32_t batch = 1;
  int64_t stride = 0;

  bool operator==(const Layout&) const = default;
};

struct Preference {
  uint64_t kind = PREFERENCE;
  uint64_t workspace = 0;
  uint32_t schemes = 7;
  std::array<uint32_t, 4> alignments = {256, 256, 256, 256};
};

// cublasLtMatmulAlgo_t. The meaning of its words is specific to the emulator.
struct Algorithm {
  uint64_t kind;
  // The problem for which it was found.
  uint64_t problem;
  uint64_t workspace;
  // Of A, B, C, D and the bias, in bytes.
  std::array<uint16_t, 5> alignments;
  // Its position among those of the problem.
  uint16_t number;
  char rest[28];
};
static_assert(sizeof(Algorithm) == 64);

// cublasLtMatmulHeuristicResult_t.
struct Found {
  Algorithm algorithm;
  size_t workspace;
  Status state;
  float waves;
  int reserved[4];
};
static_assert(sizeof(Found) == 96);

// Prints the error to stderr, because the status alone says little.
__attribute__((format(printf, 1, 2))) Status refuse(const char* format, ...) {
  char text[256];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  fprintf(stderr, "emulated cuBLASLt: %s\n", text);
  return REFUSED;
}

template <class T>
bool is(const T* object, uint64_t kind) {
  return object != nullptr && object->kind == kind;
}

size_t size_of(int32_t type) { return type == F64 ? 8 : type == F32 ? 4 : type == F8 ? 1 : 2; }

// Calls `body` with a value of the type.
template <class F>
void with(int32_t type, F body) {
  switch (type) {
    case F32: return body(float());
    case F64: return body(double());
    case F16: return body(Half());
    default: return body(BFloat());
  }
}

// As `with`, for types of operands only, too.
template <class F>
void with_operand(int32_t type, F body) {
  if (type == F8) return body(E4m3());
  with(type, body);
}

template <class T>
Status set(T& attribute, const void* value, size_t bytes) {
  if (value == nullptr || bytes != sizeof(T)) return refuse("an attribute of %zu bytes is set with %zu bytes", sizeof(T), bytes);
  memcpy(&attribute, value, bytes);
  return SUCCESS;
}

struct Problem {
  Operation operation;
  Layout a, b, c, d;

  // The inner dimension.
  uint64_t k() const { return operation.transposed[0] != 0 ? a.rows : a.columns; }
  bool is_double() const { return operation.compute >= COMPUTE_64F; }
  bool is_epilogue(uint32_t one, uint32_t other) const {
    return operation.epilogue == one || operation.epilogue == other;
  }
  bool has_bias() const { return is_epilogue(EPILOGUE_BIAS, EPILOGUE_RELU_BIAS); }
  bool has_relu() const { return is_epilogue(EPILOGUE_RELU, EPILOGUE_RELU_BIAS); }
  size_t sum_bytes() const { return d.rows * d.columns * (is_double() ? 8 : 4); }
  Status check() const;
  uint64_t fingerprint() const;
};

Status Problem::check() const {
  const auto dims = [](const Layout& it, int32_t transposed) {
    return transposed != 0 ? std::pair(it.columns, it.rows) : std::pair(it.rows, it.columns);
  };
  const auto [m, n] = dims(d, 0);
  if (dims(a, operation.transposed[0]) != std::pair(m, k()) || dims(b, operation.transposed[1]) != std::pair(k(), n) ||
      dims(c, 0) != std::pair(m, n)) {
    return refuse("the dimensions of A, B, C and D do not conform");
  }
  if (m == 0 || n == 0 || k() == 0) return refuse("an empty product");
  for (const Layout* it : {&a, &b, &c, &d}) {
    // C may repeat one column.
    const bool repeats = it == &c && it->leading == 0;
    if (!repeats && it->leading < static_cast<int64_t>(it->rows)) {
      return refuse("the leading dimension %ld is less than %lu rows", it->leading, it->rows);
    }
    if (it->batch < 1 || it->batch != d.batch) return refuse("batches of %d and of %d", it->batch, d.batch);
    if (it->stride < 0) return refuse("a batch has a negative stride");
  }
  if (d.batch > 1 && d.stride == 0) return refuse("all products of a batch have the same result");
  if (c.type != d.type) return refuse("C and D have different types");
  bool known;
  if (is_double()) {
    known = operation.scale == F64 && a.type == F64 && b.type == F64 && d.type == F64 &&
            operation.epilogue == EPILOGUE_DEFAULT;
  } else {
    const bool is_narrow = a.type == F16 || a.type == BF16;
    // The summed dimension of 8-bit operands is contiguous, and extents are multiples of 16 bytes.
    const bool is_f8 = a.type == F8 && operation.transposed == std::array<int32_t, 2>{1, 0} && d.type != F64 &&
                       d.type != F8 && a.rows % 16 == 0 && d.rows % 16 == 0 && a.leading % 16 == 0 && b.leading % 16 == 0;
    known = operation.compute >= COMPUTE_32F && operation.scale == F32 && a.type == b.type &&
            (is_f8 || (is_narrow ? d.type == a.type || d.type == F32 : a.type == F32 && d.type == F32)) &&
            (operation.bias_type < 0 || operation.bias_type == d.type);
  }
  if (operation.compute > COMPUTE_64F_PEDANTIC) known = false;
  if (operation.epilogue != EPILOGUE_DEFAULT && !has_bias() && !has_relu()) known = false;
  return known ? static_cast<Status>(SUCCESS) : static_cast<Status>(NOT_SUPPORTED);
}

// Returns a hash of the problem. The address of the bias is not part of it.
uint64_t Problem::fingerprint() const {
  uint64_t hash = 0xcbf2'9ce4'8422'2325;
  const auto add = [&](uint64_t word) { hash = (hash ^ word) * 0x100'0000'01b3, hash ^= hash >> 29; };
  for (const int32_t it : {operation.compute, operation.scale, operation.transposed[0], operation.transposed[1],
                           operation.bias_type, static_cast<int32_t>(operation.epilogue)}) {
    add(static_cast<uint64_t>(it));
  }
  for (const Layout* it : {&a, &b, &c, &d}) {
    add(static_cast<uint64_t>(it->type));
    add(it->rows);
    add(it->columns);
    add(static_cast<uint64_t>(it->leading));
    add(static_cast<uint64_t>(it->batch));
    add(static_cast<uint64_t>(it->stride));
  }
  return hash;
}

// Returns the number of bytes from the first element to the end of the last one.
size_t extent(const Layout& it) {
  const auto last = static_cast<uint64_t>(it.batch - 1) * static_cast<uint64_t>(it.stride) +
                    (it.columns - 1) * static_cast<uint64_t>(it.leading) + it.rows;
  return last * size_of(it.type);
}

// A product that was issued. Everything that the descriptors say is copied, since the caller may change them
// afterwards.
struct Product {
  Problem problem;
  const char *a, *b, *c;
  char *d, *workspace;
  double alpha, beta;
  uint16_t number;
};

uint64_t algorithm_count() { return setting("HIR_EMULATED_ALGORITHMS", 4); }

// Returns how much slower an algorithm is than the fastest one.
std::chrono::microseconds slowness(uint16_t number) {
  static const uint64_t unit = setting("HIR_EMULATED_ALGORITHM_DELAY", 0);
  return std::chrono::microseconds(unit * (number == 2 ? 0 : number + 1u));
}

bool is_wrong(uint16_t number) {
  static const uint64_t wrong = setting("HIR_EMULATED_WRONG_ALGORITHM", ~uint64_t{0});
  return number == wrong;
}

constexpr size_t HIGH = 8, WIDE = 4;

// Packs strips of `width` rows of a matrix [rows, depth], index by index. The last strip is padded with
// zeros.
template <class Sum>
std::vector<Sum> strips(int32_t type, const char* from, size_t rows, size_t depth, size_t row, size_t column,
                        size_t width) {
  std::vector<Sum> packed((rows + width - 1) / width * width * depth);
  with_operand(type, [&](auto zero) {
    const auto* source = reinterpret_cast<const decltype(zero)*>(from);
    for (size_t i = 0; i < rows; ++i) {
      Sum* to = &packed[i / width * width * depth + i % width];
      for (size_t p = 0; p < depth; ++p) to[p * width] = static_cast<Sum>(source[i * row + p * column]);
    }
  });
  return packed;
}

// Computes the sums of one tile, added in the order of the inner index.
template <class Sum>
void tile(const Sum* a, const Sum* b, size_t depth, Sum (&sums)[WIDE][HIGH]) {
  // The compiler's vector type, because loops alone stay scalar at -O2.
  typedef Sum Lanes __attribute__((vector_size(HIGH * sizeof(Sum)), aligned(alignof(Sum)), may_alias));
  Lanes columns[WIDE] = {};
  for (size_t p = 0; p < depth; ++p) {
    const Lanes rows = *reinterpret_cast<const Lanes*>(a + p * HIGH);
    for (size_t j = 0; j < WIDE; ++j) columns[j] += rows * b[p * WIDE + j];
  }
  memcpy(sums, columns, sizeof sums);
}

template <class Sum>
void multiply(const Product& it, size_t batch) {
  const auto& [operation, a_layout, b_layout, c_layout, d_layout] = it.problem;
  const size_t m = d_layout.rows, n = d_layout.columns, k = it.problem.k();
  const auto start = [&](auto* base, const Layout& layout) {
    return base + batch * static_cast<size_t>(layout.stride) * size_of(layout.type);
  };
  const auto a_leading = static_cast<size_t>(a_layout.leading), b_leading = static_cast<size_t>(b_layout.leading);
  const bool a_turned = operation.transposed[0] != 0, b_turned = operation.transposed[1] != 0;
  const auto a = strips<Sum>(a_layout.type, start(it.a, a_layout), m, k, a_turned ? a_leading : 1,
                             a_turned ? 1 : a_leading, HIGH);
  const auto b = strips<Sum>(b_layout.type, start(it.b, b_layout), n, k, b_turned ? 1 : b_leading,
                             b_turned ? b_leading : 1, WIDE);
  std::vector<Sum> own(it.workspace == nullptr ? m * n : 0);
  Sum* sums = it.workspace == nullptr ? own.data() : reinterpret_cast<Sum*>(it.workspace);
  for (size_t j = 0; j < n; j += WIDE) {
    for (size_t i = 0; i < m; i += HIGH) {
      Sum part[WIDE][HIGH];
      tile(&a[i * k], &b[j * k], k, part);
      for (size_t column = j; column < n && column < j + WIDE; ++column) {
        memcpy(sums + column * m + i, part[column - j], std::min(HIGH, m - i) * sizeof(Sum));
      }
    }
  }
  const auto alpha = static_cast<Sum>(is_wrong(it.number) ? it.alpha + 1 : it.alpha), beta = static_cast<Sum>(it.beta);
  with(d_layout.type, [&](auto zero) {
    using Result = decltype(zero);
    const auto* c = reinterpret_cast<const Result*>(start(it.c, c_layout));
    auto* d = reinterpret_cast<Result*>(start(it.d, d_layout));
    const Result* bias = it.problem.has_bias() ? reinterpret_cast<const Result*>(operation.bias) : nullptr;
    if (bias != nullptr) bias += batch * static_cast<size_t>(operation.bias_stride);
    for (size_t j = 0; j < n; ++j) {
      for (size_t i = 0; i < m; ++i) {
        Sum value = alpha * sums[j * m + i];
        // With a beta of zero C is not read, so it may hold anything.
        if (beta != 0) value += beta * static_cast<Sum>(c[j * static_cast<size_t>(c_layout.leading) + i]);
        if (bias != nullptr) value += static_cast<Sum>(bias[i]);
        // As cuBLASLt on an H200: NaN stays, and no zero is negative.
        if (it.problem.has_relu() && value <= 0) value = 0;
        d[j * static_cast<size_t>(d_layout.leading) + i] = static_cast<Result>(value);
      }
    }
  });
}

bool is_aligned(const void* at, size_t bytes) { return reinterpret_cast<uint64_t>(at) % bytes == 0; }

}  // namespace

API size_t cublasLtGetVersion() { return 130000; }

API const char* cublasLtGetStatusName(Status status) {
  switch (status) {
    case SUCCESS: return "CUBLAS_STATUS_SUCCESS";
    case NO_HANDLE: return "CUBLAS_STATUS_NOT_INITIALIZED";
    case REFUSED: return "CUBLAS_STATUS_INVALID_VALUE";
    case NOT_EXECUTED: return "CUBLAS_STATUS_EXECUTION_FAILED";
    case NOT_SUPPORTED: return "CUBLAS_STATUS_NOT_SUPPORTED";
    default: return "CUBLAS_STATUS_UNKNOWN";
  }
}

API Status cublasLtCreate(Handle** handle) {
  MAY_FAIL;
  if (handle == nullptr) return REFUSED;
  // A handle belongs to a GPU.
  if (enter() != SUCCESS) return NO_HANDLE;
  *handle = new Handle;
  return SUCCESS;
}

API Status cublasLtMatmulDescCreate(Operation** operation, int32_t compute, int32_t scale) {
  MAY_FAIL;
  if (operation == nullptr || compute < 64 || compute > 79) return refuse("compute type %d", compute);
  *operation = new Operation{.compute = compute, .scale = scale};
  return SUCCESS;
}

API Status cublasLtMatmulDescSetAttribute(Operation* operation, int32_t attribute, const void* value, size_t bytes) {
  MAY_FAIL;
  if (!is(operation, OPERATION)) return refuse("not a matmul descriptor");
  int32_t processors = 0;
  switch (attribute) {
    case 3:
    case 4: {
      int32_t& transposed = operation->transposed[static_cast<size_t>(attribute - 3)];
      if (const Status status = set(transposed, value, bytes)) return status;
      // CUBLAS_OP_C is for complex numbers.
      return transposed == 0 || transposed == 1 ? static_cast<Status>(SUCCESS) : refuse("transposition %d", transposed);
    }
    case 7: return set(operation->epilogue, value, bytes);
    case 8: return set(operation->bias, value, bytes);
    case 10: return set(operation->bias_stride, value, bytes);
    case 15: return set(processors, value, bytes);  // SM_COUNT_TARGET: speed only
    case 26: return set(operation->bias_type, value, bytes);
    default: return refuse("attribute %d of a matmul descriptor is not supported by the emulator", attribute);
  }
}

API Status cublasLtMatrixLayoutCreate(Layout** layout, int32_t type, uint64_t rows, uint64_t columns, int64_t leading) {
  MAY_FAIL;
  if (layout == nullptr || type < 0 || type > 33) return refuse("element type %d", type);
  *layout = new Layout{.type = type, .rows = rows, .columns = columns, .leading = leading};
  return SUCCESS;
}

API Status cublasLtMatrixLayoutSetAttribute(Layout* layout, int32_t attribute, const void* value, size_t bytes) {
  MAY_FAIL;
  if (!is(layout, LAYOUT)) return refuse("no layout");
  switch (attribute) {
    case 5: return set(layout->batch, value, bytes);
    case 6: return set(layout->stride, value, bytes);
    default: return refuse("attribute %d of a layout is not supported by the emulator", attribute);
  }
}

API Status cublasLtMatmulPreferenceCreate(Preference** preference) {
  MAY_FAIL;
  if (preference == nullptr) return REFUSED;
  *preference = new Preference;
  return SUCCESS;
}

API Status cublasLtMatmulPreferenceSetAttribute(Preference* preference, int32_t attribute, const void* value,
                                                size_t bytes) {
  MAY_FAIL;
  if (!is(preference, PREFERENCE)) return refuse("no preference");
  switch (attribute) {
    case 1: return set(preference->workspace, value, bytes);
    case 3: return set(preference->schemes, value, bytes);
    case 5:
    case 6:
    case 7:
    case 8: {
      uint32_t promised = 0;
      if (const Status status = set(promised, value, bytes)) return status;
      if (!std::has_single_bit(promised)) return refuse("an alignment of %u bytes", promised);
      // No algorithm needs a larger alignment.
      preference->alignments[static_cast<size_t>(attribute - 5)] = std::min(promised, 256u);
      return SUCCESS;
    }
    default: return refuse("attribute %d of a preference is not supported by the emulator", attribute);
  }
}

API Status cublasLtMatmulAlgoGetHeuristic(const Handle* handle, const Operation* operation, const Layout* a,
                                          const Layout* b, const Layout* c, const Layout* d,
                                          const Preference* preference, int wanted, Found* results, int* count) {
  MAY_FAIL;
  if (!is(handle, HANDLE)) return NO_HANDLE;
  if (!is(operation, OPERATION) || !is(a, LAYOUT) || !is(b, LAYOUT) || !is(c, LAYOUT) || !is(d, LAYOUT) ||
      !is(preference, PREFERENCE) || wanted < 1 || results == nullptr || count == nullptr) {
    return refuse("an argument of the heuristic is missing");
  }
  *count = 0;
  const Problem problem{*operation, *a, *b, *c, *d};
  if (const Status status = problem.check()) return status;
  Algorithm algorithm{.kind = ALGORITHM, .problem = problem.fingerprint(), .workspace = 0, .alignments = {}, .number = 0, .rest = {}};
  const std::array<size_t, 4> sizes = {size_of(a->type), size_of(b->type), size_of(c->type), size_of(d->type)};
  for (size_t at = 0; at < 4; ++at) {
    if (preference->alignments[at] < sizes[at]) return NOT_SUPPORTED;
    algorithm.alignments[at] = static_cast<uint16_t>(preference->alignments[at]);
  }
  // The address of the bias determines its alignment, as documented. Without a bias, the alignment is the
  // usual one.
  const auto bias = reinterpret_cast<uint64_t>(operation->bias);
  algorithm.alignments[4] = static_cast<uint16_t>(bias == 0 ? 256 : std::min(bias & -bias, uint64_t{256}));
  if (problem.has_bias() && algorithm.alignments[4] < size_of(d->type)) return NOT_SUPPORTED;
  if ((preference->schemes & SUMS_IN_WORKSPACE) != 0 && problem.sum_bytes() <= preference->workspace) {
    algorithm.workspace = problem.sum_bytes();
  }
  const auto most = std::min(static_cast<uint64_t>(wanted), algorithm_count());
  for (*count = 0; static_cast<uint64_t>(*count) < most; ++*count) {
    algorithm.number = static_cast<uint16_t>(*count);
    results[*count] = Found{algorithm, algorithm.workspace, SUCCESS, 1, {}};
  }
  return SUCCESS;
}

API Status cublasLtMatmulAlgoCheck(const Handle* handle, const Operation* operation, const Layout* a, const Layout* b,
                                   const Layout* c, const Layout* d, const Algorithm* algorithm, Found* result) {
  MAY_FAIL;
  if (!is(handle, HANDLE)) return NO_HANDLE;
  if (!is(operation, OPERATION) || !is(a, LAYOUT) || !is(b, LAYOUT) || !is(c, LAYOUT) || !is(d, LAYOUT) ||
      algorithm == nullptr || result == nullptr) {
    return refuse("an argument of the check is missing");
  }
  const Problem problem{*operation, *a, *b, *c, *d};
  if (const Status status = problem.check()) return status;
  if (!is(algorithm, ALGORITHM) || algorithm->problem != problem.fingerprint() ||
      algorithm->number >= algorithm_count()) {
    return REFUSED;
  }
  *result = Found{*algorithm, algorithm->workspace, SUCCESS, 1, {}};
  return SUCCESS;
}

API Status cublasLtMatmul(const Handle* handle, const Operation* operation, const void* alpha, const char* a,
                          const Layout* a_layout, const char* b, const Layout* b_layout, const void* beta, const char* c,
                          const Layout* c_layout, char* d, const Layout* d_layout, const Algorithm* algorithm,
                          char* workspace, size_t workspace_bytes, Stream* stream) {
  MAY_FAIL;
  if (!is(handle, HANDLE)) return NO_HANDLE;
  if (enter() != SUCCESS) return NOT_EXECUTED;
  if (!is(operation, OPERATION) || !is(a_layout, LAYOUT) || !is(b_layout, LAYOUT) || !is(c_layout, LAYOUT) ||
      !is(d_layout, LAYOUT) || alpha == nullptr || beta == nullptr) {
    return refuse("an argument of the product is missing");
  }
  const Problem problem{*operation, *a_layout, *b_layout, *c_layout, *d_layout};
  if (const Status status = problem.check()) return status;
  if (!is(algorithm, ALGORITHM) || algorithm->problem != problem.fingerprint()) {
    return refuse("the algorithm was not found for this product");
  }
  static const uint64_t refused = setting("HIR_EMULATED_REFUSED_ALGORITHM", ~uint64_t{0});
  if (algorithm->number == refused) return NOT_SUPPORTED;
  static const bool logs = setting("HIR_EMULATED_ALGORITHM_LOG", 0) == 1;
  if (logs) fprintf(stderr, "emulated cuBLASLt: algorithm %u\n", algorithm->number);
  double factors[2];
  for (size_t at = 0; at < 2; ++at) {
    const void* from = at == 0 ? alpha : beta;
    factors[at] = problem.is_double() ? *static_cast<const double*>(from) : *static_cast<const float*>(from);
  }
  if (c == d && problem.c != problem.d) return refuse("C and D are the same matrix with different layouts");
  const char* addresses[] = {a, b, c, d, operation->bias};
  const Layout bias_layout{
      .type = problem.d.type, .rows = problem.d.rows, .columns = 1, .leading = 0, .batch = problem.d.batch,
      .stride = operation->bias_stride};
  const Layout* layouts[] = {a_layout, b_layout, c_layout, d_layout, &bias_layout};
  for (size_t at = 0; at < 5; ++at) {
    const char* name = &"A\0B\0C\0D\0bias"[2 * at];
    if (at == 4 && !problem.has_bias()) break;
    if (at == 2 && factors[1] == 0 && c == nullptr) continue;
    if (!is_mapped(addresses[at], extent(*layouts[at]))) return refuse("%s is not in GPU memory", name);
    if (!is_aligned(addresses[at], algorithm->alignments[at])) {
      return refuse("%s is not aligned to the %d bytes that were promised", name, algorithm->alignments[at]);
    }
  }
  if (workspace_bytes < algorithm->workspace) {
    return refuse("a workspace of %zu bytes, but %lu are needed", workspace_bytes, algorithm->workspace);
  }
  if (workspace_bytes > 0 && (!is_aligned(workspace, 256) || !is_mapped(workspace, workspace_bytes))) {
    return refuse("the workspace is not %zu bytes of GPU memory, aligned to 256", workspace_bytes);
  }
  char* sums = algorithm->workspace > 0 ? workspace : nullptr;
  const Product product{problem, a, b, c, d, sums, factors[0], factors[1], algorithm->number};
  const Status status = enqueue(stream, "matrix product", [product] {
    std::this_thread::sleep_for(slowness(product.number));
    for (size_t batch = 0; batch < static_cast<size_t>(product.problem.d.batch); ++batch) {
      product.problem.is_double() ? multiply<double>(product, batch) : multiply<float>(product, batch);
    }
  });
  return status == SUCCESS ? static_cast<Status>(SUCCESS) : static_cast<Status>(NOT_EXECUTED);
}
