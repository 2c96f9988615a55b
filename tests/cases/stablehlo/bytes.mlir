// RUN: hir-run %s --input 'T0=40x3xf32=-0.125 0.125 -1.0 0.25 0.375 -0.75 -0.75 -0.625 -0.625 0.75 -0.625 0.75 0.125 -0.875 -0.5 0.25 0.375 0.0 0.375 -0.75 1.0 -1.0 -1.0 -0.25 0.75 0.25 0.0 0.625 -0.75 -0.625 -0.75 0.375 0.625 1.0 0.0 0.0 0.0 -0.75 -0.625 0.5 0.75 -1.0 -0.5 -0.625 0.625 0.375 0.625 0.625 0.375 1.0 0.75 1.0 -0.875 0.0 -1.0 -0.5 -0.25 0.625 -0.125 0.875 0.125 0.0 0.875 0.375 -0.25 0.875 -0.875 0.5 -0.625 0.875 -0.625 0.25 0.5 -0.25 -0.625 -0.375 0.375 -1.0 0.375 0.0 0.25 0.375 -0.375 0.875 0.0 -0.75 0.75 -0.625 -0.625 -0.125 0.125 0.125 0.125 -0.625 0.75 0.5 -0.625 0.125 0.25 0.625 -0.125 -0.125 -0.875 0.5 -0.75 -0.75 -0.875 -0.375 0.0 -0.5 -1.0 0.375 -0.75 -0.375 1.0 0.0 -0.875 1.0 -0.625 0.0' --expect 'T21=3xf32=298.984375 265.078125 348.109375'
// A constant whose elements are bytes in hexadecimal digits, as MLIR writes large ones.
module @jit__lambda attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main(%arg0: tensor<40x3xf32>) -> (tensor<3xf32> {jax.result_info = "result"}) {
    %cst = stablehlo.constant dense<[[0.000000e+00], [3.750000e-01], [7.500000e-01], [1.125000e+00], [1.500000e+00], [1.875000e+00], [2.250000e+00], [2.625000e+00], [3.000000e+00], [3.375000e+00], [3.750000e+00], [4.125000e+00], [4.500000e+00], [4.875000e+00], [5.250000e+00], [5.625000e+00], [6.000000e+00], [6.375000e+00], [6.750000e+00], [7.125000e+00], [7.500000e+00], [7.875000e+00], [8.250000e+00], [8.625000e+00], [9.000000e+00], [9.375000e+00], [9.750000e+00], [1.012500e+01], [1.050000e+01], [1.087500e+01], [1.125000e+01], [1.162500e+01], [1.200000e+01], [1.237500e+01], [1.275000e+01], [1.312500e+01], [1.350000e+01], [1.387500e+01], [1.425000e+01], [1.462500e+01]]> : tensor<40x1xf32>
    %cst_0 = stablehlo.constant dense<"0x000000000000003E0000803E0000C03E0000003F0000203F0000403F0000603F0000803F0000903F0000A03F0000B03F0000C03F0000D03F0000E03F0000F03F0000004000000840000010400000184000002040000028400000304000003840000040400000484000005040000058400000604000006840000070400000784000008040000084400000884000008C4000009040000094400000984000009C400000A0400000A4400000A8400000AC400000B0400000B4400000B8400000BC400000C0400000C4400000C8400000CC400000D0400000D4400000D8400000DC400000E0400000E4400000E8400000EC400000F0400000F4400000F8400000FC40000000410000024100000441000006410000084100000A4100000C4100000E41000010410000124100001441000016410000184100001A4100001C4100001E41000020410000224100002441000026410000284100002A4100002C4100002E41000030410000324100003441000036410000384100003A4100003C4100003E41000040410000424100004441000046410000484100004A4100004C4100004E41000050410000524100005441000056410000584100005A4100005C4100005E41000060410000624100006441000066410000684100006A4100006C4100006E41"> : tensor<40x3xf32>
    %cst_1 = stablehlo.constant dense<[2.925000e+02, 2.975000e+02, 3.025000e+02]> : tensor<3xf32>
    %c = stablehlo.constant dense<[-60, -20, 20]> : tensor<3xi32>
    %0 = stablehlo.broadcast_in_dim %cst, dims = [0, 1] : (tensor<40x1xf32>) -> tensor<40x3xf32>
    %1 = stablehlo.multiply %arg0, %0 : tensor<40x3xf32>
    %cst_2 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %2 = stablehlo.broadcast_in_dim %cst_2, dims = [] : (tensor<f32>) -> tensor<40x3xf32>
    %3 = stablehlo.multiply %1, %2 : tensor<40x3xf32>
    %cst_3 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %4 = stablehlo.reduce(%3 init: %cst_3) applies stablehlo.add across dimensions = [0] : (tensor<40x3xf32>, tensor<f32>) -> tensor<3xf32>
    %5 = stablehlo.slice %arg0 [0:1, 0:3] : (tensor<40x3xf32>) -> tensor<1x3xf32>
    %6 = stablehlo.reshape %5 : (tensor<1x3xf32>) -> tensor<3xf32>
    %7 = stablehlo.broadcast_in_dim %6, dims = [1] : (tensor<3xf32>) -> tensor<1x3xf32>
    %8 = stablehlo.broadcast_in_dim %7, dims = [0, 1] : (tensor<1x3xf32>) -> tensor<40x3xf32>
    %9 = stablehlo.compare LT, %8, %cst_0, FLOAT : (tensor<40x3xf32>, tensor<40x3xf32>) -> tensor<40x3xi1>
    %10 = stablehlo.convert %9 : (tensor<40x3xi1>) -> tensor<40x3xi32>
    %c_4 = stablehlo.constant dense<0> : tensor<i32>
    %11 = stablehlo.reduce(%10 init: %c_4) applies stablehlo.add across dimensions = [0] : (tensor<40x3xi32>, tensor<i32>) -> tensor<3xi32>
    %12 = stablehlo.convert %11 : (tensor<3xi32>) -> tensor<3xf32>
    %13 = stablehlo.add %4, %12 : tensor<3xf32>
    %14 = stablehlo.add %13, %cst_1 : tensor<3xf32>
    %15 = stablehlo.convert %c : (tensor<3xi32>) -> tensor<3xf32>
    %16 = stablehlo.add %14, %15 : tensor<3xf32>
    return %16 : tensor<3xf32>
  }
}
