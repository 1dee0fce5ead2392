"""Utility: closed forms against quadrature, enumeration and high-precision arithmetic."""

import doctest
import itertools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest
from beliefs import belief_grid, f32, gaussian_expectation, gaussian_rule
from scipy.special import expit

from experiments import fit_utility_constants
from fade_jax import utility
from fade_jax.utility import (
    check_group_size,
    expected_absolute_advantage,
    information_gain,
    informative_beta,
    informative_logit,
    informative_quadrature,
    informative_rate,
    pass_rate_variance,
)
from fade_jax.utility_constants import CENTRES, SCALES, WEIGHTS

SIZES = range(2, 65)


# --- known pass rate ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pass_rate", "expected"),
    [
        (0.01, 0.07725531),
        (0.05, 0.33657957),
        (0.25, 0.89987183),
        (0.5, 0.9921875),
        (0.9, 0.56953278),
    ],
)
def test_rate_reproduces_published_values_at_group_size_8(pass_rate, expected):
    np.testing.assert_allclose(informative_rate(f32(pass_rate), 8), expected, rtol=2e-6)


def test_rate_is_relatively_accurate_next_to_0_and_1():
    near_zero = np.float32(10.0) ** np.arange(-30, 0, dtype=np.float32)
    near_one = np.float32(1) - np.float32(2.0) ** -np.arange(1, 25, dtype=np.float32)
    rates = np.concatenate([near_zero, near_one])
    for size in (2, 3, 8, 64):
        with mpmath.workdps(60):
            exact = [
                float(1 - mpmath.mpf(float(p)) ** size - (1 - mpmath.mpf(float(p))) ** size)
                for p in rates
            ]
        np.testing.assert_allclose(informative_rate(f32(rates), size), exact, rtol=2e-6)


def test_rate_gradient_is_the_derivative_also_at_0_and_1():
    rates = np.array([0.0, 1e-6, 0.3, 0.5, 0.8, 1.0], np.float32)
    sizes = jnp.full(rates.shape, 5, jnp.int32)
    expected = 5 * (1 - rates.astype(float)) ** 4 - 5 * rates.astype(float) ** 4
    for size in (5, sizes):
        gradient = jax.jit(jax.grad(lambda p, size=size: informative_rate(p, size).sum()))
        np.testing.assert_allclose(gradient(f32(rates)), expected, atol=2e-6)


# --- Beta belief -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("alpha", "beta", "expected"),
    [(1.0, 1.0, 7 / 9), (0.5, 0.5, 0.60723877), (3.35, 5.65, 0.92176638)],
)
def test_beta_reproduces_published_values_at_group_size_8(alpha, beta, expected):
    np.testing.assert_allclose(informative_beta(f32(alpha), f32(beta), 8), expected, rtol=2e-6)


def test_beta_is_relatively_accurate_from_tiny_to_huge_pseudo_counts():
    counts = np.array([1e-3, 1e-2, 0.35, 1, 7, 300, 1e4], np.float32)
    alpha, beta = (a.ravel() for a in np.meshgrid(counts, counts))
    for size in (2, 3, 8, 33, 64):
        with mpmath.workdps(60):
            exact = []
            for a, b in zip(alpha, beta, strict=True):
                a, b = mpmath.mpf(float(a)), mpmath.mpf(float(b))
                right = mpmath.fprod((a + j) / (a + b + j) for j in range(size))
                wrong = mpmath.fprod((b + j) / (a + b + j) for j in range(size))
                exact.append(float(1 - right - wrong))
        np.testing.assert_allclose(informative_beta(f32(alpha), f32(beta), size), exact, rtol=1e-5)
        sizes = jnp.full(alpha.shape, size, jnp.int32)
        np.testing.assert_allclose(informative_beta(f32(alpha), f32(beta), sizes), exact, rtol=1e-5)


@pytest.mark.usefixtures("x64")
def test_beta_gradient_against_finite_differences():
    value = jax.jit(lambda a: informative_beta(a, jnp.asarray(0.7), 16))
    for a in (1e-3, 0.5, 40.0):
        step = 1e-5 * a
        slope = (value(jnp.asarray(a + step)) - value(jnp.asarray(a - step))) / (2 * step)
        np.testing.assert_allclose(jax.grad(value)(jnp.asarray(a)), slope, rtol=1e-6)


