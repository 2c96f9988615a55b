// RUN: hir-run %s --input 'T0=5xf32=0.75 -1.0 0.0 -0.125 0.625' --input 'T1=5xf32=1.0 2.375 1.5 1.0 2.25' --input 'T2=5xi32=0 1 2 3 4' --expect 'T4=5xf32=0.5 -0.5 0.0 -0.125 0.5' --expect 'T7=5xf32=1.0 5.640625 2.25 1.0 5.0625' --expect 'T16=5xf32=1.1261554956436157 1.0360949039459229 0.1237703487277031 0.6136834621429443 0.8333761096000671' --expect 'T21=5xf32=0.22029496729373932 0.5416390895843506 0.0 0.046365756541490555 0.35391345620155334' --expect 'T22=5xf32=0.7111555933952332 -0.8427008390426636 0.0 -0.1403162032365799 0.6232408285140991' --expect 'T24=5xf32=0.75 0.0 0.0 0.0 0.625' --expect 'T46=5xi32=0 2 5 4 7' --expect 'T52=5xbool=true true true true true' --expect 'T54=5xbf16=1.125 -1.5 0.0 -0.1875 0.9375' --expect 'T56=5xf32=inf inf inf inf inf' --expect 'T58=5xbool=true true true true true'
// Operators that work element by element, on one device.
module @jit__lambda attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main(%arg0: tensor<5xf32>, %arg1: tensor<5xf32>, %arg2: tensor<5xi32>) -> (tensor<5xf32> {jax.result_info = "result[0]"}, tensor<5xf32> {jax.result_info = "result[1]"}, tensor<5xf32> {jax.result_info = "result[2]"}, tensor<5xf32> {jax.result_info = "result[3]"}, tensor<5xf32> {jax.result_info = "result[4]"}, tensor<5xf32> {jax.result_info = "result[5]"}, tensor<5xi32> {jax.result_info = "result[6]"}, tensor<5xi1> {jax.result_info = "result[7]"}, tensor<5xbf16> {jax.result_info = "result[8]"}, tensor<5xf32> {jax.result_info = "result[9]"}, tensor<5xi1> {jax.result_info = "result[10]"}) {
    %cst = stablehlo.constant dense<-5.000000e-01> : tensor<f32>
    %cst_0 = stablehlo.constant dense<5.000000e-01> : tensor<f32>
    %0 = call @clip(%arg0, %cst, %cst_0) : (tensor<5xf32>, tensor<f32>, tensor<f32>) -> tensor<5xf32>
    %1 = stablehlo.compare GT, %arg0, %arg1, FLOAT : (tensor<5xf32>, tensor<5xf32>) -> tensor<5xi1>
    %2 = call @_where(%1, %arg0, %arg1) : (tensor<5xi1>, tensor<5xf32>, tensor<5xf32>) -> tensor<5xf32>
    %3 = stablehlo.multiply %2, %2 : tensor<5xf32>
    %4 = stablehlo.abs %arg0 : tensor<5xf32>
    %5 = stablehlo.sqrt %4 : tensor<5xf32>
    %6 = stablehlo.negate %arg1 : tensor<5xf32>
    %7 = stablehlo.exponential %6 : tensor<5xf32>
    %8 = stablehlo.multiply %arg1, %arg1 : tensor<5xf32>
    %cst_1 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %9 = stablehlo.broadcast_in_dim %cst_1, dims = [] : (tensor<f32>) -> tensor<5xf32>
    %10 = stablehlo.add %9, %8 : tensor<5xf32>
    %11 = stablehlo.rsqrt %10 : tensor<5xf32>
    %12 = stablehlo.multiply %7, %11 : tensor<5xf32>
    %13 = stablehlo.add %5, %12 : tensor<5xf32>
    %14 = stablehlo.abs %arg0 : tensor<5xf32>
    %15 = stablehlo.log_plus_one %14 : tensor<5xf32>
    %16 = stablehlo.cosine %arg1 : tensor<5xf32>
    %cst_2 = stablehlo.constant dense<2.000000e+00> : tensor<f32>
    %17 = stablehlo.broadcast_in_dim %cst_2, dims = [] : (tensor<f32>) -> tensor<5xf32>
    %18 = stablehlo.add %17, %16 : tensor<5xf32>
    %19 = stablehlo.divide %15, %18 : tensor<5xf32>
    %20 = chlo.erf %arg0 : tensor<5xf32> -> tensor<5xf32>
    %21 = stablehlo.minimum %arg0, %arg1 : tensor<5xf32>
    %cst_3 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %22 = stablehlo.broadcast_in_dim %cst_3, dims = [] : (tensor<f32>) -> tensor<5xf32>
    %23 = stablehlo.maximum %21, %22 : tensor<5xf32>
    %c = stablehlo.constant dense<3> : tensor<i32>
    %24 = call @remainder(%arg2, %c) : (tensor<5xi32>, tensor<i32>) -> tensor<5xi32>
    %c_4 = stablehlo.constant dense<2> : tensor<i32>
    %25 = call @floor_divide(%arg2, %c_4) : (tensor<5xi32>, tensor<i32>) -> tensor<5xi32>
    %c_5 = stablehlo.constant dense<1> : tensor<i32>
    %26 = stablehlo.sign %c_5 : tensor<i32>
    %27 = stablehlo.convert %26 : tensor<i32>
    %28 = stablehlo.broadcast_in_dim %27, dims = [] : (tensor<i32>) -> tensor<5xi32>
    %29 = stablehlo.multiply %25, %28 : tensor<5xi32>
    %30 = stablehlo.add %24, %29 : tensor<5xi32>
    %31 = stablehlo.negate %arg2 : tensor<5xi32>
    %32 = stablehlo.subtract %30, %31 : tensor<5xi32>
    %33 = stablehlo.compare LT, %arg0, %arg1, FLOAT : (tensor<5xf32>, tensor<5xf32>) -> tensor<5xi1>
    %cst_6 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %34 = stablehlo.broadcast_in_dim %cst_6, dims = [] : (tensor<f32>) -> tensor<5xf32>
    %35 = stablehlo.compare EQ, %arg0, %34, FLOAT : (tensor<5xf32>, tensor<5xf32>) -> tensor<5xi1>
    %36 = stablehlo.not %35 : tensor<5xi1>
    %37 = stablehlo.and %33, %36 : tensor<5xi1>
    %cst_7 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %38 = stablehlo.broadcast_in_dim %cst_7, dims = [] : (tensor<f32>) -> tensor<5xf32>
    %39 = stablehlo.compare GE, %arg1, %38, FLOAT : (tensor<5xf32>, tensor<5xf32>) -> tensor<5xi1>
    %40 = stablehlo.or %37, %39 : tensor<5xi1>
    %41 = stablehlo.convert %arg0 : (tensor<5xf32>) -> tensor<5xbf16>
    %cst_8 = stablehlo.constant dense<1.500000e+00> : tensor<bf16>
    %42 = stablehlo.broadcast_in_dim %cst_8, dims = [] : (tensor<bf16>) -> tensor<5xbf16>
    %43 = stablehlo.multiply %41, %42 : tensor<5xbf16>
    %44 = stablehlo.convert %arg2 : (tensor<5xi32>) -> tensor<5xf32>
    %cst_9 = stablehlo.constant dense<0x7F800000> : tensor<f32>
    %45 = stablehlo.broadcast_in_dim %cst_9, dims = [] : (tensor<f32>) -> tensor<5xf32>
    %46 = stablehlo.add %44, %45 : tensor<5xf32>
    %47 = stablehlo.divide %arg0, %arg1 : tensor<5xf32>
    %48 = stablehlo.is_finite %47 : (tensor<5xf32>) -> tensor<5xi1>
    return %0, %3, %13, %19, %20, %23, %32, %40, %43, %46, %48 : tensor<5xf32>, tensor<5xf32>, tensor<5xf32>, tensor<5xf32>, tensor<5xf32>, tensor<5xf32>, tensor<5xi32>, tensor<5xi1>, tensor<5xbf16>, tensor<5xf32>, tensor<5xi1>
  }
  func.func private @clip(%arg0: tensor<5xf32>, %arg1: tensor<f32>, %arg2: tensor<f32>) -> tensor<5xf32> {
    %0 = stablehlo.convert %arg1 : tensor<f32>
    %1 = stablehlo.broadcast_in_dim %0, dims = [] : (tensor<f32>) -> tensor<5xf32>
    %2 = stablehlo.maximum %1, %arg0 : tensor<5xf32>
    %3 = stablehlo.convert %arg2 : tensor<f32>
    %4 = stablehlo.broadcast_in_dim %3, dims = [] : (tensor<f32>) -> tensor<5xf32>
    %5 = stablehlo.minimum %4, %2 : tensor<5xf32>
    return %5 : tensor<5xf32>
  }
  func.func private @_where(%arg0: tensor<5xi1>, %arg1: tensor<5xf32>, %arg2: tensor<5xf32>) -> tensor<5xf32> {
    %0 = stablehlo.select %arg0, %arg1, %arg2 : tensor<5xi1>, tensor<5xf32>
    return %0 : tensor<5xf32>
  }
  func.func private @remainder(%arg0: tensor<5xi32>, %arg1: tensor<i32>) -> tensor<5xi32> {
    %0 = stablehlo.convert %arg1 : tensor<i32>
    %c = stablehlo.constant dense<0> : tensor<i32>
    %1 = stablehlo.compare EQ, %0, %c, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
    %c_0 = stablehlo.constant dense<1> : tensor<i32>
    %2 = call @_where_0(%1, %c_0, %0) : (tensor<i1>, tensor<i32>, tensor<i32>) -> tensor<i32>
    %3 = stablehlo.broadcast_in_dim %2, dims = [] : (tensor<i32>) -> tensor<5xi32>
    %4 = stablehlo.remainder %arg0, %3 : tensor<5xi32>
    %c_1 = stablehlo.constant dense<0> : tensor<i32>
    %5 = stablehlo.broadcast_in_dim %c_1, dims = [] : (tensor<i32>) -> tensor<5xi32>
    %6 = stablehlo.compare NE, %4, %5, SIGNED : (tensor<5xi32>, tensor<5xi32>) -> tensor<5xi1>
    %c_2 = stablehlo.constant dense<0> : tensor<i32>
    %7 = stablehlo.broadcast_in_dim %c_2, dims = [] : (tensor<i32>) -> tensor<5xi32>
    %8 = stablehlo.compare LT, %4, %7, SIGNED : (tensor<5xi32>, tensor<5xi32>) -> tensor<5xi1>
    %c_3 = stablehlo.constant dense<0> : tensor<i32>
    %9 = stablehlo.compare LT, %2, %c_3, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
    %10 = stablehlo.broadcast_in_dim %9, dims = [] : (tensor<i1>) -> tensor<5xi1>
    %11 = stablehlo.compare NE, %8, %10, UNSIGNED : (tensor<5xi1>, tensor<5xi1>) -> tensor<5xi1>
    %12 = stablehlo.and %11, %6 : tensor<5xi1>
    %13 = stablehlo.broadcast_in_dim %2, dims = [] : (tensor<i32>) -> tensor<5xi32>
    %14 = stablehlo.add %4, %13 : tensor<5xi32>
    %15 = stablehlo.select %12, %14, %4 : tensor<5xi1>, tensor<5xi32>
    return %15 : tensor<5xi32>
  }
  func.func private @_where_0(%arg0: tensor<i1>, %arg1: tensor<i32>, %arg2: tensor<i32>) -> tensor<i32> {
    %0 = stablehlo.select %arg0, %arg1, %arg2 : tensor<i1>, tensor<i32>
    return %0 : tensor<i32>
  }
  func.func private @floor_divide(%arg0: tensor<5xi32>, %arg1: tensor<i32>) -> tensor<5xi32> {
    %0 = stablehlo.convert %arg1 : tensor<i32>
    %1 = stablehlo.broadcast_in_dim %0, dims = [] : (tensor<i32>) -> tensor<5xi32>
    %2 = stablehlo.divide %arg0, %1 : tensor<5xi32>
    %3 = stablehlo.sign %arg0 : tensor<5xi32>
    %4 = stablehlo.sign %0 : tensor<i32>
    %5 = stablehlo.broadcast_in_dim %4, dims = [] : (tensor<i32>) -> tensor<5xi32>
    %6 = stablehlo.compare NE, %3, %5, SIGNED : (tensor<5xi32>, tensor<5xi32>) -> tensor<5xi1>
    %7 = stablehlo.broadcast_in_dim %0, dims = [] : (tensor<i32>) -> tensor<5xi32>
    %8 = stablehlo.remainder %arg0, %7 : tensor<5xi32>
    %c = stablehlo.constant dense<0> : tensor<i32>
    %9 = stablehlo.broadcast_in_dim %c, dims = [] : (tensor<i32>) -> tensor<5xi32>
    %10 = stablehlo.compare NE, %8, %9, SIGNED : (tensor<5xi32>, tensor<5xi32>) -> tensor<5xi1>
    %11 = stablehlo.and %6, %10 : tensor<5xi1>
    %c_0 = stablehlo.constant dense<1> : tensor<i32>
    %12 = stablehlo.broadcast_in_dim %c_0, dims = [] : (tensor<i32>) -> tensor<5xi32>
    %13 = stablehlo.subtract %2, %12 : tensor<5xi32>
    %14 = call @_where_1(%11, %13, %2) : (tensor<5xi1>, tensor<5xi32>, tensor<5xi32>) -> tensor<5xi32>
    return %14 : tensor<5xi32>
  }
  func.func private @_where_1(%arg0: tensor<5xi1>, %arg1: tensor<5xi32>, %arg2: tensor<5xi32>) -> tensor<5xi32> {
    %0 = stablehlo.select %arg0, %arg1, %arg2 : tensor<5xi1>, tensor<5xi32>
    return %0 : tensor<5xi32>
  }
}
