import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fade_jax import linear_gaussian as lg

FORMS = ("cholesky", "woodbury", "qr")


def textbook(mean, cov, design, precision, shift):
    """Information-form conditioning in numpy, inverses written out."""
    information = np.linalg.inv(cov) + design.T @ np.diag(precision) @ design
    new_cov = np.linalg.inv(information)
    return new_cov @ (np.linalg.inv(cov) @ mean + design.T @ shift), new_cov


def problem(seed, dim, batch):
    rng = np.random.default_rng(seed)
    half = rng.normal(size=(dim, dim))
    precision = rng.gamma(1.0, 2.0, batch)
    return (
        rng.normal(size=dim),
        half @ half.T / dim + 0.1 * np.eye(dim),
        rng.normal(size=(batch, dim)),
        precision,
        precision * rng.normal(size=batch),
    )


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("dim", "batch"), [(1, 1), (3, 2), (5, 40), (17, 8), (17, 64)])
def test_every_form_equals_the_textbook(x64, form, dim, batch):
    mean, cov, design, precision, shift = problem(dim + batch, dim, batch)
    precision[0], shift[0] = 0.0, 0.0  # a silent site
    want = textbook(mean, cov, design, precision, shift)
    arrays = map(jnp.asarray, (mean, cov, design, precision, shift))
    mean, cov, *sites = arrays
    rows, w, r = sites
    got = lg.condition(lg.Gaussian(mean, cov), rows, w, r, form)
    np.testing.assert_allclose(got.mean, want[0], rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(got.cov, want[1], rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("form", FORMS)
def test_every_form_in_float32(form):
    mean, cov, design, precision, shift = problem(0, 17, 40)
    design = design / np.linalg.norm(design, axis=1, keepdims=True)
    want = textbook(mean, cov, design, precision, shift)
    arrays = [jnp.asarray(x, jnp.float32) for x in (mean, cov, design, precision, shift)]
    rows, w, r = arrays[2:]
    got = lg.condition(lg.Gaussian(*arrays[:2]), rows, w, r, form)
    scale = np.sqrt(np.diag(want[1]))
    assert np.abs((got.mean - want[0]) / scale).max() < 2e-4
    assert np.abs(got.cov - want[1]).max() < 2e-4 * np.abs(want[1]).max()


@pytest.mark.parametrize("form", FORMS)
def test_iterating_keeps_the_predicted_prior(x64, form):
    # Prior N(0, 1), one observation 1 with noise 1: exact posterior 0.5, 0.5. Feeding the posterior
    # back as prior would give 0.667 and 0.333, the datum counted twice.
    prior = lg.Gaussian(jnp.zeros(1), jnp.ones((1, 1)))
    for _ in range(2):
        got = lg.condition(prior, jnp.ones((1, 1)), jnp.ones(1), jnp.ones(1), form)
    np.testing.assert_allclose([got.mean[0], got.cov[0, 0]], [0.5, 0.5], rtol=1e-12)


def test_scalar_steady_state(x64):
    # Random walk of variance .01 observed with noise 1: predicted variance .10512492, posterior
    # .09512492 (root of p^2 - .01 p - .01 = 0 for the predicted one).
    belief = lg.Gaussian(jnp.zeros(1), jnp.ones((1, 1)))
    for _ in range(200):
        predicted = lg.Gaussian(belief.mean, belief.cov + 0.01)
        belief = lg.condition(predicted, jnp.ones((1, 1)), jnp.ones(1), jnp.zeros(1))
    np.testing.assert_allclose(predicted.cov[0, 0], 0.10512492, atol=1e-8)
    np.testing.assert_allclose(belief.cov[0, 0], 0.09512492, atol=1e-8)


def stream(prior_var, noise, steps, batch, dtype, form, dim=17):
    """Static ability observed `steps` times; returns all means and covariances in float64."""
    rng = np.random.default_rng(0)
    truth = rng.normal(size=dim)
    design = rng.normal(size=(steps, batch, dim))
    design = (design / np.linalg.norm(design, axis=-1, keepdims=True)).astype(np.float32)
    target = design @ truth + np.sqrt(noise) * rng.normal(size=(steps, batch))
    target = target.astype(np.float32)
    precision = jnp.full((batch,), 1 / noise, dtype)

    def step(belief, data):
        rows, seen = data
        if form == "qr":
            belief = lg.condition_root(belief, rows, precision, precision * seen)
            return belief, (belief.mean, lg.from_root(belief).cov)
        belief = lg.condition(belief, rows, precision, precision * seen, form)
        return belief, (belief.mean, belief.cov)

    mean = jnp.zeros((dim,), dtype)
    if form == "qr":
        belief = lg.RootGaussian(mean, jnp.sqrt(prior_var) * jnp.eye(dim, dtype=dtype))
    else:
        belief = lg.Gaussian(mean, prior_var * jnp.eye(dim, dtype=dtype))
    data = (jnp.asarray(design, dtype), jnp.asarray(target, dtype))
    _, (means, covs) = jax.jit(lambda b, d: jax.lax.scan(step, b, d))(belief, data)
    return np.asarray(means, np.float64), np.asarray(covs, np.float64)


@pytest.mark.parametrize(
    ("form", "prior_var", "noise", "batch"),
    [
        ("cholesky", 1e4, 1 / 64, 8),
        ("cholesky", 1e4, 1 / 64, 128),
        ("woodbury", 1e2, 1 / 64, 8),
        ("woodbury", 1e2, 1 / 64, 16),
        ("qr", 1e6, 1e-6, 8),
        ("qr", 1e6, 1e-6, 128),
    ],
)
def test_float32_survives_ten_thousand_updates_in_its_domain(form, prior_var, noise, batch):
    means, covs = stream(prior_var, noise, 10_000, batch, jnp.float32, form)
    assert np.isfinite(means).all()
    np.testing.assert_allclose(covs, np.swapaxes(covs, 1, 2), rtol=1e-6, atol=0)
    eigenvalues = np.linalg.eigvalsh(covs[::50])
    # The eigenvalues of a matrix rounded to float32 are known to 1e-6 of the largest.
    assert (eigenvalues[:, 0] >= -1e-6 * eigenvalues[:, -1]).all()
    assert eigenvalues[-1, 0] > 0


def test_qr_in_float32_follows_float64_from_a_vague_prior(x64):
    # P0 = 1e6 I, R = 1e-6, true ability N(0, I), D = 17, fewer rows than dimensions.
    means64, covs64 = stream(1e6, 1e-6, 40, 8, jnp.float64, "qr")
    means32, covs32 = stream(1e6, 1e-6, 40, 8, jnp.float32, "qr")
    assert np.abs(means32[20:] - means64[20:]).max() < 1e-5
    np.testing.assert_allclose(covs32[20:], covs64[20:], rtol=0, atol=1e-4 * covs64[20].max())


def test_predict_root_equals_the_covariance_form(x64):
    rng = np.random.default_rng(1)
    mean, root, transition, noise_root = (
        jnp.asarray(rng.normal(size=s)) for s in [(4,), (4, 4), (4, 4), (4, 4)]
    )
    moved = lg.from_root(lg.predict_root(lg.RootGaussian(mean, root), transition, noise_root))
    want = transition @ root @ root.T @ transition.T + noise_root @ noise_root.T
    np.testing.assert_allclose(moved.mean, transition @ mean, rtol=1e-12)
    np.testing.assert_allclose(moved.cov, want, rtol=1e-10, atol=1e-10)


def test_log_normaliser_by_quadrature(x64):
    prior = lg.Gaussian(jnp.asarray([0.3, -0.2]), jnp.asarray([[1.0, 0.4], [0.4, 0.5]]))
    design = jnp.asarray([[1.0, 0.5], [0.2, -1.0], [1.0, 1.0]])
    precision, shift = jnp.asarray([0.7, 1.3, 0.0]), jnp.asarray([0.4, -1.0, 0.0])
    posterior = lg.condition(prior, design, precision, shift)
    got = lg.log_normaliser(prior, posterior, design, precision, shift)
    axis = np.linspace(-9, 9, 1201)
    a = np.stack(np.meshgrid(axis, axis, indexing="ij"), -1)
    inverse = np.linalg.inv(prior.cov)
    off = a - np.asarray(prior.mean)
    log_density = -np.einsum("...i,ij,...j", off, inverse, off) / 2
    log_density -= np.log(2 * np.pi) + np.linalg.slogdet(prior.cov)[1] / 2
    x = a @ np.asarray(design).T
    log_site = (x * np.asarray(shift) - x**2 * np.asarray(precision) / 2).sum(-1)
    want = np.log(np.exp(log_density + log_site).sum() * (axis[1] - axis[0]) ** 2)
    np.testing.assert_allclose(got, want, atol=1e-9)


def test_permuted_and_padded_rows_change_nothing(x64):
    mean, cov, design, precision, shift = map(jnp.asarray, problem(3, 5, 9))
    prior = lg.Gaussian(mean, cov)
    want = lg.condition(prior, design, precision, shift)
    order = jnp.asarray(np.random.default_rng(0).permutation(9))
    got = lg.condition(prior, design[order], precision[order], shift[order])
    np.testing.assert_allclose(got.mean, want.mean, rtol=1e-12)
    pad = lambda x: jnp.concatenate([x, jnp.zeros((4, *x.shape[1:]), x.dtype)])  # noqa: E731
    got = lg.condition(prior, pad(design), pad(precision), pad(shift))
    np.testing.assert_allclose(got.cov, want.cov, rtol=1e-12)


def test_unknown_form_is_named():
    prior = lg.Gaussian(jnp.zeros(1), jnp.ones((1, 1)))
    with pytest.raises(ValueError, match=r"form must be .* got 'sherman'"):
        condition = getattr(lg.condition, "__wrapped__", lg.condition)  # past the type checker
        condition(prior, jnp.ones((1, 1)), jnp.ones(1), jnp.ones(1), "sherman")  # pyright: ignore
