// RUN: hir-run %s --input 'T0=4x4xf32=-0.75 -0.75 -0.875 -0.375 0.0 -0.5 -1.0 0.375 -0.75 -0.375 1.0 0.0 -0.875 1.0 -0.625 0.0' --expect 'T23=2x4xf32=-1.5 -1.125 0.125 -0.375 -0.875 0.5 -1.625 0.375' --expect 'T4=2x2xf32=-1.375 -1.5 -2.5 0.875' --expect 'T27=8x4xf32=-0.75 -0.75 -0.75 -0.75 0.0 -0.5 0.0 -0.5 -0.875 -0.375 -0.875 -0.375 -1.0 0.375 -1.0 0.375 -0.75 -0.375 -0.75 -0.375 -0.875 1.0 -0.875 1.0 1.0 0.0 1.0 0.0 -0.625 0.0 -0.625 0.0' --expect 'T29=4x4xf32=-0.75 -0.75 0.125 0.625 0.0 -0.5 0.0 1.375 1.25 1.625 4.0 3.0 1.125 3.0 2.375 3.0' --expect 'T31=2x4xf32=-1.5 -1.125 0.125 -0.375 -0.875 0.5 -1.625 0.375'
// RUN: hir-run %s --input 'T0=4x4xf32=-0.75 -0.75 -0.875 -0.375 0.0 -0.5 -1.0 0.375 -0.75 -0.375 1.0 0.0 -0.875 1.0 -0.625 0.0' --expect 'T23=2x4xf32=-1.5 -1.125 0.125 -0.375 -0.875 0.5 -1.625 0.375' --expect 'T4=2x2xf32=-1.375 -1.5 -2.5 0.875' --expect 'T27=8x4xf32=-0.75 -0.75 -0.75 -0.75 0.0 -0.5 0.0 -0.5 -0.875 -0.375 -0.875 -0.375 -1.0 0.375 -1.0 0.375 -0.75 -0.375 -0.75 -0.375 -0.875 1.0 -0.875 1.0 1.0 0.0 1.0 0.0 -0.625 0.0 -0.625 0.0' --expect 'T29=4x4xf32=-0.75 -0.75 0.125 0.625 0.0 -0.5 0.0 1.375 1.25 1.625 4.0 3.0 1.125 3.0 2.375 3.0' --expect 'T31=2x4xf32=-1.5 -1.125 0.125 -0.375 -0.875 0.5 -1.625 0.375' --passes @lower
// Collectives along one axis of a mesh with two, and along both.
module @jit_c2 attributes {mhlo.num_partitions = 4 : i32, mhlo.num_replicas = 1 : i32} {
  sdy.mesh @mesh = <["dp"=2, "tp"=2]> {stablehlo.mesh = {axes = [{name = "dp", size = 2 : i64}, {name = "tp", size = 2 : i64}]}}
  func.func public @main(%arg0: tensor<4x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"dp"}, {"tp"}]>}) -> (tensor<2x4xf32> {jax.result_info = "result[0]"}, tensor<2x2xf32> {jax.result_info = "result[1]"}, tensor<8x4xf32> {jax.result_info = "result[2]"}, tensor<4x4xf32> {jax.result_info = "result[3]"}, tensor<2x4xf32> {jax.result_info = "result[4]"}) {
    %0:5 = sdy.manual_computation(%arg0) in_shardings=[<@mesh, [{"dp"}, {"tp"}]>] out_shardings=[<@mesh, [{}, {"tp"}]>, <@mesh, [{}, {}]>, <@mesh, [{"dp"}, {"tp"}]>, <@mesh, [{"dp"}, {"tp"}]>, <@mesh, [{"dp"}, {"tp"}]>] manual_axes={"dp", "tp"} (%arg1: tensor<2x2xf32>) {
      %1 = "stablehlo.all_reduce"(%arg1) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, replica_groups = dense<[[0, 2], [1, 3]]> : tensor<2x2xi64>, use_global_device_ids}> ({
      ^bb0(%arg2: tensor<f32>, %arg3: tensor<f32>):
        %20 = stablehlo.add %arg2, %arg3 : tensor<f32>
        stablehlo.return %20 : tensor<f32>
      }) : (tensor<2x2xf32>) -> tensor<2x2xf32>
      %2 = "stablehlo.all_reduce"(%arg1) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, replica_groups = dense<[[0, 1, 2, 3]]> : tensor<1x4xi64>, use_global_device_ids}> ({
      ^bb0(%arg2: tensor<f32>, %arg3: tensor<f32>):
        %20 = stablehlo.add %arg2, %arg3 : tensor<f32>
        stablehlo.return %20 : tensor<f32>
      }) : (tensor<2x2xf32>) -> tensor<2x2xf32>
      %3 = "stablehlo.all_gather"(%arg1) <{all_gather_dim = 0 : i64, channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, replica_groups = dense<[[0, 1], [2, 3]]> : tensor<2x2xi64>, use_global_device_ids}> : (tensor<2x2xf32>) -> tensor<4x2xf32>
      %c = stablehlo.constant dense<2> : tensor<ui32>
      %c_0 = stablehlo.constant dense<2> : tensor<ui32>
      %4 = stablehlo.partition_id : tensor<ui32>
      %5 = stablehlo.divide %4, %c : tensor<ui32>
      %6 = stablehlo.remainder %5, %c_0 : tensor<ui32>
      %7 = stablehlo.convert %6 : (tensor<ui32>) -> tensor<i32>
      %c_1 = stablehlo.constant dense<2> : tensor<i32>
      %8 = stablehlo.multiply %7, %c_1 : tensor<i32>
      %9 = stablehlo.convert %8 : (tensor<i32>) -> tensor<f32>
      %10 = stablehlo.broadcast_in_dim %9, dims = [] : (tensor<f32>) -> tensor<2x2xf32>
      %11 = stablehlo.add %arg1, %10 : tensor<2x2xf32>
      %c_2 = stablehlo.constant dense<1> : tensor<ui32>
      %c_3 = stablehlo.constant dense<2> : tensor<ui32>
      %12 = stablehlo.partition_id : tensor<ui32>
      %13 = stablehlo.divide %12, %c_2 : tensor<ui32>
      %14 = stablehlo.remainder %13, %c_3 : tensor<ui32>
      %15 = stablehlo.convert %14 : (tensor<ui32>) -> tensor<i32>
      %16 = stablehlo.convert %15 : (tensor<i32>) -> tensor<f32>
      %17 = stablehlo.broadcast_in_dim %16, dims = [] : (tensor<f32>) -> tensor<2x2xf32>
      %18 = stablehlo.add %11, %17 : tensor<2x2xf32>
      %19 = "stablehlo.reduce_scatter"(%arg1) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, replica_groups = dense<[[0, 2], [1, 3]]> : tensor<2x2xi64>, scatter_dimension = 0 : i64, use_global_device_ids}> ({
      ^bb0(%arg2: tensor<f32>, %arg3: tensor<f32>):
        %20 = stablehlo.add %arg2, %arg3 : tensor<f32>
        stablehlo.return %20 : tensor<f32>
      }) : (tensor<2x2xf32>) -> tensor<1x2xf32>
      sdy.return %1, %2, %3, %18, %19 : tensor<2x2xf32>, tensor<2x2xf32>, tensor<4x2xf32>, tensor<2x2xf32>, tensor<1x2xf32>
    } : (tensor<4x4xf32>) -> (tensor<2x4xf32>, tensor<2x2xf32>, tensor<8x4xf32>, tensor<4x4xf32>, tensor<2x4xf32>)
    return %0#0, %0#1, %0#2, %0#3, %0#4 : tensor<2x4xf32>, tensor<2x2xf32>, tensor<8x4xf32>, tensor<4x4xf32>, tensor<2x4xf32>
  }
}
