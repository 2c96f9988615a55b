// RUN: hir-run %s --input 'T0=0x3xf32=' --input 'T1=2x2xf32=-0.75 0.25 0.625 1.0' --expect 'T9=0x3xf32=' --expect 'T2=0x3xf32=' --expect 'T3=3xf32=0.0 0.0 0.0' --expect 'T4=3x0xf32=' --expect 'T10=0xf32=' --expect 'T8=2x2xf32=0.0 0.0 0.0 0.0'
// Tensors without elements.
module @jit__lambda attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main(%arg0: tensor<0x3xf32>, %arg1: tensor<2x2xf32>) -> (tensor<0x3xf32> {jax.result_info = "result[0]"}, tensor<0x3xf32> {jax.result_info = "result[1]"}, tensor<3xf32> {jax.result_info = "result[2]"}, tensor<3x0xf32> {jax.result_info = "result[3]"}, tensor<0xf32> {jax.result_info = "result[4]"}, tensor<2x2xf32> {jax.result_info = "result[5]"}) {
    %0 = stablehlo.concatenate %arg0, %arg0, dim = 0 : (tensor<0x3xf32>, tensor<0x3xf32>) -> tensor<0x3xf32>
    %cst = stablehlo.constant dense<2.000000e+00> : tensor<f32>
    %1 = stablehlo.broadcast_in_dim %cst, dims = [] : (tensor<f32>) -> tensor<0x3xf32>
    %2 = stablehlo.multiply %arg0, %1 : tensor<0x3xf32>
    %cst_0 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %3 = stablehlo.reduce(%arg0 init: %cst_0) applies stablehlo.add across dimensions = [0] : (tensor<0x3xf32>, tensor<f32>) -> tensor<3xf32>
    %4 = stablehlo.reshape %arg0 : (tensor<0x3xf32>) -> tensor<3x0xf32>
    %cst_1 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %5 = stablehlo.broadcast_in_dim %cst_1, dims = [] : (tensor<f32>) -> tensor<0xf32>
    %6 = stablehlo.slice %arg1 [0:2, 0:0] : (tensor<2x2xf32>) -> tensor<2x0xf32>
    %7 = stablehlo.slice %arg1 [0:2, 0:0] : (tensor<2x2xf32>) -> tensor<2x0xf32>
    %8 = stablehlo.transpose %7, dims = [1, 0] : (tensor<2x0xf32>) -> tensor<0x2xf32>
    %9 = stablehlo.dot_general %6, %8, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT] : (tensor<2x0xf32>, tensor<0x2xf32>) -> tensor<2x2xf32>
    return %0, %2, %3, %4, %5, %9 : tensor<0x3xf32>, tensor<0x3xf32>, tensor<3xf32>, tensor<3x0xf32>, tensor<0xf32>, tensor<2x2xf32>
  }
}
