// RUN: hir-run %s --input T0=i32=5 --expect T6=i32=5 --expect T9=i32=8
// RUN: hir-opt %s
// `fori_loop(0, n, …)` with a traced `n`; the two values are exchanged in each iteration.
module @jit_f {
  func.func public @main(%n: tensor<i32>) -> (tensor<i32>, tensor<i32>) {
    %zero = stablehlo.constant dense<0> : tensor<i32>
    %one = stablehlo.constant dense<1> : tensor<i32>
    %0:3 = stablehlo.while(%i = %zero, %a = %zero, %b = %one) : tensor<i32>, tensor<i32>, tensor<i32>
    cond {
      %1 = stablehlo.compare LT, %i, %n, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %1 : tensor<i1>
    } do {
      %1 = stablehlo.add %i, %one : tensor<i32>
      %2 = stablehlo.add %a, %b : tensor<i32>
      stablehlo.return %1, %b, %2 : tensor<i32>, tensor<i32>, tensor<i32>
    }
    return %0#1, %0#2 : tensor<i32>, tensor<i32>
  }
}
