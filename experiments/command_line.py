"""What every experiment does as a command: a refusal is one sentence, Ctrl-C says how to go on.

Python callers of an experiment's `main` get the exceptions themselves.
"""

import contextlib
import dis
import os
import shlex
import sys
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, TypeVar

import tyro

OURS = ("__main__", "experiments", "fade_jax", "paced_jax")
TRACEBACK = "FADE_JAX_TRACEBACK"
"""Environment variable; where it is set, refusals show their traceback too."""
HINT = f"({TRACEBACK}=1 shows where)"
"""Follows a refusal."""

T = TypeVar("T")
R = TypeVar("R")


def one_of(names: Collection[str], *more: str) -> Any:
    """A command-line option whose choices are those of a table when the line is read.

    So a script that adds a line to the table before it reads its command line offers it as well.

    Args:
        names: the table; goes into `Annotated[str, one_of(names)]`.
        *more: choices beside it.
    """
    choices: Any = lambda: Literal[(*more, *names)]  # noqa: E731
    return tyro.conf.arg(constructor_factory=choices)


def run(main: Callable[[T], R], parse: Callable[[], T]) -> R:
    """Runs an experiment as a command.

    Args:
        main: of the experiment.
        parse: reads the command line.

    Returns:
        What `main` returns. Exits with 130 after Ctrl-C and with 2 after a refusal, both with a
        line on stderr; anything else that goes wrong keeps its traceback.
    """
    try:
        return main(parse())
    except KeyboardInterrupt as error:
        print("; ".join(["ended", *getattr(error, "__notes__", [])]), file=sys.stderr)
        # All files are closed by now. What XLA was amid may not survive Python's own way out.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(130)
    except (ValueError, ImportError, RuntimeError) as error:
        if os.environ.get(TRACEBACK) or not is_refusal(error):
            raise
        print(f"{error}\n{HINT}", file=sys.stderr)
        sys.exit(2)


@contextlib.contextmanager
def goes_on(how: Callable[[], str]) -> Iterator[None]:
    """Notes on a Ctrl-C within how the work goes on; `run` prints it.

    Args:
        how: a sentence, as it is true at that moment.
    """
    try:
        yield
    except KeyboardInterrupt as error:
        error.add_note(how())
        raise


def same_command(folder: Path) -> contextlib.AbstractContextManager[None]:
    """`goes_on`, where the same command does when it is given the folder."""
    return goes_on(lambda: f"the same command with --out {shlex.quote(str(folder))} goes on")


def is_refusal(error: BaseException) -> bool:
    """Whether a `raise` statement of this project's own gave an exception.

    A mistake in the code surfaces elsewhere: in jax or numpy, or in an expression of ours.
    """
    last = error.__traceback__
    while last is not None and last.tb_next is not None:
        last = last.tb_next
    return last is not None and _is_ours(last) and _is_raise(last)


def _is_ours(place: TracebackType) -> bool:
    return place.tb_frame.f_globals.get("__name__", "").partition(".")[0] in OURS


def _is_raise(place: TracebackType) -> bool:
    return dis.opname[place.tb_frame.f_code.co_code[place.tb_lasti]] == "RAISE_VARARGS"
