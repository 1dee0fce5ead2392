"""A learner, rollouts of its policy and training batches of them: for tests of learning."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
from live_world import GROUP_SIZE, NUM_PROMPTS, ground

from fade_jax.driver import Rows
from fade_jax.types import Selection
from paced_jax import admit, partition, pieces
from paced_jax.objectives import dapo, dr_grpo, flowrl, gflowrl, grpo, paced, rloo, vargrad
from paced_jax.optimizers import make_optimizer
from paced_jax.pieces import Setup
from paced_jax.policy.forward import sequence_log_probs
from paced_jax.tasks.tokens import EOS
from paced_jax.types import TrainBatch, empty_batch

POLICY_RATE, PARTITION_RATE = 1e-3, 1e-2
VERSION, TOKENS, FRESH, REPLAYED = 7, 4, NUM_PROMPTS * GROUP_SIZE, 2
PROMPTS = np.array([3, 17, 8, 29], np.int32)
OBJECTIVES = {
    "paced": paced(0.1),
    "flowrl": flowrl(),
    "vargrad": vargrad(0.1),
    "gflowrl": gflowrl(),
    "grpo": grpo(),
    "dapo": dapo(),
    "dr_grpo": dr_grpo(float(TOKENS)),
    "rloo": rloo(),
}
BALANCE, GRADIENTS = list(OBJECTIVES)[:4], list(OBJECTIVES)[4:]


def recording(inner: optax.GradientTransformation) -> optax.GradientTransformation:
    """The same optimiser, which also keeps the gradients it was given."""

    def init(params):
        return inner.init(params), jax.tree.map(jnp.zeros_like, params)

    def update(updates, state, params=None):
        changes, inner_state = inner.update(updates, state[0], params)
        return changes, (inner_state, updates)

    return optax.GradientTransformation(init, update)


OPTIMIZER = recording(make_optimizer(POLICY_RATE, PARTITION_RATE, policy_weight_decay=0.1))


def setup_of(name: str) -> Setup:
    """Constants; a reference policy only where the loss has one."""
    world = ground()
    return Setup(
        *(jnp.asarray(x) for x in world.pools.train[:4]),
        embeddings=world.embeddings,
        loadings=(),
        reference=world.base.params if name in BALANCE[1:] else (),
    )


@functools.cache
def before():
    """The learner: the random policy, a V that differs from prompt to prompt."""
    world = ground()
    head = partition.init(jax.random.key(1), world.embeddings.shape[1])
    rng = np.random.default_rng(0)
    head = head._replace(kernel=jnp.asarray(0.03 * rng.normal(size=head.kernel.shape), jnp.float32))
    learner = pieces.init_learner(world.base.params, head, OPTIMIZER)
    return learner._replace(version=jnp.int32(VERSION))


@functools.cache
def sampled():
    """Four rollouts of four prompts."""
    group = np.repeat(np.arange(NUM_PROMPTS, dtype=np.int32), GROUP_SIZE)
    rows = Rows(
        Selection(jnp.asarray(PROMPTS), jnp.full(NUM_PROMPTS, GROUP_SIZE, jnp.int32)),
        jnp.asarray(PROMPTS[group]),
        jnp.asarray(group),
        jnp.full(FRESH, 0.5),
    )
    sample = functools.partial(
        pieces.sample_rows, graphdef=ground().base.graphdef, max_tokens=TOKENS, eos_id=EOS
    )
    return jax.jit(sample)(setup_of("paced"), before(), rows, jax.random.key(5))


@jax.jit
def batch_from(rollouts, verdicts) -> TrainBatch:
    """Those rows and padding where replayed rows would be, each of a group of its own."""
    fresh, _ = admit.fresh_batch(rollouts, verdicts, NUM_PROMPTS)
    padding = empty_batch(REPLAYED, TOKENS)
    padding = padding._replace(group=NUM_PROMPTS + jnp.arange(REPLAYED, dtype=jnp.int32))
    return jax.tree.map(lambda a, b: jnp.concatenate([a, b]), fresh, padding)


def batch_of(verdicts) -> TrainBatch:
    return batch_from(sampled()[0], jnp.asarray(verdicts, jnp.int8))


ONE_EACH = np.array([[1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]]).reshape(-1)


@functools.cache
def one_success_each() -> TrainBatch:
    return batch_of(ONE_EACH)


@jax.jit
def forced(policy, batch):
    """Teacher-forced log-probs and entropies of a batch without replayed rows."""
    setup = setup_of("paced")
    return sequence_log_probs(
        ground().base.graphdef,
        policy,
        setup.prompt_tokens[PROMPTS],
        setup.prompt_mask[PROMPTS],
        batch.group[:FRESH],
        batch.tokens[:FRESH],
        batch.action_mask[:FRESH],
    )


def fill(batch: TrainBatch, rows, **columns) -> TrainBatch:
    """Copies fresh rows to where replayed rows are, with some columns otherwise."""
    groups = batch.group
    batch = jax.tree.map(lambda x: x.at[FRESH:].set(x[jnp.asarray(rows)]), batch)
    changes = {k: getattr(batch, k).at[FRESH:].set(jnp.asarray(v)) for k, v in columns.items()}
    return batch._replace(group=groups, **changes)


def assert_unchanged(after, learner) -> None:
    for a, b in zip(jax.tree.leaves(after), jax.tree.leaves(learner), strict=True):
        np.testing.assert_array_equal(a, b)


def norm(tree) -> float:
    return float(np.sqrt(sum(np.sum(np.square(x, dtype=float)) for x in jax.tree.leaves(tree))))


def change(after, other):
    return jax.tree.map(lambda a, b: np.asarray(a, float) - np.asarray(b, float), after, other)