# --- Gaussian belief, closed form --------------------------------------------------------------


def test_closed_form_error_of_every_group_size(x64):
    """Largest error .0022 over all G: the minimax fit holds on a grid it was not fitted on."""
    mean, var = belief_grid()
    nodes, weights = gaussian_rule()
    psi = mean[:, None] + np.sqrt(var)[:, None] * nodes
    right, wrong = expit(psi), expit(-psi)
    right_power, wrong_power = right.copy(), wrong.copy()
    error = {}
    for size in SIZES:
        right_power *= right
        wrong_power *= wrong
        exact = 1 - (right_power + wrong_power) @ weights
        error[size] = np.abs(informative_logit(jnp.asarray(mean), jnp.asarray(var), size) - exact)
    worst = {size: values.max() for size, values in error.items()}
    assert max(worst.values()) <= 0.00222, worst
    assert worst[2] <= 1.4e-4
    assert worst[4] <= 5.6e-4
    assert worst[8] <= 1.5e-3


def test_constants_are_normalised_float32_numbers_for_every_group_size():
    assert len(WEIGHTS) == len(CENTRES) == len(SCALES) == 65
    for table in (WEIGHTS, CENTRES, SCALES):
        assert np.array_equal(np.array(table, np.float32).astype(str), np.array(table).astype(str))
    np.testing.assert_allclose(np.sum(WEIGHTS, axis=1), 1, atol=1e-7)
    assert np.min(WEIGHTS) > 0.05 and np.min(SCALES) > 0.5
    assert not np.any(CENTRES[0]) and not np.any(CENTRES[1])


def test_float32_agrees_with_float64():
    mean, var = belief_grid(29, 11)
    sizes = np.resize(np.arange(65), mean.shape).astype(np.int32)
    single = informative_logit(f32(mean), f32(var), jnp.asarray(sizes))
    quadrature = informative_quadrature(f32(mean), f32(var), 8)
    advantage = expected_absolute_advantage(f32(mean), f32(var), 8)
    assert single.dtype == quadrature.dtype == advantage.dtype == jnp.float32
    with jax.enable_x64(True):
        mean, var = (jnp.asarray(np.float32(x), jnp.float64) for x in (mean, var))
        double = informative_logit(mean, var, jnp.asarray(sizes))
        assert double.dtype == jnp.float64
        np.testing.assert_allclose(single, double, atol=1e-6)
        np.testing.assert_allclose(quadrature, informative_quadrature(mean, var, 8), atol=2e-6)
        np.testing.assert_allclose(advantage, expected_absolute_advantage(mean, var, 8), atol=2e-6)


def test_float32_stays_float32_where_float64_is_enabled(x64):
    mean, var = f32([0.3, -1.0]), f32([0.5, 2.0])
    for size in (8, jnp.asarray([8, 3], jnp.int32)):
        assert informative_rate(var / 4, size).dtype == jnp.float32
        assert informative_beta(var, var, size).dtype == jnp.float32
        assert informative_logit(mean, var, size).dtype == jnp.float32
        assert informative_quadrature(mean, var, size).dtype == jnp.float32
        assert expected_absolute_advantage(mean, var, size).dtype == jnp.float32
        assert information_gain(mean, var, var / 2, size).dtype == jnp.float32
    assert pass_rate_variance(mean, var).dtype == jnp.float32


def test_static_and_traced_group_sizes_agree():
    mean, var = (f32(x) for x in belief_grid(9, 4))
    rate, beta = jax.nn.sigmoid(mean), var + 0.1
    cases: list[tuple[Callable[..., jax.Array], tuple[jax.Array, ...]]] = [
        (informative_rate, (rate,)),
        (informative_beta, (rate + 0.1, beta)),
        (informative_logit, (mean, var)),
        (informative_quadrature, (mean, var)),
        (expected_absolute_advantage, (mean, var)),
    ]
    for function, arguments in cases:
        traced = jax.jit(function)
        for size in (0, 1, 5, 64):
            static = function(*arguments, size)
            assert static.shape == mean.shape
            for shape in (mean.shape, ()) if size == 5 else (mean.shape,):
                sizes = jnp.full(shape, size, jnp.int32)
                np.testing.assert_allclose(
                    traced(*arguments, sizes), static, rtol=5e-6, atol=2e-6, err_msg=str(function)
                )
            if size < 2:
                assert not static.any()
            else:
                assert static.min() >= 0 and static.max() <= 1 - 2.0 ** (1 - size) + 1e-6
        unknown = traced(*arguments, jnp.resize(jnp.asarray([-1, 65], jnp.int32), mean.shape))
        assert np.isnan(unknown).all(), function
        for size in (-1, 65):
            with pytest.raises(ValueError, match=f"group_size.*{size}"):
                function(*arguments, size)


