// RUN: hir-run %s --input 'T0=4xf32=8 3 1 0.5' --expect 'T23=4xf32=0.5625 0.21875 0.5625 0.21875'
// RUN: hir-opt %s --check
// RUN: hir-run %s --passes @lower --input 'T0=4xf32=8 3 1 0.5' --expect 'T23=4xf32=0.5625 0.21875 0.5625 0.21875'
// The condition is the largest element of all devices, so they leave the loop together.
module @jit_f attributes {mhlo.num_partitions = 2 : i32, mhlo.num_replicas = 1 : i32} {
  sdy.mesh @mesh = <["x"=2]> {stablehlo.mesh = {axes = [{name = "x", size = 2 : i64}]}}
  func.func public @main(%arg0: tensor<4xf32>) -> (tensor<4xf32> {jax.result_info = "result"}) {
    %0 = sdy.manual_computation(%arg0) in_shardings=[<@mesh, [{"x"}]>] out_shardings=[<@mesh, [{"x"}]>] manual_axes={"x"} (%arg1: tensor<2xf32>) {
      %cst = stablehlo.constant dense<0xFF800000> : tensor<f32>
      %one = stablehlo.constant dense<1.000000e+00> : tensor<f32>
      %half = stablehlo.constant dense<5.000000e-01> : tensor<2xf32>
      %1 = stablehlo.while(%iterArg = %arg1) : tensor<2xf32>
      cond {
        %3 = stablehlo.abs %iterArg : tensor<2xf32>
        %4 = stablehlo.reduce(%3 init: %cst) applies stablehlo.maximum across dimensions = [0] : (tensor<2xf32>, tensor<f32>) -> tensor<f32>
        %6 = "stablehlo.all_reduce"(%4) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>, use_global_device_ids}> ({
        ^bb0(%arg2: tensor<f32>, %arg3: tensor<f32>):
          %9 = stablehlo.maximum %arg2, %arg3 : tensor<f32>
          stablehlo.return %9 : tensor<f32>
        }) : (tensor<f32>) -> tensor<f32>
        %5 = stablehlo.compare GT, %6, %one, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
        stablehlo.return %5 : tensor<i1>
      } do {
        %7 = "stablehlo.all_reduce"(%iterArg) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>, use_global_device_ids}> ({
        ^bb0(%arg2: tensor<f32>, %arg3: tensor<f32>):
          %9 = stablehlo.add %arg2, %arg3 : tensor<f32>
          stablehlo.return %9 : tensor<f32>
        }) : (tensor<2xf32>) -> tensor<2xf32>
        %8 = stablehlo.multiply %7, %half : tensor<2xf32>
        %3 = stablehlo.multiply %8, %half : tensor<2xf32>
        stablehlo.return %3 : tensor<2xf32>
      }
      sdy.return %1 : tensor<2xf32>
    } : (tensor<4xf32>) -> tensor<4xf32>
    return %0 : tensor<4xf32>
  }
}
