"""Writes the figures of torchgfn that tests/paced_jax compares our trajectory balance with.

torchgfn has no loss on arrays, so its own sampler makes eight trajectories of a 4 x 4 hypergrid and
its own two losses score them; the log-probabilities, log-rewards and both figures are stored. It
needs its own environment:

    pip install torchgfn==2.4.1 torch==2.13.0 numpy==1.26.4
    python experiments/data/make_torchgfn_reference.py
"""

import json
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

TESTS = Path(__file__).resolve().parents[2] / "tests" / "paced_jax"


@dataclass(frozen=True, kw_only=True)
class Config:
    """Settings of the reference run.

    Attributes:
        seed: of torch, for the networks and the trajectories.
        num_trajectories: rows.
        log_z: the partition parameter of trajectory balance, nats.
        output: the JSON file written.
    """

    seed: int = 0
    num_trajectories: int = 8
    log_z: float = 0.7
    output: Path = TESTS / "data" / "torchgfn.json"


def main(config: Config) -> dict[str, Any]:
    """Samples, scores, writes; returns what was written."""
    import torch  # pyright: ignore[reportMissingImports]
    from gfn.estimators import DiscretePolicyEstimator  # pyright: ignore[reportMissingImports]
    from gfn.gflownet import (  # pyright: ignore[reportMissingImports]
        LogPartitionVarianceGFlowNet,
        TBGFlowNet,
    )
    from gfn.gym import HyperGrid  # pyright: ignore[reportMissingImports]
    from gfn.preprocessors import KHotPreprocessor  # pyright: ignore[reportMissingImports]
    from gfn.samplers import Sampler  # pyright: ignore[reportMissingImports]
    from gfn.utils.modules import MLP  # pyright: ignore[reportMissingImports]

    torch.manual_seed(config.seed)
    env = HyperGrid(ndim=2, height=4, validate_modes=False)
    preprocessor = KHotPreprocessor(height=env.height, ndim=env.ndim)

    def policy(num_actions: int, is_backward: bool):
        network = MLP(input_dim=preprocessor.output_dim, output_dim=num_actions)
        return DiscretePolicyEstimator(
            network, env.n_actions, preprocessor=preprocessor, is_backward=is_backward
        )

    forward, backward = policy(env.n_actions, False), policy(env.n_actions - 1, True)
    balance = TBGFlowNet(pf=forward, pb=backward, init_logZ=config.log_z)
    variance = LogPartitionVarianceGFlowNet(pf=forward, pb=backward)
    trajectories = Sampler(estimator=forward).sample_trajectories(
        env, n=config.num_trajectories, save_logprobs=True
    )
    log_pf, log_pb = balance.get_pfs_and_pbs(trajectories, recalculate_all_logprobs=True)
    result = {
        "recipe": {
            "script": "experiments/data/make_torchgfn_reference.py",
            "torchgfn": version("torchgfn"),
            "torch": version("torch").split("+")[0],
            "seed": config.seed,
        },
        "log_z": config.log_z,
        # [T, n], 0 after a trajectory's end
        "log_pf": log_pf.tolist(),
        "log_pb": log_pb.tolist(),
        "log_rewards": trajectories.log_rewards.tolist(),
        "lengths": trajectories.terminating_idx.tolist(),
        "trajectory_balance": balance.loss(env, trajectories).item(),
        "log_partition_variance": variance.loss(env, trajectories).item(),
    }
    config.output.parent.mkdir(parents=True, exist_ok=True)
    config.output.write_text(json.dumps(result, indent=1) + "\n")
    return result


if __name__ == "__main__":
    result = main(Config())
    print({name: result[name] for name in ("trajectory_balance", "log_partition_variance")})
