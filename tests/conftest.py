"""Strict numerics for every test, and float64 only where a test asks for it."""

import jax
import pytest

jax.config.update("jax_numpy_rank_promotion", "raise")


@pytest.fixture
def x64():
    """Runs a test in float64 and restores float32 afterwards."""
    with jax.enable_x64(True):
        yield


@pytest.fixture(scope="module", autouse=True)
def no_programs_pile_up():
    """Drops compiled programs after each file: a whole run would keep gigabytes of them."""
    yield
    jax.clear_caches()
