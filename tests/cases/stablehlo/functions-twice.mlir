// RUN: hir-opt %s
module @pasted {
  func.func public @main(%arg0: tensor<2xf32>) -> (tensor<2xf32>) {
    return %arg0 : tensor<2xf32>
  }
  func.func public @main(%arg0: tensor<2xf32>) -> (tensor<2xf32>) {
    %0 = stablehlo.negate %arg0 : tensor<2xf32>
    return %0 : tensor<2xf32>
  }
}
