"""The package as a whole: what importing does, that examples run, and that tests assert."""

import ast
import doctest
import importlib
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import pytest

import fade_jax
import paced_jax

ROOT = Path(__file__).resolve().parent.parent
CORE = ["fade_jax", *(m.name for m in pkgutil.walk_packages(fade_jax.__path__, "fade_jax."))]
TRAINER = [
    "paced_jax",
    *(m.name for m in pkgutil.walk_packages(paced_jax.__path__, "paced_jax.")),
]

IMPORT = """
import sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {blocked}:
            raise ImportError(name + " is blocked")

sys.meta_path.insert(0, Blocked())
import jax
before = dict(jax.config.values)
for module in {modules}:
    __import__(module)
assert not jax.live_arrays(), jax.live_arrays()
assert dict(jax.config.values) == before
"""


NOT_IN_THE_CORE = {"flax", "paced_jax", "optax", "numpyro", "sklearn", "pyarrow", "chex", "orbax"}
NOT_IN_THE_TRAINER = {"numpyro", "sklearn", "pyarrow", "math_verify", "sympy", "reasoning_gym"}


@pytest.mark.parametrize(
    ("modules", "blocked"),
    [(CORE, NOT_IN_THE_CORE), (TRAINER, NOT_IN_THE_TRAINER)],
    ids=["fade_jax", "paced_jax"],
)
def test_importing_needs_little_allocates_nothing_and_sets_nothing(modules, blocked):
    code = IMPORT.format(blocked=blocked, modules=modules)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr


@pytest.mark.standard_promotion
@pytest.mark.parametrize("name", [*CORE, *TRAINER])
def test_examples_in_docstrings_run(name):
    module = importlib.import_module(name)
    # Plain Python floats and lists belong in an example; the strictness is for our own code.
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    result = doctest.testmod(module, optionflags=flags)
    assert result.failed == 0


def readme_blocks():
    text = (ROOT / "README.md").read_text()
    return re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)


def slow_if_it_trains(index):
    trains = re.search("TrainConfig|train.main|set_mesh", readme_blocks()[index])
    return pytest.param(index, marks=pytest.mark.slow if trains else ())


@pytest.mark.parametrize("index", [slow_if_it_trains(i) for i in range(len(readme_blocks()))])
def test_examples_in_the_readme_run(index):
    code = readme_blocks()[index]
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    promised = re.findall(r"print\(.*\)\s+# (.*)", code)
    assert [line for line in promised if line not in done.stdout] == []


def test_the_first_example_is_short_and_early():
    lines = (ROOT / "README.md").read_text().splitlines()
    start = lines.index("```python")
    assert start < 40
    assert len(readme_blocks()[0].strip().splitlines()) <= 14


def functions_of(path):
    nodes = ast.walk(ast.parse(path.read_text()))
    return [n for n in nodes if isinstance(n, ast.FunctionDef)]


def bites(function, biting):
    """Whether a function holds a check that a wrong value could fail."""
    for node in ast.walk(function):
        if isinstance(node, ast.Assert) and not weak(node):
            return True
        if isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            if called in biting or re.search(r"assert_|pytest\.(raises|warns)", called):
                return True
    return False


def weak(statement):
    """`assert True`, and asserts that say no more than "finite"."""
    if not isinstance(statement, ast.Assert):
        return False
    if isinstance(statement.test, ast.Constant):
        return True
    words = {n.attr for n in ast.walk(statement.test) if isinstance(n, ast.Attribute)}
    return "isfinite" in words and words <= {"isfinite", "all", "numpy", "np", "jnp"}


@pytest.mark.parametrize("path", sorted(ROOT.glob("tests/**/test_*.py")), ids=lambda p: p.name)
def test_no_test_checks_only_that_numbers_are_finite(path):
    functions, biting = functions_of(path), set()
    for _ in range(3):  # a test may check through helpers of its file
        biting = {function.name for function in functions if bites(function, biting)}
    idle = [f.name for f in functions if f.name.startswith("test_") and f.name not in biting]
    assert not idle


def test_modules_stay_small():
    sizes = {
        path: len(path.read_text().splitlines())
        for package in ("fade_jax", "paced_jax", "experiments")
        for path in (ROOT / package).rglob("*.py")
    }
    assert max(sizes.values()) <= 400, [path.name for path, size in sizes.items() if size > 400]
    ordered = sorted(size for path, size in sizes.items() if path.name != "__init__.py")
    assert ordered[len(ordered) // 2] <= 200
