// RUN: hir-run %s --input 'T0=2x3xf32=0.75 -0.5 -0.625 -0.125 0.0 0.625' --expect 'T5=3x5xf32=3.0 3.0 3.0 3.0 3.0 0.75 -0.5 -0.625 3.0 3.0 -0.125 0.0 0.625 3.0 3.0' --expect 'T8=2x2xf32=-0.125 0.0 0.0 0.0' --expect 'T9=1x2xf32=-0.5 -0.625' --expect 'T16=2x5xf32=0.75 -0.5 -0.625 0.75 0.75 -0.125 0.0 0.625 -0.5 -0.5' --expect 'T18=2x2x3xf32=0.75 -0.5 -0.625 0.75 -0.5 -0.625 -0.125 0.0 0.625 -0.125 0.0 0.625' --expect 'T21=3x2x2xf32=0.75 0.75 -0.125 -0.125 -0.5 -0.5 0.0 0.0 -0.625 -0.625 0.625 0.625' --expect 'T24=2x3xi32=0 2 4 6 8 10' --expect 'T1=3xf32=1.0 2.0 4.0' --expect 'T25=f32=0.125' --expect 'T26=3xf32=0.75 0.0 0.625' --expect 'T27=2xf32=0.234375 -0.0' --expect 'T29=bool=false' --expect 'T31=2xbool=true true' --expect 'T32=1x2xf32=-0.125 0.0' --expect 'T40=2x3xf32=0.75 -0.5 -0.625 -0.125 0.0 9.75'
// Operators that rearrange elements, on one device.
module @jit__lambda attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main(%arg0: tensor<2x3xf32>) -> (tensor<3x5xf32> {jax.result_info = "result[0]"}, tensor<2x2xf32> {jax.result_info = "result[1]"}, tensor<1x2xf32> {jax.result_info = "result[2]"}, tensor<2x5xf32> {jax.result_info = "result[3]"}, tensor<2x2x3xf32> {jax.result_info = "result[4]"}, tensor<3x2x2xf32> {jax.result_info = "result[5]"}, tensor<2x3xi32> {jax.result_info = "result[6]"}, tensor<3xf32> {jax.result_info = "result[7]"}, tensor<f32> {jax.result_info = "result[8]"}, tensor<3xf32> {jax.result_info = "result[9]"}, tensor<2xf32> {jax.result_info = "result[10]"}, tensor<i1> {jax.result_info = "result[11]"}, tensor<2xi1> {jax.result_info = "result[12]"}, tensor<1x2xf32> {jax.result_info = "result[13]"}, tensor<2x3xf32> {jax.result_info = "result[14]"}) {
    %cst = stablehlo.constant dense<[1.000000e+00, 2.000000e+00, 4.000000e+00]> : tensor<3xf32>
    %cst_0 = stablehlo.constant dense<3.000000e+00> : tensor<f32>
    %0 = call @_pad(%arg0, %cst_0) : (tensor<2x3xf32>, tensor<f32>) -> tensor<3x5xf32>
    %cst_1 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %1 = stablehlo.pad %arg0, %cst_1, low = [-1, 0], high = [1, -1], interior = [0, 0] : (tensor<2x3xf32>, tensor<f32>) -> tensor<2x2xf32>
    %2 = stablehlo.slice %arg0 [0:2:2, 1:3] : (tensor<2x3xf32>) -> tensor<1x2xf32>
    %3 = stablehlo.transpose %arg0, dims = [1, 0] : (tensor<2x3xf32>) -> tensor<3x2xf32>
    %4 = stablehlo.slice %3 [0:3, 0:1] : (tensor<3x2xf32>) -> tensor<3x1xf32>
    %5 = stablehlo.broadcast_in_dim %4, dims = [0, 1] : (tensor<3x1xf32>) -> tensor<3x1x2xf32>
    %6 = stablehlo.reshape %5 : (tensor<3x1x2xf32>) -> tensor<3x2xf32>
    %7 = stablehlo.slice %6 [0:2, 0:2] : (tensor<3x2xf32>) -> tensor<2x2xf32>
    %8 = stablehlo.concatenate %arg0, %7, dim = 1 : (tensor<2x3xf32>, tensor<2x2xf32>) -> tensor<2x5xf32>
    %9 = stablehlo.broadcast_in_dim %arg0, dims = [0, 2] : (tensor<2x3xf32>) -> tensor<2x1x3xf32>
    %10 = stablehlo.broadcast_in_dim %9, dims = [0, 1, 2] : (tensor<2x1x3xf32>) -> tensor<2x2x3xf32>
    %11 = stablehlo.transpose %arg0, dims = [1, 0] : (tensor<2x3xf32>) -> tensor<3x2xf32>
    %12 = stablehlo.broadcast_in_dim %11, dims = [0, 1] : (tensor<3x2xf32>) -> tensor<3x2x2xf32>
    %13 = stablehlo.iota dim = 0 : tensor<6xi32>
    %14 = stablehlo.reshape %13 : (tensor<6xi32>) -> tensor<2x3xi32>
    %c = stablehlo.constant dense<2> : tensor<i32>
    %15 = stablehlo.broadcast_in_dim %c, dims = [] : (tensor<i32>) -> tensor<2x3xi32>
    %16 = stablehlo.multiply %14, %15 : tensor<2x3xi32>
    %cst_2 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %17 = stablehlo.reduce(%arg0 init: %cst_2) applies stablehlo.add across dimensions = [0, 1] : (tensor<2x3xf32>, tensor<f32>) -> tensor<f32>
    %cst_3 = stablehlo.constant dense<0xFF800000> : tensor<f32>
    %18 = stablehlo.reduce(%arg0 init: %cst_3) applies stablehlo.maximum across dimensions = [0] : (tensor<2x3xf32>, tensor<f32>) -> tensor<3xf32>
    %cst_4 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %19 = stablehlo.reduce(%arg0 init: %cst_4) applies stablehlo.multiply across dimensions = [1] : (tensor<2x3xf32>, tensor<f32>) -> tensor<2xf32>
    %cst_5 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %20 = stablehlo.broadcast_in_dim %cst_5, dims = [] : (tensor<f32>) -> tensor<2x3xf32>
    %21 = stablehlo.compare GT, %arg0, %20, FLOAT : (tensor<2x3xf32>, tensor<2x3xf32>) -> tensor<2x3xi1>
    %c_6 = stablehlo.constant dense<true> : tensor<i1>
    %22 = stablehlo.reduce(%21 init: %c_6) applies stablehlo.and across dimensions = [0, 1] : (tensor<2x3xi1>, tensor<i1>) -> tensor<i1>
    %cst_7 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %23 = stablehlo.broadcast_in_dim %cst_7, dims = [] : (tensor<f32>) -> tensor<2x3xf32>
    %24 = stablehlo.compare GT, %arg0, %23, FLOAT : (tensor<2x3xf32>, tensor<2x3xf32>) -> tensor<2x3xi1>
    %c_8 = stablehlo.constant dense<false> : tensor<i1>
    %25 = stablehlo.reduce(%24 init: %c_8) applies stablehlo.or across dimensions = [1] : (tensor<2x3xi1>, tensor<i1>) -> tensor<2xi1>
    %c_9 = stablehlo.constant dense<5> : tensor<i32>
    %c_10 = stablehlo.constant dense<0> : tensor<i32>
    %26 = stablehlo.dynamic_slice %arg0, %c_9, %c_10, sizes = [1, 2] : (tensor<2x3xf32>, tensor<i32>, tensor<i32>) -> tensor<1x2xf32>
    %27 = stablehlo.slice %arg0 [0:1, 0:1] : (tensor<2x3xf32>) -> tensor<1x1xf32>
    %cst_11 = stablehlo.constant dense<9.000000e+00> : tensor<f32>
    %28 = stablehlo.broadcast_in_dim %cst_11, dims = [] : (tensor<f32>) -> tensor<1x1xf32>
    %29 = stablehlo.add %27, %28 : tensor<1x1xf32>
    %c_12 = stablehlo.constant dense<1> : tensor<i32>
    %c_13 = stablehlo.constant dense<2> : tensor<i32>
    %30 = stablehlo.dynamic_update_slice %arg0, %29, %c_12, %c_13 : (tensor<2x3xf32>, tensor<1x1xf32>, tensor<i32>, tensor<i32>) -> tensor<2x3xf32>
    return %0, %1, %2, %8, %10, %12, %16, %cst, %17, %18, %19, %22, %25, %26, %30 : tensor<3x5xf32>, tensor<2x2xf32>, tensor<1x2xf32>, tensor<2x5xf32>, tensor<2x2x3xf32>, tensor<3x2x2xf32>, tensor<2x3xi32>, tensor<3xf32>, tensor<f32>, tensor<3xf32>, tensor<2xf32>, tensor<i1>, tensor<2xi1>, tensor<1x2xf32>, tensor<2x3xf32>
  }
  func.func private @_pad(%arg0: tensor<2x3xf32>, %arg1: tensor<f32>) -> tensor<3x5xf32> {
    %0 = stablehlo.convert %arg1 : tensor<f32>
    %1 = stablehlo.pad %arg0, %0, low = [1, 0], high = [0, 2], interior = [0, 0] : (tensor<2x3xf32>, tensor<f32>) -> tensor<3x5xf32>
    return %1 : tensor<3x5xf32>
  }
}
