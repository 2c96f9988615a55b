// RUN: hir-opt %s --split-input-file
// An operation that hir does not read.
module {
  func.func public @main(%arg0: tensor<4xf32>) -> tensor<3xcomplex<f32>> {
    %0 = stablehlo.fft %arg0, type = RFFT, length = [4] : (tensor<4xf32>) -> tensor<3xcomplex<f32>>
    return %0 : tensor<3xcomplex<f32>>
  }
}
// -----
// An order that `argsort` does not have: it takes both zeros as equal.
module {
  func.func public @main(%arg0: tensor<4xf32>) -> tensor<4xf32> {
    %0 = "stablehlo.sort"(%arg0) <{dimension = 0 : i64}> ({
    ^bb0(%arg1: tensor<f32>, %arg2: tensor<f32>):
      %1 = stablehlo.compare LT, %arg1, %arg2, TOTALORDER : (tensor<f32>, tensor<f32>) -> tensor<i1>
      stablehlo.return %1 : tensor<i1>
    }) : (tensor<4xf32>) -> tensor<4xf32>
    return %0 : tensor<4xf32>
  }
}
// -----
// A call that states a sharding of GSPMD.
module {
  func.func public @main(%arg0: tensor<4xf32>) -> tensor<4xf32> {
    %0 = stablehlo.custom_call @Sharding(%arg0) {backend_config = "", mhlo.sharding = "{devices=[2]<=[2]}"} : (tensor<4xf32>) -> tensor<4xf32>
    return %0 : tensor<4xf32>
  }
}
// -----
// A form of an operation that hir does not read.
module {
  func.func public @main(%arg0: tensor<4xf32>) -> tensor<4x2xi16> {
    %0 = stablehlo.bitcast_convert %arg0 : (tensor<4xf32>) -> tensor<4x2xi16>
    return %0 : tensor<4x2xi16>
  }
}
// -----
// A loop that ends when the data says so.
module {
  func.func public @main(%arg0: tensor<f32>) -> tensor<f32> {
    %0 = stablehlo.while(%iterArg = %arg0) : tensor<f32>
    cond {
      %cst = stablehlo.constant dense<1.000000e+00> : tensor<f32>
      %1 = stablehlo.compare GT, %iterArg, %cst, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
      stablehlo.return %1 : tensor<i1>
    } do {
      %1 = stablehlo.sqrt %iterArg : tensor<f32>
      stablehlo.return %1 : tensor<f32>
    }
    return %0 : tensor<f32>
  }
}
// -----
// Three devices do not divide four rows.
module {
  sdy.mesh @mesh = <["x"=3]>
  func.func public @main(%arg0: tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}]>}) -> tensor<4xf32> {
    return %arg0 : tensor<4xf32>
  }
}
// -----
// A part of an axis.
module {
  sdy.mesh @mesh = <["x"=4]>
  func.func public @main(%arg0: tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x":(1)2}]>}) -> tensor<4xf32> {
    return %arg0 : tensor<4xf32>
  }
}
// -----
// Shardings older than Shardy.
module @jit_f attributes {mhlo.num_partitions = 2 : i32} {
  func.func public @main(%arg0: tensor<4xf32> {mhlo.sharding = "{devices=[2]<=[2]}"}) -> tensor<4xf32> {
    return %arg0 : tensor<4xf32>
  }
}
// -----
// A result whose sharding is older than Shardy.
module {
  func.func public @main(%arg0: tensor<4xf32>) -> (tensor<4xf32> {mhlo.sharding = "{devices=[2]<=[2]}"}) {
    return %arg0 : tensor<4xf32>
  }
}
// -----
// Padding that counts in a sum.
module {
  func.func public @main(%arg0: tensor<4xf32>) -> tensor<4xf32> {
    %cst = stablehlo.constant dense<1.0> : tensor<f32>
    %0 = "stablehlo.reduce_window"(%arg0, %cst) <{padding = dense<[[0, 1]]> : tensor<1x2xi64>, window_dimensions = array<i64: 2>}> ({
    ^bb0(%arg1: tensor<f32>, %arg2: tensor<f32>):
      %1 = stablehlo.add %arg1, %arg2 : tensor<f32>
      stablehlo.return %1 : tensor<f32>
    }) : (tensor<4xf32>, tensor<f32>) -> tensor<4xf32>
    return %0 : tensor<4xf32>
  }
}
// -----
// A collective outside of `shard_map`.
module {
  sdy.mesh @mesh = <["x"=2]>
  func.func public @main(%arg0: tensor<4xf32>) -> tensor<4xf32> {
    %0 = "stablehlo.all_reduce"(%arg0) <{replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>}> ({
    ^bb0(%arg1: tensor<f32>, %arg2: tensor<f32>):
      %1 = stablehlo.add %arg1, %arg2 : tensor<f32>
      stablehlo.return %1 : tensor<f32>
    }) : (tensor<4xf32>) -> tensor<4xf32>
    return %0 : tensor<4xf32>
  }
}
// -----
// A value that is not defined.
module {
  func.func public @main(%arg0: tensor<4xf32>) -> tensor<4xf32> {
    %0 = stablehlo.add %arg0, %arg1 : tensor<4xf32>
    return %0 : tensor<4xf32>
  }
}
// -----
// A type that does not follow.
module {
  func.func public @main(%arg0: tensor<4xf32>) -> tensor<5xf32> {
    %0 = stablehlo.tanh %arg0 : (tensor<4xf32>) -> tensor<5xf32>
    return %0 : tensor<5xf32>
  }
}
// -----
// An element type that hir does not have.
module {
  func.func public @main(%arg0: tensor<4xi4>) -> tensor<4xi4> {
    return %arg0 : tensor<4xi4>
  }
}
// -----
// A module that ends too early.
module {
  func.func public @main(%arg0: tensor<4xf32>) -> tensor<4xf32> {
    %0 = stablehlo.add %arg0,
// -----
// A word that no operation has.
module {
  func.func public @main(%arg0: tensor<4xf32>) -> tensor<4xf32> {
    %0 = stablehlo.add %arg0, %arg0 : tensor<4xf32> = 3
    return %0 : tensor<4xf32>
  }
}
// -----
module {
  func.func private @f(%arg0: tensor<4xf32>) -> tensor<4xf32> {
    return %arg0 : tensor<4xf32>
  }
}
// -----
// The last index of the greatest value, which is not `argmax`.
module {
  func.func public @main(%arg0: tensor<4xf32>) -> tensor<i32> {
    %ai = stablehlo.iota dim = 0 : tensor<4xi32>
    %av = stablehlo.constant dense<0xFF800000> : tensor<f32>
    %as = stablehlo.constant dense<0> : tensor<i32>
    %a:2 = stablehlo.reduce(%arg0 init: %av), (%ai init: %as) across dimensions = [0] : (tensor<4xf32>, tensor<4xi32>, tensor<f32>, tensor<i32>) -> (tensor<f32>, tensor<i32>)
     reducer(%a1: tensor<f32>, %a3: tensor<f32>) (%a2: tensor<i32>, %a4: tensor<i32>)  {
      %x0 = stablehlo.compare GT, %a1, %a3, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
      %x1 = stablehlo.compare NE, %a1, %a1, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
      %x2 = stablehlo.or %x0, %x1 : tensor<i1>
      %x3 = stablehlo.compare EQ, %a1, %a3, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
      %x4 = stablehlo.compare GT, %a2, %a4, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
      %x5 = stablehlo.and %x3, %x4 : tensor<i1>
      %x6 = stablehlo.or %x2, %x5 : tensor<i1>
      %x7 = stablehlo.select %x2, %a1, %a3 : tensor<i1>, tensor<f32>
      %x8 = stablehlo.select %x6, %a2, %a4 : tensor<i1>, tensor<i32>
      stablehlo.return %x7, %x8 : tensor<f32>, tensor<i32>
    }
    return %a#1 : tensor<i32>
  }
}
// -----
// An initial value that may be the greatest one.
module {
  func.func public @main(%arg0: tensor<4xf32>) -> tensor<i32> {
    %ai = stablehlo.iota dim = 0 : tensor<4xi32>
    %av = stablehlo.constant dense<9.0> : tensor<f32>
    %as = stablehlo.constant dense<7> : tensor<i32>
    %a:2 = stablehlo.reduce(%arg0 init: %av), (%ai init: %as) across dimensions = [0] : (tensor<4xf32>, tensor<4xi32>, tensor<f32>, tensor<i32>) -> (tensor<f32>, tensor<i32>)
     reducer(%a1: tensor<f32>, %a3: tensor<f32>) (%a2: tensor<i32>, %a4: tensor<i32>)  {
      %x0 = stablehlo.compare GT, %a1, %a3, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
      %x1 = stablehlo.compare NE, %a1, %a1, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
      %x2 = stablehlo.or %x0, %x1 : tensor<i1>
      %x3 = stablehlo.compare EQ, %a1, %a3, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
      %x4 = stablehlo.compare LT, %a2, %a4, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
      %x5 = stablehlo.and %x3, %x4 : tensor<i1>
      %x6 = stablehlo.or %x2, %x5 : tensor<i1>
      %x7 = stablehlo.select %x2, %a1, %a3 : tensor<i1>, tensor<f32>
      %x8 = stablehlo.select %x6, %a2, %a4 : tensor<i1>, tensor<i32>
      stablehlo.return %x7, %x8 : tensor<f32>, tensor<i32>
    }
    return %a#1 : tensor<i32>
  }
}
// -----
// Indices that are not in the order of the elements.
module {
  func.func public @main(%arg0: tensor<4xf32>, %arg1: tensor<4xi32>) -> tensor<i32> {
    %av = stablehlo.constant dense<0xFF800000> : tensor<f32>
    %as = stablehlo.constant dense<0> : tensor<i32>
    %a:2 = stablehlo.reduce(%arg0 init: %av), (%arg1 init: %as) across dimensions = [0] : (tensor<4xf32>, tensor<4xi32>, tensor<f32>, tensor<i32>) -> (tensor<f32>, tensor<i32>)
     reducer(%a1: tensor<f32>, %a3: tensor<f32>) (%a2: tensor<i32>, %a4: tensor<i32>)  {
      %x0 = stablehlo.compare GT, %a1, %a3, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
      %x1 = stablehlo.compare NE, %a1, %a1, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
      %x2 = stablehlo.or %x0, %x1 : tensor<i1>
      %x3 = stablehlo.compare EQ, %a1, %a3, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
      %x4 = stablehlo.compare LT, %a2, %a4, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
      %x5 = stablehlo.and %x3, %x4 : tensor<i1>
      %x6 = stablehlo.or %x2, %x5 : tensor<i1>
      %x7 = stablehlo.select %x2, %a1, %a3 : tensor<i1>, tensor<f32>
      %x8 = stablehlo.select %x6, %a2, %a4 : tensor<i1>, tensor<i32>
      stablehlo.return %x7, %x8 : tensor<f32>, tensor<i32>
    }
    return %a#1 : tensor<i32>
  }
}
