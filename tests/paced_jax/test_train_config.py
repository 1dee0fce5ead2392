"""A configuration that can't be meant is refused, naming the field."""

import copy
from typing import Any

import pytest

from paced_jax.training import TrainConfig


@pytest.mark.parametrize(
    "change, message",
    [
        ({"iterations": 0}, "iterations must be positive, got 0"),
        ({"num_prompts": 0}, "num_prompts must be positive"),
        ({"chunk": 0}, "chunk must be positive"),
        ({"num_train": -1}, "num_train must be positive"),
        ({"num_skills": 0}, "num_skills must be positive"),
        ({"policy_learning_rate": 0.0}, "policy_learning_rate must be positive"),
        ({"partition_learning_rate": -1e-3}, "partition_learning_rate must be positive"),
        ({"policy_learning_rate": float("nan")}, "policy_learning_rate must be positive, got nan"),
        ({"clip_norm": -1.0}, "clip_norm must be positive"),
        ({"minibatches": 0}, "minibatches must be positive, got 0"),
        ({"accumulate": 0}, "accumulate must be positive, got 0"),
        ({"minibatches": 3, "accumulate": 11}, "at most num_prompts = 32, got 3 x 11"),
        ({"buckets": 0}, "buckets must be positive, got 0"),
        ({"buckets": 2}, "buckets: 2 need chunk 1, .* got 10"),
        ({"overlong_buffer": -1}, "overlong_buffer must be >= 0, got -1"),
        ({"overlong_buffer": 2}, "overlong_buffer: got 2, but the objective 'paced' teaches V"),
        ({"mask_overlong": True}, "mask_overlong: got True, but the objective 'paced' teaches V"),
        ({"weight_decay": -0.1}, "weight_decay must be >= 0"),
        ({"warmup": -1}, "warmup must be >= 0"),
        ({"group_size": 1}, r"group_size must be in 2\.\.64, got 1"),
        ({"group_size": 65}, r"group_size must be in 2\.\.64, got 65"),
        ({"seed": -1}, "seed must be in 0"),
        ({"pool_seed": 2**31}, "pool_seed must be in 0"),
        ({"policy": "huge"}, "policy: must be one of .*base.*tiny.*, got 'huge'"),
        ({"iterations": 15, "chunk": 10}, "iterations must be a multiple of chunk = 10, got 15"),
        ({"num_prompts": 20, "num_train": 16}, "num_prompts must be at most num_train = 16"),
        ({"beta": 0.0}, "beta must be positive"),
        ({"target": 1.5}, r"target must be in 0\.\.1"),
        ({"exploration": -0.5}, r"exploration must be in 0\.\.1"),
        ({"scheduler": "fade", "objective": "grpo", "replay": "on"}, "advantage: .*replay"),
        ({"scheduler": "fade", "objective": "vargrad", "replay": "on"}, "partition: .*replay"),
        ({"scheduler": "fade", "objective": "flowrl", "replay": "on"}, "reward: .*replay"),
        *(
            ({"objective": name}, "scheduler: 'paced' reads V as the pass rate")
            for name in ("grpo", "vargrad", "flowrl")
        ),
    ],
)
def test_impossible_configurations_are_refused_by_name(change: dict[str, Any], message):
    with pytest.raises(ValueError, match=message):
        TrainConfig(**change)


UNIFORM = {"scheduler": "uniform"}
IDLE = [
    ({}, {"loadings": "skill"}),
    ({}, {"num_skills": 4}),
    ({"scheduler": "fade", "loadings": "skill"}, {"num_skills": 4}),
    ({}, {"fade_selector": "thompson"}),
    ({"scheduler": "fade"}, {"target": 0.4}),
    (UNIFORM, {"exploration": 0.1}),
    ({}, {"epochs": True}),
    (UNIFORM | {"objective": "dapo"}, {"beta": 0.1}),
    (UNIFORM | {"objective": "grpo"}, {"partition_learning_rate": 1e-2}),
    (UNIFORM, {"replay_partition": "off"}),
    (UNIFORM, {"correction": "behaviour_anchor"}),
    ({}, {"prompt_column": "question"}),
    ({}, {"answer_column": "gold"}),
    ({}, {"source_column": "source"}),
    ({}, {"verifier": "code"}),
    ({}, {"chat": "off"}),
    ({}, {"instruction": "Be brief."}),
    ({}, {"max_prompt_tokens": 9}),
    ({}, {"max_tokens": 9}),
    ({}, {"num_held_out": 9}),
]


@pytest.mark.parametrize(("rest", "idle"), IDLE)
def test_an_option_without_effect_is_refused(rest: dict[str, Any], idle: dict[str, Any]):
    TrainConfig(**rest)
    with pytest.raises(ValueError, match=f"{next(iter(idle))}: .* has no effect"):
        TrainConfig(**rest, **idle)


def test_every_option_that_can_be_idle_is_tried():
    assert {name for _, idle in IDLE for name in idle} == set(TrainConfig()._effects())  # pyright: ignore[reportPrivateUsage]


@pytest.mark.parametrize(
    "switch",
    ["scheduler", "objective", "admit", "replay", "replay_partition", "correction", "loadings"],
)
def test_a_misspelt_switch_is_named(switch):
    typo = copy.copy(TrainConfig())
    object.__setattr__(typo, switch, "alll")  # past the type checker of the tests
    with pytest.raises(ValueError, match=f"{switch}: must be one of .*, got 'alll'"):
        typo.__post_init__()
