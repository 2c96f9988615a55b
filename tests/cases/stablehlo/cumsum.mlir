// RUN: hir-run %s --input 'T0=3x3xf32=-0.875 -0.375 -0.875 -0.125 0.125 0.125 -1.0 -0.5 1.0' --expect 'T1=3x3xf32=-0.875 -0.375 -0.875 -1.0 -0.25 -0.75 -2.0 -0.75 0.25' --expect 'T14=3x2xf32=-0.375 -0.875 0.125 0.125 1.0 -0.5' --expect 'T15=3x2xi32=1 0 1 2 2 1'
// Sums of all elements up to each one, and the greatest elements.
module @jit__lambda attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main(%arg0: tensor<3x3xf32>) -> (tensor<3x3xf32> {jax.result_info = "result[0]"}, tensor<3x2xf32> {jax.result_info = "result[1][0]"}, tensor<3x2xi32> {jax.result_info = "result[1][1]"}) {
    %0 = call @cumsum(%arg0) : (tensor<3x3xf32>) -> tensor<3x3xf32>
    %values, %indices = chlo.top_k(%arg0, k = 2) : tensor<3x3xf32> -> (tensor<3x2xf32>, tensor<3x2xi32>)
    return %0, %values, %indices : tensor<3x3xf32>, tensor<3x2xf32>, tensor<3x2xi32>
  }
  func.func private @cumsum(%arg0: tensor<3x3xf32>) -> tensor<3x3xf32> {
    %0 = call @cumsum_0(%arg0) : (tensor<3x3xf32>) -> tensor<3x3xf32>
    return %0 : tensor<3x3xf32>
  }
  func.func private @cumsum_0(%arg0: tensor<3x3xf32>) -> tensor<3x3xf32> {
    %cst = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %0 = stablehlo.broadcast_in_dim %cst, dims = [] : (tensor<f32>) -> tensor<f32>
    %1 = "stablehlo.reduce_window"(%arg0, %0) <{base_dilations = array<i64: 1, 1>, padding = dense<[[2, 0], [0, 0]]> : tensor<2x2xi64>, window_dilations = array<i64: 1, 1>, window_dimensions = array<i64: 3, 1>, window_strides = array<i64: 1, 1>}> ({
    ^bb0(%arg1: tensor<f32>, %arg2: tensor<f32>):
      %2 = stablehlo.add %arg1, %arg2 : tensor<f32>
      stablehlo.return %2 : tensor<f32>
    }) : (tensor<3x3xf32>, tensor<f32>) -> tensor<3x3xf32>
    return %1 : tensor<3x3xf32>
  }
}
