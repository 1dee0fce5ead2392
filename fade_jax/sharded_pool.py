"""A prompt pool split over devices: loadings, beliefs and choices far beyond one device's memory.

The prompt axis lies over the mesh axis "prompts"; the ability and all scalars are copied to every
device. Compiled under `jax.set_mesh(mesh)`, a step then works on each device's own prompts: what
crosses devices are the observed rows and the candidates of each device, never an array of the pool.
The same prompts are chosen on any number of devices, ties included (tested on simulated CPU
devices; nothing here is particular to them).

    mesh = sharded_pool.make_mesh()  # all devices, in one axis "prompts"
    loadings = sharded_pool.lay_out(mesh, loadings)  # [N, K] on the host; each device gets its part
    with jax.set_mesh(mesh):
        state = sharded_pool.init(mesh, init, num_prompts, loadings, hyper)
        state, ids = step(loadings, hyper, state, key)  # your jitted, donated step, as it is

One rule decides what is split, see `shardings`. `source_floor` and uniform choice by epochs need
an order of the whole pool: there each device gathers scores (or ids) of all prompts, and sorts.

Shapes: `N` prompts, `P >= N` padded prompts, `K` skills, `S` devices of the mesh axis.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Float

from fade_jax.pool_loadings import ALIGNMENT, PoolLoadings, padded_size

AXIS = "prompts"
"""Name of the mesh axis that prompts are split over."""


def make_mesh(devices: Sequence[Any] | None = None) -> Mesh:
    """A mesh of one axis, "prompts"; a mesh of your own with such an axis, of type Auto, will do.

    Args:
        devices: all by default.

    Example:
        >>> make_mesh(jax.devices()[:1]).shape["prompts"]
        1
    """
    devices = jax.devices() if devices is None else devices
    return jax.make_mesh((len(devices),), (AXIS,), (AxisType.Auto,), devices=devices)


def context_shards() -> int:
    """Parts the pool is in under the mesh of the context; 1 outside any, or inside one part."""
    mesh = jax.sharding.get_abstract_mesh()
    if AXIS not in mesh.axis_names or AXIS in mesh.manual_axes:
        return 1
    return mesh.shape[AXIS]


def split(array: Float[Array, " P"]) -> Float[Array, " P"]:
    """Tells the compiler that an array of the pool stays split; no more than a hint, values stay.

    Needed after functions that the partitioner does not see through, such as `lax.erf`: it would
    gather their arguments. Does nothing outside a mesh, or where the parts would be unequal.
    """
    shards = context_shards()
    if shards == 1 or array.shape[0] % shards:
        return array
    return jax.lax.with_sharding_constraint(array, PartitionSpec(AXIS))


def lay_out(mesh: Mesh, loadings: Float[Array, "N K"] | Float[np.ndarray, "N K"]) -> PoolLoadings:
    """Lays [N, K] loadings out over the mesh; no device ever holds them all.

    Args:
        mesh: with an axis "prompts" of S devices.
        loadings: [N, K], on the host or memory-mapped.

    Returns:
        Feature-major loadings [K, P], P the next multiple of 128 S.

    Raises:
        ValueError: the mesh has no axis "prompts".
    """
    shards = _shards(mesh)
    num_prompts, num_skills = loadings.shape
    size = padded_size(num_prompts, multiple=ALIGNMENT * shards)

    def part(index: Any) -> np.ndarray:
        start, stop, _ = index[1].indices(size)
        rows = np.asarray(loadings[start:stop])
        return np.pad(rows.T, ((0, 0), (0, stop - start - rows.shape[0])))

    split = NamedSharding(mesh, PartitionSpec(None, AXIS))
    features = jax.make_array_from_callback((num_skills, size), split, part)
    return PoolLoadings(features, num_prompts)


def shardings(mesh: Mesh | AbstractMesh, tree: Any, num_prompts: int) -> Any:
    """Where each array of a tracker's or selector's state belongs.

    The last axis of N entries, or of N padded to a multiple of 128, is split; failing that, the
    first axis; an array without such an axis is copied to every device.

    Args:
        mesh: with an axis "prompts" of S devices.
        tree: of arrays, or of their shapes.
        num_prompts: N.

    Returns:
        The same tree, of shardings; for `jax.jit(..., out_shardings=...)`.

    Raises:
        ValueError: the mesh has no axis "prompts"; a prompt axis that S does not divide.
    """
    where = _rule(mesh, num_prompts)
    return jax.tree_util.tree_map_with_path(where, tree)


def place(mesh: Mesh, tree: Any, num_prompts: int) -> Any:
    """Puts a state, hyperparameters or loadings on the mesh; arguments, errors of `shardings`."""
    where = _rule(mesh, num_prompts)
    return jax.tree_util.tree_map_with_path(lambda path, x: jax.device_put(x, where(path, x)), tree)


def init(mesh: Mesh, make: Callable[..., Any], num_prompts: int, *args: Any) -> Any:
    """Makes a state in place: `make(*args)`, compiled so that each device fills its own part.

    Args:
        mesh: with an axis "prompts" of S devices.
        make: `(*args) -> State`, such as `lambda loadings, hyper: build(loadings, hyper).init()`.
        num_prompts: N.
        *args: of `make`.

    Returns:
        The state.

    Raises:
        ValueError: as `shardings`.
    """
    where = shardings(mesh, jax.eval_shape(make, *args), num_prompts)
    return jax.jit(make, out_shardings=where)(*args)


def _rule(
    mesh: Mesh | AbstractMesh, num_prompts: int
) -> Callable[[jax.tree_util.KeyPath, Any], NamedSharding]:
    shards = _shards(mesh)

    def along(length: int) -> bool:
        padded = length % ALIGNMENT == 0 and 0 <= length - num_prompts < ALIGNMENT * shards
        return length == num_prompts or padded

    def sharding(path: jax.tree_util.KeyPath, array: Any) -> NamedSharding:
        shape = np.shape(array)
        axis = next((i for i in (len(shape) - 1, 0) if shape and along(shape[i])), None)
        if axis is None:
            return NamedSharding(mesh, PartitionSpec())
        if shape[axis] % shards:
            name = jax.tree_util.keystr(path).lstrip(".") or "array"
            raise ValueError(
                f"{name} has {shape[axis]} prompts, which {shards} devices can't share equally; "
                "`sharded_pool.lay_out` pads loadings, a tracker without loadings needs a pool of "
                f"a multiple of {shards} prompts"
            )
        return NamedSharding(mesh, PartitionSpec(*[None] * axis, AXIS))

    return sharding


def _shards(mesh: Mesh | AbstractMesh) -> int:
    if AXIS not in mesh.axis_names:
        raise ValueError(f'mesh must have an axis "{AXIS}", got {mesh.axis_names}')
    if any(kind != AxisType.Auto for kind in mesh.axis_types):
        raise ValueError(
            f"mesh must have axes of type Auto, got {mesh.axis_types}; jax.make_mesh takes"
            " axis_types=(jax.sharding.AxisType.Auto,)"
        )
    return mesh.shape[AXIS]
