// RUN: hir-run %s --input 'T0=4xf32=1 5 5 nan' --input 'T1=4xbool=false true true false' --input 'T2=4xi64=9223372036854775807 3 -9223372036854775808 -9223372036854775808' --expect 'T11=i8=3' --expect 'T18=u8=1' --expect 'T20=i64=-9223372036854775808' --expect 'T25=i32=2'
// The index of the greatest and the least element as integers of 8 bits, of Booleans, and of the least integers.
module {
  func.func public @main(%arg0: tensor<4xf32>, %arg1: tensor<4xi1>, %arg2: tensor<4xi64>) -> (tensor<i8>, tensor<ui8>, tensor<i64>, tensor<i32>) {
    %ai = stablehlo.iota dim = 0 : tensor<4xi8>
    %av = stablehlo.constant dense<0xFF800000> : tensor<f32>
    %as = stablehlo.constant dense<0> : tensor<i8>
    %a:2 = stablehlo.reduce(%arg0 init: %av), (%ai init: %as) across dimensions = [0] : (tensor<4xf32>, tensor<4xi8>, tensor<f32>, tensor<i8>) -> (tensor<f32>, tensor<i8>)
     reducer(%a1: tensor<f32>, %a3: tensor<f32>) (%a2: tensor<i8>, %a4: tensor<i8>)  {
      %x0 = stablehlo.compare GT, %a1, %a3, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
      %x1 = stablehlo.compare NE, %a1, %a1, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
      %x2 = stablehlo.or %x0, %x1 : tensor<i1>
      %x3 = stablehlo.compare EQ, %a1, %a3, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
      %x4 = stablehlo.compare LT, %a2, %a4, SIGNED : (tensor<i8>, tensor<i8>) -> tensor<i1>
      %x5 = stablehlo.and %x3, %x4 : tensor<i1>
      %x6 = stablehlo.or %x2, %x5 : tensor<i1>
      %x7 = stablehlo.select %x2, %a1, %a3 : tensor<i1>, tensor<f32>
      %x8 = stablehlo.select %x6, %a2, %a4 : tensor<i1>, tensor<i8>
      stablehlo.return %x7, %x8 : tensor<f32>, tensor<i8>
    }
    %bi = stablehlo.iota dim = 0 : tensor<4xui8>
    %bv = stablehlo.constant dense<false> : tensor<i1>
    %bs = stablehlo.constant dense<0> : tensor<ui8>
    %b:2 = stablehlo.reduce(%arg1 init: %bv), (%bi init: %bs) across dimensions = [0] : (tensor<4xi1>, tensor<4xui8>, tensor<i1>, tensor<ui8>) -> (tensor<i1>, tensor<ui8>)
     reducer(%a1: tensor<i1>, %a3: tensor<i1>) (%a2: tensor<ui8>, %a4: tensor<ui8>)  {
      %x0 = stablehlo.compare GT, %a1, %a3, UNSIGNED : (tensor<i1>, tensor<i1>) -> tensor<i1>
      %x1 = stablehlo.compare NE, %a1, %a1, UNSIGNED : (tensor<i1>, tensor<i1>) -> tensor<i1>
      %x2 = stablehlo.or %x0, %x1 : tensor<i1>
      %x3 = stablehlo.compare EQ, %a1, %a3, UNSIGNED : (tensor<i1>, tensor<i1>) -> tensor<i1>
      %x4 = stablehlo.compare LT, %a2, %a4, UNSIGNED : (tensor<ui8>, tensor<ui8>) -> tensor<i1>
      %x5 = stablehlo.and %x3, %x4 : tensor<i1>
      %x6 = stablehlo.or %x2, %x5 : tensor<i1>
      %x7 = stablehlo.select %x2, %a1, %a3 : tensor<i1>, tensor<i1>
      %x8 = stablehlo.select %x6, %a2, %a4 : tensor<i1>, tensor<ui8>
      stablehlo.return %x7, %x8 : tensor<i1>, tensor<ui8>
    }
    %ci = stablehlo.iota dim = 0 : tensor<4xi32>
    %cv = stablehlo.constant dense<9223372036854775807> : tensor<i64>
    %cs = stablehlo.constant dense<0> : tensor<i32>
    %c:2 = stablehlo.reduce(%arg2 init: %cv), (%ci init: %cs) across dimensions = [0] : (tensor<4xi64>, tensor<4xi32>, tensor<i64>, tensor<i32>) -> (tensor<i64>, tensor<i32>)
     reducer(%a1: tensor<i64>, %a3: tensor<i64>) (%a2: tensor<i32>, %a4: tensor<i32>)  {
      %x0 = stablehlo.compare LT, %a1, %a3, SIGNED : (tensor<i64>, tensor<i64>) -> tensor<i1>
      %x1 = stablehlo.compare NE, %a1, %a1, SIGNED : (tensor<i64>, tensor<i64>) -> tensor<i1>
      %x2 = stablehlo.or %x0, %x1 : tensor<i1>
      %x3 = stablehlo.compare EQ, %a1, %a3, SIGNED : (tensor<i64>, tensor<i64>) -> tensor<i1>
      %x4 = stablehlo.compare LT, %a2, %a4, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
      %x5 = stablehlo.and %x3, %x4 : tensor<i1>
      %x6 = stablehlo.or %x2, %x5 : tensor<i1>
      %x7 = stablehlo.select %x2, %a1, %a3 : tensor<i1>, tensor<i64>
      %x8 = stablehlo.select %x6, %a2, %a4 : tensor<i1>, tensor<i32>
      stablehlo.return %x7, %x8 : tensor<i64>, tensor<i32>
    }
    return %a#1, %b#1, %c#0, %c#1 : tensor<i8>, tensor<ui8>, tensor<i64>, tensor<i32>
  }
}
