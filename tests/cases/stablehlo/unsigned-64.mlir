// RUN: hir-run %s --input 'T0=5xf32=0 1 2 3 4' --input 'T1=u64=18446744073709551615' --input 'T2=2xu64=18446744073709551615 9223372036854775808' --expect 'T11=2xf32=3 4' --expect 'T14=5xf32=0 1 2 3 9' --expect 'T25=2xf32=4 4' --expect 'T26=u64=9223372036854775808' --expect 'T31=bool=true' --expect 'T28=f32=1.8446744073709552e19' --expect 'T29=2xu64=18446744073709551615 1'
// Unsigned integers of 64 bits above 2^63: as starts and indices, which are moved to the last place, and as constants.
module {
  func.func public @main(%arg0: tensor<5xf32>, %arg1: tensor<ui64>, %arg2: tensor<2xui64>) -> (tensor<2xf32>, tensor<5xf32>, tensor<2xf32>, tensor<ui64>, tensor<i1>, tensor<f32>, tensor<2xui64>) {
    %0 = stablehlo.dynamic_slice %arg0, %arg1, sizes = [2] : (tensor<5xf32>, tensor<ui64>) -> tensor<2xf32>
    %c = stablehlo.constant dense<18446744073709551615> : tensor<ui64>
    %cst = stablehlo.constant dense<9.0> : tensor<1xf32>
    %1 = stablehlo.dynamic_update_slice %arg0, %cst, %c : (tensor<5xf32>, tensor<1xf32>, tensor<ui64>) -> tensor<5xf32>
    %2 = stablehlo.reshape %arg2 : (tensor<2xui64>) -> tensor<2x1xui64>
    %3 = "stablehlo.gather"(%arg0, %2) <{dimension_numbers = #stablehlo.gather<collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>, indices_are_sorted = false, slice_sizes = array<i64: 1>}> : (tensor<5xf32>, tensor<2x1xui64>) -> tensor<2xf32>
    %4 = stablehlo.reduce(%arg2 init: %c) applies stablehlo.minimum across dimensions = [0] : (tensor<2xui64>, tensor<ui64>) -> tensor<ui64>
    %c_0 = stablehlo.constant dense<1> : tensor<ui64>
    %5 = stablehlo.compare GT, %c, %c_0, UNSIGNED : (tensor<ui64>, tensor<ui64>) -> tensor<i1>
    %6 = stablehlo.convert %c : (tensor<ui64>) -> tensor<f32>
    %c_1 = stablehlo.constant dense<[18446744073709551615, 1]> : tensor<2xui64>
    return %0, %1, %3, %4, %5, %6, %c_1 : tensor<2xf32>, tensor<5xf32>, tensor<2xf32>, tensor<ui64>, tensor<i1>, tensor<f32>, tensor<2xui64>
  }
}
