"""Makes the virtual environments of the trainer's peers: google-tunix, and transformers on torch.

Their needs conflict with ours and with each other's, so each gets an environment of its own. Where
pip finds a CPU build of torch it takes about 3 GB of disk in all.

    python -m experiments.benchmarks.make_peer_venvs --help
"""

import subprocess
import sys
import venv
from dataclasses import dataclass
from pathlib import Path

import tyro

from experiments import command_line
from experiments.run_folder import console

PINS: dict[str, tuple[str, ...]] = {
    "tunix": ("google-tunix==0.1.7", "jax==0.10.2", "jaxlib==0.10.2", "flax==0.12.8"),
    "transformers": ("torch==2.13.0", "transformers==5.24.0", "numpy==2.4.6"),
}
"""What each environment holds; the rest follows from it."""


@dataclass(frozen=True, kw_only=True)
class Config:
    """Where to.

    Attributes:
        venvs: folder of the environments.
        names: which of them.
    """

    venvs: Path = Path("runs/peer_venvs")
    names: tuple[str, ...] = tuple(PINS)

    def __post_init__(self) -> None:
        for name in self.names:
            if name not in PINS:
                raise ValueError(f"names must be of {tuple(PINS)}, got {name!r}")


def python_of(venvs: Path, name: str) -> Path:
    """The interpreter of an environment, whether it exists or not."""
    return venvs / name / "bin" / "python"


def main(config: Config) -> dict[str, str]:
    """Makes them, and returns their interpreters.

    Args:
        config: where to.
    """
    made = {}
    for name in config.names:
        console.print(f"{name}: {', '.join(PINS[name])} (minutes)")
        python = python_of(config.venvs, name)
        if not python.exists():
            # Not of the environment that runs this: a copy of its links would follow it.
            venv.create(python.parents[1], with_pip=True, symlinks=True)
        install = [str(python), "-m", "pip", "install", "--quiet", *PINS[name]]
        if subprocess.run(install, check=False).returncode:
            sys.exit(f"{name}: pip could not install {' '.join(PINS[name])}, see above")
        made[name] = str(python)
    return made


if __name__ == "__main__":
    command_line.run(main, lambda: tyro.cli(Config, description=__doc__))
