// RUN: hir-opt %s
module @m {
  func.func public @main() -> (tensor<3xi32>) {
    %0 = stablehlo.iota dim = 5 : tensor<3xi32>
    return %0 : tensor<3xi32>
  }
}
