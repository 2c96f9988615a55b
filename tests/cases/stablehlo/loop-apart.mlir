// RUN: hir-run %s --input 'T0=4xf32=1 2 -3 4' --expect 'T63=4xf32=1.5 2 1.25 3' --passes @lower
// Each device leaves the loop when its own values say so. Values of JAX 0.10.2.
module @jit_apart attributes {mhlo.num_partitions = 2 : i32, mhlo.num_replicas = 1 : i32} {
  sdy.mesh @mesh = <["x"=2]> {stablehlo.mesh = {axes = [{name = "x", size = 2 : i64}]}}
  func.func public @main(%arg0: tensor<4xf32>) -> (tensor<4xf32> {jax.result_info = "result"}) {
    %0 = sdy.manual_computation(%arg0) in_shardings=[<@mesh, [{"x"}]>] out_shardings=[<@mesh, [{"x"}]>] manual_axes={"x"} (%arg1: tensor<2xf32>) {
      %c = stablehlo.constant dense<0> : tensor<i32>
      %1:2 = stablehlo.while(%iterArg = %arg1, %iterArg_0 = %c) : tensor<2xf32>, tensor<i32>
      cond {
        %c_1 = stablehlo.constant dense<6> : tensor<i32>
        %5 = stablehlo.compare LT, %iterArg_0, %c_1, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
        %6 = stablehlo.abs %iterArg : tensor<2xf32>
        %cst = stablehlo.constant dense<0xFF800000> : tensor<f32>
        %7 = stablehlo.reduce(%6 init: %cst) applies stablehlo.maximum across dimensions = [0] : (tensor<2xf32>, tensor<f32>) -> tensor<f32>
        %cst_2 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
        %8 = stablehlo.compare GT, %7, %cst_2, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
        %c_3 = stablehlo.constant dense<false> : tensor<i1>
        %9 = stablehlo.broadcast_in_dim %c_3, dims = [] : (tensor<i1>) -> tensor<i1>
        %10 = stablehlo.compare NE, %5, %9, UNSIGNED : (tensor<i1>, tensor<i1>) -> tensor<i1>
        %11 = stablehlo.convert %10 : tensor<i1>
        %12 = stablehlo.and %11, %8 : tensor<i1>
        stablehlo.return %12 : tensor<i1>
      } do {
        %cst = stablehlo.constant dense<5.000000e-01> : tensor<f32>
        %5 = stablehlo.broadcast_in_dim %cst, dims = [] : (tensor<f32>) -> tensor<2xf32>
        %6 = stablehlo.multiply %iterArg, %5 : tensor<2xf32>
        %c_1 = stablehlo.constant dense<1> : tensor<i32>
        %7 = stablehlo.add %iterArg_0, %c_1 : tensor<i32>
        stablehlo.return %6, %7 : tensor<2xf32>, tensor<i32>
      }
      %2 = stablehlo.convert %1#1 : (tensor<i32>) -> tensor<f32>
      %3 = stablehlo.broadcast_in_dim %2, dims = [] : (tensor<f32>) -> tensor<2xf32>
      %4 = stablehlo.add %1#0, %3 : tensor<2xf32>
      sdy.return %4 : tensor<2xf32>
    } : (tensor<4xf32>) -> tensor<4xf32>
    return %0 : tensor<4xf32>
  }
}
