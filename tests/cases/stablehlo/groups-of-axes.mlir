// RUN: hir-run %s --passes @lower --input 'T0=8xf32=1 2 -5 -6 7 8 -1 -2' --expect 'T16=8xf32=8 10 -6 -8 8 10 -6 -8' --expect 'T19=8xf32=7 8 7 8 7 8 7 8' --expect 'T22=16xf32=1 2 -5 -6 1 2 -5 -6 7 8 -1 -2 7 8 -1 -2' --expect 'T23=8xf32=1 7 -5 -1 2 8 -6 -2'
// Groups of devices along axes of a mesh, and two equal meshes, as JAX 0.12.0 writes them. Values of it.
module @jit_f attributes {mhlo.num_partitions = 4 : i32, mhlo.num_replicas = 1 : i32} {
  sdy.mesh @mesh = <["x"=2, "y"=2]> {stablehlo.mesh = {axes = [{name = "x", size = 2 : i64}, {name = "y", size = 2 : i64}]}}
  sdy.mesh @mesh_0 = <["x"=2, "y"=2]> {stablehlo.mesh = {axes = [{name = "x", size = 2 : i64}, {name = "y", size = 2 : i64}]}}
  func.func public @main(%arg0: tensor<8xf32>) -> (tensor<8xf32> {jax.result_info = "result[0]"}, tensor<8xf32> {jax.result_info = "result[1]"}, tensor<16xf32> {jax.result_info = "result[2]"}, tensor<8xf32> {jax.result_info = "result[3]"}) {
    %0:4 = sdy.manual_computation(%arg0) in_shardings=[<@mesh, [{"x", "y"}]>] out_shardings=[<@mesh, [{"x", "y"}]>, <@mesh, [{"x", "y"}]>, <@mesh, [{"x", "y"}]>, <@mesh, [{"x", "y"}]>] manual_axes={"x", "y"} (%arg1: tensor<2xf32>) {
      %1 = "stablehlo.all_reduce"(%arg1) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh_0, axes = [#stablehlo.axis_ref<name = "x">]>, use_global_device_ids}> ({
      ^bb0(%arg2: tensor<f32>, %arg3: tensor<f32>):
        %9 = stablehlo.add %arg2, %arg3 : tensor<f32>
        stablehlo.return %9 : tensor<f32>
      }) : (tensor<2xf32>) -> tensor<2xf32>
      %2 = "stablehlo.all_reduce"(%arg1) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh_0, axes = [#stablehlo.axis_ref<name = "y">, #stablehlo.axis_ref<name = "x">]>, use_global_device_ids}> ({
      ^bb0(%arg2: tensor<f32>, %arg3: tensor<f32>):
        %9 = stablehlo.maximum %arg2, %arg3 : tensor<f32>
        stablehlo.return %9 : tensor<f32>
      }) : (tensor<2xf32>) -> tensor<2xf32>
      %3 = "stablehlo.all_gather"(%arg1) <{all_gather_dim = 0 : i64, channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh_0, axes = [#stablehlo.axis_ref<name = "y">]>, use_global_device_ids}> : (tensor<2xf32>) -> tensor<4xf32>
      %cst = stablehlo.constant dense<1.000000e+00> : tensor<f32>
      %4 = stablehlo.broadcast_in_dim %cst, dims = [] : (tensor<f32>) -> tensor<4xf32>
      %5 = stablehlo.multiply %3, %4 : tensor<4xf32>
      %6 = stablehlo.reshape %arg1 : (tensor<2xf32>) -> tensor<2x1xf32>
      %7 = "stablehlo.all_to_all"(%6) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, concat_dimension = 1 : i64, replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh_0, axes = [#stablehlo.axis_ref<name = "x">]>, split_count = 2 : i64, split_dimension = 0 : i64}> : (tensor<2x1xf32>) -> tensor<1x2xf32>
      %8 = stablehlo.reshape %7 : (tensor<1x2xf32>) -> tensor<2xf32>
      sdy.return %1, %2, %5, %8 : tensor<2xf32>, tensor<2xf32>, tensor<4xf32>, tensor<2xf32>
    } : (tensor<8xf32>) -> (tensor<8xf32>, tensor<8xf32>, tensor<16xf32>, tensor<8xf32>)
    return %0#0, %0#1, %0#2, %0#3 : tensor<8xf32>, tensor<8xf32>, tensor<16xf32>, tensor<8xf32>
  }
}
