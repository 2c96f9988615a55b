// RUN: hir-run %s --input 'T0=4xf32=3 -1 2 -5' --input 'T1=5xf32=0 -0 nan 1 -1' --input 'T2=3xf32=10 20 30' --input 'T3=3xf32=1 2 4' --expect 'T6=4xf32=-1 2 3 -5' --output T12=- --output T14=- --expect 'T54=3xf32=6 17 30' --expect 'T58=f32=170'
// Orders by what a region computes: of absolute values, of all bits, with constants outside of the region. A scatter that subtracts.
// Operations on several lines.
module @orders {
  func.func public @main(%x: tensor<4xf32>, %s: tensor<5xf32>, %base: tensor<3xf32>, %updates: tensor<3xf32>) -> (tensor<4xf32>, tensor<5xf32>, tensor<5xf32>, tensor<3xf32>, tensor<f32>) {
    %nan = stablehlo.constant dense<0x7FC00000> : tensor<f32>
    %zero = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %r0 = "stablehlo.sort"(%x) <{dimension = 0 : i64, is_stable = true}> ({
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %1 = stablehlo.abs %a : tensor<f32>
      %2 = stablehlo.abs %b : tensor<f32>
      %3 = stablehlo.compare LT, %1, %2, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
      stablehlo.return %3 : tensor<i1>
    }) : (tensor<4xf32>) -> tensor<4xf32>
    %r1 = "stablehlo.sort"(%s) <{dimension = 0 : i64, is_stable = true}> ({
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %1 = stablehlo.compare GT, %a, %b, TOTALORDER : (tensor<f32>, tensor<f32>) -> tensor<i1>
      stablehlo.return %1 : tensor<i1>
    }) : (tensor<5xf32>) -> tensor<5xf32>
    %r2 = "stablehlo.sort"(%s) <{dimension = 0 : i64, is_stable = true}> ({
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %1 = stablehlo.compare EQ, %a, %zero, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
      %2 = stablehlo.select %1, %zero, %a : tensor<i1>, tensor<f32>
      %3 = stablehlo.compare NE, %a, %a, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
      %4 = stablehlo.select %3, %nan, %2 : tensor<i1>, tensor<f32>
      %5 = stablehlo.compare EQ, %b, %zero, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
      %6 = stablehlo.select %5, %zero, %b : tensor<i1>, tensor<f32>
      %7 = stablehlo.compare NE, %b, %b, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
      %8 = stablehlo.select %7, %nan, %6 : tensor<i1>, tensor<f32>
      %9 = stablehlo.compare LT, %4, %8, TOTALORDER : (tensor<f32>, tensor<f32>) -> tensor<i1>
      stablehlo.return %9 : tensor<i1>
    }) : (tensor<5xf32>) -> tensor<5xf32>
    %at = stablehlo.constant dense<[[1], [1], [0]]> : tensor<3x1xi32>
    %r3 = "stablehlo.scatter"(%base, %at, %updates) <{indices_are_sorted = false, scatter_dimension_numbers = #stablehlo.scatter<inserted_window_dims = [0], scatter_dims_to_operand_dims = [0], index_vector_dim = 1>, unique_indices = false}> ({
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %1 = stablehlo.subtract %a, %b : tensor<f32>
      stablehlo.return %1 : tensor<f32>
    }) : (tensor<3xf32>, tensor<3x1xi32>, tensor<3xf32>) -> tensor<3xf32>
    %r4 = stablehlo.dot_general %base, %updates,
      contracting_dims = [0] x [0],
      precision = [DEFAULT, DEFAULT]
      : (tensor<3xf32>, tensor<3xf32>) -> tensor<f32>
    return %r0, %r1, %r2, %r3, %r4 : tensor<4xf32>, tensor<5xf32>, tensor<5xf32>, tensor<3xf32>, tensor<f32>
  }
}
