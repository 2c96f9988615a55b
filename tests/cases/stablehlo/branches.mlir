// RUN: hir-run %s --input 'T0=bool=true' --input 'T1=i32=7' --input 'T2=2xf32=0.5 0.875' --expect 'T9=2xf32=1.0 1.75' --expect 'T20=2xf32=-0.5 -0.875' --expect 'T21=f32=0.875' --expect 'T30=2xf32=0.4794255495071411 0.7675434947013855'
// `cond` and `switch`: one branch where the condition is constant, else all of them and a selection. Values of JAX 0.10.2.
module @jit__lambda attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main(%arg0: tensor<i1>, %arg1: tensor<i32>, %arg2: tensor<2xf32>) -> (tensor<2xf32> {jax.result_info = "result[0]"}, tensor<2xf32> {jax.result_info = "result[1][0]"}, tensor<f32> {jax.result_info = "result[1][1]"}, tensor<2xf32> {jax.result_info = "result[2]"}) {
    %0 = stablehlo.convert %arg0 : (tensor<i1>) -> tensor<i32>
    %1 = "stablehlo.case"(%0) ({
      %cst = stablehlo.constant dense<1.000000e+00> : tensor<f32>
      %7 = stablehlo.broadcast_in_dim %cst, dims = [] : (tensor<f32>) -> tensor<2xf32>
      %8 = stablehlo.subtract %arg2, %7 : tensor<2xf32>
      stablehlo.return %8 : tensor<2xf32>
    }, {
      %cst = stablehlo.constant dense<2.000000e+00> : tensor<f32>
      %7 = stablehlo.broadcast_in_dim %cst, dims = [] : (tensor<f32>) -> tensor<2xf32>
      %8 = stablehlo.multiply %arg2, %7 : tensor<2xf32>
      stablehlo.return %8 : tensor<2xf32>
    }) : (tensor<i32>) -> tensor<2xf32>
    %c = stablehlo.constant dense<0> : tensor<i32>
    %c_0 = stablehlo.constant dense<1> : tensor<i32>
    %2 = stablehlo.clamp %c, %arg1, %c_0 : tensor<i32>
    %3:2 = "stablehlo.case"(%2) ({
      %7 = stablehlo.slice %arg2 [0:1] : (tensor<2xf32>) -> tensor<1xf32>
      %8 = stablehlo.reshape %7 : (tensor<1xf32>) -> tensor<f32>
      stablehlo.return %arg2, %8 : tensor<2xf32>, tensor<f32>
    }, {
      %7 = stablehlo.negate %arg2 : tensor<2xf32>
      %8 = stablehlo.slice %arg2 [1:2] : (tensor<2xf32>) -> tensor<1xf32>
      %9 = stablehlo.reshape %8 : (tensor<1xf32>) -> tensor<f32>
      stablehlo.return %7, %9 : tensor<2xf32>, tensor<f32>
    }) : (tensor<i32>) -> (tensor<2xf32>, tensor<f32>)
    %c_1 = stablehlo.constant dense<9> : tensor<i32>
    %4 = stablehlo.subtract %arg1, %c_1 : tensor<i32>
    %c_2 = stablehlo.constant dense<0> : tensor<i32>
    %c_3 = stablehlo.constant dense<1> : tensor<i32>
    %5 = stablehlo.clamp %c_2, %4, %c_3 : tensor<i32>
    %6 = "stablehlo.case"(%5) ({
      %7 = stablehlo.sine %arg2 : tensor<2xf32>
      stablehlo.return %7 : tensor<2xf32>
    }, {
      %7 = stablehlo.abs %arg2 : tensor<2xf32>
      stablehlo.return %7 : tensor<2xf32>
    }) : (tensor<i32>) -> tensor<2xf32>
    return %1, %3#0, %3#1, %6 : tensor<2xf32>, tensor<2xf32>, tensor<f32>, tensor<2xf32>
  }
}
