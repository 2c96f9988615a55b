// RUN: hir-run %s --input 'T0=4x2xf32=-0.625 -0.125 0.125 0.125 0.125 -0.625 0.75 0.5' --input 'T1=4x2xf32=-0.625 0.125 0.25 0.625 -0.125 -0.125 -0.875 0.5' --expect 'T29=2x2xf32=1.78125 -0.96875 -1.15625 0.5' --expect 'T30=8x1xf32=-0.625 0.125 0.125 0.75 -0.125 0.125 -0.625 0.5' --expect 'T31=4x2xf32=0.0 0.0 0.0 0.0 -0.625 -0.125 0.125 0.125' --expect 'T32=4x2xf32=0.125 -0.625 0.75 0.5 0.375 0.875 1.125 1.125' --expect 'T25=f32=0.25' --expect 'T27=f32=0.75'
// RUN: hir-run %s --input 'T0=4x2xf32=-0.625 -0.125 0.125 0.125 0.125 -0.625 0.75 0.5' --input 'T1=4x2xf32=-0.625 0.125 0.25 0.625 -0.125 -0.125 -0.875 0.5' --expect 'T29=2x2xf32=1.78125 -0.96875 -1.15625 0.5' --expect 'T30=8x1xf32=-0.625 0.125 0.125 0.75 -0.125 0.125 -0.625 0.5' --expect 'T31=4x2xf32=0.0 0.0 0.0 0.0 -0.625 -0.125 0.125 0.125' --expect 'T32=4x2xf32=0.125 -0.625 0.75 0.5 0.375 0.875 1.125 1.125' --expect 'T25=f32=0.25' --expect 'T27=f32=0.75' --passes @lower
// RUN: hir-run %s --input 'T0=4x2xf32=-0.625 -0.125 0.125 0.125 0.125 -0.625 0.75 0.5' --input 'T1=4x2xf32=-0.625 0.125 0.25 0.625 -0.125 -0.125 -0.875 0.5' --expect 'T29=2x2xf32=1.78125 -0.96875 -1.15625 0.5' --expect 'T30=8x1xf32=-0.625 0.125 0.125 0.75 -0.125 0.125 -0.625 0.5' --expect 'T31=4x2xf32=0.0 0.0 0.0 0.0 -0.625 -0.125 0.125 0.125' --expect 'T32=4x2xf32=0.125 -0.625 0.75 0.5 0.375 0.875 1.125 1.125' --expect 'T25=f32=0.25' --expect 'T27=f32=0.75' --passes @overlap{}
// All collectives of `shard_map`.
module @jit_coll attributes {mhlo.num_partitions = 2 : i32, mhlo.num_replicas = 1 : i32} {
  sdy.mesh @mesh = <["tp"=2]> {stablehlo.mesh = {axes = [{name = "tp", size = 2 : i64}]}}
  func.func public @main(%arg0: tensor<4x2xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"tp"}, {}]>}, %arg1: tensor<4x2xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>}) -> (tensor<2x2xf32> {jax.result_info = "result[0]"}, tensor<8x1xf32> {jax.result_info = "result[1]"}, tensor<4x2xf32> {jax.result_info = "result[2]"}, tensor<4x2xf32> {jax.result_info = "result[3]"}, tensor<f32> {jax.result_info = "result[4]"}, tensor<f32> {jax.result_info = "result[5]"}) {
    %0:6 = sdy.manual_computation(%arg0, %arg1) in_shardings=[<@mesh, [{"tp"}, {}]>, <@mesh, [{}, {}]>] out_shardings=[<@mesh, [{}, {"tp"}]>, <@mesh, [{"tp"}, {}]>, <@mesh, [{"tp"}, {}]>, <@mesh, [{"tp"}, {}]>, <@mesh, []>, <@mesh, []>] manual_axes={"tp"} (%arg2: tensor<2x2xf32>, %arg3: tensor<4x2xf32>) {
      %c = stablehlo.constant dense<1> : tensor<ui32>
      %c_0 = stablehlo.constant dense<2> : tensor<ui32>
      %1 = stablehlo.partition_id : tensor<ui32>
      %2 = stablehlo.divide %1, %c : tensor<ui32>
      %3 = stablehlo.remainder %2, %c_0 : tensor<ui32>
      %4 = stablehlo.convert %3 : (tensor<ui32>) -> tensor<i32>
      %5 = "stablehlo.all_gather"(%arg2) <{all_gather_dim = 1 : i64, channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>, use_global_device_ids}> : (tensor<2x2xf32>) -> tensor<2x4xf32>
      %6 = stablehlo.dot_general %5, %arg3, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT] : (tensor<2x4xf32>, tensor<4x2xf32>) -> tensor<2x2xf32>
      %7 = "stablehlo.reduce_scatter"(%6) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>, scatter_dimension = 1 : i64, use_global_device_ids}> ({
      ^bb0(%arg4: tensor<f32>, %arg5: tensor<f32>):
        %18 = stablehlo.add %arg4, %arg5 : tensor<f32>
        stablehlo.return %18 : tensor<f32>
      }) : (tensor<2x2xf32>) -> tensor<2x1xf32>
      %8 = "stablehlo.all_to_all"(%arg2) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, concat_dimension = 0 : i64, replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>, split_count = 2 : i64, split_dimension = 1 : i64}> : (tensor<2x2xf32>) -> tensor<4x1xf32>
      %9 = "stablehlo.collective_permute"(%arg2) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, source_target_pairs = dense<[[0, 1]]> : tensor<1x2xi64>}> : (tensor<2x2xf32>) -> tensor<2x2xf32>
      %10 = "stablehlo.collective_permute"(%arg2) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, source_target_pairs = dense<[[0, 1], [1, 0]]> : tensor<2x2xi64>}> : (tensor<2x2xf32>) -> tensor<2x2xf32>
      %11 = stablehlo.convert %4 : (tensor<i32>) -> tensor<f32>
      %12 = stablehlo.broadcast_in_dim %11, dims = [] : (tensor<f32>) -> tensor<2x2xf32>
      %13 = stablehlo.add %10, %12 : tensor<2x2xf32>
      %cst = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %14 = stablehlo.reduce(%arg2 init: %cst) applies stablehlo.add across dimensions = [0, 1] : (tensor<2x2xf32>, tensor<f32>) -> tensor<f32>
      %15 = "stablehlo.all_reduce"(%14) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>, use_global_device_ids}> ({
      ^bb0(%arg4: tensor<f32>, %arg5: tensor<f32>):
        %18 = stablehlo.add %arg4, %arg5 : tensor<f32>
        stablehlo.return %18 : tensor<f32>
      }) : (tensor<f32>) -> tensor<f32>
      %cst_1 = stablehlo.constant dense<0xFF800000> : tensor<f32>
      %16 = stablehlo.reduce(%arg2 init: %cst_1) applies stablehlo.maximum across dimensions = [0, 1] : (tensor<2x2xf32>, tensor<f32>) -> tensor<f32>
      %17 = "stablehlo.all_reduce"(%16) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>, use_global_device_ids}> ({
      ^bb0(%arg4: tensor<f32>, %arg5: tensor<f32>):
        %18 = stablehlo.maximum %arg4, %arg5 : tensor<f32>
        stablehlo.return %18 : tensor<f32>
      }) : (tensor<f32>) -> tensor<f32>
      sdy.return %7, %8, %9, %13, %15, %17 : tensor<2x1xf32>, tensor<4x1xf32>, tensor<2x2xf32>, tensor<2x2xf32>, tensor<f32>, tensor<f32>
    } : (tensor<4x2xf32>, tensor<4x2xf32>) -> (tensor<2x2xf32>, tensor<8x1xf32>, tensor<4x2xf32>, tensor<4x2xf32>, tensor<f32>, tensor<f32>)
    return %0#0, %0#1, %0#2, %0#3, %0#4, %0#5 : tensor<2x2xf32>, tensor<8x1xf32>, tensor<4x2xf32>, tensor<4x2xf32>, tensor<f32>, tensor<f32>
  }
}
