import jax.numpy as jnp
import pytest

from fade_jax.hyperparameters import check_hyperparameters, default


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("ability_cov", jnp.diag(jnp.asarray([1.0, -0.1])), "positive definite.*-0.1"),
        ("ability_cov", jnp.asarray([[1.0, 2.0], [2.0, 1.0]]), "positive definite.*-1"),
        ("ability_cov", jnp.asarray([[1.0, 0.5], [0.0, 1.0]]), "symmetric"),
        ("ability_cov", jnp.eye(3), r"must be \[2, 2\].*\(3, 3\)"),
        ("ability_mean", jnp.asarray([0.0, jnp.nan]), "finite"),
        ("intercept_var", 0.0, "> 0, got 0.0"),
        ("intercept_var", float("inf"), "finite"),
        ("ability_drift", -0.1, ">= 0, got -0.1"),
        ("ability_drift", jnp.ones(3), r"scalar or \[2\]"),
        ("intercept_drift", -1.0, ">= 0"),
        ("loading_scale", float("nan"), "finite"),
    ],
)
def test_bad_priors_are_refused_by_name(field, value, message):
    hyper = default(1)
    object.__setattr__(hyper, field, value)  # past the shape checks that only tests switch on
    with pytest.raises(ValueError, match=f"{field}.*{message}"):
        check_hyperparameters(hyper)


def test_sound_priors_pass():
    hyper = default(3, ability_drift=jnp.asarray([0.1, 0.0, 0.0, 0.2]))
    assert check_hyperparameters(hyper) is hyper
