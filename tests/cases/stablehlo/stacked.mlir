// RUN: hir-run %s --input 'T0=4x3xf32=1 2 3 4 5 6 7 8 9 10 11 12' --expect 'T15=4x3xf32=1 2 3 5 7 9 12 15 18 22 26 30' --expect 'T16=4x3xf32=10 11 12 7 8 9 4 5 6 1 2 3' --expect 'T17=2x3xf32=5 7 9 12 15 18'
// RUN: hir-opt %s --print=short
// A loop that stacks its results, reads an earlier one and the middle of them, and one that writes from the end: each is one `cat`.
module @stacked attributes {mhlo.num_partitions = 1 : i32} {
  func.func public @main(%arg0: tensor<4x3xf32>) -> (tensor<4x3xf32>, tensor<4x3xf32>, tensor<2x3xf32>) {
    %zero = stablehlo.constant dense<0.0> : tensor<4x3xf32>
    %c0 = stablehlo.constant dense<0> : tensor<i32>
    %c1 = stablehlo.constant dense<1> : tensor<i32>
    %c3 = stablehlo.constant dense<3> : tensor<i32>
    %c4 = stablehlo.constant dense<4> : tensor<i32>
    %0:3 = stablehlo.while(%i = %c0, %up = %zero, %down = %zero) : tensor<i32>, tensor<4x3xf32>, tensor<4x3xf32>
    cond {
      %1 = stablehlo.compare LT, %i, %c4, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %1 : tensor<i1>
    } do {
      %row = stablehlo.dynamic_slice %arg0, %i, %c0, sizes = [1, 3] : (tensor<4x3xf32>, tensor<i32>, tensor<i32>) -> tensor<1x3xf32>
      %j = stablehlo.subtract %i, %c1 : tensor<i32>
      %before = stablehlo.dynamic_slice %up, %j, %c0, sizes = [1, 3] : (tensor<4x3xf32>, tensor<i32>, tensor<i32>) -> tensor<1x3xf32>
      %sum = stablehlo.add %row, %before : tensor<1x3xf32>
      %next = stablehlo.dynamic_update_slice %up, %sum, %i, %c0 : (tensor<4x3xf32>, tensor<1x3xf32>, tensor<i32>, tensor<i32>) -> tensor<4x3xf32>
      %k = stablehlo.subtract %c3, %i : tensor<i32>
      %last = stablehlo.dynamic_update_slice %down, %row, %k, %c0 : (tensor<4x3xf32>, tensor<1x3xf32>, tensor<i32>, tensor<i32>) -> tensor<4x3xf32>
      %2 = stablehlo.add %i, %c1 : tensor<i32>
      stablehlo.return %2, %next, %last : tensor<i32>, tensor<4x3xf32>, tensor<4x3xf32>
    }
    %3 = stablehlo.slice %0#1 [1:3, 0:3] : (tensor<4x3xf32>) -> tensor<2x3xf32>
    return %0#1, %0#2, %3 : tensor<4x3xf32>, tensor<4x3xf32>, tensor<2x3xf32>
  }
}
