// RUN: hir-opt %s --split-input-file
// Texts that contradict themselves, as after cutting and pasting.
// A call states another type of its operand.
module {
  func.func public @main(%arg0: tensor<4xf32>) -> tensor<4xf32> {
    %0 = call @f(%arg0) : (tensor<9xi32>) -> tensor<4xf32>
    return %0 : tensor<4xf32>
  }
  func.func private @f(%arg0: tensor<4xf32>) -> tensor<4xf32> {
    return %arg0 : tensor<4xf32>
  }
}
// -----
// A parameter has another type than the argument.
module {
  func.func public @main(%arg0: tensor<4xf32>) -> tensor<4xf32> {
    %0 = call @f(%arg0) : (tensor<4xf32>) -> tensor<4xf32>
    return %0 : tensor<4xf32>
  }
  func.func private @f(%arg0: tensor<15xbf16>) -> tensor<4xf32> {
    return %arg0 : tensor<4xf32>
  }
}
// -----
// A function states another type of its result.
module {
  func.func public @main(%arg0: tensor<4xf32>) -> tensor<4xf32> {
    %0 = call @f(%arg0) : (tensor<4xf32>) -> tensor<4xf32>
    return %0 : tensor<4xf32>
  }
  func.func private @f(%arg0: tensor<4xf32>) -> tensor<5xf32> {
    return %arg0 : tensor<4xf32>
  }
}
// -----
// A type that is none.
module {
  func.func public @main(%arg0: tensor<4xf32>) -> tensor<4xf32> {
    %0 = call @f(%arg0) : (tensor<4xf32>) -> tensor<4xf32>
    return %0 : tensor<4xf32>
  }
  func.func private @f(%arg0: tensor<4xf32>) -> tensor<,> {
    return %arg0 : tensor<4xf32>
  }
}
// -----
// A `return` states another type.
module {
  func.func public @main(%arg0: tensor<4xf32>) -> tensor<4xf32> {
    return %arg0 : tensor<7xi1>
  }
}
// -----
// An operation states another element type.
module {
  func.func public @main(%arg0: tensor<4xf32>) -> tensor<4xf32> {
    %0 = stablehlo.add %arg0, %arg0 : tensor<4xi32>
    return %0 : tensor<4xf32>
  }
}
// -----
// An operation states another type of one operand.
module {
  func.func public @main(%arg0: tensor<4xf32>) -> tensor<4xf32> {
    %0 = stablehlo.concatenate %arg0, %arg0, dim = 0 : (tensor<4xf32>, tensor<3xf32>) -> tensor<8xf32>
    return %arg0 : tensor<4xf32>
  }
}
// -----
// An operation states a type for one of two operands.
module {
  func.func public @main(%arg0: tensor<4xf32>) -> tensor<4xf32> {
    %0 = stablehlo.add %arg0, %arg0 : (tensor<4xf32>) -> tensor<4xf32>
    return %0 : tensor<4xf32>
  }
}
// -----
// The region of a reduction is one of other elements.
module {
  func.func public @main(%arg0: tensor<4xf32>) -> tensor<4xf32> {
    %cst = stablehlo.constant dense<0.0> : tensor<f32>
    %1 = "stablehlo.reduce"(%arg0, %cst) <{dimensions = array<i64: 0>}> ({
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %2 = stablehlo.add %a, %b : tensor<f64>
      stablehlo.return %2 : tensor<f32>
    }) : (tensor<4xf32>, tensor<f32>) -> tensor<f32>
    return %arg0 : tensor<4xf32>
  }
}
// -----
// A comparison of other elements.
module {
  func.func public @main(%arg0: tensor<4xf32>) -> tensor<4xf32> {
    %0 = stablehlo.compare LT, %arg0, %arg0, SIGNED : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xi1>
    return %arg0 : tensor<4xf32>
  }
}
// -----
// An operation behind the `return`.
module {
  func.func public @main(%arg0: tensor<4xf32>) -> tensor<4xf32> {
    return %arg0 : tensor<4xf32>
    %0 = stablehlo.add %arg0, %arg0 : tensor<4xf32>
  }
}
// -----
// No comma between operands.
module {
  func.func public @main(%arg0: tensor<4xf32>) -> tensor<4xf32> {
    %0 = stablehlo.add %arg0 %arg0 : tensor<4xf32>
    return %0 : tensor<4xf32>
  }
}
// -----
// A word between operands.
module {
  func.func public @main(%arg0: tensor<4xf32>) -> tensor<4xf32> {
    %0 = stablehlo.add %arg0, zzz, %arg0 : tensor<4xf32>
    return %0 : tensor<4xf32>
  }
}
// -----
// No comma behind the direction.
module {
  func.func public @main(%arg0: tensor<4xf32>) -> tensor<4xf32> {
    %0 = stablehlo.compare LT %arg0, %arg0, FLOAT : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xi1>
    return %arg0 : tensor<4xf32>
  }
}
// -----
// A comma and no operand.
module {
  func.func public @main(%arg0: tensor<4xf32>) -> tensor<4xf32> {
    %0 = stablehlo.add %arg0, %arg0, : tensor<4xf32>
    return %0 : tensor<4xf32>
  }
}
// -----
// No `:` before the type.
module {
  func.func public @main(%arg0: tensor<4xf32>) -> tensor<4xf32> {
    %0 = stablehlo.add %arg0, %arg0 tensor<4xf32>
    return %0 : tensor<4xf32>
  }
}
// -----
// No type.
module {
  func.func public @main(%arg0: tensor<4xf32>) -> tensor<4xf32> {
    %0 = stablehlo.add %arg0, %arg0
    return %0 : tensor<4xf32>
  }
}
// -----
// A constant has an element that its type has not.
module {
  func.func public @main(%arg0: tensor<2xi8>) -> tensor<2xi8> {
    %c = stablehlo.constant dense<300> : tensor<2xi8>
    %0 = stablehlo.add %arg0, %c : tensor<2xi8>
    return %0 : tensor<2xi8>
  }
}
// -----
// A reversal is neither true nor false.
module {
  func.func public @main(%arg0: tensor<1x1x3xf32>, %arg1: tensor<1x1x2xf32>) -> tensor<1x1x2xf32> {
    %0 = stablehlo.convolution(%arg0, %arg1) dim_numbers = [b, f, 0]x[o, i, 0]->[b, f, 0], window = {reverse = [yes]} {batch_group_count = 1 : i64, feature_group_count = 1 : i64} : (tensor<1x1x3xf32>, tensor<1x1x2xf32>) -> tensor<1x1x2xf32>
    return %0 : tensor<1x1x2xf32>
  }
}
// -----
// A dimension is reversed twice.
module {
  func.func public @main(%arg0: tensor<2x3xf32>) -> tensor<2x3xf32> {
    %0 = stablehlo.reverse %arg0, dims = [1, 1] : tensor<2x3xf32>
    return %0 : tensor<2x3xf32>
  }
}
// -----
// The value of a constant has another type than the constant.
module {
  func.func public @main(%arg0: tensor<f32>) -> tensor<f32> {
    %0 = "stablehlo.constant"() <{value = dense<1.0> : tensor<f16>}> : () -> tensor<f32>
    %1 = stablehlo.add %arg0, %0 : tensor<f32>
    return %1 : tensor<f32>
  }
}
