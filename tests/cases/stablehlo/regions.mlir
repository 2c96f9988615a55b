// RUN: hir-run %s --input 'T0=3x3xf32=0.5 -1.25 0.0 -2.0 0.5 0.75 0.25 0.5 -0.5' --input 'T1=8xf32=0.0 -0.0 nan 1.0 -1.0 inf -inf -0.0' --input 'T2=5xi32=2 0 2 1 0' --input 'T3=5xf32=-2.0 1.0 -0.25 1.5 -1.5' --input 'T4=1x4x4x2xf32=-1.5 -1.75 -0.75 0.0 1.5 -1.75 0.5 -0.25 0.75 -1.75 1.75 2.0 -0.75 1.5 -2.0 -2.0 0.25 -0.75 -0.25 -0.75 1.5 -1.75 -1.75 0.5 0.75 -1.0 -1.25 2.0 2.0 -2.0 2.0 0.75' --input 'T5=2x2x1x2xf32=-2.0 1.25 -0.75 2.0 -1.75 -1.5 -1.0 0.0' --expect 'T7=8xf32=-inf -1.0 0.0 -0.0 -0.0 1.0 inf nan' --expect 'T11=3x3xf32=-1.25 -0.5 -0.0 -2.0 -0.75 -0.5 -0.5 -0.5 -0.25' --expect 'T22=3xf32=0.5 -1.25 0.5' --expect 'T47=3xf32=1.0 1.5 -0.25' --expect 'T85=3x3xf32=0.5 1.875 0.0 -2.0 0.75 0.75 0.25 0.25 -0.5' --expect 'T126=3x3xf32=-1.5 -1.25 0.0 -2.0 0.5 0.75 0.25 0.5 -2.0' --expect 'T141=i32=1' --expect 'T179=3xf32=1.0767844915390015 1.3612474203109741 1.2639225721359253' --expect 'T213=f32=0.875' --expect 'T284=5xf32=-2.0 1.0485873222351074 1.2898985147476196 2.09360408782959 2.120731830596924' --expect 'T485=32xf32=0.0 0.0 0.0 0.0 3.0 0.0 0.0 0.0 0.0 0.0 3.0 3.0 0.0 3.0 0.0 0.0 0.0 0.0 0.0 0.0 0.0 0.0 0.0 0.0 0.0 0.0 0.0 3.0 6.0 0.0 0.0 3.0' --expect 'T533=32xf32=0.5 0.4375 -1.9375 -6.5 -0.0625 -4.9375 2.5 2.6875 -3.0 2.9375 -4.0 6.625 2.125 0.5 7.0625 -3.25 -0.375 -0.9375 -0.4375 -7.4375 -7.1875 1.8125 0.0 -0.5 -0.5625 2.75 1.0 -1.5 -5.5 -1.0 -4.0 0.9375' --expect 'T753=8xf32=-109.09375 44.75 -12.1875 99.59375 -62.0 -108.3125 -42.59375 3.625'
// Regions that are evaluated: orders, scatters, reductions, windows and the gradient of pooling; convolutions with groups. Values of JAX 0.10.2.
module @jit_f attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main(%arg0: tensor<3x3xf32>, %arg1: tensor<8xf32>, %arg2: tensor<5xi32>, %arg3: tensor<5xf32>, %arg4: tensor<1x4x4x2xf32>, %arg5: tensor<2x2x1x2xf32>) -> (tensor<8xf32> {jax.result_info = "result[0]"}, tensor<3x3xf32> {jax.result_info = "result[1]"}, tensor<3xf32> {jax.result_info = "result[2]"}, tensor<3xf32> {jax.result_info = "result[3]"}, tensor<3x3xf32> {jax.result_info = "result[4]"}, tensor<3x3xf32> {jax.result_info = "result[5]"}, tensor<i32> {jax.result_info = "result[6]"}, tensor<3xf32> {jax.result_info = "result[7]"}, tensor<f32> {jax.result_info = "result[8]"}, tensor<5xf32> {jax.result_info = "result[9]"}, tensor<32xf32> {jax.result_info = "result[10]"}, tensor<32xf32> {jax.result_info = "result[11]"}, tensor<8xf32> {jax.result_info = "result[12]"}) {
    %0 = "stablehlo.sort"(%arg1) <{dimension = 0 : i64, is_stable = true}> ({
    ^bb0(%arg6: tensor<f32>, %arg7: tensor<f32>):
      %cst_17 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %60 = stablehlo.compare EQ, %arg6, %cst_17, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
      %cst_18 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %61 = stablehlo.select %60, %cst_18, %arg6 : tensor<i1>, tensor<f32>
      %62 = stablehlo.compare NE, %arg6, %arg6, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
      %cst_19 = stablehlo.constant dense<0x7FC00000> : tensor<f32>
      %63 = stablehlo.select %62, %cst_19, %61 : tensor<i1>, tensor<f32>
      %cst_20 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %64 = stablehlo.compare EQ, %arg7, %cst_20, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
      %cst_21 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %65 = stablehlo.select %64, %cst_21, %arg7 : tensor<i1>, tensor<f32>
      %66 = stablehlo.compare NE, %arg7, %arg7, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
      %cst_22 = stablehlo.constant dense<0x7FC00000> : tensor<f32>
      %67 = stablehlo.select %66, %cst_22, %65 : tensor<i1>, tensor<f32>
      %68 = stablehlo.compare LT, %63, %67, TOTALORDER : (tensor<f32>, tensor<f32>) -> tensor<i1>
      stablehlo.return %68 : tensor<i1>
    }) : (tensor<8xf32>) -> tensor<8xf32>
    %1 = stablehlo.abs %arg0 : tensor<3x3xf32>
    %2 = stablehlo.negate %1 : tensor<3x3xf32>
    %3 = call @sort(%2) : (tensor<3x3xf32>) -> tensor<3x3xf32>
    %4 = stablehlo.slice %arg0 [0:3, 0:1] : (tensor<3x3xf32>) -> tensor<3x1xf32>
    %5 = stablehlo.reshape %4 : (tensor<3x1xf32>) -> tensor<3xf32>
    %6 = call @round(%5) : (tensor<3xf32>) -> tensor<3xf32>
    %7 = stablehlo.slice %arg0 [0:3, 1:2] : (tensor<3x3xf32>) -> tensor<3x1xf32>
    %8 = stablehlo.reshape %7 : (tensor<3x1xf32>) -> tensor<3xf32>
    %9:2 = "stablehlo.sort"(%6, %8) <{dimension = 0 : i64, is_stable = true}> ({
    ^bb0(%arg6: tensor<f32>, %arg7: tensor<f32>, %arg8: tensor<f32>, %arg9: tensor<f32>):
      %cst_17 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %60 = stablehlo.compare EQ, %arg6, %cst_17, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
      %cst_18 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %61 = stablehlo.select %60, %cst_18, %arg6 : tensor<i1>, tensor<f32>
      %62 = stablehlo.compare NE, %arg6, %arg6, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
      %cst_19 = stablehlo.constant dense<0x7FC00000> : tensor<f32>
      %63 = stablehlo.select %62, %cst_19, %61 : tensor<i1>, tensor<f32>
      %cst_20 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %64 = stablehlo.compare EQ, %arg7, %cst_20, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
      %cst_21 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %65 = stablehlo.select %64, %cst_21, %arg7 : tensor<i1>, tensor<f32>
      %66 = stablehlo.compare NE, %arg7, %arg7, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
      %cst_22 = stablehlo.constant dense<0x7FC00000> : tensor<f32>
      %67 = stablehlo.select %66, %cst_22, %65 : tensor<i1>, tensor<f32>
      %cst_23 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %68 = stablehlo.compare EQ, %arg8, %cst_23, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
      %cst_24 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %69 = stablehlo.select %68, %cst_24, %arg8 : tensor<i1>, tensor<f32>
      %70 = stablehlo.compare NE, %arg8, %arg8, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
      %cst_25 = stablehlo.constant dense<0x7FC00000> : tensor<f32>
      %71 = stablehlo.select %70, %cst_25, %69 : tensor<i1>, tensor<f32>
      %cst_26 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %72 = stablehlo.compare EQ, %arg9, %cst_26, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
      %cst_27 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %73 = stablehlo.select %72, %cst_27, %arg9 : tensor<i1>, tensor<f32>
      %74 = stablehlo.compare NE, %arg9, %arg9, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
      %cst_28 = stablehlo.constant dense<0x7FC00000> : tensor<f32>
      %75 = stablehlo.select %74, %cst_28, %73 : tensor<i1>, tensor<f32>
      %76 = stablehlo.compare LT, %71, %75, TOTALORDER : (tensor<f32>, tensor<f32>) -> tensor<i1>
      %77 = stablehlo.compare LT, %63, %67, TOTALORDER : (tensor<f32>, tensor<f32>) -> tensor<i1>
      %78 = stablehlo.compare EQ, %63, %67, TOTALORDER : (tensor<f32>, tensor<f32>) -> tensor<i1>
      %79 = stablehlo.and %78, %76 : tensor<i1>
      %80 = stablehlo.or %77, %79 : tensor<i1>
      stablehlo.return %80 : tensor<i1>
    }) : (tensor<3xf32>, tensor<3xf32>) -> (tensor<3xf32>, tensor<3xf32>)
    %cst = stablehlo.constant dense<0xFF800000> : tensor<f32>
    %10 = stablehlo.broadcast_in_dim %cst, dims = [] : (tensor<f32>) -> tensor<3xf32>
    %11 = stablehlo.broadcast_in_dim %arg2, dims = [0] : (tensor<5xi32>) -> tensor<5x1xi32>
    %12 = "stablehlo.scatter"(%10, %11, %arg3) <{indices_are_sorted = false, scatter_dimension_numbers = #stablehlo.scatter<inserted_window_dims = [0], scatter_dims_to_operand_dims = [0], index_vector_dim = 1>, unique_indices = false}> ({
    ^bb0(%arg6: tensor<f32>, %arg7: tensor<f32>):
      %60 = stablehlo.maximum %arg6, %arg7 : tensor<f32>
      stablehlo.return %60 : tensor<f32>
    }) : (tensor<3xf32>, tensor<5x1xi32>, tensor<5xf32>) -> tensor<3xf32>
    %c = stablehlo.constant dense<0> : tensor<i32>
    %13 = stablehlo.broadcast_in_dim %c, dims = [] : (tensor<i32>) -> tensor<5xi32>
    %14 = stablehlo.compare LT, %arg2, %13, SIGNED : (tensor<5xi32>, tensor<5xi32>) -> tensor<5xi1>
    %c_0 = stablehlo.constant dense<3> : tensor<i32>
    %15 = stablehlo.broadcast_in_dim %c_0, dims = [] : (tensor<i32>) -> tensor<5xi32>
    %16 = stablehlo.add %arg2, %15 : tensor<5xi32>
    %17 = stablehlo.select %14, %16, %arg2 : tensor<5xi1>, tensor<5xi32>
    %c_1 = stablehlo.constant dense<1> : tensor<i32>
    %18 = stablehlo.broadcast_in_dim %c_1, dims = [] : (tensor<i32>) -> tensor<5xi32>
    %19 = stablehlo.convert %18 : tensor<5xi32>
    %20 = stablehlo.broadcast_in_dim %17, dims = [0] : (tensor<5xi32>) -> tensor<5x1xi32>
    %21 = stablehlo.broadcast_in_dim %19, dims = [0] : (tensor<5xi32>) -> tensor<5x1xi32>
    %22 = stablehlo.concatenate %20, %21, dim = 1 : (tensor<5x1xi32>, tensor<5x1xi32>) -> tensor<5x2xi32>
    %23 = "stablehlo.scatter"(%arg0, %22, %arg3) <{indices_are_sorted = false, scatter_dimension_numbers = #stablehlo.scatter<inserted_window_dims = [0, 1], scatter_dims_to_operand_dims = [0, 1], index_vector_dim = 1>, unique_indices = false}> ({
    ^bb0(%arg6: tensor<f32>, %arg7: tensor<f32>):
      %60 = stablehlo.multiply %arg6, %arg7 : tensor<f32>
      stablehlo.return %60 : tensor<f32>
    }) : (tensor<3x3xf32>, tensor<5x2xi32>, tensor<5xf32>) -> tensor<3x3xf32>
    %c_2 = stablehlo.constant dense<0> : tensor<i32>
    %24 = stablehlo.broadcast_in_dim %c_2, dims = [] : (tensor<i32>) -> tensor<5xi32>
    %25 = stablehlo.compare LT, %arg2, %24, SIGNED : (tensor<5xi32>, tensor<5xi32>) -> tensor<5xi1>
    %c_3 = stablehlo.constant dense<3> : tensor<i32>
    %26 = stablehlo.broadcast_in_dim %c_3, dims = [] : (tensor<i32>) -> tensor<5xi32>
    %27 = stablehlo.add %arg2, %26 : tensor<5xi32>
    %28 = stablehlo.select %25, %27, %arg2 : tensor<5xi1>, tensor<5xi32>
    %c_4 = stablehlo.constant dense<0> : tensor<i32>
    %29 = stablehlo.broadcast_in_dim %c_4, dims = [] : (tensor<i32>) -> tensor<5xi32>
    %30 = stablehlo.compare LT, %arg2, %29, SIGNED : (tensor<5xi32>, tensor<5xi32>) -> tensor<5xi1>
    %c_5 = stablehlo.constant dense<3> : tensor<i32>
    %31 = stablehlo.broadcast_in_dim %c_5, dims = [] : (tensor<i32>) -> tensor<5xi32>
    %32 = stablehlo.add %arg2, %31 : tensor<5xi32>
    %33 = stablehlo.select %30, %32, %arg2 : tensor<5xi1>, tensor<5xi32>
    %34 = stablehlo.broadcast_in_dim %28, dims = [0] : (tensor<5xi32>) -> tensor<5x1xi32>
    %35 = stablehlo.broadcast_in_dim %33, dims = [0] : (tensor<5xi32>) -> tensor<5x1xi32>
    %36 = stablehlo.concatenate %34, %35, dim = 1 : (tensor<5x1xi32>, tensor<5x1xi32>) -> tensor<5x2xi32>
    %37 = "stablehlo.scatter"(%arg0, %36, %arg3) <{indices_are_sorted = false, scatter_dimension_numbers = #stablehlo.scatter<inserted_window_dims = [0, 1], scatter_dims_to_operand_dims = [0, 1], index_vector_dim = 1>, unique_indices = false}> ({
    ^bb0(%arg6: tensor<f32>, %arg7: tensor<f32>):
      %60 = stablehlo.minimum %arg6, %arg7 : tensor<f32>
      stablehlo.return %60 : tensor<f32>
    }) : (tensor<3x3xf32>, tensor<5x2xi32>, tensor<5xf32>) -> tensor<3x3xf32>
    %c_6 = stablehlo.constant dense<0> : tensor<i32>
    %38 = stablehlo.reduce(%arg2 init: %c_6) applies stablehlo.xor across dimensions = [0] : (tensor<5xi32>, tensor<i32>) -> tensor<i32>
    %cst_7 = stablehlo.constant dense<0xFF800000> : tensor<f32>
    %39 = stablehlo.reduce(%arg0 init: %cst_7) across dimensions = [1] : (tensor<3x3xf32>, tensor<f32>) -> tensor<3xf32>
     reducer(%arg6: tensor<f32>, %arg7: tensor<f32>)  {
      %60 = stablehlo.maximum %arg6, %arg7 : tensor<f32>
      %61 = stablehlo.subtract %arg6, %arg7 : tensor<f32>
      %62 = stablehlo.compare NE, %61, %61, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
      %63 = stablehlo.add %arg6, %arg7 : tensor<f32>
      %64 = stablehlo.abs %61 : tensor<f32>
      %65 = stablehlo.negate %64 : tensor<f32>
      %66 = stablehlo.exponential %65 : tensor<f32>
      %67 = stablehlo.log_plus_one %66 : tensor<f32>
      %68 = stablehlo.add %60, %67 : tensor<f32>
      %69 = stablehlo.select %62, %63, %68 : tensor<i1>, tensor<f32>
      stablehlo.return %69 : tensor<f32>
    }
    %cst_8 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %40 = stablehlo.broadcast_in_dim %cst_8, dims = [] : (tensor<f32>) -> tensor<5xf32>
    %41 = stablehlo.add %arg3, %40 : tensor<5xf32>
    %cst_9 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %cst_10 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %42:2 = stablehlo.reduce(%arg3 init: %cst_9), (%41 init: %cst_10) across dimensions = [0] : (tensor<5xf32>, tensor<5xf32>, tensor<f32>, tensor<f32>) -> (tensor<f32>, tensor<f32>)
     reducer(%arg6: tensor<f32>, %arg8: tensor<f32>) (%arg7: tensor<f32>, %arg9: tensor<f32>)  {
      %60 = stablehlo.multiply %arg6, %arg9 : tensor<f32>
      %61 = stablehlo.add %60, %arg8 : tensor<f32>
      %62 = stablehlo.multiply %arg7, %arg9 : tensor<f32>
      stablehlo.return %61, %62 : tensor<f32>, tensor<f32>
    }
    %43 = call @cumlogsumexp(%arg3) : (tensor<5xf32>) -> tensor<5xf32>
    %cst_11 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %44 = stablehlo.broadcast_in_dim %cst_11, dims = [] : (tensor<f32>) -> tensor<1x2x2x2xf32>
    %cst_12 = stablehlo.constant dense<3.000000e+00> : tensor<f32>
    %45 = stablehlo.broadcast_in_dim %cst_12, dims = [] : (tensor<f32>) -> tensor<1x2x2x2xf32>
    %46 = stablehlo.multiply %44, %45 : tensor<1x2x2x2xf32>
    %cst_13 = stablehlo.constant dense<0xFF800000> : tensor<f32>
    %47 = stablehlo.pad %arg4, %cst_13, low = [0, 0, 0, 0], high = [0, 1, 1, 0], interior = [0, 0, 0, 0] : (tensor<1x4x4x2xf32>, tensor<f32>) -> tensor<1x5x5x2xf32>
    %cst_14 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %48 = "stablehlo.select_and_scatter"(%47, %46, %cst_14) <{padding = dense<0> : tensor<4x2xi64>, window_dimensions = array<i64: 1, 3, 3, 1>, window_strides = array<i64: 1, 2, 2, 1>}> ({
    ^bb0(%arg6: tensor<f32>, %arg7: tensor<f32>):
      %60 = stablehlo.compare GE, %arg6, %arg7, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
      stablehlo.return %60 : tensor<i1>
    }, {
    ^bb0(%arg6: tensor<f32>, %arg7: tensor<f32>):
      %60 = stablehlo.add %arg6, %arg7 : tensor<f32>
      stablehlo.return %60 : tensor<f32>
    }) : (tensor<1x5x5x2xf32>, tensor<1x2x2x2xf32>, tensor<f32>) -> tensor<1x5x5x2xf32>
    %49 = stablehlo.slice %48 [0:1, 0:4, 0:4, 0:2] : (tensor<1x5x5x2xf32>) -> tensor<1x4x4x2xf32>
    %50 = stablehlo.reshape %49 : (tensor<1x4x4x2xf32>) -> tensor<32xf32>
    %51 = stablehlo.convolution(%arg4, %arg5) dim_numbers = [b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f], window = {stride = [1, 1], pad = [[0, 1], [0, 1]], lhs_dilate = [1, 1], rhs_dilate = [1, 1], reverse = [false, false]} {batch_group_count = 1 : i64, feature_group_count = 2 : i64, precision_config = [#stablehlo<precision DEFAULT>, #stablehlo<precision DEFAULT>]} : (tensor<1x4x4x2xf32>, tensor<2x2x1x2xf32>) -> tensor<1x4x4x2xf32>
    %52 = stablehlo.reshape %51 : (tensor<1x4x4x2xf32>) -> tensor<32xf32>
    %53 = stablehlo.convolution(%arg4, %arg5) dim_numbers = [b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f], window = {stride = [1, 1], pad = [[0, 1], [0, 1]], lhs_dilate = [1, 1], rhs_dilate = [1, 1], reverse = [false, false]} {batch_group_count = 1 : i64, feature_group_count = 2 : i64, precision_config = [#stablehlo<precision DEFAULT>, #stablehlo<precision DEFAULT>]} : (tensor<1x4x4x2xf32>, tensor<2x2x1x2xf32>) -> tensor<1x4x4x2xf32>
    %cst_15 = stablehlo.constant dense<2.000000e+00> : tensor<f32>
    %54 = stablehlo.broadcast_in_dim %cst_15, dims = [] : (tensor<f32>) -> tensor<1x4x4x2xf32>
    %55 = stablehlo.multiply %54, %53 : tensor<1x4x4x2xf32>
    %cst_16 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %56 = stablehlo.broadcast_in_dim %cst_16, dims = [] : (tensor<f32>) -> tensor<1x4x4x2xf32>
    %57 = stablehlo.multiply %56, %55 : tensor<1x4x4x2xf32>
    %58 = stablehlo.convolution(%arg4, %57) dim_numbers = [f, 0, 1, b]x[i, 0, 1, o]->[0, 1, b, f], window = {stride = [1, 1], pad = [[0, 1], [0, 1]], lhs_dilate = [1, 1], rhs_dilate = [1, 1], reverse = [false, false]} {batch_group_count = 2 : i64, feature_group_count = 1 : i64, precision_config = [#stablehlo<precision DEFAULT>, #stablehlo<precision DEFAULT>]} : (tensor<1x4x4x2xf32>, tensor<1x4x4x2xf32>) -> tensor<2x2x1x2xf32>
    %59 = stablehlo.reshape %58 : (tensor<2x2x1x2xf32>) -> tensor<8xf32>
    return %0, %3, %9#1, %12, %23, %37, %38, %39, %42#0, %43, %50, %52, %59 : tensor<8xf32>, tensor<3x3xf32>, tensor<3xf32>, tensor<3xf32>, tensor<3x3xf32>, tensor<3x3xf32>, tensor<i32>, tensor<3xf32>, tensor<f32>, tensor<5xf32>, tensor<32xf32>, tensor<32xf32>, tensor<8xf32>
  }
  func.func private @sort(%arg0: tensor<3x3xf32>) -> tensor<3x3xf32> {
    %0 = "stablehlo.sort"(%arg0) <{dimension = 1 : i64, is_stable = true}> ({
    ^bb0(%arg1: tensor<f32>, %arg2: tensor<f32>):
      %cst = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %1 = stablehlo.compare EQ, %arg1, %cst, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
      %cst_0 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %2 = stablehlo.select %1, %cst_0, %arg1 : tensor<i1>, tensor<f32>
      %3 = stablehlo.compare NE, %arg1, %arg1, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
      %cst_1 = stablehlo.constant dense<0x7FC00000> : tensor<f32>
      %4 = stablehlo.select %3, %cst_1, %2 : tensor<i1>, tensor<f32>
      %cst_2 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %5 = stablehlo.compare EQ, %arg2, %cst_2, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
      %cst_3 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %6 = stablehlo.select %5, %cst_3, %arg2 : tensor<i1>, tensor<f32>
      %7 = stablehlo.compare NE, %arg2, %arg2, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
      %cst_4 = stablehlo.constant dense<0x7FC00000> : tensor<f32>
      %8 = stablehlo.select %7, %cst_4, %6 : tensor<i1>, tensor<f32>
      %9 = stablehlo.compare LT, %4, %8, TOTALORDER : (tensor<f32>, tensor<f32>) -> tensor<i1>
      stablehlo.return %9 : tensor<i1>
    }) : (tensor<3x3xf32>) -> tensor<3x3xf32>
    return %0 : tensor<3x3xf32>
  }
  func.func private @round(%arg0: tensor<3xf32>) -> tensor<3xf32> {
    %0 = stablehlo.round_nearest_even %arg0 : tensor<3xf32>
    return %0 : tensor<3xf32>
  }
  func.func private @cumlogsumexp(%arg0: tensor<5xf32>) -> tensor<5xf32> {
    %cst = stablehlo.constant dense<0xFF800000> : tensor<f32>
    %0 = "stablehlo.reduce_window"(%arg0, %cst) <{base_dilations = array<i64: 1>, padding = dense<[[4, 0]]> : tensor<1x2xi64>, window_dilations = array<i64: 1>, window_dimensions = array<i64: 5>, window_strides = array<i64: 1>}> ({
    ^bb0(%arg1: tensor<f32>, %arg2: tensor<f32>):
      %1 = stablehlo.maximum %arg1, %arg2 : tensor<f32>
      %2 = stablehlo.subtract %arg1, %arg2 : tensor<f32>
      %3 = stablehlo.compare NE, %2, %2, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
      %4 = stablehlo.add %arg1, %arg2 : tensor<f32>
      %5 = stablehlo.abs %2 : tensor<f32>
      %6 = stablehlo.negate %5 : tensor<f32>
      %7 = stablehlo.exponential %6 : tensor<f32>
      %8 = stablehlo.log_plus_one %7 : tensor<f32>
      %9 = stablehlo.add %1, %8 : tensor<f32>
      %10 = stablehlo.select %3, %4, %9 : tensor<i1>, tensor<f32>
      stablehlo.return %10 : tensor<f32>
    }) : (tensor<5xf32>, tensor<f32>) -> tensor<5xf32>
    return %0 : tensor<5xf32>
  }
}
