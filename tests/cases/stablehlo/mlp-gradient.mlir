// RUN: hir-opt %s --passes @lower --print=short
// RUN: hir-run %s --passes @lower --expect=unsharded --inputs random
// RUN: hir-run %s --passes @overlap{} --expect=unsharded --inputs random
// As JAX lowers it: each gradient of a weight is a transposed product, and the gradient of a constraint makes a sum whole that is sharded.
module @jit_mlp_grad attributes {mhlo.num_partitions = 2 : i32, mhlo.num_replicas = 1 : i32} {
  sdy.mesh @mesh = <["x"=2]> {stablehlo.mesh = {axes = [{name = "x", size = 2 : i64}]}}
  func.func public @main(%arg0: tensor<16x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}, %arg1: tensor<8x32xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}]>}, %arg2: tensor<32x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}, %arg3: tensor<16x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}) -> (tensor<16x8xf32> {jax.result_info = "result[0]", sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}, tensor<8x32xf32> {jax.result_info = "result[1]", sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}]>}, tensor<32x8xf32> {jax.result_info = "result[2]", sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}) {
    %0 = sdy.sharding_constraint %arg0 <@mesh, [{}, {}]> : tensor<16x8xf32>
    %1 = stablehlo.dot_general %0, %arg1, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT] : (tensor<16x8xf32>, tensor<8x32xf32>) -> tensor<16x32xf32>
    %2 = call @relu(%1) : (tensor<16x32xf32>) -> tensor<16x32xf32>
    %cst = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %3 = stablehlo.broadcast_in_dim %cst, dims = [] : (tensor<f32>) -> tensor<16x32xf32>
    %4 = stablehlo.compare GT, %1, %3, FLOAT : (tensor<16x32xf32>, tensor<16x32xf32>) -> tensor<16x32xi1>
    %5 = sdy.sharding_constraint %2 <@mesh, [{}, {"x"}]> : tensor<16x32xf32>
    %6 = sdy.sharding_constraint %arg3 <@mesh, [{"x"}, {}]> : tensor<16x8xf32>
    %7 = stablehlo.dot_general %6, %5, contracting_dims = [0] x [0], precision = [DEFAULT, DEFAULT] : (tensor<16x8xf32>, tensor<16x32xf32>) -> tensor<8x32xf32>
    %8 = stablehlo.transpose %7, dims = [1, 0] : (tensor<8x32xf32>) -> tensor<32x8xf32>
    %9 = stablehlo.dot_general %6, %arg2, contracting_dims = [1] x [1], precision = [DEFAULT, DEFAULT] : (tensor<16x8xf32>, tensor<32x8xf32>) -> tensor<16x32xf32>
    %10 = sdy.sharding_constraint %9 <@mesh, [{}, {"x"}]> : tensor<16x32xf32>
    %cst_0 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %11 = stablehlo.broadcast_in_dim %cst_0, dims = [] : (tensor<f32>) -> tensor<16x32xf32>
    %12 = stablehlo.select %4, %10, %11 : tensor<16x32xi1>, tensor<16x32xf32>
    %13 = stablehlo.dot_general %12, %0, contracting_dims = [0] x [0], precision = [DEFAULT, DEFAULT] : (tensor<16x32xf32>, tensor<16x8xf32>) -> tensor<32x8xf32>
    %14 = stablehlo.transpose %13, dims = [1, 0] : (tensor<32x8xf32>) -> tensor<8x32xf32>
    %15 = stablehlo.dot_general %12, %arg1, contracting_dims = [1] x [1], precision = [DEFAULT, DEFAULT] : (tensor<16x32xf32>, tensor<8x32xf32>) -> tensor<16x8xf32>
    %16 = sdy.sharding_constraint %15 <@mesh, [{}, {}]> : tensor<16x8xf32>
    return %16, %14, %8 : tensor<16x8xf32>, tensor<8x32xf32>, tensor<32x8xf32>
  }
  func.func private @relu(%arg0: tensor<16x32xf32>) -> tensor<16x32xf32> {
    %cst = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %0 = stablehlo.broadcast_in_dim %cst, dims = [] : (tensor<f32>) -> tensor<16x32xf32>
    %1 = stablehlo.maximum %arg0, %0 : tensor<16x32xf32>
    return %1 : tensor<16x32xf32>
  }
}
