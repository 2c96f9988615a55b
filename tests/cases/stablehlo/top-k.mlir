// RUN: hir-run %s --input 'T0=2x6xf32=1.0 nan -2.0 0.0 -0.0 inf 3.0 -nan 5.0 -inf 4.0 -1.0' --expect 'T13=2x4xf32=nan inf 1.0 0.0 5.0 4.0 3.0 -1.0' --expect 'T14=2x4xi32=1 5 0 3 2 4 0 5'
// The greatest elements by the total order: a NaN is the greatest one, a NaN with a sign the least. Values of JAX 0.10.2.
module @jit__lambda attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main(%arg0: tensor<2x6xf32>) -> (tensor<2x4xf32> {jax.result_info = "result[0]"}, tensor<2x4xi32> {jax.result_info = "result[1]"}) {
    %values, %indices = chlo.top_k(%arg0, k = 4) : tensor<2x6xf32> -> (tensor<2x4xf32>, tensor<2x4xi32>)
    return %values, %indices : tensor<2x4xf32>, tensor<2x4xi32>
  }
}
