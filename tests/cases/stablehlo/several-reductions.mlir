// RUN: hir-run %s --input 'T0=2x3xf32=-0.375 0.5 0.5 -0.75 0.875 -0.125' --input 'T1=2x3xf32=-0.125 0.375 -0.25 -0.125 0.375 0.125' --expect 'T2=3xf32=-1.125 1.375 0.375' --expect 'T3=3xf32=-0.125 0.375 0.125' --expect 'T6=2x2xbf16=0.109375 0.296875 0.453125 0.40625' --expect 'T10=2x2xf32=0.109375 0.296875 0.453125 0.40625'
// A reduction of two operands, and products whose result has another element type.
module @jit__lambda attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main(%arg0: tensor<2x3xf32>, %arg1: tensor<2x3xf32>) -> (tensor<3xf32> {jax.result_info = "result[0][0]"}, tensor<3xf32> {jax.result_info = "result[0][1]"}, tensor<2x2xbf16> {jax.result_info = "result[1]"}, tensor<2x2xf32> {jax.result_info = "result[2]"}) {
    %cst = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %cst_0 = stablehlo.constant dense<0xFF800000> : tensor<f32>
    %0:2 = stablehlo.reduce(%arg0 init: %cst), (%arg1 init: %cst_0) across dimensions = [0] : (tensor<2x3xf32>, tensor<2x3xf32>, tensor<f32>, tensor<f32>) -> (tensor<3xf32>, tensor<3xf32>)
     reducer(%arg2: tensor<f32>, %arg4: tensor<f32>) (%arg3: tensor<f32>, %arg5: tensor<f32>)  {
      %7 = stablehlo.add %arg2, %arg4 : tensor<f32>
      %8 = stablehlo.maximum %arg3, %arg5 : tensor<f32>
      stablehlo.return %7, %8 : tensor<f32>, tensor<f32>
    }
    %1 = stablehlo.transpose %arg1, dims = [1, 0] : (tensor<2x3xf32>) -> tensor<3x2xf32>
    %2 = stablehlo.dot_general %arg0, %1, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT] : (tensor<2x3xf32>, tensor<3x2xf32>) -> tensor<2x2xbf16>
    %3 = stablehlo.convert %arg0 : (tensor<2x3xf32>) -> tensor<2x3xbf16>
    %4 = stablehlo.transpose %arg1, dims = [1, 0] : (tensor<2x3xf32>) -> tensor<3x2xf32>
    %5 = stablehlo.convert %4 : (tensor<3x2xf32>) -> tensor<3x2xbf16>
    %6 = stablehlo.dot_general %3, %5, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT] : (tensor<2x3xbf16>, tensor<3x2xbf16>) -> tensor<2x2xf32>
    return %0#0, %0#1, %2, %6 : tensor<3xf32>, tensor<3xf32>, tensor<2x2xbf16>, tensor<2x2xf32>
  }
}
