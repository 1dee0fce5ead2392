"""The notebooks: what is stored in them, that they set themselves up, and that they run."""

import ast
import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

ROOT = Path(__file__).resolve().parent.parent
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
CELL_SECONDS = 170

each_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def cells_of(path, kind):
    """Sources of the cells of one kind, without magics."""
    cells = nbformat.read(path, as_version=4).cells
    sources = [cell.source for cell in cells if cell.cell_type == kind]
    return [re.sub(r"^%.*$", "", source, flags=re.MULTILINE) for source in sources]


def checks_in(path):
    """Checks that a wrong number would fail, all cells but the set-up."""
    checks = []
    for node in ast.walk(ast.parse("\n".join(cells_of(path, "code")[1:]))):
        called = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
        compares = isinstance(node, ast.Assert) and any(
            isinstance(part, ast.Compare | ast.Call) for part in ast.walk(node.test)
        )
        if compares or "testing.assert_" in called:
            checks.append(ast.unparse(node))
    return checks


def project_address():
    """`repository-code` of CITATION.cff; empty while the project has no address."""
    found = re.search(
        r"^repository-code: *\"?([^\"\n]+)", (ROOT / "CITATION.cff").read_text(), re.M
    )
    return found.group(1).strip() if found else ""


def test_all_five_are_there():
    assert [path.stem for path in NOTEBOOKS] == [
        "fade_from_scratch",
        "partition_function",
        "replay_a_real_run",
        "swap_the_parts",
        "train_live",
    ]


@each_notebook
def test_nothing_that_ran_is_stored(path):
    notebook = json.loads(path.read_text())
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert [cell for cell in code if cell["outputs"] or cell["execution_count"] is not None] == []
    assert [cell for cell in notebook["cells"] if cell["metadata"]] == []
    assert set(notebook["metadata"]) == {"kernelspec", "language_info"}
    nbformat.validate(nbformat.from_dict(notebook))


@each_notebook
def test_it_is_short_asks_a_question_and_ends_with_what_to_try(path):
    cells = nbformat.read(path, as_version=4).cells
    assert len(cells) <= 25
    texts = cells_of(path, "markdown")
    title, question = texts[0].split("\n\n")
    assert title.startswith("# ") and "?" in question
    assert cells[-1].source == texts[-1] and "## Try" in texts[-1]
    assert 2 <= len(re.findall(r"^\* ", texts[-1].split("## Try")[1], flags=re.MULTILINE)) <= 3


@each_notebook
def test_its_claims_are_asserted(path):
    assert len(checks_in(path)) >= 3


@each_notebook
def test_it_uses_public_names_only(path):
    nodes = list(ast.walk(ast.parse("\n".join(cells_of(path, "code")))))
    names = [node.attr for node in nodes if isinstance(node, ast.Attribute)]
    names += [a.name for n in nodes if isinstance(n, ast.ImportFrom) for a in n.names]
    names = [name for name in names if name != "_replace"]  # public: of every NamedTuple
    private = [name for name in names if name.startswith("_") and not name.endswith("__")]
    assert private == []


@each_notebook
def test_the_first_cell_is_the_same_in_all_and_names_the_project_once(path):
    source = path.read_text()
    assert cells_of(path, "code")[0] == cells_of(NOTEBOOKS[0], "code")[0]
    address = project_address()
    assert f'REPOSITORY = \\"{address}\\"' in source, "as CITATION.cff's repository-code"
    assert not address or source.count(address) == 1


def test_the_list_of_notebooks_links_each_and_has_badges_once_there_is_an_address():
    text = (ROOT / "notebooks" / "README.md").read_text()
    address = project_address().removesuffix(".git").removeprefix("https://github.com/")
    for path in NOTEBOOKS:
        badge = (
            f"https://colab.research.google.com/github/{address}/blob/main/notebooks/{path.name}"
        )
        assert f"]({path.name})" in text
        assert (badge in text) == bool(address)
    assert ("colab.research.google.com" in text) == bool(address)


@pytest.fixture
def set_up(monkeypatch):
    """Runs the first cell with a stand-in for shell commands; returns those, and its names."""
    monkeypatch.setattr(sys, "path", sys.path.copy())

    def run(folder, source):
        commands = []
        monkeypatch.chdir(folder)
        monkeypatch.setattr(subprocess, "run", lambda command, check: commands.append(command))
        names = {}
        exec(source, names)
        return commands, names

    return run


SET_UP = cells_of(NOTEBOOKS[0], "code")[0]


def test_the_first_cell_installs_nothing_where_the_project_is(set_up):
    commands, names = set_up(ROOT / "notebooks", SET_UP)
    assert commands == []
    assert names["project"] == ROOT and sys.path[0] == str(ROOT)


def test_the_first_cell_finds_a_project_that_is_installed_from_elsewhere(set_up, tmp_path):
    commands, names = set_up(tmp_path, SET_UP)
    assert commands == []
    assert (names["project"] / "fade_jax" / "__init__.py").exists()


def test_the_first_cell_clones_and_installs_on_a_fresh_machine(set_up, tmp_path, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    source = re.sub(r'^REPOSITORY = ".*?"', 'REPOSITORY = "address"', SET_UP, flags=re.MULTILINE)
    commands, _ = set_up(tmp_path, source)
    target = str(tmp_path / "fade-jax")
    assert commands[0] == ["git", "clone", "--depth", "1", "address", target]
    assert commands[1][:4] == [sys.executable, "-m", "pip", "install"]
    assert commands[1][-2:] == ["--editable", target]
    assert sys.path[0] == target


def test_the_first_cell_says_what_it_lacks(set_up, tmp_path, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    source = re.sub(r'^REPOSITORY = ".*?"', 'REPOSITORY = ""', SET_UP, flags=re.MULTILINE)
    with pytest.raises(AssertionError, match="REPOSITORY: give the git address"):
        set_up(tmp_path, source)


@pytest.fixture
def kernel(tmp_path, monkeypatch):
    """The name of a kernel of this interpreter, whatever kernels the user has."""
    spec = tmp_path / "kernels" / "running" / "kernel.json"
    spec.parent.mkdir(parents=True)
    command = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    spec.write_text(json.dumps({"argv": command, "display_name": "running", "language": "python"}))
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path))
    # A caller's strictness about warnings is not for the machinery of notebooks.
    monkeypatch.delenv("PYTHONWARNINGS", raising=False)
    return "running"


@pytest.mark.slow
@each_notebook
def test_it_runs_and_keeps_its_promises(path, kernel):
    notebook = nbformat.read(path, as_version=4)
    where = {"metadata": {"path": str(path.parent)}}
    NotebookClient(notebook, kernel_name=kernel, timeout=CELL_SECONDS, resources=where).execute()
    outputs = [out for cell in notebook.cells for out in cell.get("outputs", ())]
    said = "".join(out.text for out in outputs if out.get("name") == "stderr")
    assert "Warning" not in said, said
    assert sum("image/png" in out.get("data", {}) for out in outputs) >= 2
