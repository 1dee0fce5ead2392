"""What is public is documented, and truly; the reference builds and its links resolve."""

import re
import textwrap
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

import pytest

from experiments import api_reference, assumption_figures, docstring_check

ROOT = Path(__file__).resolve().parent.parent


@pytest.mark.parametrize("package", api_reference.PACKAGES)
def test_everything_public_is_documented_and_args_are_those_of_the_signature(package):
    assert docstring_check.problems_of(ROOT / package) == []


def documented(head, section, *entries, body="    x: int\n"):
    """A definition whose docstring has a section."""
    lines = [f"        {entry}" for entry in entries]
    return "\n".join([head, '    """It.', "", f"    {section}:", *lines, '    """', body])


FUNCTION, FIELDS = "def f(a, **options):", "class C(NamedTuple):"
CALLS = "    def __init__(self, a):\n        pass\n"
FAULTS = [
    ("X = 1\n", "X: constant without a string below it"),
    ('X, Y = 1, 2\nZ = 3\n"""It."""\n', "X: constant without a string below it"),
    ("def f():\n    return 1\n", "f: function without a docstring"),
    ("class C:\n    pass\n", "C: class without a docstring"),
    ('class C:\n    """It."""\n    def m(self):\n        return 1\n', "C.m: function without"),
    ('class C(NamedTuple):\n    """It."""\n    x: int\n', "C.x: field neither under Attributes"),
    ('@dataclass\nclass C:\n    """It."""\n    x: int\n', "C.x: field neither under Attributes"),
    (documented(FIELDS, "Attributes", "x: a.", "y: b."), "Attributes names 'y', which is no field"),
    (
        documented(FIELDS, "Attributes", "y: b.", "x: a.", body="    x: int\n    y: int\n"),
        "C: Attributes are not in the order",
    ),
    (documented(FUNCTION, "Args", "a: one."), r"\['a'\], the signature has \['a', '\*\*options'\]"),
    (documented(FUNCTION, "Args", "a: one.", "options: two."), r"has \['a', '\*\*options'\]"),
    (documented("def f(a):", "Args", "a: one.", "b: two."), r"f: Args names \['a', 'b'\]"),
    (documented("def f(a, b):", "Args", "b: one.", "a: two."), r"f: Args names \['b', 'a'\]"),
    (documented("def f(a):", "Args", "a:"), r"f: Args says nothing of \['a'\]"),
    (documented("class C:", "Args", "b: one.", body=CALLS), r"C: Args names \['b'\]"),
]


