// RUN: hir-run %s --input 'T0=2xf32=1.0 -2.0' --input 'T1=i32=3' --expect 'T41=2xf32=6.875 -3.25'
// A loop up to the minimum of data and a constant: the constant bounds it. Values of JAX 0.10.2.
module @jit__lambda attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main(%arg0: tensor<2xf32>, %arg1: tensor<i32>) -> (tensor<2xf32> {jax.result_info = "result"}) {
    %c = stablehlo.constant dense<5> : tensor<i32>
    %0 = stablehlo.minimum %arg1, %c : tensor<i32>
    %c_0 = stablehlo.constant dense<0> : tensor<i32>
    %1:3 = stablehlo.while(%iterArg = %c_0, %iterArg_1 = %0, %iterArg_2 = %arg0) : tensor<i32>, tensor<i32>, tensor<2xf32>
    cond {
      %2 = stablehlo.compare LT, %iterArg, %iterArg_1, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %2 : tensor<i1>
    } do {
      %c_3 = stablehlo.constant dense<1> : tensor<i32>
      %2 = stablehlo.add %iterArg, %c_3 : tensor<i32>
      %cst = stablehlo.constant dense<1.500000e+00> : tensor<f32>
      %3 = stablehlo.broadcast_in_dim %cst, dims = [] : (tensor<f32>) -> tensor<2xf32>
      %4 = stablehlo.multiply %iterArg_2, %3 : tensor<2xf32>
      %5 = stablehlo.convert %iterArg : (tensor<i32>) -> tensor<f32>
      %6 = stablehlo.broadcast_in_dim %5, dims = [] : (tensor<f32>) -> tensor<2xf32>
      %7 = stablehlo.add %4, %6 : tensor<2xf32>
      stablehlo.return %2, %iterArg_1, %7 : tensor<i32>, tensor<i32>, tensor<2xf32>
    }
    return %1#2 : tensor<2xf32>
  }
}
