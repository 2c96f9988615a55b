// RUN: hir-run %s --input 'T0=2x2x3xf32=-0.375 -1.0 0.0 0.875 0.875 0.375 -0.5 -0.125 0.625 0.25 0.75 -0.625' --input 'T1=2x2x3xf32=0.125 -0.75 0.375 0.625 -0.875 -0.25 0.25 1.0 1.0 -0.625 0.25 0.125' --expect 'T5=3x3xf32=0.21875 -0.921875 -0.828125 -0.078125 0.046875 -0.625 0.78125 0.140625 0.453125' --expect 'T7=2x2x2xf32=0.703125 0.640625 -0.40625 -0.3125 0.375 0.359375 0.1875 -0.046875' --expect 'T12=2x2x2x2xf32=0.703125 0.640625 -1.09375 -0.015625 -0.40625 -0.3125 1.46875 -0.28125 0.265625 -0.359375 0.375 0.359375 -0.765625 -0.34375 0.1875 -0.046875' --expect 'T16=f32=0.71875' --expect 'T22=2x2x3xf32=-0.046875 0.75 0.0 -0.125 -0.125 0.625 0.546875 -0.765625 -0.09375 -0.15625 0.1875 -0.078125' --expect 'T29=2x2xf32=0.703125 0.640625 -1.09375 -0.015625' --expect 'T35=2x3x3x2xf32=-0.046875 -0.125 0.28125 -0.5 -0.140625 -0.5 -0.125 -0.03125 0.75 -0.125 -0.375 -0.125 0.0 0.15625 -0.0 0.625 0.0 0.625 0.546875 -0.15625 -0.765625 0.0625 -0.21875 0.03125 0.546875 -0.46875 -0.765625 0.1875 -0.21875 0.09375 0.234375 0.390625 -0.328125 -0.15625 -0.09375 -0.078125'
// Products with several contracted, batch and free dimensions.
module @jit__lambda attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main(%arg0: tensor<2x2x3xf32>, %arg1: tensor<2x2x3xf32>) -> (tensor<3x3xf32> {jax.result_info = "result[0]"}, tensor<2x2x2xf32> {jax.result_info = "result[1]"}, tensor<2x2x2x2xf32> {jax.result_info = "result[2]"}, tensor<f32> {jax.result_info = "result[3]"}, tensor<2x2x3xf32> {jax.result_info = "result[4]"}, tensor<2x2xf32> {jax.result_info = "result[5]"}, tensor<2x3x3x2xf32> {jax.result_info = "result[6]"}) {
    %0 = stablehlo.dot_general %arg0, %arg1, contracting_dims = [0, 1] x [0, 1], precision = [DEFAULT, DEFAULT] : (tensor<2x2x3xf32>, tensor<2x2x3xf32>) -> tensor<3x3xf32>
    %1 = stablehlo.dot_general %arg0, %arg1, batching_dims = [0] x [0], contracting_dims = [2] x [2], precision = [DEFAULT, DEFAULT] : (tensor<2x2x3xf32>, tensor<2x2x3xf32>) -> tensor<2x2x2xf32>
    %2 = stablehlo.dot_general %arg0, %arg1, contracting_dims = [2] x [2], precision = [DEFAULT, DEFAULT] : (tensor<2x2x3xf32>, tensor<2x2x3xf32>) -> tensor<2x2x2x2xf32>
    %3 = stablehlo.dot_general %arg0, %arg1, contracting_dims = [0, 1, 2] x [0, 1, 2], precision = [DEFAULT, DEFAULT] : (tensor<2x2x3xf32>, tensor<2x2x3xf32>) -> tensor<f32>
    %4 = stablehlo.dot_general %arg0, %arg1, batching_dims = [1, 0, 2] x [1, 0, 2], contracting_dims = [] x [], precision = [DEFAULT, DEFAULT] : (tensor<2x2x3xf32>, tensor<2x2x3xf32>) -> tensor<2x2x3xf32>
    %5 = stablehlo.slice %arg0 [0:1, 0:1, 0:3] : (tensor<2x2x3xf32>) -> tensor<1x1x3xf32>
    %6 = stablehlo.reshape %5 : (tensor<1x1x3xf32>) -> tensor<3xf32>
    %7 = stablehlo.dot_general %6, %arg1, contracting_dims = [0] x [2], precision = [DEFAULT, DEFAULT] : (tensor<3xf32>, tensor<2x2x3xf32>) -> tensor<2x2xf32>
    %8 = stablehlo.dot_general %arg1, %arg0, batching_dims = [1, 0] x [1, 0], contracting_dims = [] x [], precision = [DEFAULT, DEFAULT] : (tensor<2x2x3xf32>, tensor<2x2x3xf32>) -> tensor<2x2x3x3xf32>
    %9 = stablehlo.transpose %8, dims = [0, 3, 2, 1] : (tensor<2x2x3x3xf32>) -> tensor<2x3x3x2xf32>
    return %0, %1, %2, %3, %4, %7, %9 : tensor<3x3xf32>, tensor<2x2x2xf32>, tensor<2x2x2x2xf32>, tensor<f32>, tensor<2x2x3xf32>, tensor<2x2xf32>, tensor<2x3x3x2xf32>
  }
}
