// RUN: hir-opt %s
// A key that a convolution does not have: what it should change is not known.
module @m {
  func.func public @main(%arg0: tensor<2x3x7xf32>, %arg1: tensor<3x3x4xf32>) -> (tensor<5x2x4xf32>) {
    %0 = "stablehlo.convolution"(%arg0, %arg1) <{dimension_numbers = #stablehlo.conv<raw input_batch_dimension = 0, input_feature_dimension = 1, input_group_dimension = 1, input_spatial_dimensions = [2], kernel_input_feature_dimension = 1, kernel_output_feature_dimension = 2, kernel_spatial_dimensions = [0], output_batch_dimension = 1, output_feature_dimension = 2, output_spatial_dimensions = [0]>, batch_group_count = 1 : i64, feature_group_count = 1 : i64}> : (tensor<2x3x7xf32>, tensor<3x3x4xf32>) -> tensor<5x2x4xf32>
    return %0 : tensor<5x2x4xf32>
  }
}
