// RUN: hir-run %s --input 'T0=4xbf16=0.1 0.3 nan -0.0' --input 'T1=4xf16=0.1 65504 inf 0' --input 'T2=3xi8=127 -56 -1' --input 'T3=8xf32=448 464 465 1000 -1000 61440 nan -inf' --output T4=- --output T5=- --output T6=- --output T7=- --output T9=- --output T14=- --output T22=- --output T30=- --output T33=-
// Constants are elements of their types, as MLIR reads them, and a number beyond the largest one of 8 bits becomes infinity or NaN. JAX gives
// these results, in this order.
module @numbers {
  func.func public @main(%arg0: tensor<4xbf16>, %arg1: tensor<4xf16>, %arg2: tensor<3xi8>, %arg3: tensor<8xf32>) -> (tensor<4xi1>, tensor<4xi1>, tensor<4xi1>, tensor<3xi1>, tensor<3xi8>, tensor<8xf32>, tensor<8xf32>, tensor<8xf32>, tensor<8xf32>) {
    %cst = stablehlo.constant dense<1.000980e-01> : tensor<4xbf16>
    %0 = stablehlo.compare EQ, %arg0, %cst, FLOAT : (tensor<4xbf16>, tensor<4xbf16>) -> tensor<4xi1>
    %cst_0 = stablehlo.constant dense<3.000000e-01> : tensor<4xbf16>
    %1 = stablehlo.compare GE, %arg0, %cst_0, FLOAT : (tensor<4xbf16>, tensor<4xbf16>) -> tensor<4xi1>
    %cst_1 = stablehlo.constant dense<9.997560e-02> : tensor<4xf16>
    %2 = stablehlo.compare LE, %arg1, %cst_1, FLOAT : (tensor<4xf16>, tensor<4xf16>) -> tensor<4xi1>
    %c = stablehlo.constant dense<200> : tensor<3xi8>
    %3 = stablehlo.compare EQ, %arg2, %c, SIGNED : (tensor<3xi8>, tensor<3xi8>) -> tensor<3xi1>
    %c_2 = stablehlo.constant dense<[0x7F, -0x1, 0xC8]> : tensor<3xi8>
    %4 = stablehlo.subtract %arg2, %c_2 : tensor<3xi8>
    %5 = stablehlo.convert %arg3 : (tensor<8xf32>) -> tensor<8xf8E4M3FN>
    %6 = stablehlo.convert %5 : (tensor<8xf8E4M3FN>) -> tensor<8xf32>
    %7 = stablehlo.convert %arg3 : (tensor<8xf32>) -> tensor<8xf8E5M2>
    %8 = stablehlo.convert %7 : (tensor<8xf8E5M2>) -> tensor<8xf32>
    %9 = stablehlo.add %5, %5 : tensor<8xf8E4M3FN>
    %10 = stablehlo.convert %9 : (tensor<8xf8E4M3FN>) -> tensor<8xf32>
    %cst_3 = stablehlo.constant dense<0xFC> : tensor<8xf8E5M2>
    %11 = stablehlo.convert %cst_3 : (tensor<8xf8E5M2>) -> tensor<8xf32>
    return %0, %1, %2, %3, %4, %6, %8, %10, %11 : tensor<4xi1>, tensor<4xi1>, tensor<4xi1>, tensor<3xi1>, tensor<3xi8>, tensor<8xf32>, tensor<8xf32>, tensor<8xf32>, tensor<8xf32>
  }
}
