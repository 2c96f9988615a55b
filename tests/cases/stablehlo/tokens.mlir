// RUN: hir-opt %s --check --print=canonical
// `jax.debug.print`, ordered by a token and not ordered: a kernel that the text does not contain, without results.
module @jit_dpo attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  sdy.mesh @maximal_mesh_0 = <[], device_ids=[0]>
  func.func public @main(%arg0: !stablehlo.token {jax.token = true}, %arg1: tensor<4xf32>) -> (!stablehlo.token {jax.token = true}, tensor<4xf32>) {
    %0 = stablehlo.create_token : !stablehlo.token
    %1 = stablehlo.after_all %arg0, %0 : !stablehlo.token
    %2 = stablehlo.custom_call @xla_ffi_python_cpu_callback(%1, %arg1) {backend_config = "", has_side_effect = true} : (!stablehlo.token, tensor<4xf32>) -> !stablehlo.token
    stablehlo.custom_call @xla_ffi_python_cpu_callback(%arg1) {backend_config = "", has_side_effect = true, sdy.sharding = #sdy.sharding_per_value<[<@maximal_mesh_0, []>]>} : (tensor<4xf32>) -> ()
    %3 = stablehlo.add %arg1, %arg1 : tensor<4xf32>
    return %2, %3 : !stablehlo.token, tensor<4xf32>
  }
}
