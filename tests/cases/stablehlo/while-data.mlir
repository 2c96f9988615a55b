// RUN: hir-run %s --input T0=f32=2 --expect T4=f32=1.4142135
// RUN: hir-opt %s --check
// Newton's method: no constant bounds the loop, so it stays a loop.
module @jit_root {
  func.func public @main(%arg0: tensor<f32>) -> tensor<f32> {
    %c = stablehlo.constant dense<1.0e-03> : tensor<f32>
    %h = stablehlo.constant dense<5.0e-01> : tensor<f32>
    %one = stablehlo.constant dense<1.0e+00> : tensor<f32>
    %0:2 = stablehlo.while(%x = %arg0, %step = %one) : tensor<f32>, tensor<f32>
    cond {
      %1 = stablehlo.compare GT, %step, %c, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
      stablehlo.return %1 : tensor<i1>
    } do {
      %1 = stablehlo.divide %arg0, %x : tensor<f32>
      %2 = stablehlo.add %1, %x : tensor<f32>
      %3 = stablehlo.multiply %2, %h : tensor<f32>
      %4 = stablehlo.subtract %x, %3 : tensor<f32>
      %5 = stablehlo.abs %4 : tensor<f32>
      stablehlo.return %3, %5 : tensor<f32>, tensor<f32>
    }
    return %0#0 : tensor<f32>
  }
}
