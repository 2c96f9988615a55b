// RUN: hir-opt %s --check
// RUN: hir-run %s
// A call of a library: it is checked, and not run.
module @jit_cholesky {
  func.func public @main(%arg0: tensor<4x4xf32>) -> tensor<4x4xf32> {
    %0:2 = stablehlo.custom_call @lapack_spotrf_ffi(%arg0) {mhlo.backend_config = {uplo = 76 : ui8}} : (tensor<4x4xf32>) -> (tensor<4x4xf32>, tensor<i32>)
    %1 = stablehlo.negate %0#0 : tensor<4x4xf32>
    return %1 : tensor<4x4xf32>
  }
}
