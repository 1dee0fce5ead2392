"""Checkpoints of a run: the whole RunState, written in the background, the last few kept.

A checkpoint is a folder named by the number of iterations that were **done**. It is written under
another name and moved there when it is whole, so a killed process leaves the ones before it. Beside
the state lies what the run is (`about`): a checkpoint of anything else is refused by name.

    with Checkpoints(folder, about) as checkpoints:
        state = checkpoints.restore(run.init(run.setup, key))  # as given, where there is none
        ...
        checkpoints.save(state)
"""

import hashlib
import json
import warnings
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp

from fade_jax.run_state import RunState

__all__ = ["CheckpointError", "Checkpoints", "fingerprint", "load_arrays", "steps_of"]


class CheckpointError(OSError):
    """A checkpoint could not be written or none could be read; those before it are untouched."""


def fingerprint(arrays: Iterable[Any]) -> str:
    """16 hex digits of the SHA-256 of arrays' shapes, types and contents, in order.

    Args:
        arrays: anything numpy takes, of numbers or strings.

    Raises:
        ValueError: an array of Python objects other than strings.

    Example:
        >>> fingerprint([np.arange(3)]) == fingerprint([np.arange(3).reshape(1, 3)])
        False
    """
    digest = hashlib.sha256()
    for array in arrays:
        array = np.ascontiguousarray(array)
        digest.update(f"{array.dtype.str}{np.shape(array)}".encode())
        if not array.dtype.hasobject:
            digest.update(array.tobytes())
            continue
        for item in array.flat:  # the array's own bytes are addresses
            if not isinstance(item, str):
                raise ValueError(f"arrays must be of numbers or strings, got {array.dtype}")
            text = item.encode("utf-8", "surrogatepass")
            digest.update(f"{len(text)}:".encode() + text)
    return digest.hexdigest()[:16]


def steps_of(folder: str | Path) -> list[int]:
    """Iterations done of the whole checkpoints in a folder, ascending."""
    folder = Path(folder)
    if not folder.is_dir():
        return []
    return sorted(int(path.name) for path in folder.iterdir() if path.name.isdigit())


def _handlers() -> dict[str, Any]:
    return {"state": ocp.StandardCheckpointHandler(), "about": ocp.JsonCheckpointHandler()}


