// RUN: hir-run %s --input 'T0=3x4xf32=-0.625 -0.25 0.375 0.75 -1.0 0.75 -0.625 0.5 0.25 0.375 -0.5 -0.25' --input 'T1=4xf32=-0.5 0.875 -0.625 0.5' --input 'T2=4x3xf32=-0.5 0.0 0.75 0.875 -0.625 0.875 0.625 1.0 -0.375 0.125 -0.625 -1.0' --input 'T3=2x3xf32=-0.375 -1.0 -0.5 -0.75 1.0 -0.625' --expect 'T24=f32=0.7401928305625916' --expect 'T48=4xf32=0.12150169909000397 1.0429966449737549 -0.0006948187947273254 -0.0030374675989151' --expect 'T33=4x3xf32=-0.08899746090173721 0.07581165432929993 0.020097151398658752 0.6635584831237793 -0.6611322164535522 0.4077931344509125 -0.06434129178524017 0.06234803795814514 -0.02931748330593109 0.19602100551128387 -0.19319605827331543 0.10820522159337997' --expect 'T51=3x4xf32=-0.04638373851776123 -0.7737544178962708 -0.011760586872696877 -0.01998690515756607 -0.11712516844272614 0.9977005124092102 0.06480758637189865 0.11570922285318375 -0.06102438271045685 -0.6490418910980225 -0.003659638576209545 -0.00552325090393424'
// RUN: hir-run %s --input 'T0=3x4xf32=-0.625 -0.25 0.375 0.75 -1.0 0.75 -0.625 0.5 0.25 0.375 -0.5 -0.25' --input 'T1=4xf32=-0.5 0.875 -0.625 0.5' --input 'T2=4x3xf32=-0.5 0.0 0.75 0.875 -0.625 0.875 0.625 1.0 -0.375 0.125 -0.625 -1.0' --input 'T3=2x3xf32=-0.375 -1.0 -0.5 -0.75 1.0 -0.625' --expect 'T24=f32=0.7401928305625916' --expect 'T48=4xf32=0.12150169909000397 1.0429966449737549 -0.0006948187947273254 -0.0030374675989151' --expect 'T33=4x3xf32=-0.08899746090173721 0.07581165432929993 0.020097151398658752 0.6635584831237793 -0.6611322164535522 0.4077931344509125 -0.06434129178524017 0.06234803795814514 -0.02931748330593109 0.19602100551128387 -0.19319605827331543 0.10820522159337997' --expect 'T51=3x4xf32=-0.04638373851776123 -0.7737544178962708 -0.011760586872696877 -0.01998690515756607 -0.11712516844272614 0.9977005124092102 0.06480758637189865 0.11570922285318375 -0.06102438271045685 -0.6490418910980225 -0.003659638576209545 -0.00552325090393424' --passes @overlap{}
// Value and gradients of a layer with a bias and GELU.
module @jit__lambda attributes {mhlo.num_partitions = 2 : i32, mhlo.num_replicas = 1 : i32} {
  sdy.mesh @mesh = <["tp"=2]> {stablehlo.mesh = {axes = [{name = "tp", size = 2 : i64}]}}
  func.func public @main(%arg0: tensor<3x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"tp"}]>}, %arg1: tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"tp"}]>}, %arg2: tensor<4x3xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"tp"}, {}]>}, %arg3: tensor<2x3xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>}) -> (tensor<f32> {jax.result_info = "result[0]"}, tensor<4xf32> {jax.result_info = "result[1]['b']"}, tensor<4x3xf32> {jax.result_info = "result[1]['v']"}, tensor<3x4xf32> {jax.result_info = "result[1]['w']"}) {
    %0 = stablehlo.dot_general %arg3, %arg0, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT] : (tensor<2x3xf32>, tensor<3x4xf32>) -> tensor<2x4xf32>
    %1 = stablehlo.broadcast_in_dim %arg1, dims = [1] : (tensor<4xf32>) -> tensor<1x4xf32>
    %2 = stablehlo.broadcast_in_dim %1, dims = [0, 1] : (tensor<1x4xf32>) -> tensor<2x4xf32>
    %3 = stablehlo.add %0, %2 : tensor<2x4xf32>
    %4 = stablehlo.multiply %3, %3 : tensor<2x4xf32>
    %5 = stablehlo.multiply %4, %3 : tensor<2x4xf32>
    %6 = stablehlo.multiply %3, %3 : tensor<2x4xf32>
    %cst = stablehlo.constant dense<3.000000e+00> : tensor<f32>
    %7 = stablehlo.broadcast_in_dim %cst, dims = [] : (tensor<f32>) -> tensor<2x4xf32>
    %8 = stablehlo.multiply %7, %6 : tensor<2x4xf32>
    %cst_0 = stablehlo.constant dense<4.471500e-02> : tensor<f32>
    %9 = stablehlo.broadcast_in_dim %cst_0, dims = [] : (tensor<f32>) -> tensor<2x4xf32>
    %10 = stablehlo.multiply %9, %5 : tensor<2x4xf32>
    %11 = stablehlo.add %3, %10 : tensor<2x4xf32>
    %cst_1 = stablehlo.constant dense<0.797884583> : tensor<f32>
    %12 = stablehlo.broadcast_in_dim %cst_1, dims = [] : (tensor<f32>) -> tensor<2x4xf32>
    %13 = stablehlo.multiply %12, %11 : tensor<2x4xf32>
    %14 = stablehlo.tanh %13 : tensor<2x4xf32>
    %cst_2 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %15 = stablehlo.broadcast_in_dim %cst_2, dims = [] : (tensor<f32>) -> tensor<2x4xf32>
    %16 = stablehlo.subtract %15, %14 : tensor<2x4xf32>
    %cst_3 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %17 = stablehlo.broadcast_in_dim %cst_3, dims = [] : (tensor<f32>) -> tensor<2x4xf32>
    %18 = stablehlo.add %17, %14 : tensor<2x4xf32>
    %cst_4 = stablehlo.constant dense<5.000000e-01> : tensor<f32>
    %19 = stablehlo.broadcast_in_dim %cst_4, dims = [] : (tensor<f32>) -> tensor<2x4xf32>
    %20 = stablehlo.multiply %19, %18 : tensor<2x4xf32>
    %21 = stablehlo.multiply %3, %20 : tensor<2x4xf32>
    %22 = stablehlo.dot_general %21, %arg2, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT] : (tensor<2x4xf32>, tensor<4x3xf32>) -> tensor<2x3xf32>
    %23 = stablehlo.multiply %22, %22 : tensor<2x3xf32>
    %cst_5 = stablehlo.constant dense<2.000000e+00> : tensor<f32>
    %24 = stablehlo.broadcast_in_dim %cst_5, dims = [] : (tensor<f32>) -> tensor<2x3xf32>
    %25 = stablehlo.multiply %24, %22 : tensor<2x3xf32>
    %cst_6 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %26 = stablehlo.reduce(%23 init: %cst_6) applies stablehlo.add across dimensions = [0, 1] : (tensor<2x3xf32>, tensor<f32>) -> tensor<f32>
    %cst_7 = stablehlo.constant dense<6.000000e+00> : tensor<f32>
    %27 = stablehlo.divide %26, %cst_7 : tensor<f32>
    %cst_8 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %cst_9 = stablehlo.constant dense<6.000000e+00> : tensor<f32>
    %28 = stablehlo.divide %cst_8, %cst_9 : tensor<f32>
    %29 = stablehlo.broadcast_in_dim %28, dims = [] : (tensor<f32>) -> tensor<2x3xf32>
    %30 = stablehlo.multiply %29, %25 : tensor<2x3xf32>
    %31 = stablehlo.dot_general %30, %21, contracting_dims = [0] x [0], precision = [DEFAULT, DEFAULT] : (tensor<2x3xf32>, tensor<2x4xf32>) -> tensor<3x4xf32>
    %32 = stablehlo.transpose %31, dims = [1, 0] : (tensor<3x4xf32>) -> tensor<4x3xf32>
    %33 = stablehlo.dot_general %30, %arg2, contracting_dims = [1] x [1], precision = [DEFAULT, DEFAULT] : (tensor<2x3xf32>, tensor<4x3xf32>) -> tensor<2x4xf32>
    %34 = stablehlo.multiply %3, %33 : tensor<2x4xf32>
    %35 = stablehlo.multiply %33, %20 : tensor<2x4xf32>
    %cst_10 = stablehlo.constant dense<5.000000e-01> : tensor<f32>
    %36 = stablehlo.broadcast_in_dim %cst_10, dims = [] : (tensor<f32>) -> tensor<2x4xf32>
    %37 = stablehlo.multiply %36, %34 : tensor<2x4xf32>
    %38 = stablehlo.multiply %37, %16 : tensor<2x4xf32>
    %39 = stablehlo.multiply %38, %14 : tensor<2x4xf32>
    %40 = stablehlo.add %38, %39 : tensor<2x4xf32>
    %cst_11 = stablehlo.constant dense<0.797884583> : tensor<f32>
    %41 = stablehlo.broadcast_in_dim %cst_11, dims = [] : (tensor<f32>) -> tensor<2x4xf32>
    %42 = stablehlo.multiply %41, %40 : tensor<2x4xf32>
    %43 = stablehlo.add %35, %42 : tensor<2x4xf32>
    %cst_12 = stablehlo.constant dense<4.471500e-02> : tensor<f32>
    %44 = stablehlo.broadcast_in_dim %cst_12, dims = [] : (tensor<f32>) -> tensor<2x4xf32>
    %45 = stablehlo.multiply %44, %42 : tensor<2x4xf32>
    %46 = stablehlo.multiply %45, %8 : tensor<2x4xf32>
    %47 = stablehlo.add %43, %46 : tensor<2x4xf32>
    %cst_13 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %48 = stablehlo.reduce(%47 init: %cst_13) applies stablehlo.add across dimensions = [0] : (tensor<2x4xf32>, tensor<f32>) -> tensor<4xf32>
    %49 = stablehlo.reshape %48 : (tensor<4xf32>) -> tensor<1x4xf32>
    %cst_14 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %50 = stablehlo.reduce(%49 init: %cst_14) applies stablehlo.add across dimensions = [0] : (tensor<1x4xf32>, tensor<f32>) -> tensor<4xf32>
    %51 = stablehlo.dot_general %47, %arg3, contracting_dims = [0] x [0], precision = [DEFAULT, DEFAULT] : (tensor<2x4xf32>, tensor<2x3xf32>) -> tensor<4x3xf32>
    %52 = stablehlo.transpose %51, dims = [1, 0] : (tensor<4x3xf32>) -> tensor<3x4xf32>
    return %27, %50, %32, %52 : tensor<f32>, tensor<4xf32>, tensor<4x3xf32>, tensor<3x4xf32>
  }
}
