"""fade_jax alone also runs under strict dtype promotion (it breaks optax and numpyro)."""

import jax
import pytest


@pytest.fixture(autouse=True)
def strict_promotion(request):
    if request.node.get_closest_marker("standard_promotion"):
        yield
    else:
        with jax.numpy_dtype_promotion("strict"):
            yield
