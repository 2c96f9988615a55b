// RUN: hir-run %s
// The same with a sum in the loop: JAX hangs.
module @jit_hang attributes {mhlo.num_partitions = 2 : i32, mhlo.num_replicas = 1 : i32} {
  sdy.mesh @mesh = <["x"=2]> {stablehlo.mesh = {axes = [{name = "x", size = 2 : i64}]}}
  func.func public @main(%arg0: tensor<4xf32>) -> (tensor<4xf32> {jax.result_info = "result"}) {
    %0 = sdy.manual_computation(%arg0) in_shardings=[<@mesh, [{"x"}]>] out_shardings=[<@mesh, [{"x"}]>] manual_axes={"x"} (%arg1: tensor<2xf32>) {
      %c = stablehlo.constant dense<0> : tensor<i32>
      %1:2 = stablehlo.while(%iterArg = %arg1, %iterArg_0 = %c) : tensor<2xf32>, tensor<i32>
      cond {
        %c_1 = stablehlo.constant dense<6> : tensor<i32>
        %2 = stablehlo.compare LT, %iterArg_0, %c_1, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
        %3 = stablehlo.abs %iterArg : tensor<2xf32>
        %cst = stablehlo.constant dense<0xFF800000> : tensor<f32>
        %4 = stablehlo.reduce(%3 init: %cst) applies stablehlo.maximum across dimensions = [0] : (tensor<2xf32>, tensor<f32>) -> tensor<f32>
        %cst_2 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
        %5 = stablehlo.compare GT, %4, %cst_2, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
        %c_3 = stablehlo.constant dense<false> : tensor<i1>
        %6 = stablehlo.broadcast_in_dim %c_3, dims = [] : (tensor<i1>) -> tensor<i1>
        %7 = stablehlo.compare NE, %2, %6, UNSIGNED : (tensor<i1>, tensor<i1>) -> tensor<i1>
        %8 = stablehlo.convert %7 : tensor<i1>
        %9 = stablehlo.and %8, %5 : tensor<i1>
        stablehlo.return %9 : tensor<i1>
      } do {
        %2 = "stablehlo.all_reduce"(%iterArg) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>, use_global_device_ids}> ({
        ^bb0(%arg2: tensor<f32>, %arg3: tensor<f32>):
          %5 = stablehlo.add %arg2, %arg3 : tensor<f32>
          stablehlo.return %5 : tensor<f32>
        }) : (tensor<2xf32>) -> tensor<2xf32>
        %3 = stablehlo.subtract %iterArg, %2 : tensor<2xf32>
        %c_1 = stablehlo.constant dense<1> : tensor<i32>
        %4 = stablehlo.add %iterArg_0, %c_1 : tensor<i32>
        stablehlo.return %3, %4 : tensor<2xf32>, tensor<i32>
      }
      sdy.return %1#0 : tensor<2xf32>
    } : (tensor<4xf32>) -> tensor<4xf32>
    return %0 : tensor<4xf32>
  }
}
