// RUN: hir-opt %s --passes @lower -o %t/out.hir
// RUN: hir certify %t/out.hir --original %s --seed 7
// The indices of an embedding are not converted to the type of its table: the certificate has no fault for a conversion to half.
module @embedding attributes {mhlo.num_partitions = 2 : i32} {
  sdy.mesh @mesh = <["x"=2]>
  func.func public @main(%arg0: tensor<8x3xf16> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}, %arg1: tensor<5x1xi32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>}) -> (tensor<5x3xf16> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>}) {
    %0 = "stablehlo.gather"(%arg0, %arg1) <{dimension_numbers = #stablehlo.gather<offset_dims = [1], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>, slice_sizes = array<i64: 1, 3>}> : (tensor<8x3xf16>, tensor<5x1xi32>) -> tensor<5x3xf16>
    return %0 : tensor<5x3xf16>
  }
}
