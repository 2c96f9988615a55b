// RUN: hir-opt %s
// Attributes may have names.
#order = array<i64: 1, 0>
#alias_pairs = dense<[[0, 1], [1, 0]]> : tensor<2x2xi64>
module @aliases {
  func.func public @main(%arg0: tensor<2x3xf32>) -> tensor<3x2xf32> {
    %0 = "stablehlo.transpose"(%arg0) <{permutation = #order}> : (tensor<2x3xf32>) -> tensor<3x2xf32>
    return %0 : tensor<3x2xf32>
  }
}
