// RUN: hir-run %s --input 'T0=4x4xf32=-0.75 0.25 0.625 1.0 -0.125 0.125 -1.0 0.25 0.375 -0.75 -0.75 -0.625 -0.625 0.75 -0.625 0.75' --input 'T1=4x4xf32=0.125 -0.875 -0.5 0.25 0.375 0.0 0.375 -0.75 1.0 -1.0 -1.0 -0.25 0.75 0.25 0.0 0.625' --expect 'T13=4x4xf32=-0.5181354284286499 0.1998269408941269 -0.18849064409732819 0.7099982500076294 -0.9502385854721069 -0.05010892450809479 -1.8232040405273438 0.07414327561855316 0.5097194910049438 -0.5258530974388123 0.09406030923128128 -0.19576910138130188 -1.236477255821228 0.3863752484321594 -1.735283613204956 0.1708795130252838'
// RUN: hir-run %s --input 'T0=4x4xf32=-0.75 0.25 0.625 1.0 -0.125 0.125 -1.0 0.25 0.375 -0.75 -0.75 -0.625 -0.625 0.75 -0.625 0.75' --input 'T1=4x4xf32=0.125 -0.875 -0.5 0.25 0.375 0.0 0.375 -0.75 1.0 -1.0 -1.0 -0.25 0.75 0.25 0.0 0.625' --expect 'T13=4x4xf32=-0.5181354284286499 0.1998269408941269 -0.18849064409732819 0.7099982500076294 -0.9502385854721069 -0.05010892450809479 -1.8232040405273438 0.07414327561855316 0.5097194910049438 -0.5258530974388123 0.09406030923128128 -0.19576910138130188 -1.236477255821228 0.3863752484321594 -1.735283613204956 0.1708795130252838' --passes @lower
// Sharding constraints: an all-gather before the product, a reduce-scatter behind it.
module @jit_sp attributes {mhlo.num_partitions = 2 : i32, mhlo.num_replicas = 1 : i32} {
  sdy.mesh @mesh = <["tp"=2]> {stablehlo.mesh = {axes = [{name = "tp", size = 2 : i64}]}}
  func.func public @main(%arg0: tensor<4x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"tp"}, {}]>}, %arg1: tensor<4x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"tp"}]>}) -> (tensor<4x4xf32> {jax.result_info = "result", sdy.sharding = #sdy.sharding<@mesh, [{"tp"}, {}]>}) {
    %cst = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %0 = stablehlo.reduce(%arg0 init: %cst) applies stablehlo.add across dimensions = [1] : (tensor<4x4xf32>, tensor<f32>) -> tensor<4xf32>
    %1 = stablehlo.broadcast_in_dim %0, dims = [0] : (tensor<4xf32>) -> tensor<4x1xf32>
    %cst_0 = stablehlo.constant dense<4.000000e+00> : tensor<f32>
    %2 = stablehlo.broadcast_in_dim %cst_0, dims = [] : (tensor<f32>) -> tensor<4x1xf32>
    %3 = stablehlo.divide %1, %2 : tensor<4x1xf32>
    %4 = stablehlo.broadcast_in_dim %3, dims = [0, 1] : (tensor<4x1xf32>) -> tensor<4x4xf32>
    %5 = stablehlo.subtract %arg0, %4 : tensor<4x4xf32>
    %6 = sdy.sharding_constraint %5 <@mesh, [{}, {}]> : tensor<4x4xf32>
    %7 = stablehlo.dot_general %6, %arg1, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT] : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
    %8 = stablehlo.tanh %7 : tensor<4x4xf32>
    %9 = sdy.sharding_constraint %8 <@mesh, [{}, {"tp"}]> : tensor<4x4xf32>
    %10 = stablehlo.transpose %arg1, dims = [1, 0] : (tensor<4x4xf32>) -> tensor<4x4xf32>
    %11 = stablehlo.dot_general %9, %10, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT] : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
    %12 = sdy.sharding_constraint %11 <@mesh, [{"tp"}, {}]> : tensor<4x4xf32>
    return %12 : tensor<4x4xf32>
  }
}
