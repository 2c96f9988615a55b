// Tests of StableHLO, `stablehlo/testdata` of https://github.com/openxla/stablehlo at 3c9301c116f97fbaf696959a0ede32712aec587b.
// Copyright 2023 The StableHLO Authors. Licensed under the Apache License, Version 2.0; unchanged but for RUN lines.
// ----- add_any_int8_2_int8_2.mlir
module @jit_main attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main() -> (tensor<2xi8> {jax.result_info = "", mhlo.layout_mode = "default"}) {
    %0:2 = call @inputs() : () -> (tensor<2xi8>, tensor<2xi8>)
    %1 = call @expected() : () -> tensor<2xi8>
    %2 = stablehlo.add %0#0, %0#1 : tensor<2xi8>
    stablehlo.custom_call @check.expect_eq(%2, %1) {has_side_effect = true} : (tensor<2xi8>, tensor<2xi8>) -> ()
    return %2 : tensor<2xi8>
  }
  func.func private @inputs() -> (tensor<2xi8> {mhlo.layout_mode = "default"}, tensor<2xi8> {mhlo.layout_mode = "default"}) {
    %c = stablehlo.constant dense<[-2, 0]> : tensor<2xi8>
    %c_0 = stablehlo.constant dense<[0, 6]> : tensor<2xi8>
    return %c, %c_0 : tensor<2xi8>, tensor<2xi8>
  }
  func.func private @expected() -> (tensor<2xi8> {mhlo.layout_mode = "default"}) {
    %c = stablehlo.constant dense<[-2, 6]> : tensor<2xi8>
    return %c : tensor<2xi8>
  }
}
// ----- and_bool_20_20_bool_20_20.mlir
module @jit_main attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main() -> (tensor<20x20xi1> {jax.result_info = "", mhlo.layout_mode = "default"}) {
    %0:2 = call @inputs() : () -> (tensor<20x20xi1>, tensor<20x20xi1>)
    %1 = call @expected() : () -> tensor<20x20xi1>
    %2 = stablehlo.and %0#0, %0#1 : tensor<20x20xi1>
    stablehlo.custom_call @check.expect_eq(%2, %1) {has_side_effect = true} : (tensor<20x20xi1>, tensor<20x20xi1>) -> ()
    return %2 : tensor<20x20xi1>
  }
  func.func private @inputs() -> (tensor<20x20xi1> {mhlo.layout_mode = "default"}, tensor<20x20xi1> {mhlo.layout_mode = "default"}) {
    %c = stablehlo.constant dense<true> : tensor<20x20xi1>
    %c_0 = stablehlo.constant dense<true> : tensor<20x20xi1>
    return %c, %c_0 : tensor<20x20xi1>, tensor<20x20xi1>
  }
  func.func private @expected() -> (tensor<20x20xi1> {mhlo.layout_mode = "default"}) {
    %c = stablehlo.constant dense<true> : tensor<20x20xi1>
    return %c : tensor<20x20xi1>
  }
}
// ----- argmax_bool_15.mlir
module @jit_main attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main() -> (tensor<i32> {jax.result_info = "", mhlo.layout_mode = "default"}) {
    %0 = call @inputs() : () -> tensor<15xi1>
    %1 = call @expected() : () -> tensor<i32>
    %2 = call @argmax(%0) : (tensor<15xi1>) -> tensor<i32>
    stablehlo.custom_call @check.expect_eq(%2, %1) {has_side_effect = true} : (tensor<i32>, tensor<i32>) -> ()
    return %2 : tensor<i32>
  }
  func.func private @inputs() -> (tensor<15xi1> {mhlo.layout_mode = "default"}) {
    %c = stablehlo.constant dense<true> : tensor<15xi1>
    return %c : tensor<15xi1>
  }
  func.func private @expected() -> (tensor<i32> {mhlo.layout_mode = "default"}) {
    %c = stablehlo.constant dense<0> : tensor<i32>
    return %c : tensor<i32>
  }
  func.func private @argmax(%arg0: tensor<15xi1>) -> tensor<i32> {
    %0 = stablehlo.iota dim = 0 : tensor<15xi32>
    %c = stablehlo.constant dense<false> : tensor<i1>
    %c_0 = stablehlo.constant dense<0> : tensor<i32>
    %1:2 = stablehlo.reduce(%arg0 init: %c), (%0 init: %c_0) across dimensions = [0] : (tensor<15xi1>, tensor<15xi32>, tensor<i1>, tensor<i32>) -> (tensor<i1>, tensor<i32>)
     reducer(%arg1: tensor<i1>, %arg3: tensor<i1>) (%arg2: tensor<i32>, %arg4: tensor<i32>)  {
      %2 = stablehlo.compare  GT, %arg1, %arg3,  UNSIGNED : (tensor<i1>, tensor<i1>) -> tensor<i1>
      %3 = stablehlo.compare  NE, %arg1, %arg1,  UNSIGNED : (tensor<i1>, tensor<i1>) -> tensor<i1>
      %4 = stablehlo.or %2, %3 : tensor<i1>
      %5 = stablehlo.compare  EQ, %arg1, %arg3,  UNSIGNED : (tensor<i1>, tensor<i1>) -> tensor<i1>
      %6 = stablehlo.compare  LT, %arg2, %arg4,  SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
      %7 = stablehlo.and %5, %6 : tensor<i1>
      %8 = stablehlo.or %4, %7 : tensor<i1>
      %9 = stablehlo.select %4, %arg1, %arg3 : tensor<i1>, tensor<i1>
      %10 = stablehlo.select %8, %arg2, %arg4 : tensor<i1>, tensor<i32>
      stablehlo.return %9, %10 : tensor<i1>, tensor<i32>
    }
    return %1#1 : tensor<i32>
  }
}
// ----- argmin_bool_15.mlir
module @jit_main attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main() -> (tensor<i32> {jax.result_info = "", mhlo.layout_mode = "default"}) {
    %0 = call @inputs() : () -> tensor<15xi1>
    %1 = call @expected() : () -> tensor<i32>
    %2 = call @argmin(%0) : (tensor<15xi1>) -> tensor<i32>
    stablehlo.custom_call @check.expect_eq(%2, %1) {has_side_effect = true} : (tensor<i32>, tensor<i32>) -> ()
    return %2 : tensor<i32>
  }
  func.func private @inputs() -> (tensor<15xi1> {mhlo.layout_mode = "default"}) {
    %c = stablehlo.constant dense<true> : tensor<15xi1>
    return %c : tensor<15xi1>
  }
  func.func private @expected() -> (tensor<i32> {mhlo.layout_mode = "default"}) {
    %c = stablehlo.constant dense<0> : tensor<i32>
    return %c : tensor<i32>
  }
  func.func private @argmin(%arg0: tensor<15xi1>) -> tensor<i32> {
    %0 = stablehlo.iota dim = 0 : tensor<15xi32>
    %c = stablehlo.constant dense<true> : tensor<i1>
    %c_0 = stablehlo.constant dense<0> : tensor<i32>
    %1:2 = stablehlo.reduce(%arg0 init: %c), (%0 init: %c_0) across dimensions = [0] : (tensor<15xi1>, tensor<15xi32>, tensor<i1>, tensor<i32>) -> (tensor<i1>, tensor<i32>)
     reducer(%arg1: tensor<i1>, %arg3: tensor<i1>) (%arg2: tensor<i32>, %arg4: tensor<i32>)  {
      %2 = stablehlo.compare  LT, %arg1, %arg3,  UNSIGNED : (tensor<i1>, tensor<i1>) -> tensor<i1>
      %3 = stablehlo.compare  NE, %arg1, %arg1,  UNSIGNED : (tensor<i1>, tensor<i1>) -> tensor<i1>
      %4 = stablehlo.or %2, %3 : tensor<i1>
      %5 = stablehlo.compare  EQ, %arg1, %arg3,  UNSIGNED : (tensor<i1>, tensor<i1>) -> tensor<i1>
      %6 = stablehlo.compare  LT, %arg2, %arg4,  SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
      %7 = stablehlo.and %5, %6 : tensor<i1>
      %8 = stablehlo.or %4, %7 : tensor<i1>
      %9 = stablehlo.select %4, %arg1, %arg3 : tensor<i1>, tensor<i1>
      %10 = stablehlo.select %8, %arg2, %arg4 : tensor<i1>, tensor<i32>
      stablehlo.return %9, %10 : tensor<i1>, tensor<i32>
    }
    return %1#1 : tensor<i32>
  }
}
// ----- bitcast_convert_type_bool_2_3.mlir
module @jit_main attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main() -> (tensor<2x3xi1> {jax.result_info = "", mhlo.layout_mode = "default"}) {
    %0 = call @inputs() : () -> tensor<2x3xi1>
    %1 = call @expected() : () -> tensor<2x3xi1>
    %2 = stablehlo.bitcast_convert %0 : (tensor<2x3xi1>) -> tensor<2x3xi1>
    stablehlo.custom_call @check.expect_eq(%2, %1) {has_side_effect = true} : (tensor<2x3xi1>, tensor<2x3xi1>) -> ()
    return %2 : tensor<2x3xi1>
  }
  func.func private @inputs() -> (tensor<2x3xi1> {mhlo.layout_mode = "default"}) {
    %c = stablehlo.constant dense<true> : tensor<2x3xi1>
    return %c : tensor<2x3xi1>
  }
  func.func private @expected() -> (tensor<2x3xi1> {mhlo.layout_mode = "default"}) {
    %c = stablehlo.constant dense<true> : tensor<2x3xi1>
    return %c : tensor<2x3xi1>
  }
}
// ----- broadcast_in_dim_bool_2.mlir
module @jit_main attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main() -> (tensor<2xi1> {jax.result_info = "", mhlo.layout_mode = "default"}) {
    %0 = call @inputs() : () -> tensor<2xi1>
    %1 = call @expected() : () -> tensor<2xi1>
    stablehlo.custom_call @check.expect_eq(%0, %1) {has_side_effect = true} : (tensor<2xi1>, tensor<2xi1>) -> ()
    return %0 : tensor<2xi1>
  }
  func.func private @inputs() -> (tensor<2xi1> {mhlo.layout_mode = "default"}) {
    %c = stablehlo.constant dense<true> : tensor<2xi1>
    return %c : tensor<2xi1>
  }
  func.func private @expected() -> (tensor<2xi1> {mhlo.layout_mode = "default"}) {
    %c = stablehlo.constant dense<true> : tensor<2xi1>
    return %c : tensor<2xi1>
  }
}
// ----- clamp_int8_int8_2_3_int8.mlir
module @jit_main attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main() -> (tensor<2x3xi8> {jax.result_info = "", mhlo.layout_mode = "default"}) {
    %0:3 = call @inputs() : () -> (tensor<i8>, tensor<2x3xi8>, tensor<i8>)
    %1 = call @expected() : () -> tensor<2x3xi8>
    %2 = stablehlo.broadcast_in_dim %0#0, dims = [] : (tensor<i8>) -> tensor<2x3xi8>
    %3 = stablehlo.broadcast_in_dim %0#2, dims = [] : (tensor<i8>) -> tensor<2x3xi8>
    %4 = stablehlo.clamp %2, %0#1, %3 : tensor<2x3xi8>
    stablehlo.custom_call @check.expect_eq(%4, %1) {has_side_effect = true} : (tensor<2x3xi8>, tensor<2x3xi8>) -> ()
    return %4 : tensor<2x3xi8>
  }
  func.func private @inputs() -> (tensor<i8> {mhlo.layout_mode = "default"}, tensor<2x3xi8> {mhlo.layout_mode = "default"}, tensor<i8> {mhlo.layout_mode = "default"}) {
    %c = stablehlo.constant dense<[[0, 0, -1], [-4, -5, -3]]> : tensor<2x3xi8>
    %c_0 = stablehlo.constant dense<0> : tensor<i8>
    %c_1 = stablehlo.constant dense<-2> : tensor<i8>
    return %c_0, %c, %c_1 : tensor<i8>, tensor<2x3xi8>, tensor<i8>
  }
  func.func private @expected() -> (tensor<2x3xi8> {mhlo.layout_mode = "default"}) {
    %c = stablehlo.constant dense<-2> : tensor<2x3xi8>
    return %c : tensor<2x3xi8>
  }
}
// ----- complex_float32_3_2_float32_3_1.mlir
module @jit_main attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main() -> (tensor<3x2xcomplex<f32>> {jax.result_info = "", mhlo.layout_mode = "default"}) {
    %0:2 = call @inputs() : () -> (tensor<3x2xf32>, tensor<3x1xf32>)
    %1 = call @expected() : () -> tensor<3x2xcomplex<f32>>
    %2 = stablehlo.broadcast_in_dim %0#1, dims = [0, 1] : (tensor<3x1xf32>) -> tensor<3x2xf32>
    %3 = stablehlo.complex %0#0, %2 : tensor<3x2xcomplex<f32>>
    stablehlo.custom_call @check.expect_close(%3, %1) {has_side_effect = true} : (tensor<3x2xcomplex<f32>>, tensor<3x2xcomplex<f32>>) -> ()
    return %3 : tensor<3x2xcomplex<f32>>
  }
  func.func private @inputs() -> (tensor<3x2xf32> {mhlo.layout_mode = "default"}, tensor<3x1xf32> {mhlo.layout_mode = "default"}) {
    %cst = stablehlo.constant dense<[[4.3779788, 0.256987363], [-1.94227421, -0.415562898], [-4.24635506, 0.812674164]]> : tensor<3x2xf32>
    %cst_0 = stablehlo.constant dense<[[-1.35233212], [-1.11680901], [-1.31206405]]> : tensor<3x1xf32>
    return %cst, %cst_0 : tensor<3x2xf32>, tensor<3x1xf32>
  }
  func.func private @expected() -> (tensor<3x2xcomplex<f32>> {mhlo.layout_mode = "default"}) {
    %cst = stablehlo.constant dense<[[(4.3779788,-1.35233212), (0.256987363,-1.35233212)], [(-1.94227421,-1.11680901), (-0.415562898,-1.11680901)], [(-4.24635506,-1.31206405), (0.812674164,-1.31206405)]]> : tensor<3x2xcomplex<f32>>
    return %cst : tensor<3x2xcomplex<f32>>
  }
}
// ----- concatenate_bool_2_3_bool_2_3.mlir
module @jit_main attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main() -> (tensor<4x3xi1> {jax.result_info = "", mhlo.layout_mode = "default"}) {
    %0:2 = call @inputs() : () -> (tensor<2x3xi1>, tensor<2x3xi1>)
    %1 = call @expected() : () -> tensor<4x3xi1>
    %2 = stablehlo.concatenate %0#0, %0#1, dim = 0 : (tensor<2x3xi1>, tensor<2x3xi1>) -> tensor<4x3xi1>
    stablehlo.custom_call @check.expect_eq(%2, %1) {has_side_effect = true} : (tensor<4x3xi1>, tensor<4x3xi1>) -> ()
    return %2 : tensor<4x3xi1>
  }
  func.func private @inputs() -> (tensor<2x3xi1> {mhlo.layout_mode = "default"}, tensor<2x3xi1> {mhlo.layout_mode = "default"}) {
    %c = stablehlo.constant dense<true> : tensor<2x3xi1>
    %c_0 = stablehlo.constant dense<true> : tensor<2x3xi1>
    return %c, %c_0 : tensor<2x3xi1>, tensor<2x3xi1>
  }
  func.func private @expected() -> (tensor<4x3xi1> {mhlo.layout_mode = "default"}) {
    %c = stablehlo.constant dense<true> : tensor<4x3xi1>
    return %c : tensor<4x3xi1>
  }
}
// ----- conj_float32_3_4.mlir
module @jit_main attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main() -> (tensor<3x4xcomplex<f32>> {jax.result_info = "", mhlo.layout_mode = "default"}) {
    %0 = call @inputs() : () -> tensor<3x4xf32>
    %1 = call @expected() : () -> tensor<3x4xcomplex<f32>>
    %cst = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %2 = stablehlo.broadcast_in_dim %cst, dims = [] : (tensor<f32>) -> tensor<3x4xf32>
    %3 = stablehlo.complex %0, %2 : tensor<3x4xcomplex<f32>>
    stablehlo.custom_call @check.expect_close(%3, %1) {has_side_effect = true} : (tensor<3x4xcomplex<f32>>, tensor<3x4xcomplex<f32>>) -> ()
    return %3 : tensor<3x4xcomplex<f32>>
  }
  func.func private @inputs() -> (tensor<3x4xf32> {mhlo.layout_mode = "default"}) {
    %cst = stablehlo.constant dense<[[-0.320381522, -0.114326343, 2.78269958, -1.2944634], [-0.201011941, -0.804424703, 0.361741751, -3.98341298], [-1.02460182, -0.470660597, 0.961570084, -2.37234592]]> : tensor<3x4xf32>
    return %cst : tensor<3x4xf32>
  }
  func.func private @expected() -> (tensor<3x4xcomplex<f32>> {mhlo.layout_mode = "default"}) {
    %cst = stablehlo.constant dense<[[(-0.320381522,0.000000e+00), (-0.114326343,0.000000e+00), (2.78269958,0.000000e+00), (-1.2944634,0.000000e+00)], [(-0.201011941,0.000000e+00), (-0.804424703,0.000000e+00), (0.361741751,0.000000e+00), (-3.98341298,0.000000e+00)], [(-1.02460182,0.000000e+00), (-0.470660597,0.000000e+00), (0.961570084,0.000000e+00), (-2.37234592,0.000000e+00)]]> : tensor<3x4xcomplex<f32>>
    return %cst : tensor<3x4xcomplex<f32>>
  }
}
// ----- conv_general_dilated_float32_1_1_16_1_float32_4_1_1_2.mlir
module @jit_main attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main() -> (tensor<1x1x16x2xf32> {jax.result_info = "", mhlo.layout_mode = "default"}) {
    %0:2 = call @inputs() : () -> (tensor<1x1x16x1xf32>, tensor<4x1x1x2xf32>)
    %1 = call @expected() : () -> tensor<1x1x16x2xf32>
    %2 = stablehlo.convolution(%0#0, %0#1) dim_numbers = [b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f], window = {pad = [[1, 2], [0, 0]]} {batch_group_count = 1 : i64, feature_group_count = 1 : i64} : (tensor<1x1x16x1xf32>, tensor<4x1x1x2xf32>) -> tensor<1x1x16x2xf32>
    stablehlo.custom_call @check.expect_close(%2, %1) {has_side_effect = true} : (tensor<1x1x16x2xf32>, tensor<1x1x16x2xf32>) -> ()
    return %2 : tensor<1x1x16x2xf32>
  }
  func.func private @inputs() -> (tensor<1x1x16x1xf32> {mhlo.layout_mode = "default"}, tensor<4x1x1x2xf32> {mhlo.layout_mode = "default"}) {
    %cst = stablehlo.constant dense<[[[[0.249547243], [-3.84318519], [-1.0406214], [1.16896808], [-0.0966261476], [0.145545349], [-0.652937531], [4.2463026], [-1.61683857], [-2.21878624], [-6.34280634], [-1.90672576], [-4.64762354], [3.25072265], [-0.142132208], [-0.168175161]]]]> : tensor<1x1x16x1xf32>
    %cst_0 = stablehlo.constant dense<[[[[0.354699761, 0.679385543]]], [[[0.609961211, 0.152189493]]], [[[-2.194420e+00, -2.72838569]]], [[[-0.477422208, -1.72463417]]]]> : tensor<4x1x1x2xf32>
    return %cst, %cst_0 : tensor<1x1x16x1xf32>, tensor<4x1x1x2xf32>
  }
  func.func private @expected() -> (tensor<1x1x16x2xf32> {mhlo.layout_mode = "default"}) {
    %cst = stablehlo.constant dense<[[[[0.15221414, 0.0379784666], [-2.34419394, -0.584892392], [-0.634738684, -0.158371642], [0.713025212, 0.177904665], [-5.893820e-02, -0.0147054847], [0.0887770206, 0.0221504737], [-0.398266554, -0.0993702337], [2.59007978, 0.646242618], [-0.986208796, -0.24606584], [-1.35337353, -0.337675959], [-3.86886573, -0.965308487], [-1.16302872, -0.290183634], [-2.834870e+00, -0.707319498], [1.98281467, 0.494725823], [-0.0866951346, -0.0216310285], [-0.102580324, -0.0255944934]]]]> : tensor<1x1x16x2xf32>
    return %cst : tensor<1x1x16x2xf32>
  }
}
// ----- convert_element_type_bool_100_100.mlir
module @jit_main attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main() -> (tensor<100x100xui8> {jax.result_info = "", mhlo.layout_mode = "default"}) {
    %0 = call @inputs() : () -> tensor<100x100xi1>
    %1 = call @expected() : () -> tensor<100x100xui8>
    %2 = stablehlo.convert %0 : (tensor<100x100xi1>) -> tensor<100x100xui8>
    stablehlo.custom_call @check.expect_eq(%2, %1) {has_side_effect = true} : (tensor<100x100xui8>, tensor<100x100xui8>) -> ()
    return %2 : tensor<100x100xui8>
  }
  func.func private @inputs() -> (tensor<100x100xi1> {mhlo.layout_mode = "default"}) {
    %c = stablehlo.constant dense<true> : tensor<100x100xi1>
    return %c : tensor<100x100xi1>
  }
  func.func private @expected() -> (tensor<100x100xui8> {mhlo.layout_mode = "default"}) {
    %c = stablehlo.constant dense<1> : tensor<100x100xui8>
    return %c : tensor<100x100xui8>
  }
}
// ----- cummax_uint8_8_9.mlir
module @jit_main attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main() -> (tensor<8x9xui8> {jax.result_info = "", mhlo.layout_mode = "default"}) {
    %0 = call @inputs() : () -> tensor<8x9xui8>
    %1 = call @expected() : () -> tensor<8x9xui8>
    %2 = call @cummax(%0) : (tensor<8x9xui8>) -> tensor<8x9xui8>
    stablehlo.custom_call @check.expect_eq(%2, %1) {has_side_effect = true} : (tensor<8x9xui8>, tensor<8x9xui8>) -> ()
    return %2 : tensor<8x9xui8>
  }
  func.func private @inputs() -> (tensor<8x9xui8> {mhlo.layout_mode = "default"}) {
    %c = stablehlo.constant dense<[[2, 1, 0, 2, 0, 0, 3, 2, 1], [0, 2, 2, 3, 0, 1, 0, 0, 1], [2, 0, 0, 4, 5, 3, 4, 0, 1], [5, 3, 4, 3, 0, 4, 2, 3, 0], [0, 0, 1, 2, 2, 1, 1, 1, 2], [2, 5, 1, 1, 0, 7, 2, 1, 2], [6, 3, 1, 2, 3, 2, 1, 3, 3], [2, 2, 3, 5, 0, 0, 3, 0, 0]]> : tensor<8x9xui8>
    return %c : tensor<8x9xui8>
  }
  func.func private @expected() -> (tensor<8x9xui8> {mhlo.layout_mode = "default"}) {
    %c = stablehlo.constant dense<[[2, 1, 0, 2, 0, 0, 3, 2, 1], [2, 2, 2, 3, 0, 1, 3, 2, 1], [2, 2, 2, 4, 5, 3, 4, 2, 1], [5, 3, 4, 4, 5, 4, 4, 3, 1], [5, 3, 4, 4, 5, 4, 4, 3, 2], [5, 5, 4, 4, 5, 7, 4, 3, 2], [6, 5, 4, 4, 5, 7, 4, 3, 3], [6, 5, 4, 5, 5, 7, 4, 3, 3]]> : tensor<8x9xui8>
    return %c : tensor<8x9xui8>
  }
  func.func private @cummax(%arg0: tensor<8x9xui8>) -> tensor<8x9xui8> {
    %c = stablehlo.constant dense<0> : tensor<ui8>
    %0 = stablehlo.broadcast_in_dim %c, dims = [] : (tensor<ui8>) -> tensor<ui8>
    %1 = "stablehlo.reduce_window"(%arg0, %0) <{padding = dense<[[7, 0], [0, 0]]> : tensor<2x2xi64>, window_dimensions = array<i64: 8, 1>}> ({
    ^bb0(%arg1: tensor<ui8>, %arg2: tensor<ui8>):
      %2 = stablehlo.maximum %arg1, %arg2 : tensor<ui8>
      stablehlo.return %2 : tensor<ui8>
    }) : (tensor<8x9xui8>, tensor<ui8>) -> tensor<8x9xui8>
    return %1 : tensor<8x9xui8>
  }
}
// ----- cummin_uint8_8_9.mlir
module @jit_main attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main() -> (tensor<8x9xui8> {jax.result_info = "", mhlo.layout_mode = "default"}) {
    %0 = call @inputs() : () -> tensor<8x9xui8>
    %1 = call @expected() : () -> tensor<8x9xui8>
    %2 = call @cummin(%0) : (tensor<8x9xui8>) -> tensor<8x9xui8>
    stablehlo.custom_call @check.expect_eq(%2, %1) {has_side_effect = true} : (tensor<8x9xui8>, tensor<8x9xui8>) -> ()
    return %2 : tensor<8x9xui8>
  }
  func.func private @inputs() -> (tensor<8x9xui8> {mhlo.layout_mode = "default"}) {
    %c = stablehlo.constant dense<[[4, 0, 1, 2, 0, 2, 1, 0, 0], [5, 6, 1, 0, 2, 6, 4, 0, 0], [0, 4, 0, 0, 3, 3, 1, 0, 0], [2, 1, 0, 3, 2, 3, 1, 3, 3], [2, 0, 2, 0, 1, 0, 1, 5, 1], [6, 3, 0, 1, 1, 0, 2, 1, 1], [1, 5, 2, 1, 1, 2, 1, 4, 6], [4, 5, 0, 2, 7, 6, 1, 0, 0]]> : tensor<8x9xui8>
    return %c : tensor<8x9xui8>
  }
  func.func private @expected() -> (tensor<8x9xui8> {mhlo.layout_mode = "default"}) {
    %c = stablehlo.constant dense<[[4, 0, 1, 2, 0, 2, 1, 0, 0], [4, 0, 1, 0, 0, 2, 1, 0, 0], [0, 0, 0, 0, 0, 2, 1, 0, 0], [0, 0, 0, 0, 0, 2, 1, 0, 0], [0, 0, 0, 0, 0, 0, 1, 0, 0], [0, 0, 0, 0, 0, 0, 1, 0, 0], [0, 0, 0, 0, 0, 0, 1, 0, 0], [0, 0, 0, 0, 0, 0, 1, 0, 0]]> : tensor<8x9xui8>
    return %c : tensor<8x9xui8>
  }
  func.func private @cummin(%arg0: tensor<8x9xui8>) -> tensor<8x9xui8> {
    %c = stablehlo.constant dense<255> : tensor<ui8>
    %0 = stablehlo.broadcast_in_dim %c, dims = [] : (tensor<ui8>) -> tensor<ui8>
    %1 = "stablehlo.reduce_window"(%arg0, %0) <{padding = dense<[[7, 0], [0, 0]]> : tensor<2x2xi64>, window_dimensions = array<i64: 8, 1>}> ({
    ^bb0(%arg1: tensor<ui8>, %arg2: tensor<ui8>):
      %2 = stablehlo.minimum %arg1, %arg2 : tensor<ui8>
      stablehlo.return %2 : tensor<ui8>
    }) : (tensor<8x9xui8>, tensor<ui8>) -> tensor<8x9xui8>
    return %1 : tensor<8x9xui8>
  }
}
// ----- cumprod_uint8_8_9.mlir
module @jit_main attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main() -> (tensor<8x9xui8> {jax.result_info = "", mhlo.layout_mode = "default"}) {
    %0 = call @inputs() : () -> tensor<8x9xui8>
    %1 = call @expected() : () -> tensor<8x9xui8>
    %2 = call @cumprod(%0) : (tensor<8x9xui8>) -> tensor<8x9xui8>
    stablehlo.custom_call @check.expect_eq(%2, %1) {has_side_effect = true} : (tensor<8x9xui8>, tensor<8x9xui8>) -> ()
    return %2 : tensor<8x9xui8>
  }
  func.func private @inputs() -> (tensor<8x9xui8> {mhlo.layout_mode = "default"}) {
    %c = stablehlo.constant dense<[[2, 0, 3, 3, 3, 4, 0, 2, 1], [4, 1, 2, 5, 2, 3, 4, 1, 7], [2, 1, 2, 3, 1, 2, 2, 3, 4], [0, 0, 0, 4, 0, 6, 1, 1, 0], [1, 1, 1, 3, 6, 1, 3, 1, 0], [3, 1, 3, 2, 0, 4, 1, 0, 0], [5, 2, 0, 0, 0, 2, 1, 3, 0], [0, 3, 4, 1, 1, 1, 0, 1, 1]]> : tensor<8x9xui8>
    return %c : tensor<8x9xui8>
  }
  func.func private @expected() -> (tensor<8x9xui8> {mhlo.layout_mode = "default"}) {
    %c = stablehlo.constant dense<[[2, 0, 3, 3, 3, 4, 0, 2, 1], [8, 0, 6, 15, 6, 12, 0, 2, 7], [16, 0, 12, 45, 6, 24, 0, 6, 28], [0, 0, 0, 180, 0, 144, 0, 6, 0], [0, 0, 0, 28, 0, 144, 0, 6, 0], [0, 0, 0, 56, 0, 64, 0, 0, 0], [0, 0, 0, 0, 0, 128, 0, 0, 0], [0, 0, 0, 0, 0, 128, 0, 0, 0]]> : tensor<8x9xui8>
    return %c : tensor<8x9xui8>
  }
  func.func private @cumprod(%arg0: tensor<8x9xui8>) -> tensor<8x9xui8> {
    %c = stablehlo.constant dense<1> : tensor<ui8>
    %0 = "stablehlo.reduce_window"(%arg0, %c) <{padding = dense<[[7, 0], [0, 0]]> : tensor<2x2xi64>, window_dimensions = array<i64: 8, 1>}> ({
    ^bb0(%arg1: tensor<ui8>, %arg2: tensor<ui8>):
      %1 = stablehlo.multiply %arg1, %arg2 : tensor<ui8>
      stablehlo.return %1 : tensor<ui8>
    }) : (tensor<8x9xui8>, tensor<ui8>) -> tensor<8x9xui8>
    return %0 : tensor<8x9xui8>
  }
}
// ----- cumsum_uint8_8_9.mlir
module @jit_main attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main() -> (tensor<8x9xui8> {jax.result_info = "", mhlo.layout_mode = "default"}) {
    %0 = call @inputs() : () -> tensor<8x9xui8>
    %1 = call @expected() : () -> tensor<8x9xui8>
    %2 = call @cumsum(%0) : (tensor<8x9xui8>) -> tensor<8x9xui8>
    stablehlo.custom_call @check.expect_eq(%2, %1) {has_side_effect = true} : (tensor<8x9xui8>, tensor<8x9xui8>) -> ()
    return %2 : tensor<8x9xui8>
  }
  func.func private @inputs() -> (tensor<8x9xui8> {mhlo.layout_mode = "default"}) {
    %c = stablehlo.constant dense<[[1, 4, 4, 1, 1, 4, 1, 3, 1], [0, 0, 3, 0, 1, 1, 4, 5, 0], [1, 2, 5, 2, 1, 1, 1, 1, 0], [2, 1, 2, 3, 5, 0, 1, 0, 2], [4, 0, 0, 1, 0, 2, 0, 2, 2], [0, 3, 1, 1, 1, 1, 1, 2, 3], [4, 0, 3, 5, 6, 1, 0, 3, 4], [4, 0, 3, 2, 1, 3, 0, 5, 1]]> : tensor<8x9xui8>
    return %c : tensor<8x9xui8>
  }
  func.func private @expected() -> (tensor<8x9xui8> {mhlo.layout_mode = "default"}) {
    %c = stablehlo.constant dense<[[1, 4, 4, 1, 1, 4, 1, 3, 1], [1, 4, 7, 1, 2, 5, 5, 8, 1], [2, 6, 12, 3, 3, 6, 6, 9, 1], [4, 7, 14, 6, 8, 6, 7, 9, 3], [8, 7, 14, 7, 8, 8, 7, 11, 5], [8, 10, 15, 8, 9, 9, 8, 13, 8], [12, 10, 18, 13, 15, 10, 8, 16, 12], [16, 10, 21, 15, 16, 13, 8, 21, 13]]> : tensor<8x9xui8>
    return %c : tensor<8x9xui8>
  }
  func.func private @cumsum(%arg0: tensor<8x9xui8>) -> tensor<8x9xui8> {
    %c = stablehlo.constant dense<0> : tensor<ui8>
    %0 = stablehlo.broadcast_in_dim %c, dims = [] : (tensor<ui8>) -> tensor<ui8>
    %1 = "stablehlo.reduce_window"(%arg0, %0) <{padding = dense<[[7, 0], [0, 0]]> : tensor<2x2xi64>, window_dimensions = array<i64: 8, 1>}> ({
    ^bb0(%arg1: tensor<ui8>, %arg2: tensor<ui8>):
      %2 = stablehlo.add %arg1, %arg2 : tensor<ui8>
      stablehlo.return %2 : tensor<ui8>
    }) : (tensor<8x9xui8>, tensor<ui8>) -> tensor<8x9xui8>
    return %1 : tensor<8x9xui8>
  }
}
// ----- device_put_bool_3_4.mlir
module @jit_main attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main() -> (tensor<3x4xi1> {jax.result_info = "", mhlo.layout_mode = "default"}) {
    %0 = call @inputs() : () -> tensor<3x4xi1>
    %1 = call @expected() : () -> tensor<3x4xi1>
    stablehlo.custom_call @check.expect_eq(%0, %1) {has_side_effect = true} : (tensor<3x4xi1>, tensor<3x4xi1>) -> ()
    return %0 : tensor<3x4xi1>
  }
  func.func private @inputs() -> (tensor<3x4xi1> {mhlo.layout_mode = "default"}) {
    %c = stablehlo.constant dense<true> : tensor<3x4xi1>
    return %c : tensor<3x4xi1>
  }
  func.func private @expected() -> (tensor<3x4xi1> {mhlo.layout_mode = "default"}) {
    %c = stablehlo.constant dense<true> : tensor<3x4xi1>
    return %c : tensor<3x4xi1>
  }
}
// ----- div_int8_2_int8_2.mlir
module @jit_main attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main() -> (tensor<2xi8> {jax.result_info = "", mhlo.layout_mode = "default"}) {
    %0:2 = call @inputs() : () -> (tensor<2xi8>, tensor<2xi8>)
    %1 = call @expected() : () -> tensor<2xi8>
    %2 = stablehlo.divide %0#0, %0#1 : tensor<2xi8>
    stablehlo.custom_call @check.expect_eq(%2, %1) {has_side_effect = true} : (tensor<2xi8>, tensor<2xi8>) -> ()
    return %2 : tensor<2xi8>
  }
  func.func private @inputs() -> (tensor<2xi8> {mhlo.layout_mode = "default"}, tensor<2xi8> {mhlo.layout_mode = "default"}) {
    %c = stablehlo.constant dense<[-1, 0]> : tensor<2xi8>
    %c_0 = stablehlo.constant dense<-4> : tensor<2xi8>
    return %c, %c_0 : tensor<2xi8>, tensor<2xi8>
  }
  func.func private @expected() -> (tensor<2xi8> {mhlo.layout_mode = "default"}) {
    %c = stablehlo.constant dense<0> : tensor<2xi8>
    return %c : tensor<2xi8>
  }
}
// ----- dot_general_int8_4_3_uint8_3_6.mlir
module @jit_main attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main() -> (tensor<4x6xi8> {jax.result_info = "", mhlo.layout_mode = "default"}) {
    %0:2 = call @inputs() : () -> (tensor<4x3xi8>, tensor<3x6xui8>)
    %1 = call @expected() : () -> tensor<4x6xi8>
    %2 = stablehlo.convert %0#0 : tensor<4x3xi8>
    %3 = stablehlo.convert %0#1 : (tensor<3x6xui8>) -> tensor<3x6xi8>
    %4 = stablehlo.dot_general %2, %3, contracting_dims = [1] x [0] : (tensor<4x3xi8>, tensor<3x6xi8>) -> tensor<4x6xi8>
    stablehlo.custom_call @check.expect_eq(%4, %1) {has_side_effect = true} : (tensor<4x6xi8>, tensor<4x6xi8>) -> ()
    return %4 : tensor<4x6xi8>
  }
  func.func private @inputs() -> (tensor<4x3xi8> {mhlo.layout_mode = "default"}, tensor<3x6xui8> {mhlo.layout_mode = "default"}) {
    %c = stablehlo.constant dense<[[0, 9, 0], [3, -1, 2], [-4, -5, -4], [-1, 2, -1]]> : tensor<4x3xi8>
    %c_0 = stablehlo.constant dense<[[1, 0, 4, 2, 0, 3], [0, 6, 6, 3, 0, 2], [0, 2, 0, 1, 1, 0]]> : tensor<3x6xui8>
    return %c, %c_0 : tensor<4x3xi8>, tensor<3x6xui8>
  }
  func.func private @expected() -> (tensor<4x6xi8> {mhlo.layout_mode = "default"}) {
    %c = stablehlo.constant dense<[[0, 54, 54, 27, 0, 18], [3, -2, 6, 5, 2, 7], [-4, -38, -46, -27, -4, -22], [-1, 10, 8, 3, -1, 1]]> : tensor<4x6xi8>
    return %c : tensor<4x6xi8>
  }
}
// ----- eq_int8_int8.mlir
module @jit_main attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main() -> (tensor<i1> {jax.result_info = "", mhlo.layout_mode = "default"}) {
    %0:2 = call @inputs() : () -> (tensor<i8>, tensor<i8>)
    %1 = call @expected() : () -> tensor<i1>
    %2 = stablehlo.compare  EQ, %0#0, %0#1,  SIGNED : (tensor<i8>, tensor<i8>) -> tensor<i1>
    stablehlo.custom_call @check.expect_eq(%2, %1) {has_side_effect = true} : (tensor<i1>, tensor<i1>) -> ()
    return %2 : tensor<i1>
  }
  func.func private @inputs() -> (tensor<i8> {mhlo.layout_mode = "default"}, tensor<i8> {mhlo.layout_mode = "default"}) {
    %c = stablehlo.constant dense<6> : tensor<i8>
    %c_0 = stablehlo.constant dense<-2> : tensor<i8>
    return %c, %c_0 : tensor<i8>, tensor<i8>
  }
  func.func private @expected() -> (tensor<i1> {mhlo.layout_mode = "default"}) {
    %c = stablehlo.constant dense<false> : tensor<i1>
    return %c : tensor<i1>
  }
}
// ----- fft_complex128_14_15_0_17.mlir
module @jit_main attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main() -> (tensor<14x15x0x33xf64> {jax.result_info = "", mhlo.layout_mode = "default"}) {
    %0 = call @inputs() : () -> tensor<14x15x0x17xcomplex<f64>>
    %1 = call @expected() : () -> tensor<14x15x0x33xf64>
    %2 = stablehlo.fft %0, type =  IRFFT, length = [33] : (tensor<14x15x0x17xcomplex<f64>>) -> tensor<14x15x0x33xf64>
    stablehlo.custom_call @check.expect_close(%2, %1) {has_side_effect = true} : (tensor<14x15x0x33xf64>, tensor<14x15x0x33xf64>) -> ()
    return %2 : tensor<14x15x0x33xf64>
  }
  func.func private @inputs() -> (tensor<14x15x0x17xcomplex<f64>> {mhlo.layout_mode = "default"}) {
    %cst = stablehlo.constant dense<(0.0, 0.0)> : tensor<14x15x0x17xcomplex<f64>>
    return %cst : tensor<14x15x0x17xcomplex<f64>>
  }
  func.func private @expected() -> (tensor<14x15x0x33xf64> {mhlo.layout_mode = "default"}) {
    %cst = stablehlo.constant dense<> : tensor<14x15x0x33xf64>
    return %cst : tensor<14x15x0x33xf64>
  }
}
// ----- gather_float32_1_2_int64_1_2.mlir
module @jit_main attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main() -> (tensor<1xf32> {jax.result_info = "", mhlo.layout_mode = "default"}) {
    %0:2 = call @inputs() : () -> (tensor<1x2xf32>, tensor<1x2xi64>)
    %1 = call @expected() : () -> tensor<1xf32>
    %2 = "stablehlo.gather"(%0#0, %0#1) <{dimension_numbers = #stablehlo.gather<collapsed_slice_dims = [0, 1], start_index_map = [0, 1], index_vector_dim = 1>, slice_sizes = array<i64: 1, 1>}> : (tensor<1x2xf32>, tensor<1x2xi64>) -> tensor<1xf32>
    stablehlo.custom_call @check.expect_close(%2, %1) {has_side_effect = true} : (tensor<1xf32>, tensor<1xf32>) -> ()
    return %2 : tensor<1xf32>
  }
  func.func private @inputs() -> (tensor<1x2xf32> {mhlo.layout_mode = "default"}, tensor<1x2xi64> {mhlo.layout_mode = "default"}) {
    %cst = stablehlo.constant dense<[[-4.18829679, -0.571287096]]> : tensor<1x2xf32>
    %c = stablehlo.constant dense<[[0, 1]]> : tensor<1x2xi64>
    return %cst, %c : tensor<1x2xf32>, tensor<1x2xi64>
  }
  func.func private @expected() -> (tensor<1xf32> {mhlo.layout_mode = "default"}) {
    %cst = stablehlo.constant dense<-0.571287096> : tensor<1xf32>
    return %cst : tensor<1xf32>
  }
}
// ----- ge_int8_int8.mlir
module @jit_main attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main() -> (tensor<i1> {jax.result_info = "", mhlo.layout_mode = "default"}) {
    %0:2 = call @inputs() : () -> (tensor<i8>, tensor<i8>)
    %1 = call @expected() : () -> tensor<i1>
    %2 = stablehlo.compare  GE, %0#0, %0#1,  SIGNED : (tensor<i8>, tensor<i8>) -> tensor<i1>
    stablehlo.custom_call @check.expect_eq(%2, %1) {has_side_effect = true} : (tensor<i1>, tensor<i1>) -> ()
    return %2 : tensor<i1>
  }
  func.func private @inputs() -> (tensor<i8> {mhlo.layout_mode = "default"}, tensor<i8> {mhlo.layout_mode = "default"}) {
    %c = stablehlo.constant dense<0> : tensor<i8>
    %c_0 = stablehlo.constant dense<1> : tensor<i8>
    return %c, %c_0 : tensor<i8>, tensor<i8>
  }
  func.func private @expected() -> (tensor<i1> {mhlo.layout_mode = "default"}) {
    %c = stablehlo.constant dense<false> : tensor<i1>
    return %c : tensor<i1>
  }
}
// ----- gt_int8_int8.mlir
module @jit_main attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main() -> (tensor<i1> {jax.result_info = "", mhlo.layout_mode = "default"}) {
    %0:2 = call @inputs() : () -> (tensor<i8>, tensor<i8>)
    %1 = call @expected() : () -> tensor<i1>
    %2 = stablehlo.compare  GT, %0#0, %0#1,  SIGNED : (tensor<i8>, tensor<i8>) -> tensor<i1>
    stablehlo.custom_call @check.expect_eq(%2, %1) {has_side_effect = true} : (tensor<i1>, tensor<i1>) -> ()
    return %2 : tensor<i1>
  }
  func.func private @inputs() -> (tensor<i8> {mhlo.layout_mode = "default"}, tensor<i8> {mhlo.layout_mode = "default"}) {
    %c = stablehlo.constant dense<-2> : tensor<i8>
    %c_0 = stablehlo.constant dense<1> : tensor<i8>
    return %c, %c_0 : tensor<i8>, tensor<i8>
  }
  func.func private @expected() -> (tensor<i1> {mhlo.layout_mode = "default"}) {
    %c = stablehlo.constant dense<false> : tensor<i1>
    return %c : tensor<i1>
  }
}
// ----- imag_complex64_2_3.mlir
module @jit_main attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main() -> (tensor<2x3xf32> {jax.result_info = "", mhlo.layout_mode = "default"}) {
    %0 = call @inputs() : () -> tensor<2x3xcomplex<f32>>
    %1 = call @expected() : () -> tensor<2x3xf32>
    %2 = stablehlo.imag %0 : (tensor<2x3xcomplex<f32>>) -> tensor<2x3xf32>
    stablehlo.custom_call @check.expect_close(%2, %1) {has_side_effect = true} : (tensor<2x3xf32>, tensor<2x3xf32>) -> ()
    return %2 : tensor<2x3xf32>
  }
  func.func private @inputs() -> (tensor<2x3xcomplex<f32>> {mhlo.layout_mode = "default"}) {
    %cst = stablehlo.constant dense<[[(3.67362022,-1.66428089), (-1.61224163,-5.23298216), (-2.50501657,2.34280014)], [(-1.23726118,-0.0690847039), (5.48692369,3.16256213), (-0.877287447,5.95690441)]]> : tensor<2x3xcomplex<f32>>
    return %cst : tensor<2x3xcomplex<f32>>
  }
  func.func private @expected() -> (tensor<2x3xf32> {mhlo.layout_mode = "default"}) {
    %cst = stablehlo.constant dense<[[-1.66428089, -5.23298216, 2.34280014], [-0.0690847039, 3.16256213, 5.95690441]]> : tensor<2x3xf32>
    return %cst : tensor<2x3xf32>
  }
}
// ----- iota_.mlir
module @jit_main attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main() -> (tensor<2x3xui8> {jax.result_info = "", mhlo.layout_mode = "default"}) {
    %0 = call @expected() : () -> tensor<2x3xui8>
    %1 = stablehlo.iota dim = 0 : tensor<2x3xui8>
    stablehlo.custom_call @check.expect_eq(%1, %0) {has_side_effect = true} : (tensor<2x3xui8>, tensor<2x3xui8>) -> ()
    return %1 : tensor<2x3xui8>
  }
  func.func private @expected() -> (tensor<2x3xui8> {mhlo.layout_mode = "default"}) {
    %c = stablehlo.constant dense<[[0, 0, 0], [1, 1, 1]]> : tensor<2x3xui8>
    return %c : tensor<2x3xui8>
  }
}
// ----- le_int8_int8.mlir
module @jit_main attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main() -> (tensor<i1> {jax.result_info = "", mhlo.layout_mode = "default"}) {
    %0:2 = call @inputs() : () -> (tensor<i8>, tensor<i8>)
    %1 = call @expected() : () -> tensor<i1>
    %2 = stablehlo.compare  LE, %0#0, %0#1,  SIGNED : (tensor<i8>, tensor<i8>) -> tensor<i1>
    stablehlo.custom_call @check.expect_eq(%2, %1) {has_side_effect = true} : (tensor<i1>, tensor<i1>) -> ()
    return %2 : tensor<i1>
  }
  func.func private @inputs() -> (tensor<i8> {mhlo.layout_mode = "default"}, tensor<i8> {mhlo.layout_mode = "default"}) {
    %c = stablehlo.constant dense<-2> : tensor<i8>
    %c_0 = stablehlo.constant dense<0> : tensor<i8>
    return %c, %c_0 : tensor<i8>, tensor<i8>
  }
  func.func private @expected() -> (tensor<i1> {mhlo.layout_mode = "default"}) {
    %c = stablehlo.constant dense<true> : tensor<i1>
    return %c : tensor<i1>
  }
}
// ----- lt_int8_int8.mlir
module @jit_main attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main() -> (tensor<i1> {jax.result_info = "", mhlo.layout_mode = "default"}) {
    %0:2 = call @inputs() : () -> (tensor<i8>, tensor<i8>)
    %1 = call @expected() : () -> tensor<i1>
    %2 = stablehlo.compare  LT, %0#0, %0#1,  SIGNED : (tensor<i8>, tensor<i8>) -> tensor<i1>
    stablehlo.custom_call @check.expect_eq(%2, %1) {has_side_effect = true} : (tensor<i1>, tensor<i1>) -> ()
    return %2 : tensor<i1>
  }
  func.func private @inputs() -> (tensor<i8> {mhlo.layout_mode = "default"}, tensor<i8> {mhlo.layout_mode = "default"}) {
    %c = stablehlo.constant dense<-5> : tensor<i8>
    %c_0 = stablehlo.constant dense<-2> : tensor<i8>
    return %c, %c_0 : tensor<i8>, tensor<i8>
  }
  func.func private @expected() -> (tensor<i1> {mhlo.layout_mode = "default"}) {
    %c = stablehlo.constant dense<true> : tensor<i1>
    return %c : tensor<i1>
  }
}
// ----- max_bool_20_20_bool_20_20.mlir
module @jit_main attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main() -> (tensor<20x20xi1> {jax.result_info = "", mhlo.layout_mode = "default"}) {
    %0:2 = call @inputs() : () -> (tensor<20x20xi1>, tensor<20x20xi1>)
    %1 = call @expected() : () -> tensor<20x20xi1>
    %2 = stablehlo.maximum %0#0, %0#1 : tensor<20x20xi1>
    stablehlo.custom_call @check.expect_eq(%2, %1) {has_side_effect = true} : (tensor<20x20xi1>, tensor<20x20xi1>) -> ()
    return %2 : tensor<20x20xi1>
  }
  func.func private @inputs() -> (tensor<20x20xi1> {mhlo.layout_mode = "default"}, tensor<20x20xi1> {mhlo.layout_mode = "default"}) {
    %c = stablehlo.constant dense<true> : tensor<20x20xi1>
    %c_0 = stablehlo.constant dense<true> : tensor<20x20xi1>
    return %c, %c_0 : tensor<20x20xi1>, tensor<20x20xi1>
  }
  func.func private @expected() -> (tensor<20x20xi1> {mhlo.layout_mode = "default"}) {
    %c = stablehlo.constant dense<true> : tensor<20x20xi1>
    return %c : tensor<20x20xi1>
  }
}
// ----- min_bool_20_20_bool_20_20.mlir
module @jit_main attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main() -> (tensor<20x20xi1> {jax.result_info = "", mhlo.layout_mode = "default"}) {
    %0:2 = call @inputs() : () -> (tensor<20x20xi1>, tensor<20x20xi1>)
    %1 = call @expected() : () -> tensor<20x20xi1>
    %2 = stablehlo.minimum %0#0, %0#1 : tensor<20x20xi1>
    stablehlo.custom_call @check.expect_eq(%2, %1) {has_side_effect = true} : (tensor<20x20xi1>, tensor<20x20xi1>) -> ()
    return %2 : tensor<20x20xi1>
  }
  func.func private @inputs() -> (tensor<20x20xi1> {mhlo.layout_mode = "default"}, tensor<20x20xi1> {mhlo.layout_mode = "default"}) {
    %c = stablehlo.constant dense<true> : tensor<20x20xi1>
    %c_0 = stablehlo.constant dense<true> : tensor<20x20xi1>
    return %c, %c_0 : tensor<20x20xi1>, tensor<20x20xi1>
  }
  func.func private @expected() -> (tensor<20x20xi1> {mhlo.layout_mode = "default"}) {
    %c = stablehlo.constant dense<true> : tensor<20x20xi1>
    return %c : tensor<20x20xi1>
  }
}
// ----- ne_int8_int8.mlir
module @jit_main attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main() -> (tensor<i1> {jax.result_info = "", mhlo.layout_mode = "default"}) {
    %0:2 = call @inputs() : () -> (tensor<i8>, tensor<i8>)
    %1 = call @expected() : () -> tensor<i1>
    %2 = stablehlo.compare  NE, %0#0, %0#1,  SIGNED : (tensor<i8>, tensor<i8>) -> tensor<i1>
    stablehlo.custom_call @check.expect_eq(%2, %1) {has_side_effect = true} : (tensor<i1>, tensor<i1>) -> ()
    return %2 : tensor<i1>
  }
  func.func private @inputs() -> (tensor<i8> {mhlo.layout_mode = "default"}, tensor<i8> {mhlo.layout_mode = "default"}) {
    %c = stablehlo.constant dense<2> : tensor<i8>
    %c_0 = stablehlo.constant dense<0> : tensor<i8>
    return %c, %c_0 : tensor<i8>, tensor<i8>
  }
  func.func private @expected() -> (tensor<i1> {mhlo.layout_mode = "default"}) {
    %c = stablehlo.constant dense<true> : tensor<i1>
    return %c : tensor<i1>
  }
}
// ----- or_bool_20_20_bool_20_20.mlir
module @jit_main attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main() -> (tensor<20x20xi1> {jax.result_info = "", mhlo.layout_mode = "default"}) {
    %0:2 = call @inputs() : () -> (tensor<20x20xi1>, tensor<20x20xi1>)
    %1 = call @expected() : () -> tensor<20x20xi1>
    %2 = stablehlo.or %0#0, %0#1 : tensor<20x20xi1>
    stablehlo.custom_call @check.expect_eq(%2, %1) {has_side_effect = true} : (tensor<20x20xi1>, tensor<20x20xi1>) -> ()
    return %2 : tensor<20x20xi1>
  }
  func.func private @inputs() -> (tensor<20x20xi1> {mhlo.layout_mode = "default"}, tensor<20x20xi1> {mhlo.layout_mode = "default"}) {
    %c = stablehlo.constant dense<true> : tensor<20x20xi1>
    %c_0 = stablehlo.constant dense<true> : tensor<20x20xi1>
    return %c, %c_0 : tensor<20x20xi1>, tensor<20x20xi1>
  }
  func.func private @expected() -> (tensor<20x20xi1> {mhlo.layout_mode = "default"}) {
    %c = stablehlo.constant dense<true> : tensor<20x20xi1>
    return %c : tensor<20x20xi1>
  }
}
// ----- pad_int8_2_3_int8.mlir
module @jit_main attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main() -> (tensor<6x4xi8> {jax.result_info = "", mhlo.layout_mode = "default"}) {
    %0:2 = call @inputs() : () -> (tensor<2x3xi8>, tensor<i8>)
    %1 = call @expected() : () -> tensor<6x4xi8>
    %2 = stablehlo.pad %0#0, %0#1, low = [1, 0], high = [2, 1], interior = [1, 0] : (tensor<2x3xi8>, tensor<i8>) -> tensor<6x4xi8>
    stablehlo.custom_call @check.expect_eq(%2, %1) {has_side_effect = true} : (tensor<6x4xi8>, tensor<6x4xi8>) -> ()
    return %2 : tensor<6x4xi8>
  }
  func.func private @inputs() -> (tensor<2x3xi8> {mhlo.layout_mode = "default"}, tensor<i8> {mhlo.layout_mode = "default"}) {
    %c = stablehlo.constant dense<0> : tensor<2x3xi8>
    %c_0 = stablehlo.constant dense<0> : tensor<i8>
    return %c, %c_0 : tensor<2x3xi8>, tensor<i8>
  }
  func.func private @expected() -> (tensor<6x4xi8> {mhlo.layout_mode = "default"}) {
    %c = stablehlo.constant dense<0> : tensor<6x4xi8>
    return %c : tensor<6x4xi8>
  }
}
// ----- population_count_int8_4.mlir
module @jit_main attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main() -> (tensor<4xi8> {jax.result_info = "", mhlo.layout_mode = "default"}) {
    %0 = call @inputs() : () -> tensor<4xi8>
    %1 = call @expected() : () -> tensor<4xi8>
    %2 = stablehlo.popcnt %0 : tensor<4xi8>
    stablehlo.custom_call @check.expect_eq(%2, %1) {has_side_effect = true} : (tensor<4xi8>, tensor<4xi8>) -> ()
    return %2 : tensor<4xi8>
  }
  func.func private @inputs() -> (tensor<4xi8> {mhlo.layout_mode = "default"}) {
    %c = stablehlo.constant dense<[-1, -2, 0, 1]> : tensor<4xi8>
    return %c : tensor<4xi8>
  }
  func.func private @expected() -> (tensor<4xi8> {mhlo.layout_mode = "default"}) {
    %c = stablehlo.constant dense<[8, 7, 0, 1]> : tensor<4xi8>
    return %c : tensor<4xi8>
  }
}
// ----- pow_float32_float32_4_5_6.mlir
module @jit_main attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main() -> (tensor<4x5x6xf32> {jax.result_info = "", mhlo.layout_mode = "default"}) {
    %0:2 = call @inputs() : () -> (tensor<f32>, tensor<4x5x6xf32>)
    %1 = call @expected() : () -> tensor<4x5x6xf32>
    %2 = stablehlo.broadcast_in_dim %0#0, dims = [] : (tensor<f32>) -> tensor<4x5x6xf32>
    %3 = stablehlo.power %2, %0#1 : tensor<4x5x6xf32>
    stablehlo.custom_call @check.expect_close(%3, %1) {has_side_effect = true} : (tensor<4x5x6xf32>, tensor<4x5x6xf32>) -> ()
    return %3 : tensor<4x5x6xf32>
  }
  func.func private @inputs() -> (tensor<f32> {mhlo.layout_mode = "default"}, tensor<4x5x6xf32> {mhlo.layout_mode = "default"}) {
    %cst = stablehlo.constant dense<"0x7CE558C029AFCAC01AF2D63F1568DDBF92C768BF57FCF1C079BBB8BF2CB3CBBD1E9377BF2889CA3F1C12823F9A68CFBF4E220DC07D5D0BC1C98781C04926384022A93DC05F7A0141185A1640A2EA3640AB68263E4298D0BF5B95D0BF1A0507C068D6CF3FF20246C018ECA6BFC08F09BF32E96240B46DF13F4122D4C089DE3B40D0563B400EF9D53F1783F3BFE00DFFC05FBC8D400F41C9C0B992174004C2C9BF79F36FC011B4CF3E19000B407188863F5AC6B53C174544BF647490C0951D41C0B4EB98C053E64FC004EA0340AA5314409DF09EBE9614A5C08A29C83E2C0F6EC03FF265406FF1C1BF9FAC31C0DAE3E4BF510618BF0AFD9740296A9C3FF715BABF99346040235AFE3F57E25140BC8001BF46084B4081327DC078254BC0CDD0E83FA06478C0E25DBD402B118B40693628BEF591A0BF8415ADBF9D84DEC0901211BFC47C09C02E0D9FC0DD537A407194034037009A3F0D8AD63F80DB6BC0F7C887C04196DEBFE6F7173F2E03A93FEFC6F9C0C3A21BC0204BE5BE670B4D4026473A40A18B8B40E83C94C08C7B91C097A5B8BF5E38F13D751867BF56ED96BF20E1273FFCF191BFA71AC8BFD8C5A6BFBC7407400378CABF15611BC096270C3F0A37063FCF6E65404D6483C0AEF4E23EB9381EC086A512C0528EAD40A090A73F37ECAABF"> : tensor<4x5x6xf32>
    %cst_0 = stablehlo.constant dense<-1.75889099> : tensor<f32>
    return %cst_0, %cst : tensor<f32>, tensor<4x5x6xf32>
  }
  func.func private @expected() -> (tensor<4x5x6xf32> {mhlo.layout_mode = "default"}) {
    %cst = stablehlo.constant dense<0xFFC00000> : tensor<4x5x6xf32>
    return %cst : tensor<4x5x6xf32>
  }
}
// ----- real_complex64_2_3.mlir
module @jit_main attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main() -> (tensor<2x3xf32> {jax.result_info = "", mhlo.layout_mode = "default"}) {
    %0 = call @inputs() : () -> tensor<2x3xcomplex<f32>>
    %1 = call @expected() : () -> tensor<2x3xf32>
    %2 = stablehlo.real %0 : (tensor<2x3xcomplex<f32>>) -> tensor<2x3xf32>
    stablehlo.custom_call @check.expect_close(%2, %1) {has_side_effect = true} : (tensor<2x3xf32>, tensor<2x3xf32>) -> ()
    return %2 : tensor<2x3xf32>
  }
  func.func private @inputs() -> (tensor<2x3xcomplex<f32>> {mhlo.layout_mode = "default"}) {
    %cst = stablehlo.constant dense<[[(-0.132573813,0.224451914), (3.45699096,-1.8876127), (-2.03585815,-4.21114063)], [(-0.65348196,-0.266635329), (0.264353186,-1.13852882), (0.951290428,-2.83588266)]]> : tensor<2x3xcomplex<f32>>
    return %cst : tensor<2x3xcomplex<f32>>
  }
  func.func private @expected() -> (tensor<2x3xf32> {mhlo.layout_mode = "default"}) {
    %cst = stablehlo.constant dense<[[-0.132573813, 3.45699096, -2.03585815], [-0.65348196, 0.264353186, 0.951290428]]> : tensor<2x3xf32>
    return %cst : tensor<2x3xf32>
  }
}
// ----- reduce_int8_4_6_int32_4_6.mlir
module @jit_main attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main() -> (tensor<6xi8> {jax.result_info = "[0]", mhlo.layout_mode = "default"}) {
    %0 = call @inputs() : () -> tensor<4x6xi8>
    %1 = call @expected() : () -> tensor<6xi8>
    %c = stablehlo.constant dense<3> : tensor<i8>
    %2 = stablehlo.reduce(%0 init: %c) applies stablehlo.add across dimensions = [0] : (tensor<4x6xi8>, tensor<i8>) -> tensor<6xi8>
    stablehlo.custom_call @check.expect_eq(%2, %1) {has_side_effect = true} : (tensor<6xi8>, tensor<6xi8>) -> ()
    return %2 : tensor<6xi8>
  }
  func.func private @inputs() -> (tensor<4x6xi8> {mhlo.layout_mode = "default"}) {
    %c = stablehlo.constant dense<[[2, -1, 0, 0, 2, 1], [1, 0, -1, -4, 1, -4], [2, 1, 1, -3, 0, 6], [0, 0, -3, 3, 6, 0]]> : tensor<4x6xi8>
    %c_0 = stablehlo.constant dense<[[-3, 1, 2, 2, -1, -1], [1, -1, -1, 3, 0, -2], [-3, 0, 0, -2, -2, 1], [5, 1, 1, -3, -3, 1]]> : tensor<4x6xi32>
    return %c : tensor<4x6xi8>
  }
  func.func private @expected() -> (tensor<6xi8> {mhlo.layout_mode = "default"}) {
    %c = stablehlo.constant dense<[8, 3, 0, -1, 12, 6]> : tensor<6xi8>
    return %c : tensor<6xi8>
  }
}
// ----- reduce_and_bool_2_3.mlir
module @jit_main attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main() -> (tensor<3xi1> {jax.result_info = "", mhlo.layout_mode = "default"}) {
    %0 = call @inputs() : () -> tensor<2x3xi1>
    %1 = call @expected() : () -> tensor<3xi1>
    %c = stablehlo.constant dense<true> : tensor<i1>
    %2 = stablehlo.reduce(%0 init: %c) applies stablehlo.and across dimensions = [0] : (tensor<2x3xi1>, tensor<i1>) -> tensor<3xi1>
    stablehlo.custom_call @check.expect_eq(%2, %1) {has_side_effect = true} : (tensor<3xi1>, tensor<3xi1>) -> ()
    return %2 : tensor<3xi1>
  }
  func.func private @inputs() -> (tensor<2x3xi1> {mhlo.layout_mode = "default"}) {
    %c = stablehlo.constant dense<true> : tensor<2x3xi1>
    return %c : tensor<2x3xi1>
  }
  func.func private @expected() -> (tensor<3xi1> {mhlo.layout_mode = "default"}) {
    %c = stablehlo.constant dense<true> : tensor<3xi1>
    return %c : tensor<3xi1>
  }
}
// ----- reduce_max_bool_2_3.mlir
module @jit_main attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main() -> (tensor<3xi1> {jax.result_info = "", mhlo.layout_mode = "default"}) {
    %0 = call @inputs() : () -> tensor<2x3xi1>
    %1 = call @expected() : () -> tensor<3xi1>
    %c = stablehlo.constant dense<false> : tensor<i1>
    %2 = stablehlo.reduce(%0 init: %c) applies stablehlo.maximum across dimensions = [0] : (tensor<2x3xi1>, tensor<i1>) -> tensor<3xi1>
    stablehlo.custom_call @check.expect_eq(%2, %1) {has_side_effect = true} : (tensor<3xi1>, tensor<3xi1>) -> ()
    return %2 : tensor<3xi1>
  }
  func.func private @inputs() -> (tensor<2x3xi1> {mhlo.layout_mode = "default"}) {
    %c = stablehlo.constant dense<true> : tensor<2x3xi1>
    return %c : tensor<2x3xi1>
  }
  func.func private @expected() -> (tensor<3xi1> {mhlo.layout_mode = "default"}) {
    %c = stablehlo.constant dense<true> : tensor<3xi1>
    return %c : tensor<3xi1>
  }
}
// ----- reduce_min_bool_2_3.mlir
module @jit_main attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main() -> (tensor<3xi1> {jax.result_info = "", mhlo.layout_mode = "default"}) {
    %0 = call @inputs() : () -> tensor<2x3xi1>
    %1 = call @expected() : () -> tensor<3xi1>
    %c = stablehlo.constant dense<true> : tensor<i1>
    %2 = stablehlo.reduce(%0 init: %c) applies stablehlo.minimum across dimensions = [0] : (tensor<2x3xi1>, tensor<i1>) -> tensor<3xi1>
    stablehlo.custom_call @check.expect_eq(%2, %1) {has_side_effect = true} : (tensor<3xi1>, tensor<3xi1>) -> ()
    return %2 : tensor<3xi1>
  }
  func.func private @inputs() -> (tensor<2x3xi1> {mhlo.layout_mode = "default"}) {
    %c = stablehlo.constant dense<true> : tensor<2x3xi1>
    return %c : tensor<2x3xi1>
  }
  func.func private @expected() -> (tensor<3xi1> {mhlo.layout_mode = "default"}) {
    %c = stablehlo.constant dense<true> : tensor<3xi1>
    return %c : tensor<3xi1>
  }
}
// ----- reduce_or_bool_2_3.mlir
module @jit_main attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main() -> (tensor<3xi1> {jax.result_info = "", mhlo.layout_mode = "default"}) {
    %0 = call @inputs() : () -> tensor<2x3xi1>
    %1 = call @expected() : () -> tensor<3xi1>
    %c = stablehlo.constant dense<false> : tensor<i1>
    %2 = stablehlo.reduce(%0 init: %c) applies stablehlo.or across dimensions = [0] : (tensor<2x3xi1>, tensor<i1>) -> tensor<3xi1>
    stablehlo.custom_call @check.expect_eq(%2, %1) {has_side_effect = true} : (tensor<3xi1>, tensor<3xi1>) -> ()
    return %2 : tensor<3xi1>
  }
  func.func private @inputs() -> (tensor<2x3xi1> {mhlo.layout_mode = "default"}) {
    %c = stablehlo.constant dense<true> : tensor<2x3xi1>
    return %c : tensor<2x3xi1>
  }
  func.func private @expected() -> (tensor<3xi1> {mhlo.layout_mode = "default"}) {
    %c = stablehlo.constant dense<true> : tensor<3xi1>
    return %c : tensor<3xi1>
  }
}
// ----- reduce_precision_float32.mlir
module @jit_main attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main() -> (tensor<f32> {jax.result_info = "", mhlo.layout_mode = "default"}) {
    %0 = call @inputs() : () -> tensor<f32>
    %1 = call @expected() : () -> tensor<f32>
    %2 = stablehlo.reduce_precision %0, format = e11m52 : tensor<f32>
    stablehlo.custom_call @check.expect_close(%2, %1) {has_side_effect = true} : (tensor<f32>, tensor<f32>) -> ()
    return %2 : tensor<f32>
  }
  func.func private @inputs() -> (tensor<f32> {mhlo.layout_mode = "default"}) {
    %cst = stablehlo.constant dense<-0.81502068> : tensor<f32>
    return %cst : tensor<f32>
  }
  func.func private @expected() -> (tensor<f32> {mhlo.layout_mode = "default"}) {
    %cst = stablehlo.constant dense<-0.81502068> : tensor<f32>
    return %cst : tensor<f32>
  }
}
// ----- reduce_prod_int8_2_3.mlir
module @jit_main attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main() -> (tensor<3xi8> {jax.result_info = "", mhlo.layout_mode = "default"}) {
    %0 = call @inputs() : () -> tensor<2x3xi8>
    %1 = call @expected() : () -> tensor<3xi8>
    %c = stablehlo.constant dense<1> : tensor<i8>
    %2 = stablehlo.reduce(%0 init: %c) applies stablehlo.multiply across dimensions = [0] : (tensor<2x3xi8>, tensor<i8>) -> tensor<3xi8>
    stablehlo.custom_call @check.expect_eq(%2, %1) {has_side_effect = true} : (tensor<3xi8>, tensor<3xi8>) -> ()
    return %2 : tensor<3xi8>
  }
  func.func private @inputs() -> (tensor<2x3xi8> {mhlo.layout_mode = "default"}) {
    %c = stablehlo.constant dense<[[3, 3, 4], [3, 1, 6]]> : tensor<2x3xi8>
    return %c : tensor<2x3xi8>
  }
  func.func private @expected() -> (tensor<3xi8> {mhlo.layout_mode = "default"}) {
    %c = stablehlo.constant dense<[9, 3, 24]> : tensor<3xi8>
    return %c : tensor<3xi8>
  }
}
// ----- reduce_sum_int8_2_3.mlir
module @jit_main attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main() -> (tensor<3xi8> {jax.result_info = "", mhlo.layout_mode = "default"}) {
    %0 = call @inputs() : () -> tensor<2x3xi8>
    %1 = call @expected() : () -> tensor<3xi8>
    %c = stablehlo.constant dense<0> : tensor<i8>
    %2 = stablehlo.reduce(%0 init: %c) applies stablehlo.add across dimensions = [0] : (tensor<2x3xi8>, tensor<i8>) -> tensor<3xi8>
    stablehlo.custom_call @check.expect_eq(%2, %1) {has_side_effect = true} : (tensor<3xi8>, tensor<3xi8>) -> ()
    return %2 : tensor<3xi8>
  }
  func.func private @inputs() -> (tensor<2x3xi8> {mhlo.layout_mode = "default"}) {
    %c = stablehlo.constant dense<[[0, 0, 0], [-1, 3, 0]]> : tensor<2x3xi8>
    return %c : tensor<2x3xi8>
  }
  func.func private @expected() -> (tensor<3xi8> {mhlo.layout_mode = "default"}) {
    %c = stablehlo.constant dense<[-1, 3, 0]> : tensor<3xi8>
    return %c : tensor<3xi8>
  }
}
// ----- reduce_window_add_float32_4_6.mlir
module @jit_main attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main() -> (tensor<3x5xf32> {jax.result_info = "", mhlo.layout_mode = "default"}) {
    %0 = call @inputs() : () -> tensor<4x6xf32>
    %1 = call @expected() : () -> tensor<3x5xf32>
    %cst = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %2 = "stablehlo.reduce_window"(%0, %cst) <{window_dimensions = array<i64: 2, 2>}> ({
    ^bb0(%arg0: tensor<f32>, %arg1: tensor<f32>):
      %3 = stablehlo.add %arg0, %arg1 : tensor<f32>
      stablehlo.return %3 : tensor<f32>
    }) : (tensor<4x6xf32>, tensor<f32>) -> tensor<3x5xf32>
    stablehlo.custom_call @check.expect_close(%2, %1) {has_side_effect = true} : (tensor<3x5xf32>, tensor<3x5xf32>) -> ()
    return %2 : tensor<3x5xf32>
  }
  func.func private @inputs() -> (tensor<4x6xf32> {mhlo.layout_mode = "default"}) {
    %cst = stablehlo.constant dense<[[-6.80302143, 0.321375608, -1.86038101, 3.62991023, 0.598879099, -5.04817581], [-0.74092257, -0.301740915, -2.58586526, 6.663420e-01, 2.39137483, 6.18894672], [-4.40329695, 1.96387827, 2.2082417, -2.70424533, 1.05929911, -0.497613579], [3.7442131, -2.94033289, -4.3009696, -1.19836605, 1.62041414, -0.197622195]]> : tensor<4x6xf32>
    return %cst : tensor<4x6xf32>
  }
  func.func private @expected() -> (tensor<3x5xf32> {mhlo.layout_mode = "default"}) {
    %cst = stablehlo.constant dense<[[-6.52430916, -3.42661142, 0.850006103, 8.28650569, 5.13102484], [-2.48208237, 2.28451395, -1.41552687, 2.41277075, 10.1420069], [-0.635538578, -2.0691824, -4.99533939, -0.222898126, 2.98447728]]> : tensor<3x5xf32>
    return %cst : tensor<3x5xf32>
  }
}
// ----- reduce_window_max_float32_2.mlir
module @jit_main attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main() -> (tensor<1xf32> {jax.result_info = "", mhlo.layout_mode = "default"}) {
    %0 = call @inputs() : () -> tensor<2xf32>
    %1 = call @expected() : () -> tensor<1xf32>
    %cst = stablehlo.constant dense<0xFF800000> : tensor<f32>
    %2 = stablehlo.broadcast_in_dim %cst, dims = [] : (tensor<f32>) -> tensor<f32>
    %3 = "stablehlo.reduce_window"(%0, %2) <{window_dimensions = array<i64: 2>}> ({
    ^bb0(%arg0: tensor<f32>, %arg1: tensor<f32>):
      %4 = stablehlo.maximum %arg0, %arg1 : tensor<f32>
      stablehlo.return %4 : tensor<f32>
    }) : (tensor<2xf32>, tensor<f32>) -> tensor<1xf32>
    stablehlo.custom_call @check.expect_close(%3, %1) {has_side_effect = true} : (tensor<1xf32>, tensor<1xf32>) -> ()
    return %3 : tensor<1xf32>
  }
  func.func private @inputs() -> (tensor<2xf32> {mhlo.layout_mode = "default"}) {
    %cst = stablehlo.constant dense<[1.57310617, -1.76841259]> : tensor<2xf32>
    return %cst : tensor<2xf32>
  }
  func.func private @expected() -> (tensor<1xf32> {mhlo.layout_mode = "default"}) {
    %cst = stablehlo.constant dense<1.57310617> : tensor<1xf32>
    return %cst : tensor<1xf32>
  }
}
// ----- reduce_window_min_int8_4_6.mlir
module @jit_main attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main() -> (tensor<3x5xi8> {jax.result_info = "", mhlo.layout_mode = "default"}) {
    %0 = call @inputs() : () -> tensor<4x6xi8>
    %1 = call @expected() : () -> tensor<3x5xi8>
    %c = stablehlo.constant dense<127> : tensor<i8>
    %2 = stablehlo.broadcast_in_dim %c, dims = [] : (tensor<i8>) -> tensor<i8>
    %3 = "stablehlo.reduce_window"(%0, %2) <{window_dimensions = array<i64: 2, 2>}> ({
    ^bb0(%arg0: tensor<i8>, %arg1: tensor<i8>):
      %4 = stablehlo.minimum %arg0, %arg1 : tensor<i8>
      stablehlo.return %4 : tensor<i8>
    }) : (tensor<4x6xi8>, tensor<i8>) -> tensor<3x5xi8>
    stablehlo.custom_call @check.expect_eq(%3, %1) {has_side_effect = true} : (tensor<3x5xi8>, tensor<3x5xi8>) -> ()
    return %3 : tensor<3x5xi8>
  }
  func.func private @inputs() -> (tensor<4x6xi8> {mhlo.layout_mode = "default"}) {
    %c = stablehlo.constant dense<[[-3, -2, 2, 0, -3, 0], [0, 0, 0, 1, 3, -2], [-4, 0, -5, -2, 3, -3], [-7, -1, 0, -2, 1, 1]]> : tensor<4x6xi8>
    return %c : tensor<4x6xi8>
  }
  func.func private @expected() -> (tensor<3x5xi8> {mhlo.layout_mode = "default"}) {
    %c = stablehlo.constant dense<[[-3, -2, 0, -3, -3], [-4, -5, -5, -2, -3], [-7, -5, -5, -2, -3]]> : tensor<3x5xi8>
    return %c : tensor<3x5xi8>
  }
}
// ----- rem_int8_2_int8_2.mlir
module @jit_main attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main() -> (tensor<2xi8> {jax.result_info = "", mhlo.layout_mode = "default"}) {
    %0:2 = call @inputs() : () -> (tensor<2xi8>, tensor<2xi8>)
    %1 = call @expected() : () -> tensor<2xi8>
    %2 = stablehlo.remainder %0#0, %0#1 : tensor<2xi8>
    stablehlo.custom_call @check.expect_eq(%2, %1) {has_side_effect = true} : (tensor<2xi8>, tensor<2xi8>) -> ()
    return %2 : tensor<2xi8>
  }
  func.func private @inputs() -> (tensor<2xi8> {mhlo.layout_mode = "default"}, tensor<2xi8> {mhlo.layout_mode = "default"}) {
    %c = stablehlo.constant dense<[8, 5]> : tensor<2xi8>
    %c_0 = stablehlo.constant dense<[-2, 1]> : tensor<2xi8>
    return %c, %c_0 : tensor<2xi8>, tensor<2xi8>
  }
  func.func private @expected() -> (tensor<2xi8> {mhlo.layout_mode = "default"}) {
    %c = stablehlo.constant dense<0> : tensor<2xi8>
    return %c : tensor<2xi8>
  }
}
// ----- reshape_bool_2_3.mlir
module @jit_main attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main() -> (tensor<3x2xi1> {jax.result_info = "", mhlo.layout_mode = "default"}) {
    %0 = call @inputs() : () -> tensor<2x3xi1>
    %1 = call @expected() : () -> tensor<3x2xi1>
    %2 = stablehlo.reshape %0 : (tensor<2x3xi1>) -> tensor<3x2xi1>
    stablehlo.custom_call @check.expect_eq(%2, %1) {has_side_effect = true} : (tensor<3x2xi1>, tensor<3x2xi1>) -> ()
    return %2 : tensor<3x2xi1>
  }
  func.func private @inputs() -> (tensor<2x3xi1> {mhlo.layout_mode = "default"}) {
    %c = stablehlo.constant dense<true> : tensor<2x3xi1>
    return %c : tensor<2x3xi1>
  }
  func.func private @expected() -> (tensor<3x2xi1> {mhlo.layout_mode = "default"}) {
    %c = stablehlo.constant dense<true> : tensor<3x2xi1>
    return %c : tensor<3x2xi1>
  }
}
// ----- rev_bool_4_5.mlir
module @jit_main attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main() -> (tensor<4x5xi1> {jax.result_info = "", mhlo.layout_mode = "default"}) {
    %0 = call @inputs() : () -> tensor<4x5xi1>
    %1 = call @expected() : () -> tensor<4x5xi1>
    %2 = stablehlo.reverse %0, dims = [0] : tensor<4x5xi1>
    stablehlo.custom_call @check.expect_eq(%2, %1) {has_side_effect = true} : (tensor<4x5xi1>, tensor<4x5xi1>) -> ()
    return %2 : tensor<4x5xi1>
  }
  func.func private @inputs() -> (tensor<4x5xi1> {mhlo.layout_mode = "default"}) {
    %c = stablehlo.constant dense<true> : tensor<4x5xi1>
    return %c : tensor<4x5xi1>
  }
  func.func private @expected() -> (tensor<4x5xi1> {mhlo.layout_mode = "default"}) {
    %c = stablehlo.constant dense<true> : tensor<4x5xi1>
    return %c : tensor<4x5xi1>
  }
}
// ----- round_float32_2_5.mlir
module @jit_main attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main() -> (tensor<2x5xf32> {jax.result_info = "", mhlo.layout_mode = "default"}) {
    %0 = call @inputs() : () -> tensor<2x5xf32>
    %1 = call @expected() : () -> tensor<2x5xf32>
    %2 = stablehlo.round_nearest_even %0 : tensor<2x5xf32>
    stablehlo.custom_call @check.expect_close(%2, %1) {has_side_effect = true} : (tensor<2x5xf32>, tensor<2x5xf32>) -> ()
    return %2 : tensor<2x5xf32>
  }
  func.func private @inputs() -> (tensor<2x5xf32> {mhlo.layout_mode = "default"}) {
    %cst = stablehlo.constant dense<[[5.000000e-01, 1.200000e+00, 1.500000e+00, 1.700000e+00, 2.500000e+00], [-5.000000e-01, -1.200000e+00, -1.500000e+00, -1.700000e+00, -2.500000e+00]]> : tensor<2x5xf32>
    return %cst : tensor<2x5xf32>
  }
  func.func private @expected() -> (tensor<2x5xf32> {mhlo.layout_mode = "default"}) {
    %cst = stablehlo.constant dense<[[0.000000e+00, 1.000000e+00, 2.000000e+00, 2.000000e+00, 2.000000e+00], [-0.000000e+00, -1.000000e+00, -2.000000e+00, -2.000000e+00, -2.000000e+00]]> : tensor<2x5xf32>
    return %cst : tensor<2x5xf32>
  }
}
// ----- scatter_int8_1_int8.mlir
module @jit_main attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main() -> (tensor<1xi8> {jax.result_info = "", mhlo.layout_mode = "default"}) {
    %c = stablehlo.constant dense<0> : tensor<1xi64>
    %0:2 = call @inputs() : () -> (tensor<1xi8>, tensor<i8>)
    %1 = call @expected() : () -> tensor<1xi8>
    %2 = "stablehlo.scatter"(%0#0, %c, %0#1) <{scatter_dimension_numbers = #stablehlo.scatter<inserted_window_dims = [0], scatter_dims_to_operand_dims = [0]>, unique_indices = true}> ({
    ^bb0(%arg0: tensor<i8>, %arg1: tensor<i8>):
      stablehlo.return %arg1 : tensor<i8>
    }) : (tensor<1xi8>, tensor<1xi64>, tensor<i8>) -> tensor<1xi8>
    stablehlo.custom_call @check.expect_eq(%2, %1) {has_side_effect = true} : (tensor<1xi8>, tensor<1xi8>) -> ()
    return %2 : tensor<1xi8>
  }
  func.func private @inputs() -> (tensor<1xi8> {mhlo.layout_mode = "default"}, tensor<i8> {mhlo.layout_mode = "default"}) {
    %c = stablehlo.constant dense<2> : tensor<1xi8>
    %c_0 = stablehlo.constant dense<2> : tensor<i8>
    return %c, %c_0 : tensor<1xi8>, tensor<i8>
  }
  func.func private @expected() -> (tensor<1xi8> {mhlo.layout_mode = "default"}) {
    %c = stablehlo.constant dense<2> : tensor<1xi8>
    return %c : tensor<1xi8>
  }
}
// ----- scatter_add_int8_1_int8.mlir
module @jit_main attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main() -> (tensor<1xi8> {jax.result_info = "", mhlo.layout_mode = "default"}) {
    %c = stablehlo.constant dense<0> : tensor<1xi64>
    %0:2 = call @inputs() : () -> (tensor<1xi8>, tensor<i8>)
    %1 = call @expected() : () -> tensor<1xi8>
    %2 = "stablehlo.scatter"(%0#0, %c, %0#1) <{scatter_dimension_numbers = #stablehlo.scatter<inserted_window_dims = [0], scatter_dims_to_operand_dims = [0]>, unique_indices = true}> ({
    ^bb0(%arg0: tensor<i8>, %arg1: tensor<i8>):
      %3 = stablehlo.add %arg0, %arg1 : tensor<i8>
      stablehlo.return %3 : tensor<i8>
    }) : (tensor<1xi8>, tensor<1xi64>, tensor<i8>) -> tensor<1xi8>
    stablehlo.custom_call @check.expect_eq(%2, %1) {has_side_effect = true} : (tensor<1xi8>, tensor<1xi8>) -> ()
    return %2 : tensor<1xi8>
  }
  func.func private @inputs() -> (tensor<1xi8> {mhlo.layout_mode = "default"}, tensor<i8> {mhlo.layout_mode = "default"}) {
    %c = stablehlo.constant dense<-6> : tensor<1xi8>
    %c_0 = stablehlo.constant dense<2> : tensor<i8>
    return %c, %c_0 : tensor<1xi8>, tensor<i8>
  }
  func.func private @expected() -> (tensor<1xi8> {mhlo.layout_mode = "default"}) {
    %c = stablehlo.constant dense<-4> : tensor<1xi8>
    return %c : tensor<1xi8>
  }
}
// ----- scatter_max_int8_1_int8.mlir
module @jit_main attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main() -> (tensor<1xi8> {jax.result_info = "", mhlo.layout_mode = "default"}) {
    %c = stablehlo.constant dense<0> : tensor<1xi64>
    %0:2 = call @inputs() : () -> (tensor<1xi8>, tensor<i8>)
    %1 = call @expected() : () -> tensor<1xi8>
    %2 = "stablehlo.scatter"(%0#0, %c, %0#1) <{scatter_dimension_numbers = #stablehlo.scatter<inserted_window_dims = [0], scatter_dims_to_operand_dims = [0]>, unique_indices = true}> ({
    ^bb0(%arg0: tensor<i8>, %arg1: tensor<i8>):
      %3 = stablehlo.maximum %arg0, %arg1 : tensor<i8>
      stablehlo.return %3 : tensor<i8>
    }) : (tensor<1xi8>, tensor<1xi64>, tensor<i8>) -> tensor<1xi8>
    stablehlo.custom_call @check.expect_eq(%2, %1) {has_side_effect = true} : (tensor<1xi8>, tensor<1xi8>) -> ()
    return %2 : tensor<1xi8>
  }
  func.func private @inputs() -> (tensor<1xi8> {mhlo.layout_mode = "default"}, tensor<i8> {mhlo.layout_mode = "default"}) {
    %c = stablehlo.constant dense<-2> : tensor<1xi8>
    %c_0 = stablehlo.constant dense<-6> : tensor<i8>
    return %c, %c_0 : tensor<1xi8>, tensor<i8>
  }
  func.func private @expected() -> (tensor<1xi8> {mhlo.layout_mode = "default"}) {
    %c = stablehlo.constant dense<-2> : tensor<1xi8>
    return %c : tensor<1xi8>
  }
}
// ----- scatter_min_int8_1_int8.mlir
module @jit_main attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main() -> (tensor<1xi8> {jax.result_info = "", mhlo.layout_mode = "default"}) {
    %c = stablehlo.constant dense<0> : tensor<1xi64>
    %0:2 = call @inputs() : () -> (tensor<1xi8>, tensor<i8>)
    %1 = call @expected() : () -> tensor<1xi8>
    %2 = "stablehlo.scatter"(%0#0, %c, %0#1) <{scatter_dimension_numbers = #stablehlo.scatter<inserted_window_dims = [0], scatter_dims_to_operand_dims = [0]>, unique_indices = true}> ({
    ^bb0(%arg0: tensor<i8>, %arg1: tensor<i8>):
      %3 = stablehlo.minimum %arg0, %arg1 : tensor<i8>
      stablehlo.return %3 : tensor<i8>
    }) : (tensor<1xi8>, tensor<1xi64>, tensor<i8>) -> tensor<1xi8>
    stablehlo.custom_call @check.expect_eq(%2, %1) {has_side_effect = true} : (tensor<1xi8>, tensor<1xi8>) -> ()
    return %2 : tensor<1xi8>
  }
  func.func private @inputs() -> (tensor<1xi8> {mhlo.layout_mode = "default"}, tensor<i8> {mhlo.layout_mode = "default"}) {
    %c = stablehlo.constant dense<0> : tensor<1xi8>
    %c_0 = stablehlo.constant dense<2> : tensor<i8>
    return %c, %c_0 : tensor<1xi8>, tensor<i8>
  }
  func.func private @expected() -> (tensor<1xi8> {mhlo.layout_mode = "default"}) {
    %c = stablehlo.constant dense<0> : tensor<1xi8>
    return %c : tensor<1xi8>
  }
}
// ----- scatter_mul_int8_1_int8.mlir
module @jit_main attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main() -> (tensor<1xi8> {jax.result_info = "", mhlo.layout_mode = "default"}) {
    %c = stablehlo.constant dense<0> : tensor<1xi64>
    %0:2 = call @inputs() : () -> (tensor<1xi8>, tensor<i8>)
    %1 = call @expected() : () -> tensor<1xi8>
    %2 = "stablehlo.scatter"(%0#0, %c, %0#1) <{scatter_dimension_numbers = #stablehlo.scatter<inserted_window_dims = [0], scatter_dims_to_operand_dims = [0]>, unique_indices = true}> ({
    ^bb0(%arg0: tensor<i8>, %arg1: tensor<i8>):
      %3 = stablehlo.multiply %arg0, %arg1 : tensor<i8>
      stablehlo.return %3 : tensor<i8>
    }) : (tensor<1xi8>, tensor<1xi64>, tensor<i8>) -> tensor<1xi8>
    stablehlo.custom_call @check.expect_eq(%2, %1) {has_side_effect = true} : (tensor<1xi8>, tensor<1xi8>) -> ()
    return %2 : tensor<1xi8>
  }
  func.func private @inputs() -> (tensor<1xi8> {mhlo.layout_mode = "default"}, tensor<i8> {mhlo.layout_mode = "default"}) {
    %c = stablehlo.constant dense<2> : tensor<1xi8>
    %c_0 = stablehlo.constant dense<-5> : tensor<i8>
    return %c, %c_0 : tensor<1xi8>, tensor<i8>
  }
  func.func private @expected() -> (tensor<1xi8> {mhlo.layout_mode = "default"}) {
    %c = stablehlo.constant dense<-10> : tensor<1xi8>
    return %c : tensor<1xi8>
  }
}
// ----- select_and_scatter_add_bool_1_3_5_bool_2_4_6.mlir
module @jit_main attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main() -> (tensor<2x4x6xi1> {jax.result_info = "", mhlo.layout_mode = "default"}) {
    %0:2 = call @inputs() : () -> (tensor<1x3x5xi1>, tensor<2x4x6xi1>)
    %1 = call @expected() : () -> tensor<2x4x6xi1>
    %c = stablehlo.constant dense<false> : tensor<i1>
    %2 = stablehlo.pad %0#1, %c, low = [0, 0, 0], high = [0, 0, 0], interior = [0, 0, 0] : (tensor<2x4x6xi1>, tensor<i1>) -> tensor<2x4x6xi1>
    %c_0 = stablehlo.constant dense<false> : tensor<i1>
    %3 = "stablehlo.select_and_scatter"(%2, %0#0, %c_0) <{window_dimensions = array<i64: 2, 2, 2>}> ({
    ^bb0(%arg0: tensor<i1>, %arg1: tensor<i1>):
      %5 = stablehlo.compare  GE, %arg0, %arg1,  UNSIGNED : (tensor<i1>, tensor<i1>) -> tensor<i1>
      stablehlo.return %5 : tensor<i1>
    }, {
    ^bb0(%arg0: tensor<i1>, %arg1: tensor<i1>):
      %5 = stablehlo.or %arg0, %arg1 : tensor<i1>
      stablehlo.return %5 : tensor<i1>
    }) : (tensor<2x4x6xi1>, tensor<1x3x5xi1>, tensor<i1>) -> tensor<2x4x6xi1>
    %4 = stablehlo.slice %3 [0:2, 0:4, 0:6] : (tensor<2x4x6xi1>) -> tensor<2x4x6xi1>
    stablehlo.custom_call @check.expect_eq(%4, %1) {has_side_effect = true} : (tensor<2x4x6xi1>, tensor<2x4x6xi1>) -> ()
    return %4 : tensor<2x4x6xi1>
  }
  func.func private @inputs() -> (tensor<1x3x5xi1> {mhlo.layout_mode = "default"}, tensor<2x4x6xi1> {mhlo.layout_mode = "default"}) {
    %c = stablehlo.constant dense<true> : tensor<1x3x5xi1>
    %c_0 = stablehlo.constant dense<true> : tensor<2x4x6xi1>
    return %c, %c_0 : tensor<1x3x5xi1>, tensor<2x4x6xi1>
  }
  func.func private @expected() -> (tensor<2x4x6xi1> {mhlo.layout_mode = "default"}) {
    %c = stablehlo.constant dense<[[[true, true, true, true, true, false], [true, true, true, true, true, false], [true, true, true, true, true, false], [false, false, false, false, false, false]], [[false, false, false, false, false, false], [false, false, false, false, false, false], [false, false, false, false, false, false], [false, false, false, false, false, false]]]> : tensor<2x4x6xi1>
    return %c : tensor<2x4x6xi1>
  }
}
// ----- select_n_bool_2_3_bool_2_3_bool_2_3.mlir
module @jit_main attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main() -> (tensor<2x3xi1> {jax.result_info = "", mhlo.layout_mode = "default"}) {
    %0:3 = call @inputs() : () -> (tensor<2x3xi1>, tensor<2x3xi1>, tensor<2x3xi1>)
    %1 = call @expected() : () -> tensor<2x3xi1>
    %2 = stablehlo.select %0#0, %0#2, %0#1 : tensor<2x3xi1>, tensor<2x3xi1>
    stablehlo.custom_call @check.expect_eq(%2, %1) {has_side_effect = true} : (tensor<2x3xi1>, tensor<2x3xi1>) -> ()
    return %2 : tensor<2x3xi1>
  }
  func.func private @inputs() -> (tensor<2x3xi1> {mhlo.layout_mode = "default"}, tensor<2x3xi1> {mhlo.layout_mode = "default"}, tensor<2x3xi1> {mhlo.layout_mode = "default"}) {
    %c = stablehlo.constant dense<true> : tensor<2x3xi1>
    %c_0 = stablehlo.constant dense<true> : tensor<2x3xi1>
    %c_1 = stablehlo.constant dense<true> : tensor<2x3xi1>
    return %c, %c_0, %c_1 : tensor<2x3xi1>, tensor<2x3xi1>, tensor<2x3xi1>
  }
  func.func private @expected() -> (tensor<2x3xi1> {mhlo.layout_mode = "default"}) {
    %c = stablehlo.constant dense<true> : tensor<2x3xi1>
    return %c : tensor<2x3xi1>
  }
}
// ----- sign_.mlir
module @jit_main attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main() -> (tensor<2x2xui16> {jax.result_info = "", mhlo.layout_mode = "default"}) {
    %c = stablehlo.constant dense<0> : tensor<2x2xui16>
    %0 = call @expected() : () -> tensor<2x2xui16>
    %c_0 = stablehlo.constant dense<0> : tensor<ui16>
    %1 = stablehlo.broadcast_in_dim %c_0, dims = [] : (tensor<ui16>) -> tensor<2x2xui16>
    %2 = stablehlo.compare  EQ, %c, %1,  UNSIGNED : (tensor<2x2xui16>, tensor<2x2xui16>) -> tensor<2x2xi1>
    %c_1 = stablehlo.constant dense<0> : tensor<ui16>
    %3 = stablehlo.broadcast_in_dim %c_1, dims = [] : (tensor<ui16>) -> tensor<2x2xui16>
    %c_2 = stablehlo.constant dense<1> : tensor<ui16>
    %4 = stablehlo.broadcast_in_dim %c_2, dims = [] : (tensor<ui16>) -> tensor<2x2xui16>
    %5 = stablehlo.select %2, %3, %4 : tensor<2x2xi1>, tensor<2x2xui16>
    stablehlo.custom_call @check.expect_eq(%5, %0) {has_side_effect = true} : (tensor<2x2xui16>, tensor<2x2xui16>) -> ()
    return %5 : tensor<2x2xui16>
  }
  func.func private @expected() -> (tensor<2x2xui16> {mhlo.layout_mode = "default"}) {
    %c = stablehlo.constant dense<0> : tensor<2x2xui16>
    return %c : tensor<2x2xui16>
  }
}
// ----- slice_bool_3.mlir
module @jit_main attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main() -> (tensor<1xi1> {jax.result_info = "", mhlo.layout_mode = "default"}) {
    %0 = call @inputs() : () -> tensor<3xi1>
    %1 = call @expected() : () -> tensor<1xi1>
    %2 = stablehlo.slice %0 [1:2] : (tensor<3xi1>) -> tensor<1xi1>
    stablehlo.custom_call @check.expect_eq(%2, %1) {has_side_effect = true} : (tensor<1xi1>, tensor<1xi1>) -> ()
    return %2 : tensor<1xi1>
  }
  func.func private @inputs() -> (tensor<3xi1> {mhlo.layout_mode = "default"}) {
    %c = stablehlo.constant dense<true> : tensor<3xi1>
    return %c : tensor<3xi1>
  }
  func.func private @expected() -> (tensor<1xi1> {mhlo.layout_mode = "default"}) {
    %c = stablehlo.constant dense<true> : tensor<1xi1>
    return %c : tensor<1xi1>
  }
}
// ----- sort_bool_5_7.mlir
module @jit_main attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main() -> (tensor<5x7xi1> {jax.result_info = "[0]", mhlo.layout_mode = "default"}) {
    %0 = call @inputs() : () -> tensor<5x7xi1>
    %1 = call @expected() : () -> tensor<5x7xi1>
    %2 = "stablehlo.sort"(%0) <{dimension = 0 : i64}> ({
    ^bb0(%arg0: tensor<i1>, %arg1: tensor<i1>):
      %3 = stablehlo.compare  LT, %arg0, %arg1,  UNSIGNED : (tensor<i1>, tensor<i1>) -> tensor<i1>
      stablehlo.return %3 : tensor<i1>
    }) : (tensor<5x7xi1>) -> tensor<5x7xi1>
    stablehlo.custom_call @check.expect_eq(%2, %1) {has_side_effect = true} : (tensor<5x7xi1>, tensor<5x7xi1>) -> ()
    return %2 : tensor<5x7xi1>
  }
  func.func private @inputs() -> (tensor<5x7xi1> {mhlo.layout_mode = "default"}) {
    %c = stablehlo.constant dense<true> : tensor<5x7xi1>
    return %c : tensor<5x7xi1>
  }
  func.func private @expected() -> (tensor<5x7xi1> {mhlo.layout_mode = "default"}) {
    %c = stablehlo.constant dense<true> : tensor<5x7xi1>
    return %c : tensor<5x7xi1>
  }
}
// ----- squeeze_bool_1_2.mlir
module @jit_main attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main() -> (tensor<2xi1> {jax.result_info = "", mhlo.layout_mode = "default"}) {
    %0 = call @inputs() : () -> tensor<1x2xi1>
    %1 = call @expected() : () -> tensor<2xi1>
    %2 = stablehlo.reshape %0 : (tensor<1x2xi1>) -> tensor<2xi1>
    stablehlo.custom_call @check.expect_eq(%2, %1) {has_side_effect = true} : (tensor<2xi1>, tensor<2xi1>) -> ()
    return %2 : tensor<2xi1>
  }
  func.func private @inputs() -> (tensor<1x2xi1> {mhlo.layout_mode = "default"}) {
    %c = stablehlo.constant dense<true> : tensor<1x2xi1>
    return %c : tensor<1x2xi1>
  }
  func.func private @expected() -> (tensor<2xi1> {mhlo.layout_mode = "default"}) {
    %c = stablehlo.constant dense<true> : tensor<2xi1>
    return %c : tensor<2xi1>
  }
}
// ----- stop_gradient_bool_20_20.mlir
module @jit_main attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main() -> (tensor<20x20xi1> {jax.result_info = "", mhlo.layout_mode = "default"}) {
    %0 = call @inputs() : () -> tensor<20x20xi1>
    %1 = call @expected() : () -> tensor<20x20xi1>
    stablehlo.custom_call @check.expect_eq(%0, %1) {has_side_effect = true} : (tensor<20x20xi1>, tensor<20x20xi1>) -> ()
    return %0 : tensor<20x20xi1>
  }
  func.func private @inputs() -> (tensor<20x20xi1> {mhlo.layout_mode = "default"}) {
    %c = stablehlo.constant dense<true> : tensor<20x20xi1>
    return %c : tensor<20x20xi1>
  }
  func.func private @expected() -> (tensor<20x20xi1> {mhlo.layout_mode = "default"}) {
    %c = stablehlo.constant dense<true> : tensor<20x20xi1>
    return %c : tensor<20x20xi1>
  }
}
// ----- top_k_int32_6_chlo.mlir
module @jit_main attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main() -> (tensor<3xi32> {jax.result_info = "[0]", mhlo.layout_mode = "default"}, tensor<3xi32> {jax.result_info = "[1]", mhlo.layout_mode = "default"}) {
    %0 = call @inputs() : () -> tensor<6xi32>
    %1:2 = call @expected() : () -> (tensor<3xi32>, tensor<3xi32>)
    %values, %indices = chlo.top_k(%0, k = 3) : tensor<6xi32> -> (tensor<3xi32>, tensor<3xi32>)
    stablehlo.custom_call @check.expect_eq(%values, %1#0) {has_side_effect = true} : (tensor<3xi32>, tensor<3xi32>) -> ()
    stablehlo.custom_call @check.expect_eq(%indices, %1#1) {has_side_effect = true} : (tensor<3xi32>, tensor<3xi32>) -> ()
    return %values, %indices : tensor<3xi32>, tensor<3xi32>
  }
  func.func private @inputs() -> (tensor<6xi32> {mhlo.layout_mode = "default"}) {
    %c = stablehlo.constant dense<[5, 7, 5, 8, 8, 5]> : tensor<6xi32>
    return %c : tensor<6xi32>
  }
  func.func private @expected() -> (tensor<3xi32> {mhlo.layout_mode = "default"}, tensor<3xi32> {mhlo.layout_mode = "default"}) {
    %c = stablehlo.constant dense<[8, 8, 7]> : tensor<3xi32>
    %c_0 = stablehlo.constant dense<[3, 4, 1]> : tensor<3xi32>
    return %c, %c_0 : tensor<3xi32>, tensor<3xi32>
  }
}
// ----- transpose_bool_2_3.mlir
module @jit_main attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main() -> (tensor<3x2xi1> {jax.result_info = "", mhlo.layout_mode = "default"}) {
    %0 = call @inputs() : () -> tensor<2x3xi1>
    %1 = call @expected() : () -> tensor<3x2xi1>
    %2 = stablehlo.transpose %0, dims = [1, 0] : (tensor<2x3xi1>) -> tensor<3x2xi1>
    stablehlo.custom_call @check.expect_eq(%2, %1) {has_side_effect = true} : (tensor<3x2xi1>, tensor<3x2xi1>) -> ()
    return %2 : tensor<3x2xi1>
  }
  func.func private @inputs() -> (tensor<2x3xi1> {mhlo.layout_mode = "default"}) {
    %c = stablehlo.constant dense<true> : tensor<2x3xi1>
    return %c : tensor<2x3xi1>
  }
  func.func private @expected() -> (tensor<3x2xi1> {mhlo.layout_mode = "default"}) {
    %c = stablehlo.constant dense<true> : tensor<3x2xi1>
    return %c : tensor<3x2xi1>
  }
}
// ----- triangular_solve_float16_4_4_float16_4_1.mlir
module @jit_main attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main() -> (tensor<4x1xf16> {jax.result_info = "", mhlo.layout_mode = "default"}) {
    %0:2 = call @inputs() : () -> (tensor<4x4xf16>, tensor<4x1xf16>)
    %1 = call @expected() : () -> tensor<4x1xf16>
    %2 = "stablehlo.triangular_solve"(%0#0, %0#1) <{left_side = true, lower = false, transpose_a = #stablehlo<transpose NO_TRANSPOSE>, unit_diagonal = true}> : (tensor<4x4xf16>, tensor<4x1xf16>) -> tensor<4x1xf16>
    stablehlo.custom_call @check.expect_close(%2, %1) {has_side_effect = true} : (tensor<4x1xf16>, tensor<4x1xf16>) -> ()
    return %2 : tensor<4x1xf16>
  }
  func.func private @inputs() -> (tensor<4x4xf16> {mhlo.layout_mode = "default"}, tensor<4x1xf16> {mhlo.layout_mode = "default"}) {
    %cst = stablehlo.constant dense<[[-3.134770e+00, -1.165040e+00, -1.280270e+00, 3.953130e+00], [-4.468750e+00, 2.023440e+00, -2.595210e-01, 2.658200e+00], [7.519530e-02, -1.421880e+00, -1.767580e+00, 4.679690e+00], [4.449220e+00, -1.000980e+00, -9.109370e+00, -2.769530e+00]]> : tensor<4x4xf16>
    %cst_0 = stablehlo.constant dense<[[6.445310e+00], [3.988280e+00], [-1.346440e-01], [-8.625000e+00]]> : tensor<4x1xf16>
    return %cst, %cst_0 : tensor<4x4xf16>, tensor<4x1xf16>
  }
  func.func private @expected() -> (tensor<4x1xf16> {mhlo.layout_mode = "default"}) {
    %cst = stablehlo.constant dense<[[1.355000e+02], [3.734380e+01], [4.021880e+01], [-8.625000e+00]]> : tensor<4x1xf16>
    return %cst : tensor<4x1xf16>
  }
}
// ----- xor_bool_20_20_bool_20_20.mlir
module @jit_main attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main() -> (tensor<20x20xi1> {jax.result_info = "", mhlo.layout_mode = "default"}) {
    %0:2 = call @inputs() : () -> (tensor<20x20xi1>, tensor<20x20xi1>)
    %1 = call @expected() : () -> tensor<20x20xi1>
    %2 = stablehlo.xor %0#0, %0#1 : tensor<20x20xi1>
    stablehlo.custom_call @check.expect_eq(%2, %1) {has_side_effect = true} : (tensor<20x20xi1>, tensor<20x20xi1>) -> ()
    return %2 : tensor<20x20xi1>
  }
  func.func private @inputs() -> (tensor<20x20xi1> {mhlo.layout_mode = "default"}, tensor<20x20xi1> {mhlo.layout_mode = "default"}) {
    %c = stablehlo.constant dense<true> : tensor<20x20xi1>
    %c_0 = stablehlo.constant dense<true> : tensor<20x20xi1>
    return %c, %c_0 : tensor<20x20xi1>, tensor<20x20xi1>
  }
  func.func private @expected() -> (tensor<20x20xi1> {mhlo.layout_mode = "default"}) {
    %c = stablehlo.constant dense<false> : tensor<20x20xi1>
    return %c : tensor<20x20xi1>
  }
}
