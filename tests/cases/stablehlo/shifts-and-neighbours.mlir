// RUN: hir-run %s --input 'T0=3xu8=128 255 128' --input 'T1=3xu8=1 9 200' --input 'T2=7xf16=0 1 65504 0 -1 nan 2' --input 'T3=7xf16=1 2 0 -1 0 1 2' --input 'T4=4xbf16=0 1 2 -1' --input 'T5=4xbf16=1 2 0 -2' --output T9=- --output T26=- --output T43=-
// An arithmetic shift copies the highest bit whatever the sign of the type, and the number after one of 16 bits is one of 16 bits. JAX gives
// 192 255 255; 5.96e-08 1.001 65472 -5.96e-08 -0.9995 nan 2; 9.18e-41 1.0078125 1.9921875 -1.0078125.
module @neighbours {
  func.func public @main(%arg0: tensor<3xui8>, %arg1: tensor<3xui8>, %arg2: tensor<7xf16>, %arg3: tensor<7xf16>, %arg4: tensor<4xbf16>, %arg5: tensor<4xbf16>) -> (tensor<3xui8>, tensor<7xf16>, tensor<4xbf16>) {
    %0 = stablehlo.shift_right_arithmetic %arg0, %arg1 : tensor<3xui8>
    %1 = chlo.next_after %arg2, %arg3 : tensor<7xf16>, tensor<7xf16> -> tensor<7xf16>
    %2 = chlo.next_after %arg4, %arg5 : tensor<4xbf16>, tensor<4xbf16> -> tensor<4xbf16>
    return %0, %1, %2 : tensor<3xui8>, tensor<7xf16>, tensor<4xbf16>
  }
}
