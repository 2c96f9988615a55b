// RUN: hir-run %s --input 'T0=4xf32=1 2 -3 4' --expect 'T82=4xf32=2.25 2.5 1.25 3'
// RUN: hir-run %s --input 'T0=4xf32=1 2 -3 4' --expect 'T82=4xf32=2.25 2.5 1.25 3' --passes @lower
// A loop that data end on all devices at once, with a sum in it: all iterations up to the bound are imported. Values of JAX 0.10.2.
module @jit_together attributes {mhlo.num_partitions = 2 : i32, mhlo.num_replicas = 1 : i32} {
  sdy.mesh @mesh = <["x"=2]> {stablehlo.mesh = {axes = [{name = "x", size = 2 : i64}]}}
  func.func public @main(%arg0: tensor<4xf32>) -> (tensor<4xf32> {jax.result_info = "result"}) {
    %0 = sdy.manual_computation(%arg0) in_shardings=[<@mesh, [{"x"}]>] out_shardings=[<@mesh, [{"x"}]>] manual_axes={"x"} (%arg1: tensor<2xf32>) {
      %cst = stablehlo.constant dense<9.000000e+00> : tensor<f32>
      %c = stablehlo.constant dense<0> : tensor<i32>
      %1:3 = stablehlo.while(%iterArg = %arg1, %iterArg_0 = %cst, %iterArg_1 = %c) : tensor<2xf32>, tensor<f32>, tensor<i32>
      cond {
        %c_2 = stablehlo.constant dense<6> : tensor<i32>
        %5 = stablehlo.compare LT, %iterArg_1, %c_2, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
        %cst_3 = stablehlo.constant dense<4.000000e+00> : tensor<f32>
        %6 = stablehlo.compare GT, %iterArg_0, %cst_3, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
        %c_4 = stablehlo.constant dense<false> : tensor<i1>
        %7 = stablehlo.broadcast_in_dim %c_4, dims = [] : (tensor<i1>) -> tensor<i1>
        %8 = stablehlo.compare NE, %5, %7, UNSIGNED : (tensor<i1>, tensor<i1>) -> tensor<i1>
        %9 = stablehlo.convert %8 : tensor<i1>
        %10 = stablehlo.and %9, %6 : tensor<i1>
        stablehlo.return %10 : tensor<i1>
      } do {
        %cst_2 = stablehlo.constant dense<5.000000e-01> : tensor<f32>
        %5 = stablehlo.broadcast_in_dim %cst_2, dims = [] : (tensor<f32>) -> tensor<2xf32>
        %6 = stablehlo.multiply %iterArg, %5 : tensor<2xf32>
        %7 = stablehlo.multiply %6, %6 : tensor<2xf32>
        %cst_3 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
        %8 = stablehlo.reduce(%7 init: %cst_3) applies stablehlo.add across dimensions = [0] : (tensor<2xf32>, tensor<f32>) -> tensor<f32>
        %9 = "stablehlo.all_reduce"(%8) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>, use_global_device_ids}> ({
        ^bb0(%arg2: tensor<f32>, %arg3: tensor<f32>):
          %11 = stablehlo.add %arg2, %arg3 : tensor<f32>
          stablehlo.return %11 : tensor<f32>
        }) : (tensor<f32>) -> tensor<f32>
        %c_4 = stablehlo.constant dense<1> : tensor<i32>
        %10 = stablehlo.add %iterArg_1, %c_4 : tensor<i32>
        stablehlo.return %6, %9, %10 : tensor<2xf32>, tensor<f32>, tensor<i32>
      }
      %2 = stablehlo.convert %1#2 : (tensor<i32>) -> tensor<f32>
      %3 = stablehlo.broadcast_in_dim %2, dims = [] : (tensor<f32>) -> tensor<2xf32>
      %4 = stablehlo.add %1#0, %3 : tensor<2xf32>
      sdy.return %4 : tensor<2xf32>
    } : (tensor<4xf32>) -> tensor<4xf32>
    return %0 : tensor<4xf32>
  }
}
