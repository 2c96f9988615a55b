// RUN: hir-run %s --input 'T0=4xi32=0 0 0 0' --output T33=- --output T34=- --output T35=- --output T36=- --output T37=-
// Numbers that depend on the device wrap in their type. JAX gives these results on four devices.
module @numbers attributes {mhlo.num_partitions = 4 : i32, mhlo.num_replicas = 1 : i32} {
  sdy.mesh @mesh = <["x"=4]>
  func.func public @main(%arg0: tensor<4xi32>) -> (tensor<4xi32>, tensor<4xui32>, tensor<4xi32>, tensor<4xi32>, tensor<4xi32>) {
    %0:5 = sdy.manual_computation(%arg0) in_shardings=[<@mesh, [{"x"}]>] out_shardings=[<@mesh, [{"x"}]>, <@mesh, [{"x"}]>, <@mesh, [{"x"}]>, <@mesh, [{"x"}]>, <@mesh, [{"x"}]>] manual_axes={"x"} (%arg1: tensor<1xi32>) {
      %p = stablehlo.partition_id : tensor<ui32>
      %c1 = stablehlo.constant dense<1> : tensor<ui32>
      %c2 = stablehlo.constant dense<2> : tensor<ui32>
      %c5 = stablehlo.constant dense<5> : tensor<ui32>
      %less = stablehlo.subtract %p, %c1 : tensor<ui32>
      %is_large = stablehlo.compare GT, %less, %c5, UNSIGNED : (tensor<ui32>, tensor<ui32>) -> tensor<i1>
      %i = stablehlo.convert %is_large : (tensor<i1>) -> tensor<i32>
      %r0 = stablehlo.reshape %i : (tensor<i32>) -> tensor<1xi32>
      %half = stablehlo.divide %less, %c2 : tensor<ui32>
      %r1 = stablehlo.reshape %half : (tensor<ui32>) -> tensor<1xui32>
      %s = stablehlo.convert %p : (tensor<ui32>) -> tensor<i32>
      %c100 = stablehlo.constant dense<100> : tensor<i32>
      %hundreds = stablehlo.multiply %s, %c100 : tensor<i32>
      %byte = stablehlo.convert %hundreds : (tensor<i32>) -> tensor<i8>
      %back = stablehlo.convert %byte : (tensor<i8>) -> tensor<i32>
      %r2 = stablehlo.reshape %back : (tensor<i32>) -> tensor<1xi32>
      %cb = stablehlo.constant dense<2000000000> : tensor<i32>
      %c7 = stablehlo.constant dense<7> : tensor<i32>
      %big = stablehlo.multiply %s, %cb : tensor<i32>
      %part = stablehlo.divide %big, %c7 : tensor<i32>
      %r3 = stablehlo.reshape %part : (tensor<i32>) -> tensor<1xi32>
      %line = stablehlo.constant dense<[10, 20, 30, 40]> : tensor<4xi32>
      %last = stablehlo.dynamic_slice %line, %less, sizes = [1] : (tensor<4xi32>, tensor<ui32>) -> tensor<1xi32>
      sdy.return %r0, %r1, %r2, %r3, %last : tensor<1xi32>, tensor<1xui32>, tensor<1xi32>, tensor<1xi32>, tensor<1xi32>
    } : (tensor<4xi32>) -> (tensor<4xi32>, tensor<4xui32>, tensor<4xi32>, tensor<4xi32>, tensor<4xi32>)
    return %0#0, %0#1, %0#2, %0#3, %0#4 : tensor<4xi32>, tensor<4xui32>, tensor<4xi32>, tensor<4xi32>, tensor<4xi32>
  }
}