@pytest.mark.parametrize("code, message", FAULTS)
def test_a_fault_is_found_and_nothing_else(tmp_path, code, message):
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").write_text('"""A package."""\n')
    (package / "part.py").write_text(f'"""A part."""\n\n{code}')
    found = docstring_check.problems_of(package)[0]
    assert re.search(message, found) and found.startswith("package/part.py:")
    (package / "part.py").write_text(code)
    assert any("module: has no docstring" in each for each in docstring_check.problems_of(package))


def test_what_is_private_needs_nothing_but_a_true_args_section(tmp_path):
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").write_text('"""A package."""\n')
    (package / "_part.py").write_text("def f():\n    return 1\n")
    code = """
    def _f(a):
        return a


    class _C(NamedTuple):
        x: int


    T = TypeVar("T")
    __all__ = ["g"]


    def g(a):
        \"\"\"It.

        Args:
            a: one.
        \"\"\"

        def inner(b):
            return a + b

        return inner
    """
    (package / "part.py").write_text('"""A part."""\n' + textwrap.dedent(code))
    assert docstring_check.problems_of(package) == []


def test_every_figure_of_the_assumptions_is_in_its_results_file():
    page = assumption_figures.ASSUMPTIONS
    text = page.read_text()
    figures = assumption_figures.figures(text)
    assert len(figures) >= 40
    wrong = []
    for figure in figures:
        value = assumption_figures.measured(figure, page.parent)
        if not assumption_figures.agrees(figure.text, value):
            wrong.append((figure.text, value, figure.path))
    assert wrong == []
    assert assumption_figures.bare_numbers(text) == []


def test_a_figure_that_is_not_there_or_differs_is_noticed(tmp_path):
    (tmp_path / "r.json").write_text('{"a": {"b c": [{"n": 1, "x": 2.25}, {"n": 2, "x": [1, 2]}]}}')

    def value(path):
        return assumption_figures.measured(assumption_figures.Figure("", "r.json", path), tmp_path)

    assert value("a/b c/n=1/x") == value("a/b c/0/x") == 2.25
    assert value("a/b c/n=2/x") == 1.5
    assert value("a/b c/n=1/x / a/b c/n=2/x") == 1.5
    assert value("a/b c/n=1/x - a/b c/n=2/x") == 0.75
    for path, message in (
        ("a/z", "no 'z'"),
        ("a/b c/n=3/x", "0 entries"),
        ("a/b c/n=1", "no number"),
    ):
        with pytest.raises(ValueError, match=message):
            value(path)
    assert assumption_figures.agrees("2.3", 2.25) and not assumption_figures.agrees("2.26", 2.25)
    assert assumption_figures.agrees("3.5e-05", 3.46e-5)
    assert not assumption_figures.agrees("3.4e-05", 3.46e-5)
    text = 'We saw .31 and [.4](r.json "a") of `K = 0` in [a page](r.md).'
    assert assumption_figures.bare_numbers(text) == [".31"]


class Page(HTMLParser):
    """Links and anchors of a page."""

    def __init__(self, path):
        super().__init__()
        self.links, self.anchors, self.text = [], set(), []
        self.feed(path.read_text())

    def handle_starttag(self, tag, attrs):
        found = dict(attrs)
        if "id" in found:
            self.anchors.add(found["id"])
        if tag == "a" and found.get("href"):
            self.links.append(unquote(found["href"] or ""))

    def handle_data(self, data):
        self.text.append(data)


@pytest.mark.slow
def test_the_reference_builds_and_its_links_resolve(tmp_path):
    result = api_reference.main(api_reference.Config(out=tmp_path))
    paths = {path.resolve(): Page(path) for path in tmp_path.rglob("*.html")}
    names = [*api_reference.public_modules(), "index", "assumptions"]
    wanted = {(tmp_path / f"{name.replace('.', '/')}.html").resolve() for name in names}
    assert set(paths) == wanted and len(wanted) == result["pages"] > 100
    broken, internal = [], 0
    for path, page in paths.items():
        for link in page.links:
            target, _, anchor = link.partition("#")
            if re.match(r"https?:", target):
                continue
            internal += 1
            where = (path.parent / target).resolve() if target else path
            where = where / "index.html" if where.is_dir() else where
            if not where.exists() or (anchor and anchor not in paths[where].anchors):
                broken.append((path.name, link))
    assert broken == [] and internal > 1000
    text = {
        path.relative_to(tmp_path.resolve()).as_posix(): "".join(page.text)
        for path, page in paths.items()
    }
    shown = re.sub(r"\s+", " ", text["fade_jax/types.html"])
    # A field's text and type, shapes as they are written, no repr of anything.
    assert "prompt_ids: Int[Array, ' B'] [B] int32, in 0..N-1." in shown
    assert "Alias for field" not in "".join(text.values())
    assert not re.search(r"<(class|function|object) |at 0x[0-9a-f]{6}", "".join(text.values()))
    assert "elapsed: Elapsed" in shown
    links = paths[(tmp_path / "paced_jax/schedulers.html").resolve()].links
    assert "../fade_jax/presets/factored.html#fade" in links
    assert (
        "results/verify_exactness/results.json"
        in paths[(tmp_path / "assumptions.html").resolve()].links
    )
    assert (tmp_path / "search.js").stat().st_size > 10_000


def test_a_build_is_refused_while_something_is_undocumented(tmp_path, monkeypatch):
    monkeypatch.setattr(api_reference, "check", lambda: ["fade_jax/x.py:1 f: no docstring"])
    with pytest.raises(ValueError, match=r"fade_jax/x\.py:1 f: no docstring\ndocstrings: 1"):
        api_reference.main(api_reference.Config(out=tmp_path / "site"))
    assert not (tmp_path / "site").exists()
