// RUN: hir-opt %s
// Attributes may have names, and operands may be on lines of their own.
#order = array<i64: 1, 0>
#pairs = dense<[[0, 1], [1, 0]]> : tensor<2x2xi64>
module @aliases {
  func.func public @main(%arg0: tensor<2x3xf32>, %arg1: tensor<3x2xf32>, %arg2: tensor<3x2xi1>) -> tensor<3x2xf32> {
    %0 = "stablehlo.transpose"(%arg0) <{permutation = #order}> : (tensor<2x3xf32>) -> tensor<3x2xf32>
    %1 = stablehlo.select %arg2, // which
      %0,                        // the one
      %arg1                      // the other
      : tensor<3x2xi1>, tensor<3x2xf32>
    return %1 : tensor<3x2xf32>
  }
}
