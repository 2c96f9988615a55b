// RUN: hir-run %s --input 'T0=2x4x2xf32=0.5 -0.5 0.25 -0.25 0.0 1.0 -2.0 -0.25 0.5 1.5 0.75 -1.5 0.25 -1.5 0.5 -1.75' --input 'T1=2x4xf32=-0.75 0.25 1.5 -1.75 0.5 -0.25 0.75 -1.75' --input 'T2=4x2x2xf32=1.75 -0.25 2.0 -0.75 -0.75 1.5 1.5 -1.75 -2.0 -1.75 -2.0 0.5 0.25 0.75 -0.75 -1.0' --expect 'T15=2x4x2xf32=0.0 0.75 0.0 -0.125 1.5 1.5 3.9375 -3.0625 1.0 0.5 0.1875 0.5625 -0.9375 -1.3125 2.1875 3.9375' --expect 'T28=2x4xf32=0.707107 0.353553 1.0 2.015564 1.581139 1.677051 1.520691 1.820027' --expect 'T61=2x4x2xf32=0.117647 -0.470588 0.121951 -0.097561 -0.103448 0.241379 -0.3 1.1 0.076923 0.615385 0.3 -0.9 0.223077 -0.484615 -0.94 -0.42' --expect 'T90=2x4x2xf32=0.776887 -0.321797 0.549342 -0.227545 0.707107 0.707107 0.088217 -1.416962 1.020083 0.735234 1.101601 -0.680827 0.940928 -0.797086 1.077039 -0.812412' --expect 'T114=2x4x2xf32=0.731689 -0.681639 0.968912 0.247404 0.070737 0.997495 -0.178246 -0.983986 0.877583 0.479426 0.968912 -0.247404 0.731689 0.681639 -0.178246 -0.983986' --expect 'T123=2x2xf32=2.375 1.3125 1.25 -1.25' --expect 'T131=2x4x2xf32=0.0 0.0 0.25 -0.25 0.0 1.0 0.0 0.0 0.5 1.5 0.0 0.0 0.25 -1.5 0.0 0.0' --expect 'T180=2xf32=-0.5 -0.0625' --expect 'T194=4x2xf32=1.0 1.0 1.0 -1.75 0.25 -0.5 -1.5 -2.0' --expect 'T199=4x2x2xf32=0.5 0.5 0.5 -1.5 0.25 0.25 0.75 1.5 0.0 -1.0 0.25 1.5 -2.0 0.25 0.5 1.75' --expect 'T208=2x4x2xf32=-1.25 0.0 0.5 -3.75 2.25 1.0 0.5 0.75 2.0 -3.25 0.5 2.75 -0.5 3.25 0.0 3.25' --expect 'T237=2x4xf32=-1.5 0.5 3.0 -3.5 1.0 -0.5 1.5 -3.5' --expect 'T241=2x4xbool=false true false false false false false false' --expect 'T257=2x4x2xf32=-0.346574 -0.785398 -1.039721 -0.785398 0.0 1.570796 0.700899 -3.017238 0.458145 1.249046 0.517037 -1.107149 0.419165 -1.405648 0.598852 -1.292497'
// Complex numbers are pairs of floats in a last dimension: arithmetic, functions, products, sums and Fourier transforms. Values of JAX 0.10.2.
module @jit_f attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main(%arg0: tensor<2x4xcomplex<f32>>, %arg1: tensor<2x4xf32>, %arg2: tensor<4x2xcomplex<f32>>) -> (tensor<2x4xcomplex<f32>> {jax.result_info = "result[0]"}, tensor<2x4xf32> {jax.result_info = "result[1]"}, tensor<2x4xcomplex<f32>> {jax.result_info = "result[2]"}, tensor<2x4xcomplex<f32>> {jax.result_info = "result[3]"}, tensor<2x4xcomplex<f32>> {jax.result_info = "result[4]"}, tensor<2x2xf32> {jax.result_info = "result[5]"}, tensor<2x4xcomplex<f32>> {jax.result_info = "result[6]"}, tensor<complex<f32>> {jax.result_info = "result[7]"}, tensor<4xcomplex<f32>> {jax.result_info = "result[8]"}, tensor<4x2xcomplex<f32>> {jax.result_info = "result[9]"}, tensor<2x4xcomplex<f32>> {jax.result_info = "result[10]"}, tensor<2x4xf32> {jax.result_info = "result[11]"}, tensor<2x4xi1> {jax.result_info = "result[12]"}, tensor<2x4xcomplex<f32>> {jax.result_info = "result[13]"}) {
    %0 = stablehlo.negate %arg1 : tensor<2x4xf32>
    %1 = stablehlo.complex %arg1, %0 : tensor<2x4xcomplex<f32>>
    %2 = stablehlo.multiply %arg0, %1 : tensor<2x4xcomplex<f32>>
    %3 = stablehlo.abs %arg0 : (tensor<2x4xcomplex<f32>>) -> tensor<2x4xf32>
    %cst = stablehlo.constant dense<(2.000000e+00,0.000000e+00)> : tensor<complex<f32>>
    %4 = stablehlo.broadcast_in_dim %cst, dims = [] : (tensor<complex<f32>>) -> tensor<2x4xcomplex<f32>>
    %5 = stablehlo.add %1, %4 : tensor<2x4xcomplex<f32>>
    %6 = stablehlo.divide %arg0, %5 : tensor<2x4xcomplex<f32>>
    %7 = stablehlo.sqrt %arg0 : tensor<2x4xcomplex<f32>>
    %8 = stablehlo.convert %arg1 : (tensor<2x4xf32>) -> tensor<2x4xcomplex<f32>>
    %cst_0 = stablehlo.constant dense<(0.000000e+00,1.000000e+00)> : tensor<complex<f32>>
    %9 = stablehlo.broadcast_in_dim %cst_0, dims = [] : (tensor<complex<f32>>) -> tensor<2x4xcomplex<f32>>
    %10 = stablehlo.multiply %9, %8 : tensor<2x4xcomplex<f32>>
    %11 = stablehlo.exponential %10 : tensor<2x4xcomplex<f32>>
    %12 = stablehlo.dot_general %arg0, %arg2, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT] : (tensor<2x4xcomplex<f32>>, tensor<4x2xcomplex<f32>>) -> tensor<2x2xcomplex<f32>>
    %13 = stablehlo.real %12 : (tensor<2x2xcomplex<f32>>) -> tensor<2x2xf32>
    %cst_1 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %14 = stablehlo.broadcast_in_dim %cst_1, dims = [] : (tensor<f32>) -> tensor<2x4xf32>
    %15 = stablehlo.compare GT, %arg1, %14, FLOAT : (tensor<2x4xf32>, tensor<2x4xf32>) -> tensor<2x4xi1>
    %c = stablehlo.constant dense<0> : tensor<i32>
    %16 = call @_where(%15, %arg0, %c) : (tensor<2x4xi1>, tensor<2x4xcomplex<f32>>, tensor<i32>) -> tensor<2x4xcomplex<f32>>
    %17 = stablehlo.slice %arg0 [0:1, 0:4] : (tensor<2x4xcomplex<f32>>) -> tensor<1x4xcomplex<f32>>
    %18 = stablehlo.reshape %17 : (tensor<1x4xcomplex<f32>>) -> tensor<4xcomplex<f32>>
    %cst_2 = stablehlo.constant dense<(1.000000e+00,0.000000e+00)> : tensor<complex<f32>>
    %19 = stablehlo.reduce(%18 init: %cst_2) applies stablehlo.multiply across dimensions = [0] : (tensor<4xcomplex<f32>>, tensor<complex<f32>>) -> tensor<complex<f32>>
    %cst_3 = stablehlo.constant dense<(0.000000e+00,0.000000e+00)> : tensor<complex<f32>>
    %20 = stablehlo.reduce(%arg0 init: %cst_3) applies stablehlo.add across dimensions = [0] : (tensor<2x4xcomplex<f32>>, tensor<complex<f32>>) -> tensor<4xcomplex<f32>>
    %21 = stablehlo.real %arg0 : (tensor<2x4xcomplex<f32>>) -> tensor<2x4xf32>
    %22 = stablehlo.imag %arg0 : (tensor<2x4xcomplex<f32>>) -> tensor<2x4xf32>
    %23 = stablehlo.negate %22 : tensor<2x4xf32>
    %24 = stablehlo.complex %21, %23 : tensor<2x4xcomplex<f32>>
    %25 = stablehlo.transpose %24, dims = [1, 0] : (tensor<2x4xcomplex<f32>>) -> tensor<4x2xcomplex<f32>>
    %26 = call @fft(%arg0) : (tensor<2x4xcomplex<f32>>) -> tensor<2x4xcomplex<f32>>
    %27 = call @fft_0(%arg1) : (tensor<2x4xf32>) -> tensor<2x3xcomplex<f32>>
    %cst_4 = stablehlo.constant dense<(2.000000e+00,0.000000e+00)> : tensor<complex<f32>>
    %28 = stablehlo.broadcast_in_dim %cst_4, dims = [] : (tensor<complex<f32>>) -> tensor<2x3xcomplex<f32>>
    %29 = stablehlo.multiply %27, %28 : tensor<2x3xcomplex<f32>>
    %30 = call @fft_1(%29) : (tensor<2x3xcomplex<f32>>) -> tensor<2x4xf32>
    %31 = stablehlo.compare EQ, %arg0, %1, FLOAT : (tensor<2x4xcomplex<f32>>, tensor<2x4xcomplex<f32>>) -> tensor<2x4xi1>
    %32 = stablehlo.log %arg0 : tensor<2x4xcomplex<f32>>
    return %2, %3, %6, %7, %11, %13, %16, %19, %20, %25, %26, %30, %31, %32 : tensor<2x4xcomplex<f32>>, tensor<2x4xf32>, tensor<2x4xcomplex<f32>>, tensor<2x4xcomplex<f32>>, tensor<2x4xcomplex<f32>>, tensor<2x2xf32>, tensor<2x4xcomplex<f32>>, tensor<complex<f32>>, tensor<4xcomplex<f32>>, tensor<4x2xcomplex<f32>>, tensor<2x4xcomplex<f32>>, tensor<2x4xf32>, tensor<2x4xi1>, tensor<2x4xcomplex<f32>>
  }
  func.func private @_where(%arg0: tensor<2x4xi1>, %arg1: tensor<2x4xcomplex<f32>>, %arg2: tensor<i32>) -> tensor<2x4xcomplex<f32>> {
    %0 = stablehlo.convert %arg2 : (tensor<i32>) -> tensor<complex<f32>>
    %1 = stablehlo.broadcast_in_dim %0, dims = [] : (tensor<complex<f32>>) -> tensor<2x4xcomplex<f32>>
    %2 = stablehlo.select %arg0, %arg1, %1 : tensor<2x4xi1>, tensor<2x4xcomplex<f32>>
    return %2 : tensor<2x4xcomplex<f32>>
  }
  func.func private @fft(%arg0: tensor<2x4xcomplex<f32>>) -> tensor<2x4xcomplex<f32>> {
    %0 = stablehlo.fft %arg0, type = FFT, length = [4] : (tensor<2x4xcomplex<f32>>) -> tensor<2x4xcomplex<f32>>
    return %0 : tensor<2x4xcomplex<f32>>
  }
  func.func private @fft_0(%arg0: tensor<2x4xf32>) -> tensor<2x3xcomplex<f32>> {
    %0 = stablehlo.fft %arg0, type = RFFT, length = [4] : (tensor<2x4xf32>) -> tensor<2x3xcomplex<f32>>
    return %0 : tensor<2x3xcomplex<f32>>
  }
  func.func private @fft_1(%arg0: tensor<2x3xcomplex<f32>>) -> tensor<2x4xf32> {
    %0 = stablehlo.fft %arg0, type = IRFFT, length = [4] : (tensor<2x3xcomplex<f32>>) -> tensor<2x4xf32>
    return %0 : tensor<2x4xf32>
  }
}
