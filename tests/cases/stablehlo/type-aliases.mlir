// RUN: hir-run %s --output T1=-
!t = tensor<3xf32>
module @m {
  func.func public @main(%arg0: !t) -> !t {
    %0 = stablehlo.add %arg0, %arg0 : !t
    return %0 : !t
  }
}
