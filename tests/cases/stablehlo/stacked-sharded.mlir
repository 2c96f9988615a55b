// RUN: hir-run %s --input 'T0=4xf32=1 2 3 4' --input 'T1=1xf32=9' --expect 'T7=4xf32=2 18 6 8'
// An update that states a sharding is stored for it, before an operation reads it.
module @stacked attributes {mhlo.num_partitions = 2 : i32} {
  sdy.mesh @mesh = <["x"=2]>
  func.func public @main(%arg0: tensor<4xf32>, %arg1: tensor<1xf32>) -> (tensor<4xf32>) {
    %c = stablehlo.constant dense<1> : tensor<i32>
    %0 = stablehlo.dynamic_update_slice %arg0, %arg1, %c {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"x"}]>]>} : (tensor<4xf32>, tensor<1xf32>, tensor<i32>) -> tensor<4xf32>
    %1 = stablehlo.add %0, %0 : tensor<4xf32>
    return %1 : tensor<4xf32>
  }
}
