// RUN: hir-run %s --input 'T0=1x3x4xf32=-0.375 0.625 0.0 0.125 1.0 -0.375 0.875 0.875 -1.0 -0.625 0.75 -0.125' --input 'T1=1x1x4xf32=-1.0 -0.875 0.125 -1.0' --input 'T2=i32=1' --expect 'T21=1x3x4xf32=-0.375 0.625 0.0 0.125 -1.0 -0.875 0.125 -1.0 -1.0 -0.625 0.75 -0.125'
// RUN: hir-run %s --input 'T0=1x3x4xf32=-0.375 0.625 0.0 0.125 1.0 -0.375 0.875 0.875 -1.0 -0.625 0.75 -0.125' --input 'T1=1x1x4xf32=-1.0 -0.875 0.125 -1.0' --input 'T2=i32=1' --expect 'T21=1x3x4xf32=-0.375 0.625 0.0 0.125 -1.0 -0.875 0.125 -1.0 -1.0 -0.625 0.75 -0.125' --passes @lower --remarks=all
// An update of a cache with sharded heads at the index of a tensor: no communication.
module @jit__lambda attributes {mhlo.num_partitions = 2 : i32, mhlo.num_replicas = 1 : i32} {
  sdy.mesh @mesh = <["tp"=2]> {stablehlo.mesh = {axes = [{name = "tp", size = 2 : i64}]}}
  func.func public @main(%arg0: tensor<1x3x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}, {"tp"}]>}, %arg1: tensor<1x1x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}, {"tp"}]>}, %arg2: tensor<i32> {sdy.sharding = #sdy.sharding<@mesh, []>}) -> (tensor<1x3x4xf32> {jax.result_info = "result"}) {
    %c = stablehlo.constant dense<0> : tensor<i32>
    %0 = stablehlo.compare LT, %arg2, %c, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
    %c_0 = stablehlo.constant dense<3> : tensor<i32>
    %1 = stablehlo.add %arg2, %c_0 : tensor<i32>
    %2 = stablehlo.select %0, %1, %arg2 : tensor<i1>, tensor<i32>
    %c_1 = stablehlo.constant dense<0> : tensor<i32>
    %c_2 = stablehlo.constant dense<0> : tensor<i32>
    %3 = stablehlo.dynamic_update_slice %arg0, %arg1, %c_1, %2, %c_2 : (tensor<1x3x4xf32>, tensor<1x1x4xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<1x3x4xf32>
    return %3 : tensor<1x3x4xf32>
  }
}