def _is_key(leaf: Any) -> bool:
    return jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _named(state: Any) -> dict[str, Any]:
    """Leaves by their path; keys as the numbers they are made of, empty arrays left out."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(state)
    named = {jax.tree_util.keystr(path, simple=True, separator="/"): leaf for path, leaf in leaves}
    return {
        name: jax.random.key_data(leaf) if _is_key(leaf) else leaf
        for name, leaf in named.items()
        if leaf.size
    }


def _rebuild(like: Any, named: dict[str, Any]) -> Any:
    """The tree of `like` with the leaves of `named`."""
    leaves, treedef = jax.tree_util.tree_flatten_with_path(like)
    new = []
    for path, leaf in leaves:
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        value = named[name] if leaf.size else leaf
        is_key = leaf.size and _is_key(leaf)
        new.append(
            jax.random.wrap_key_data(value, impl=jax.random.key_impl(leaf)) if is_key else value
        )
    return jax.tree_util.tree_unflatten(treedef, new)


def _check_about(stored: Any, wanted: dict[str, Any], where: Path) -> None:
    """Refuses a checkpoint of something else, naming the first part and its differing fields."""
    for part in dict.fromkeys([*wanted, *stored]):
        mine, theirs = wanted.get(part), stored.get(part)
        if mine == theirs:
            continue
        if isinstance(mine, dict) and isinstance(theirs, dict):
            names = [k for k in dict.fromkeys([*mine, *theirs]) if mine.get(k) != theirs.get(k)]
            detail = "; ".join(f"{k}: {theirs.get(k)!r}, wanted {mine.get(k)!r}" for k in names)
        else:
            detail = f"{theirs!r}, wanted {mine!r}"
        raise ValueError(f"{where} is of another {part} ({detail})")


def _check_shapes(stored: Any, wanted: dict[str, Any], where: Path) -> None:
    """Refuses arrays of other names, shapes or types; orbax would cast silently."""
    for name in dict.fromkeys([*wanted, *stored]):
        if name not in stored or name not in wanted:
            raise ValueError(f"{where} {'lacks' if name in wanted else 'has an unknown'} {name}")
        theirs = (tuple(stored[name].shape), np.dtype(stored[name].dtype))
        mine = (tuple(wanted[name].shape), np.dtype(wanted[name].dtype))
        if theirs != mine:
            raise ValueError(f"{where}: {name} is {theirs[1]} {theirs[0]}, not {mine[1]} {mine[0]}")


class Checkpoints:
    """The checkpoints of one run; a context manager that waits for the last one.

    Args:
        folder: theirs alone; made if missing.
        about: what the run is, by part (configuration, pool, ...): whatever JSON takes, compared as
            JSON has it. What may change when a run goes on, its number of iterations, stays out.
        keep: how many of the newest to keep; two, so that a damaged one costs little.
    """

    def __init__(self, folder: str | Path, about: dict[str, Any], *, keep: int = 2):
        if keep < 1:
            raise ValueError(f"keep must be at least 1, got {keep}")
        self.folder = Path(folder).absolute()
        self._about = json.loads(json.dumps(about))  # a tuple comes back as a list
        options = ocp.CheckpointManagerOptions(max_to_keep=keep, cleanup_tmp_directories=True)
        self._manager = ocp.CheckpointManager(
            self.folder, options=options, item_handlers=_handlers()
        )

    def __enter__(self) -> "Checkpoints":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self.wait()
        except CheckpointError:
            if error is None:  # else the error on its way out matters more
                raise
        finally:
            self._manager.close()

    def wait(self) -> None:
        """Waits until the last checkpoint is on disk.

        Raises:
            CheckpointError: if it could not be written.
        """
        try:
            self._manager.wait_until_finished()
        except Exception as error:
            raise self._failure(error) from error

    def save(self, state: RunState) -> None:
        """Writes a state in the background; waits for the one before it.

        Args:
            state: copied before this returns: the next step may donate it. One of the newest
                checkpoint's iteration is that checkpoint, and is not written again.

        Raises:
            CheckpointError: if this or the one before it could not be written; names the last
                good one.
            ValueError: the folder has a checkpoint of more iterations, which this run has not
                gone on from.
        """
        self.wait()
        done = int(np.max(jax.device_get(state.iteration)))
        newest = max(steps_of(self.folder), default=-1)
        if done < newest:
            raise ValueError(
                f"state.iteration: {self.folder} has a checkpoint of {newest} already, got {done};"
                " restore it, or take another folder"
            )
        if done == newest:
            return
        arrays = jax.tree.map(jnp.copy, _named(state))
        try:
            self._manager.save(
                done,
                args=ocp.args.Composite(
                    state=ocp.args.StandardSave(arrays), about=ocp.args.JsonSave(self._about)
                ),
            )
        except Exception as error:
            raise self._failure(error) from error

    def _failure(self, error: Exception) -> CheckpointError:
        good = steps_of(self.folder)
        last = f"the last good one is {good[-1]}" if good else "there is none yet"
        return CheckpointError(
            f"a checkpoint in {self.folder} could not be written; {last}: {error}"
        )

    def restore(self, like: RunState) -> RunState:
        """The newest state that can be read.

        One that is damaged is passed over with a warning, and deleted once an older one is read.

        Args:
            like: a state of the same run, such as its first: shapes, types and shardings of what
                is read; returned as it is where there is no checkpoint.

        Returns:
            The state.

        Raises:
            ValueError: the checkpoint is of another configuration, pool or program.
            CheckpointError: there are checkpoints, and none can be read.
        """
        damaged = []
        for step in reversed(steps_of(self.folder)):
            try:
                stored = self._manager.restore(
                    step, args=ocp.args.Composite(about=ocp.args.JsonRestore())
                )
                shapes = self._manager.item_metadata(step)["state"].tree
            except Exception as error:
                damaged.append((step, error))
                continue
            _check_about(stored["about"], self._about, self.folder / str(step))
            wanted = _named(like)
            _check_shapes(shapes, wanted, self.folder / str(step))
            target = jax.tree.map(
                lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), wanted
            )
            try:
                arrays = self._manager.restore(
                    step, args=ocp.args.Composite(state=ocp.args.StandardRestore(target))
                )["state"]
            except Exception as error:
                damaged.append((step, error))
                continue
            for number, error in damaged:
                warnings.warn(
                    f"checkpoint {number} in {self.folder} can't be read ({error}); {step} is used",
                    stacklevel=2,
                )
                self._manager.delete(number)
            return _rebuild(like, arrays)
        if damaged:
            step, error = damaged[0]
            raise CheckpointError(
                f"no checkpoint in {self.folder} can be read; of {step}: {error}"
            ) from error
        return like


def load_arrays(folder: str | Path, iteration: int) -> dict[str, np.ndarray]:
    """The arrays of one checkpoint by name, as numpy, without knowing the run.

    Args:
        folder: of the checkpoints.
        iteration: which, see `steps_of`.
    """
    options = ocp.CheckpointManagerOptions(read_only=True, save_interval_steps=0, create=False)
    with ocp.CheckpointManager(
        Path(folder).absolute(), options=options, item_handlers=_handlers()
    ) as manager:
        here = jax.sharding.SingleDeviceSharding(jax.devices()[0])
        target = {
            name: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=here)
            for name, leaf in manager.item_metadata(iteration)["state"].tree.items()
        }
        read = ocp.args.Composite(state=ocp.args.StandardRestore(target))
        return {k: np.asarray(v) for k, v in manager.restore(iteration, args=read)["state"].items()}
