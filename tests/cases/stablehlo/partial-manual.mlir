// RUN: hir-run %s --input 'T0=2x4xf32=-0.5 1.0 -0.625 -0.125 -0.625 -0.875 -0.75 -0.375' --expect 'T14=2x4xf32=-1.125 0.875 -1.75 0.75 -1.375 -1.25 -2.125 -1.625'
// RUN: hir-run %s --input 'T0=2x4xf32=-0.5 1.0 -0.625 -0.125 -0.625 -0.875 -0.75 -0.375' --expect 'T14=2x4xf32=-1.125 0.875 -1.75 0.75 -1.375 -1.25 -2.125 -1.625' --passes @lower
// A manual region of one of two axes of a mesh.
module @jit__lambda attributes {mhlo.num_partitions = 4 : i32, mhlo.num_replicas = 1 : i32} {
  sdy.mesh @mesh = <["dp"=2, "tp"=2]> {stablehlo.mesh = {axes = [{name = "dp", size = 2 : i64}, {name = "tp", size = 2 : i64}]}}
  func.func public @main(%arg0: tensor<2x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"dp"}, {"tp"}]>}) -> (tensor<2x4xf32> {jax.result_info = "result"}) {
    %0 = sdy.manual_computation(%arg0) in_shardings=[<@mesh, [{?}, {"tp", ?}]>] out_shardings=[<@mesh, [{?}, {"tp", ?}]>] manual_axes={"tp"} (%arg1: tensor<2x2xf32>) {
      %1 = sdy.manual_computation() in_shardings=[] out_shardings=[<@mesh, []>] manual_axes={"dp"} () {
        %c = stablehlo.constant dense<1> : tensor<ui32>
        %c_0 = stablehlo.constant dense<2> : tensor<ui32>
        %11 = stablehlo.partition_id : tensor<ui32>
        %12 = stablehlo.divide %11, %c : tensor<ui32>
        %13 = stablehlo.remainder %12, %c_0 : tensor<ui32>
        %14 = stablehlo.convert %13 : (tensor<ui32>) -> tensor<i32>
        sdy.return %14 : tensor<i32>
      } : () -> tensor<i32>
      %2 = stablehlo.convert %1 : (tensor<i32>) -> tensor<f32>
      %3 = sdy.sharding_constraint %2 <@mesh, []> : tensor<f32>
      %4 = stablehlo.broadcast_in_dim %3, dims = [] : (tensor<f32>) -> tensor<2x2xf32>
      %5 = sdy.sharding_constraint %4 <@mesh, [{?}, {?}]> : tensor<2x2xf32>
      %6 = stablehlo.multiply %arg1, %5 : tensor<2x2xf32>
      %7 = sdy.sharding_constraint %6 <@mesh, [{?}, {?}]> : tensor<2x2xf32>
      %8 = "stablehlo.all_reduce"(%arg1) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, replica_groups = dense<[[0, 1], [2, 3]]> : tensor<2x2xi64>, use_global_device_ids}> ({
      ^bb0(%arg2: tensor<f32>, %arg3: tensor<f32>):
        %11 = stablehlo.add %arg2, %arg3 : tensor<f32>
        %12 = sdy.sharding_constraint %11 <@mesh, []> : tensor<f32>
        stablehlo.return %12 : tensor<f32>
      }) : (tensor<2x2xf32>) -> tensor<2x2xf32>
      %9 = stablehlo.add %7, %8 : tensor<2x2xf32>
      %10 = sdy.sharding_constraint %9 <@mesh, [{?}, {?}]> : tensor<2x2xf32>
      sdy.return %10 : tensor<2x2xf32>
    } : (tensor<2x4xf32>) -> tensor<2x4xf32>
    return %0 : tensor<2x4xf32>
  }
}
