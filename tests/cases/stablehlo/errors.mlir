// RUN: hir-opt %s --split-input-file
// An operation that hir does not read.
module {
  func.func public @main(%arg0: tensor<2x2xf32>) -> tensor<2x2xf32> {
    %0 = chlo.digamma %arg0 : tensor<2x2xf32> -> tensor<2x2xf32>
    return %0 : tensor<2x2xf32>
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
  func.func public @main(%arg0: tensor<4xi4>) -> tensor<4xi4> {
    %0 = stablehlo.popcnt %arg0 : tensor<4xi4>
    return %0 : tensor<4xi4>
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
// A part that the axis does not have.
module {
  sdy.mesh @mesh = <["x"=4]>
  func.func public @main(%arg0: tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x":(1)3}]>}) -> tensor<4xf32> {
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
  func.func public @main(%arg0: tensor<4xf4E2M1FN>) -> tensor<4xf4E2M1FN> {
    return %arg0 : tensor<4xf4E2M1FN>
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
