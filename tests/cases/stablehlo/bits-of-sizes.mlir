// RUN: hir-run %s --input 'T0=2xf32=1.5 -2.25' --input 'T1=4xi32=-2 259 16256 -16320' --expect 'T11=2x2xu32=0 16320 0 49168' --expect 'T22=4x4xi32=-2 -1 -1 -1 3 1 0 0 -128 63 0 0 64 -64 -1 -1' --expect 'T33=2xf32=2.424456538051582e-38 -3.003875732421875'
// Bits that are read as elements of smaller and of larger types. Values of JAX 0.10.2.
module @jit__lambda attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main(%arg0: tensor<2xf32>, %arg1: tensor<4xi32>) -> (tensor<2x2xui32> {jax.result_info = "result[0]"}, tensor<4x4xi32> {jax.result_info = "result[1]"}, tensor<2xf32> {jax.result_info = "result[2]"}) {
    %0 = stablehlo.bitcast_convert %arg0 : (tensor<2xf32>) -> tensor<2x2xui16>
    %1 = stablehlo.convert %0 : (tensor<2x2xui16>) -> tensor<2x2xui32>
    %2 = stablehlo.bitcast_convert %arg1 : (tensor<4xi32>) -> tensor<4x4xi8>
    %3 = stablehlo.convert %2 : (tensor<4x4xi8>) -> tensor<4x4xi32>
    %4 = stablehlo.convert %arg1 : (tensor<4xi32>) -> tensor<4xi16>
    %5 = stablehlo.reshape %4 : (tensor<4xi16>) -> tensor<2x2xi16>
    %6 = stablehlo.bitcast_convert %5 : (tensor<2x2xi16>) -> tensor<2xf32>
    return %1, %3, %6 : tensor<2x2xui32>, tensor<4x4xi32>, tensor<2xf32>
  }
}
