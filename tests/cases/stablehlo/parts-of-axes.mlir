// RUN: hir-run %s --passes @lower --input 'T0=4x4xf32=1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16' --input 'T1=4x2xf32=1 0 0 1 2 0 0 -1' --expect 'T2=4x2xf32=7 -2 19 -2 31 -2 43 -2'
// Two dimensions that are sharded over two parts of one axis, and one over all of it: the axis becomes two.
module @jit_f attributes {mhlo.num_partitions = 4 : i32, mhlo.num_replicas = 1 : i32} {
  sdy.mesh @mesh = <["x"=4]>
  func.func public @main(%arg0: tensor<4x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x":(1)2}, {"x":(2)2}]>}, %arg1: tensor<4x2xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x":(2)2}, {}]>}) -> (tensor<4x2xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}) {
    %0 = stablehlo.dot_general %arg0, %arg1, contracting_dims = [1] x [0] : (tensor<4x4xf32>, tensor<4x2xf32>) -> tensor<4x2xf32>
    return %0 : tensor<4x2xf32>
  }
}
