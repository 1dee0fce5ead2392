"""The trainer's pieces for the driver: sample, verify, learn; and the constants they read.

Shapes: `N` prompts of `P` slots in the pool, `T` response slots, `E` features of an embedding,
`K` skills of a loading, `M` chosen prompts, `R` rollouts of an iteration.
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float, Int, Key

from fade_jax.driver import Pieces, Rows
from fade_jax.run_state import keep_tracker
from fade_jax.types import Scheduler
from paced_jax import paced_tracker
from paced_jax.learning import Learner, LearnOptions, learn
from paced_jax.policy.decoder import GraphDef, Params
from paced_jax.policy.sampling import sample
from paced_jax.tasks import skills
from paced_jax.types import Admit, Parameters, Rollouts


class Setup(NamedTuple):
    """Constants of a run, passed beside its state.

    Attributes:
        prompt_tokens: [N, P] int32.
        prompt_mask: [N, P], real tokens.
        answer_tokens: [N, T] int32, end of sequence included.
        answer_lengths: [N] int32.
        embeddings: [N, E], frozen, standardised: what V reads.
        loadings: [N, K] or a layout of them, what FADE reads; any pytree, () without FADE.
        reference: parameters of a fixed reference policy; () where the objective needs none.
    """

    prompt_tokens: Int[Array, "N P"]
    prompt_mask: Bool[Array, "N P"]
    answer_tokens: Int[Array, "N T"]
    answer_lengths: Int[Array, " N"]
    embeddings: Float[Array, "N E"]
    loadings: Any
    reference: Params


class SampleMetrics(NamedTuple):
    """What one iteration's sampling cost.

    Attributes:
        tokens: int32, sampled tokens, end of sequence included.
        cut_off: share of the responses that reached the limit without ending.
    """

    tokens: Int[Array, ""]
    cut_off: Float[Array, ""]


def sample_rows(
    setup: Setup,
    learner: Learner,
    rows: Rows,
    key: Key[Array, ""],
    *,
    graphdef: GraphDef,
    max_tokens: int,
    eos_id: int,
) -> tuple[Rollouts, SampleMetrics]:
    """Samples one response a row with the current policy, each prompt run once.

    Args:
        setup: prompts.
        learner: whose policy samples.
        rows: what to generate.
        key: consumed.
        graphdef: static half of the policy.
        max_tokens: T, longest response.
        eos_id: the token that ends a response.
    """
    ids = jnp.maximum(rows.selection.prompt_ids, 0)
    samples = sample(
        graphdef,
        learner.params.policy,
        setup.prompt_tokens[ids],
        setup.prompt_mask[ids],
        rows.group,
        key,
        max_tokens=max_tokens,
        eos_id=eos_id,
    )
    tokens, log_probs, action_mask = samples
    rollouts = Rollouts(
        prompt_ids=rows.prompt_ids,
        group=rows.group,
        tokens=tokens,
        action_mask=action_mask,
        log_probs=log_probs,
        policy_version=jnp.full_like(rows.prompt_ids, learner.version),
        predicted=rows.predicted,
    )
    cut_off = action_mask[:, -1] & (tokens[:, -1] != eos_id)
    return rollouts, SampleMetrics(action_mask.sum(dtype=jnp.int32), cut_off.mean())


def verify_skills(setup: Setup, rollouts: Rollouts) -> Int[Array, " R"]:
    """Verdicts of the skill tasks: exact match with the pool's answers, int8."""
    return skills.verify(
        setup.answer_tokens,
        setup.answer_lengths,
        rollouts.prompt_ids,
        rollouts.tokens,
        rollouts.action_mask,
    )


def refresh_value(setup: Setup, state: paced_tracker.State, learner: Learner):
    """Copies V into the `paced` tracker, after `learn`."""
    return paced_tracker.refresh(state, learner.params.partition, setup.embeddings)


def build(
    scheduler: Scheduler,
    admit: Admit,
    *,
    graphdef: GraphDef,
    options: LearnOptions,
    optimizer: optax.GradientTransformation,
    max_tokens: int,
    eos_id: int,
    verify: Any = verify_skills,
    reads_learner: bool = False,
) -> Pieces:
    """Builds the pieces of a training run.

    Args:
        scheduler: tracker and selector.
        admit: which groups reach the gradient; its rows are made for the selector's budget.
        graphdef: static half of the policy.
        options: objective and corrections.
        optimizer: from `optimizers.make_optimizer`.
        max_tokens: T.
        eos_id: the token that ends a response.
        verify: `(setup, rollouts) -> verdicts [R]`; None where the host does it.
        reads_learner: True for the `paced` tracker, whose state is a copy of the learner's V.

    Returns:
        Pieces for `fade_jax.driver`.
    """
    return Pieces(
        scheduler=scheduler,
        sample=partial(sample_rows, graphdef=graphdef, max_tokens=max_tokens, eos_id=eos_id),
        verify=verify,
        init_admit=admit.init,
        admit=admit.admit,
        learn=partial(
            learn,
            graphdef=graphdef,
            options=options,
            optimizer=optimizer,
            num_groups=admit.num_groups,
            num_replayed=admit.num_replayed,
            group_size=scheduler.selector.group_size,
        ),
        refresh=refresh_value if reads_learner else keep_tracker,
    )


def init_learner(
    policy: Params, partition: Any, optimizer: optax.GradientTransformation
) -> Learner:
    """The learner before its first step, copied so that a step may donate it."""
    params = jax.tree.map(jnp.array, Parameters(policy, partition))
    return Learner(params, optimizer.init(params), jnp.int32(0))