def primitives(jaxpr):
    for equation in jaxpr.eqns:
        inner = [value for value in equation.params.values() if hasattr(value, "jaxpr")]
        if inner:
            for closed in inner:
                yield from primitives(closed.jaxpr)
        else:
            yield equation.primitive.name


def test_static_closed_form_is_elementwise_only():
    tile = jnp.ones((3, 512))
    names = set(
        primitives(jax.make_jaxpr(lambda m, v: informative_logit(m, v, 8))(tile, tile).jaxpr)
    )
    elementwise = {"add", "sub", "mul", "max", "min", "rsqrt", "erf", "convert_element_type"}
    assert names <= elementwise | {"broadcast_in_dim"}, names
    assert "erf" in names


def test_even_in_mean_largest_at_0_and_falling_away_from_it():
    means = f32(np.linspace(0, 12, 241))
    for function in (jax.jit(informative_logit), jax.jit(informative_quadrature)):
        for size, var in itertools.product((2, 3, 8, 64), (0.0, 0.3, 4.0, 16.0)):
            belief_var, sizes = jnp.full(means.shape, var), jnp.asarray(size, jnp.int32)
            value = np.asarray(function(means, belief_var, sizes))
            np.testing.assert_allclose(function(-means, belief_var, sizes), value, atol=5e-7)
            assert np.diff(value).max() <= 1e-6
            assert value.max() <= 1 - 2.0 ** (1 - size) + 1e-6


def test_limit_of_certainty_is_the_plug_in(x64):
    mean = jnp.linspace(-30, 30, 121)
    for size in (2, 8, 64):
        plug_in = informative_rate(jax.nn.sigmoid(mean), size)
        exact = informative_quadrature(mean, jnp.zeros_like(mean), size)
        np.testing.assert_allclose(exact, plug_in, rtol=1e-9, atol=1e-14)
        np.testing.assert_allclose(
            informative_quadrature(mean, jnp.full(mean.shape, 1e-12), size), plug_in, atol=1e-10
        )


def test_limit_of_ignorance_is_the_area_over_the_width():
    # int U_G(psi) dpsi = int (1 - p^G - (1-p)^G) / (p (1-p)) dp = 2 (1 + 1/2 + ... + 1/(G-1)).
    for size in SIZES:
        area = 2 * sum(1 / n for n in range(1, size))
        value = informative_logit(f32(0.0), f32(1e6), size)
        np.testing.assert_allclose(value, area / np.sqrt(2 * np.pi * 1e6), rtol=2e-3)


def test_one_more_rollout_helps_and_helps_less_and_less(x64):
    rate = jnp.asarray([0.0, 1e-3, 0.2, 0.5, 0.93])
    mean, var = (jnp.asarray(x) for x in belief_grid(15, 6))
    for function, arguments, slack in (
        (informative_rate, (rate,), 1e-15),
        (informative_beta, (10 * rate + 0.1, rate + 0.2), 1e-15),
        (informative_quadrature, (mean, var), 1e-14),
        # The fits of neighbouring sizes have errors of their own: greedy allocation sees 2e-4.
        (informative_logit, (mean, var), 2e-4),
    ):
        compiled = jax.jit(function)
        values = [compiled(*arguments, jnp.asarray(size, jnp.int32)) for size in range(65)]
        increments = np.diff(np.stack(values)[1:], axis=0)
        assert increments.min() >= -min(slack, 1e-5)
        assert np.diff(increments, axis=0).max() <= slack
    # U_{n+1} - U_n = E[p^n (1-p) + (1-p)^n p].
    increment = informative_quadrature(mean, var, 6) - informative_quadrature(mean, var, 5)
    expected = gaussian_expectation(lambda p: p**5 * (1 - p) + (1 - p) ** 5 * p, mean, var)
    np.testing.assert_allclose(increment, expected, atol=1e-10)


