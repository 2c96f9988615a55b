// RUN: hir-run %s --input 'T0=4xi32=7 -7 5 -2147483648' --input 'T1=4xi32=2 2 0 -1' --input 'T2=2xu8=200 3' --input 'T3=2xu8=0 2' --output T7=- --output T11=- --output T15=- --output T16=-
// An integer divided by 0 has all bits set, and the remainder is the dividend, as in XLA: programs divide first and select afterwards.
module @division {
  func.func public @main(%arg0: tensor<4xi32>, %arg1: tensor<4xi32>, %arg2: tensor<2xui8>, %arg3: tensor<2xui8>) -> (tensor<4xi32>, tensor<4xi32>, tensor<2xui8>, tensor<4xi32>) {
    %0 = stablehlo.divide %arg0, %arg1 : tensor<4xi32>
    %1 = stablehlo.remainder %arg0, %arg1 : tensor<4xi32>
    %2 = stablehlo.divide %arg2, %arg3 : tensor<2xui8>
    %c = stablehlo.constant dense<3> : tensor<4xi32>
    %3 = stablehlo.divide %arg0, %c : tensor<4xi32>
    return %0, %1, %2, %3 : tensor<4xi32>, tensor<4xi32>, tensor<2xui8>, tensor<4xi32>
  }
}
