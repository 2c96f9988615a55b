// RUN: hir-run %s --input 'T0=4x6xbf16=0.625 0.25 0.0 -0.5 -0.5 -1.0 -0.875 -1.0 -0.75 0.625 0.25 0.75 0.0 0.125 0.875 0.375 0.25 0.0 0.0 0.75 -0.5 0.625 0.25 -1.0' --input 'T1=6x4xbf16=-0.2421875 0.6328125 0.0078125 -0.9921875 0.5078125 0.3828125 0.6328125 -0.7421875 -0.8671875 0.6328125 -0.9921875 0.0078125 -0.8671875 -0.4921875 -0.1171875 -0.2421875 -0.2421875 -0.9921875 -0.9921875 -0.8671875 -0.9921875 0.2578125 0.0078125 0.2578125' --expect 'T2=4x4xf32=1.5224609375 0.9755859375 0.7099609375 -0.5087890625 -0.9921875 -1.7734375 -0.2109375 1.4296875 -1.0810546875 0.1689453125 -1.0810546875 -0.3935546875 1.2041015625 -0.8427734375 0.6416015625 -1.1865234375' --expect 'T7=2x2x2xf32=1.5224609375 0.9755859375 -0.9921875 -1.7734375 -1.0810546875 -0.3935546875 0.6416015625 -1.1865234375' --rtol 0 --atol 0
// Products of two bytes have sums of binary32, which are not rounded to two bytes.
module @jit__lambda attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main(%arg0: tensor<4x6xbf16>, %arg1: tensor<6x4xbf16>) -> (tensor<4x4xf32> {jax.result_info = "result[0]"}, tensor<2x2x2xf32> {jax.result_info = "result[1]"}) {
    %0 = stablehlo.dot_general %arg0, %arg1, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT] : (tensor<4x6xbf16>, tensor<6x4xbf16>) -> tensor<4x4xf32>
    %1 = stablehlo.reshape %arg0 : (tensor<4x6xbf16>) -> tensor<2x2x6xbf16>
    %2 = stablehlo.transpose %arg1, dims = [1, 0] : (tensor<6x4xbf16>) -> tensor<4x6xbf16>
    %3 = stablehlo.reshape %2 : (tensor<4x6xbf16>) -> tensor<2x2x6xbf16>
    %4 = stablehlo.dot_general %1, %3, batching_dims = [0] x [0], contracting_dims = [2] x [2], precision = [DEFAULT, DEFAULT] : (tensor<2x2x6xbf16>, tensor<2x2x6xbf16>) -> tensor<2x2x2xf32>
    return %0, %4 : tensor<4x4xf32>, tensor<2x2x2xf32>
  }
}
