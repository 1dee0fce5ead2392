"""What rules without a memory of their own share: an empty state that outcomes do not change."""

from fade_jax.types import Observation, State


def init() -> tuple[()]:
    """Returns the empty state."""
    return ()


def observe(state: State, observation: Observation) -> State:
    """Returns the state as it is."""
    del observation
    return state
