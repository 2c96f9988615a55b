// RUN: hir-run %s --input 'T0=3x3xf32=4 2 -2 2 5 1 -2 1 6' --input 'T1=3x2xf32=8 1 -2 3 4 0.5' --expect 'T30=3x3xf32=2 0 0 1 2 0 -1 1 2' --expect 'T61=3x3xf32=2 1 -1 0 2 1 0 0 2' --expect 'T85=3x2xf32=2 0.25 -1.2 0.5 1.5333333 0.083333336' --expect 'T99=3x2xf32=28 -3 -6 2.5 4 0.5' --expect 'T125=2x3xf32=2 -1.2 1.5333333 0.25 0.5 0.083333336' --expect 'T151=2x3xf32=2 -1.2 1.5333333 0.25 0.5 0.083333336' --expect 'T174=3x2xf32=2 0.25 -1.2 0.5 1.5333333 0.083333336' --expect 'T206=i32=0' --expect 'T239=i32=1'
// Cholesky factors and triangular systems, as StableHLO and as JAX's calls of LAPACK on the CPU. Values of JAX 0.10.2.
module @jit_la {
  func.func public @main(%a: tensor<3x3xf32>, %b: tensor<3x2xf32>) -> (tensor<3x3xf32>, tensor<3x3xf32>, tensor<3x2xf32>, tensor<3x2xf32>, tensor<2x3xf32>, tensor<2x3xf32>, tensor<3x2xf32>, tensor<i32>, tensor<i32>) {
    %0 = stablehlo.cholesky %a, lower = true : tensor<3x3xf32>
    %1 = "stablehlo.cholesky"(%a) <{lower = false}> : (tensor<3x3xf32>) -> tensor<3x3xf32>
    %2 = "stablehlo.triangular_solve"(%a, %b) <{left_side = true, lower = false, transpose_a = #stablehlo<transpose TRANSPOSE>, unit_diagonal = false}> : (tensor<3x3xf32>, tensor<3x2xf32>) -> tensor<3x2xf32>
    %3 = "stablehlo.triangular_solve"(%a, %b) <{left_side = true, lower = false, transpose_a = #stablehlo<transpose NO_TRANSPOSE>, unit_diagonal = true}> : (tensor<3x3xf32>, tensor<3x2xf32>) -> tensor<3x2xf32>
    %t = stablehlo.transpose %b, dims = [1, 0] : (tensor<3x2xf32>) -> tensor<2x3xf32>
    %4 = "stablehlo.triangular_solve"(%a, %t) <{left_side = false, lower = true, transpose_a = #stablehlo<transpose TRANSPOSE>, unit_diagonal = false}> : (tensor<3x3xf32>, tensor<2x3xf32>) -> tensor<2x3xf32>
    %5 = "stablehlo.triangular_solve"(%a, %t) <{left_side = false, lower = false, transpose_a = #stablehlo<transpose NO_TRANSPOSE>, unit_diagonal = false}> : (tensor<3x3xf32>, tensor<2x3xf32>) -> tensor<2x3xf32>
    %6 = stablehlo.custom_call @lapack_strsm_ffi(%a, %b) {backend_config = "", mhlo.backend_config = {diag = 78 : ui8, side = 76 : ui8, trans_x = 78 : ui8, uplo = 76 : ui8}} : (tensor<3x3xf32>, tensor<3x2xf32>) -> tensor<3x2xf32>
    %7:2 = stablehlo.custom_call @lapack_spotrf_ffi(%a) {backend_config = "", mhlo.backend_config = {uplo = 76 : ui8}} : (tensor<3x3xf32>) -> (tensor<3x3xf32>, tensor<i32>)
    %n = stablehlo.negate %a : tensor<3x3xf32>
    %8:2 = stablehlo.custom_call @lapack_spotrf_ffi(%n) {backend_config = "", mhlo.backend_config = {uplo = 76 : ui8}} : (tensor<3x3xf32>) -> (tensor<3x3xf32>, tensor<i32>)
    return %0, %1, %2, %3, %4, %5, %6, %7#1, %8#1 : tensor<3x3xf32>, tensor<3x3xf32>, tensor<3x2xf32>, tensor<3x2xf32>, tensor<2x3xf32>, tensor<2x3xf32>, tensor<3x2xf32>, tensor<i32>, tensor<i32>
  }
}
