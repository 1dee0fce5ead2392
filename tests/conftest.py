"""Strict numerics for every test, and float64 only where a test asks for it."""

import os

import jax
import pytest

jax.config.update("jax_numpy_rank_promotion", "raise")


def pytest_configure(config):
    """Turns off XLA's emitters of fused loops: compiling takes half the time without them.

    Not for tests that compare programs bit for bit. Read when jax first looks for devices, also by
    the processes that tests start; later versions of jax don't know the flag and stop at it.
    """
    if jax.__version_info__ < (0, 11) and config.option.markexpr != "bitwise":
        flags = os.environ.get("XLA_FLAGS", "")
        os.environ["XLA_FLAGS"] = f"{flags} --xla_cpu_use_fusion_emitters=false"


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
