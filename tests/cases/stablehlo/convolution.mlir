// RUN: hir-run %s --input 'T0=1x4x2xf32=0.125 -0.625 -0.25 0.375 0.75 -1.0 0.75 -0.625' --input 'T1=2x2x3xf32=0.5 0.25 0.375 -0.5 -0.25 -0.5 0.875 -0.625 0.5 -0.5 0.0 0.75' --expect 'T18=1x4x3xf32=0.0 0.0 0.0 0.0 0.0 0.0 0.0 0.0 0.0 0.0 0.0 0.0' --expect 'T56=1x2x4xf32=1.125 0.75 1.125 0.75 -1.25 0.25 -1.25 0.25' --expect 'T33=3x2x2xf32=0.875 0.5 -1.625 -0.25 0.875 0.5 -1.625 -0.25 0.875 0.5 -1.625 -0.25'
// A convolution with padding, strides and dilations, and its gradients.
module @jit__lambda attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main(%arg0: tensor<1x4x2xf32>, %arg1: tensor<2x2x3xf32>) -> (tensor<1x4x3xf32> {jax.result_info = "result[0]"}, tensor<1x2x4xf32> {jax.result_info = "result[1][0]"}, tensor<3x2x2xf32> {jax.result_info = "result[1][1]"}) {
    %0 = stablehlo.convolution(%arg0, %arg1) dim_numbers = [b, 0, f]x[0, i, o]->[b, 0, f], window = {stride = [2], pad = [[1, 1]], lhs_dilate = [2], rhs_dilate = [2], reverse = [false]} {batch_group_count = 1 : i64, feature_group_count = 1 : i64, precision_config = [#stablehlo<precision DEFAULT>, #stablehlo<precision DEFAULT>]} : (tensor<1x4x2xf32>, tensor<2x2x3xf32>) -> tensor<1x4x3xf32>
    %1 = stablehlo.transpose %arg0, dims = [0, 2, 1] : (tensor<1x4x2xf32>) -> tensor<1x2x4xf32>
    %2 = stablehlo.transpose %arg1, dims = [2, 1, 0] : (tensor<2x2x3xf32>) -> tensor<3x2x2xf32>
    %cst = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %3 = stablehlo.broadcast_in_dim %cst, dims = [] : (tensor<f32>) -> tensor<1x3x2xf32>
    %4 = stablehlo.convolution(%1, %3) dim_numbers = [f, b, 0]x[i, o, 0]->[f, b, 0], window = {stride = [1], pad = [[0, 0]], lhs_dilate = [1], rhs_dilate = [2], reverse = [false]} {batch_group_count = 1 : i64, feature_group_count = 1 : i64, precision_config = [#stablehlo<precision DEFAULT>, #stablehlo<precision DEFAULT>]} : (tensor<1x2x4xf32>, tensor<1x3x2xf32>) -> tensor<3x2x2xf32>
    %5 = stablehlo.reverse %2, dims = [2] : tensor<3x2x2xf32>
    %6 = stablehlo.convolution(%3, %5) dim_numbers = [b, f, 0]x[i, o, 0]->[b, f, 0], window = {stride = [1], pad = [[1, 1]], lhs_dilate = [2], rhs_dilate = [1], reverse = [false]} {batch_group_count = 1 : i64, feature_group_count = 1 : i64, precision_config = [#stablehlo<precision DEFAULT>, #stablehlo<precision DEFAULT>]} : (tensor<1x3x2xf32>, tensor<3x2x2xf32>) -> tensor<1x2x4xf32>
    return %0, %6, %4 : tensor<1x4x3xf32>, tensor<1x2x4xf32>, tensor<3x2x2xf32>
  }
}
