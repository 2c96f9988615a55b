// RUN: hir-run %s --input 'T0=4xf32=8 3 1 0.5' --expect 'T16=4xf32=1 0.375 1 0.5'
// Each device halves its part until it is small; device 1 needs fewer iterations. No collective is in the loop.
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
        %5 = stablehlo.compare GT, %4, %one, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
        stablehlo.return %5 : tensor<i1>
      } do {
        %3 = stablehlo.multiply %iterArg, %half : tensor<2xf32>
        stablehlo.return %3 : tensor<2xf32>
      }
      sdy.return %1 : tensor<2xf32>
    } : (tensor<4xf32>) -> tensor<4xf32>
    return %0 : tensor<4xf32>
  }
}
