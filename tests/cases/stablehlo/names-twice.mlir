// RUN: hir-opt %s
// Two texts were pasted into each other: which of the two sums is meant is not known.
module @pasted {
  func.func public @main(%arg0: tensor<2xf32>) -> (tensor<2xf32>) {
    %0 = stablehlo.add %arg0, %arg0 : tensor<2xf32>
    %1:2 = stablehlo.while(%iterArg = %0, %iterArg_0 = %arg0) : tensor<2xf32>, tensor<2xf32> cond {
      %c = stablehlo.constant dense<false> : tensor<i1>
      stablehlo.return %c : tensor<i1>
    } do {
      %c = stablehlo.negate %iterArg : tensor<2xf32>
      stablehlo.return %c, %iterArg_0 : tensor<2xf32>, tensor<2xf32>
    }
    %0 = stablehlo.multiply %arg0, %arg0 : tensor<2xf32>
    return %0 : tensor<2xf32>
  }
}
