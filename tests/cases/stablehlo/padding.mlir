// RUN: hir-run %s --input 'T0=3x2xf32=-0.375 -1.0 -0.5 -0.75 1.0 -0.625' --expect 'T13=5x3xf32=1.0 -0.375 1.0 1.0 1.0 1.0 1.0 -0.5 1.0 1.0 1.0 1.0 1.0 1.0 1.0' --expect 'T23=3x2xf32=0.0 -2.0 0.0 0.0 0.0 -1.25' --expect 'T25=3x2xf32=-1.0 -0.375 -0.75 -0.5 -0.625 1.0'
// Padding between elements, the gradient of a slice with strides, and reversal.
module @jit__lambda attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main(%arg0: tensor<3x2xf32>) -> (tensor<5x3xf32> {jax.result_info = "result[0]"}, tensor<3x2xf32> {jax.result_info = "result[1]"}, tensor<3x2xf32> {jax.result_info = "result[2]"}) {
    %cst = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %0 = stablehlo.pad %arg0, %cst, low = [0, 1], high = [0, -2], interior = [1, 2] : (tensor<3x2xf32>, tensor<f32>) -> tensor<5x3xf32>
    %1 = stablehlo.slice %arg0 [0:3:2, 1:2] : (tensor<3x2xf32>) -> tensor<2x1xf32>
    %cst_0 = stablehlo.constant dense<2.000000e+00> : tensor<f32>
    %2 = stablehlo.broadcast_in_dim %cst_0, dims = [] : (tensor<f32>) -> tensor<2x1xf32>
    %3 = stablehlo.multiply %2, %1 : tensor<2x1xf32>
    %cst_1 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %4 = stablehlo.broadcast_in_dim %cst_1, dims = [] : (tensor<f32>) -> tensor<2x1xf32>
    %5 = stablehlo.multiply %4, %3 : tensor<2x1xf32>
    %cst_2 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %6 = stablehlo.pad %5, %cst_2, low = [0, 1], high = [0, 0], interior = [1, 0] : (tensor<2x1xf32>, tensor<f32>) -> tensor<3x2xf32>
    %7 = stablehlo.reverse %arg0, dims = [1] : tensor<3x2xf32>
    return %0, %6, %7 : tensor<5x3xf32>, tensor<3x2xf32>, tensor<3x2xf32>
  }
}
