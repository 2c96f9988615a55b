"""Each device gives its row to the next one, as `jnp.roll` does. The pairs of `ppermute` are the other way round."""

from functools import partial

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

mesh = jax.make_mesh((4,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))


@jax.jit
@partial(jax.shard_map, mesh=mesh, in_specs=P("x"), out_specs=P("x"))
def shift(x):
    return jax.lax.ppermute(x, "x", [((i + 1) % 4, i) for i in range(4)])


@jax.jit
def roll(x):
    return jnp.roll(x, 1, axis=0)
