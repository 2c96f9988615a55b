// RUN: hir-run %s --input 'T0=10xf32=1.0 -1.7000000476837158 300.0 0.0010000000474974513 -1000000.0 1.125 1.375 nan inf 5.999999848427251e-05' --input 'T1=4xf16=1.0625 -1.1875 300.0 0.0010004043579101562' --input 'T2=4xi32=1 0 -1 256' --expect 'T18=10xf32=1.0 -1.75 320.0 0.0009765625 -inf 1.0 1.5 nan inf 6.103515625e-05' --expect 'T27=10xf32=1.0 -1.75 288.0 0.0009765625 -983040.0 1.125 1.375 nan inf 6.103515625e-05' --expect 'T43=4xf16=1.0 -1.25 inf 0.0' --expect 'T76=4xi32=31 32 0 23'
// Rounding to the numbers of other formats, and bits before the highest one. Values of JAX 0.10.2.
module @jit__lambda attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main(%arg0: tensor<10xf32>, %arg1: tensor<4xf16>, %arg2: tensor<4xi32>) -> (tensor<10xf32> {jax.result_info = "result[0]"}, tensor<10xf32> {jax.result_info = "result[1]"}, tensor<4xf16> {jax.result_info = "result[2]"}, tensor<4xi32> {jax.result_info = "result[3]"}) {
    %0 = stablehlo.reduce_precision %arg0, format = e5m2 : tensor<10xf32>
    %1 = stablehlo.reduce_precision %arg0, format = e8m3 : tensor<10xf32>
    %2 = stablehlo.reduce_precision %arg1, format = e4m3 : tensor<4xf16>
    %3 = stablehlo.count_leading_zeros %arg2 : tensor<4xi32>
    return %0, %1, %2, %3 : tensor<10xf32>, tensor<10xf32>, tensor<4xf16>, tensor<4xi32>
  }
}
