// RUN: hir-run %s --input 'T0=4x2xf32=-0.25 0.875 -0.875 0.5 -0.625 0.875 -0.625 0.25' --input 'T1=2x4xf32=0.5 -0.25 -0.625 -0.375 0.375 -1.0 0.375 0.0' --input 'T2=4x2xf32=0.25 0.375 -0.375 0.875 0.0 -0.75 0.75 -0.625' --expect 'T5=4x2xf32=0.3718140721321106 -0.9076830148696899 0.2791696786880493 -0.9989712238311768 0.4075881242752075 -1.1392194032669067 0.15385380387306213 -0.6437042951583862' --expect 'T7=f32=1.15625'
// RUN: hir-run %s --input 'T0=4x2xf32=-0.25 0.875 -0.875 0.5 -0.625 0.875 -0.625 0.25' --input 'T1=2x4xf32=0.5 -0.25 -0.625 -0.375 0.375 -1.0 0.375 0.0' --input 'T2=4x2xf32=0.25 0.375 -0.375 0.875 0.0 -0.75 0.75 -0.625' --expect 'T5=4x2xf32=0.3718140721321106 -0.9076830148696899 0.2791696786880493 -0.9989712238311768 0.4075881242752075 -1.1392194032669067 0.15385380387306213 -0.6437042951583862' --expect 'T7=f32=1.15625' --passes @lower
// A mesh with two axes.
module @jit__lambda attributes {mhlo.num_partitions = 4 : i32, mhlo.num_replicas = 1 : i32} {
  sdy.mesh @mesh = <["dp"=2, "tp"=2]> {stablehlo.mesh = {axes = [{name = "dp", size = 2 : i64}, {name = "tp", size = 2 : i64}]}}
  func.func public @main(%arg0: tensor<4x2xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"dp"}, {}]>}, %arg1: tensor<2x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"tp"}]>}, %arg2: tensor<4x2xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"tp"}, {}]>}) -> (tensor<4x2xf32> {jax.result_info = "result[0]", sdy.sharding = #sdy.sharding<@mesh, [{"dp"}, {}]>}, tensor<f32> {jax.result_info = "result[1]", sdy.sharding = #sdy.sharding<@mesh, []>}) {
    %0 = stablehlo.dot_general %arg0, %arg1, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT] : (tensor<4x2xf32>, tensor<2x4xf32>) -> tensor<4x4xf32>
    %1 = stablehlo.tanh %0 : tensor<4x4xf32>
    %2 = stablehlo.dot_general %1, %arg2, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT] : (tensor<4x4xf32>, tensor<4x2xf32>) -> tensor<4x2xf32>
    %3 = stablehlo.dot_general %arg0, %arg1, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT] : (tensor<4x2xf32>, tensor<2x4xf32>) -> tensor<4x4xf32>
    %cst = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %4 = stablehlo.reduce(%3 init: %cst) applies stablehlo.add across dimensions = [0, 1] : (tensor<4x4xf32>, tensor<f32>) -> tensor<f32>
    return %2, %4 : tensor<4x2xf32>, tensor<f32>
  }
}