def test_two_rollouts_disagree_with_twice_the_spread(x64):
    mean, var = belief_grid(15, 6)
    first, second = (
        gaussian_expectation(lambda p, power=power: p**power, mean, var) for power in (1, 2)
    )
    value = informative_quadrature(jnp.asarray(mean), jnp.asarray(var), 2)
    np.testing.assert_allclose(value, 2 * (first - second), atol=1e-10)


def test_uncertainty_lowers_the_utility_for_a_given_mean_pass_rate(x64):
    mean, var = (jnp.asarray(x) for x in belief_grid(15, 6))
    rate = gaussian_expectation(lambda p: p, mean, var)
    plug_in = informative_rate(jnp.asarray(rate), 8)
    assert (informative_quadrature(mean, var, 8) <= plug_in + 1e-12).all()
    # Unseen prompts, wide belief about an even chance: plug-in .992, truth .62.
    wide = informative_logit(jnp.asarray(0.0), jnp.asarray(16.0), 8)
    assert wide < 0.6 and informative_rate(jnp.asarray(0.5), 8) > 0.99


def test_closed_form_obeys_the_heat_equation(x64):
    # d/dvar E[f] = 1/2 d^2/dmean^2 E[f] for any f; at var = 0 too.
    def value(mean, var):
        return informative_logit(mean, var, 8)

    slope, gradient = (jax.jit(jax.grad(value, argnums=argument)) for argument in (1, 0))
    curvature = jax.jit(jax.grad(jax.grad(value)))
    for mean, var in itertools.product((0.4, 1.0, -3.0), (0.0, 0.5, 9.0)):
        mean, var = jnp.asarray(mean), jnp.asarray(var)
        np.testing.assert_allclose(slope(mean, var), curvature(mean, var) / 2, rtol=1e-9)
        difference = (value(mean + 1e-5, var) - value(mean - 1e-5, var)) / 2e-5
        np.testing.assert_allclose(gradient(mean, var), difference, rtol=1e-6, atol=1e-9)


# --- doors -------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 0, -4, 65, 2.5, 8.0, "8", None, True])
def test_group_sizes_that_cannot_be_are_refused_by_name(size):
    with pytest.raises(ValueError, match="group_size"):
        check_group_size(size)


def test_group_sizes_that_can_be_come_back_as_ints():
    assert [check_group_size(size) for size in (2, np.int32(8), 64)] == [2, 8, 64]


def test_the_fitting_script_writes_a_module_of_constants(tmp_path):
    config = fit_utility_constants.Config(
        out=tmp_path / "constants.py", max_group_size=8, num_means=37, num_sds=9, iterations=40
    )
    errors = fit_utility_constants.main(config)
    assert list(errors) == list(range(1, 9))
    assert errors[1] < 5e-5 and errors[2] < 1.4e-4 and errors[8] < 1.45e-3
    written: dict = {}
    exec(config.out.read_text(), written)
    for name, committed in (("WEIGHTS", WEIGHTS), ("CENTRES", CENTRES), ("SCALES", SCALES)):
        np.testing.assert_allclose(written[name][8], committed[8], atol=0.05)
    with pytest.raises(ValueError, match="max_group_size"):
        fit_utility_constants.Config(max_group_size=4)


@pytest.mark.parametrize("size", [2, 8, 24, 64])
def test_the_fitting_script_cannot_improve_the_committed_constants(size):
    mean, var = belief_grid(145, 33, max_mean=12.0, max_sd=4.0)
    exact = fit_utility_constants.gaussian_expectation(
        lambda psi: fit_utility_constants.informative(psi, size), mean, np.sqrt(var)
    )
    weights = np.array(WEIGHTS[size])
    start = np.concatenate([np.log(weights[:2] / weights[2]), CENTRES[size], np.log(SCALES[size])])

    def evaluate(x):
        return fit_utility_constants.mixture(x, mean, var)

    before = np.abs(evaluate(start)[0] - exact).max()
    _, after = fit_utility_constants.minimax(evaluate, exact, start, 30, 1e-8)
    assert before - 1e-6 < after <= before


def test_docstring_examples():
    assert doctest.testmod(utility).failed == 0
