// RUN: hir-run %s --input 'T0=5xi32=-9 -8 7 8 100' --input 'T1=5xf32=1.0 2.0 3.0 4.0 0.5' --expect 'T8=5xi32=5 -8 5 -8 -4' --expect 'T15=5xi32=8 7 8 7 11' --expect 'T22=5xi32=-7 -8 -7 -8 -4' --expect 'T26=5xi32=-1 0 -1 0 0' --expect 'T34=f32=-18.0'
// Integers of 4 and of 2 bits, which the program has in 8, and wraps. Values of JAX 0.10.2.
module @jit__lambda attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main(%arg0: tensor<5xi32>, %arg1: tensor<5xf32>) -> (tensor<5xi32> {jax.result_info = "result[0]"}, tensor<5xi32> {jax.result_info = "result[1]"}, tensor<5xi32> {jax.result_info = "result[2]"}, tensor<5xi32> {jax.result_info = "result[3]"}, tensor<f32> {jax.result_info = "result[4]"}) {
    %0 = stablehlo.convert %arg0 : (tensor<5xi32>) -> tensor<5xi4>
    %c = stablehlo.constant dense<3> : tensor<i4>
    %1 = stablehlo.broadcast_in_dim %c, dims = [] : (tensor<i4>) -> tensor<5xi4>
    %2 = stablehlo.multiply %0, %1 : tensor<5xi4>
    %3 = stablehlo.convert %2 : (tensor<5xi4>) -> tensor<5xi32>
    %4 = stablehlo.convert %arg0 : (tensor<5xi32>) -> tensor<5xui4>
    %5 = stablehlo.not %4 : tensor<5xui4>
    %6 = stablehlo.convert %5 : (tensor<5xui4>) -> tensor<5xi32>
    %7 = stablehlo.convert %arg0 : (tensor<5xi32>) -> tensor<5xi4>
    %8 = stablehlo.negate %7 : tensor<5xi4>
    %9 = stablehlo.convert %8 : (tensor<5xi4>) -> tensor<5xi32>
    %10 = stablehlo.convert %arg0 : (tensor<5xi32>) -> tensor<5xi2>
    %11 = stablehlo.convert %10 : (tensor<5xi2>) -> tensor<5xi32>
    %12 = stablehlo.convert %arg0 : (tensor<5xi32>) -> tensor<5xi4>
    %13 = stablehlo.convert %12 : (tensor<5xi4>) -> tensor<5xf32>
    %14 = stablehlo.dot_general %arg1, %13, contracting_dims = [0] x [0], precision = [DEFAULT, DEFAULT] : (tensor<5xf32>, tensor<5xf32>) -> tensor<f32>
    return %3, %6, %9, %11, %14 : tensor<5xi32>, tensor<5xi32>, tensor<5xi32>, tensor<5xi32>, tensor<f32>
  }
}
