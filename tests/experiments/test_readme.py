"""Every number of README's section of results, of the pages of results and of the reports is read
from committed results.json files: what is committed is what would be written now."""

import copy
import doctest
import re
from pathlib import Path

import pytest

from experiments import number_text, readme, reports
from experiments.measured import FIGURES
from experiments.readme import ROOT, TEMPLATES

PAGES = readme.pages()
NAMES = [path.relative_to(ROOT).as_posix() for path in PAGES]
ALL_PAGES = sorted({ROOT / "README.md", *reports.RESULTS.rglob("*.md")})

ALLOWED = {
    r"95 %": "level of every interval",
    r"K = 32 and 64\b|K = 0\b": "names of variants",
    r"SmolLM2(-135M)?|Qwen2\.5-Math-1\.5B|Qwen2\b|Apache-2\.0|float(32|64)": "names",
    r"lengths 1 to 10": "the task",
    r"512 held-out": "the pools of the task",
    r"means of 3 seeds": "default of the quickstart",
    r"\(goal \.7\)|with \.6 of its rollouts|comparison is \.6": "goals set beforehand",
    r"target of \.6 was|\(target 3\)": "targets set beforehand",
    r"tied with 2e-4": "one of the rates that were tried",
    r"blocks of 5 iterations": "smollm2.BLOCK",
    r"to hold 8 informative": "the threshold rule's aim",
    r"by 2 logits": "the leap that is simulated",
    r"Told 0, 4, 8 or all of 16 true": "the loadings told in the simulation",
    r"random 10 % of": "the share seen in the sparse protocol",
    r"Widened by 30 %": "an arm",
    r"excludes? 0|sit at 0 and 1|count as 1": "zero and one themselves",
    r"16 prompts x 8 a step, drift \.1|from step 6 on": "the world that `adf` is held to",
    r"prior variance \.5|seeds 0 to 39|limit of \.3": "the same world",
    r"\(4 prompts a step\)|\(prior variance 1\)|\(drift \.3\)": "the harder worlds",
    r"drift sd 1 a step": "the saturating walk",
    r"at K = 16": "skills of the timed step",
    r"targets: at \.3|validation, at \.7": "targets of the arms",
    r"4 K of loadings": "float32",
    r"for 8,192 prompts|for 40,000": "sizes of the timed pools",
}
"""Numbers that a template may hold, which are settings and no results, and why."""


@pytest.mark.parametrize("path", PAGES, ids=NAMES)
def test_pages_are_as_their_results_make_them(path):
    assert readme.first_difference(path, PAGES[path]) is None
    assert path.read_text() == PAGES[path]


@pytest.mark.parametrize("name", reports.WRITERS)
def test_reports_are_as_their_results_make_them(name, tmp_path):
    text = reports.written(name, tmp_path)
    committed = reports.RESULTS / name / "report.md"
    assert readme.first_difference(committed, text) is None
    assert committed.read_text() == text
    assert [path.name for path in tmp_path.iterdir()] == ["report.md"]


def test_every_folder_of_results_has_its_report():
    folders = {path.name for path in reports.RESULTS.iterdir() if path.is_dir()}
    assert folders == reports.WRITERS.keys() | reports.WITHOUT.keys()
    assert not reports.WRITERS.keys() & reports.WITHOUT.keys()


def test_every_page_beside_results_is_written():
    pages = {path for path in reports.RESULTS.rglob("*.md") if path.name != "report.md"}
    assert pages == PAGES.keys() - {ROOT / "README.md"}


def prose(text):
    """Words that a reader sees, without fields, code, the targets of links and what is allowed."""
    text = re.sub(r"```.*?```|<!--.*?-->", " ", text, flags=re.DOTALL)
    text = re.sub(r"\{[^{}]*\}|`[^`]*`|\]\([^)]*\)", " ", text)
    return re.sub(r"\s+", " ", text)


@pytest.mark.parametrize("template", sorted(TEMPLATES.rglob("*.md")), ids=lambda p: p.parent.name)
def test_templates_hold_no_number_that_was_measured(template):
    text = prose(template.read_text())
    for pattern in ALLOWED:
        text = re.sub(pattern, " ", text)
    typed = [text[max(0, m.start() - 30) : m.end() + 10] for m in re.finditer(r"\d[\d.,]*", text)]
    assert typed == []


def test_nothing_is_allowed_that_no_template_holds():
    text = " ".join(prose(template.read_text()) for template in TEMPLATES.rglob("*.md"))
    assert [pattern for pattern in ALLOWED if not re.search(pattern, text)] == []


def test_readme_holds_no_other_number_that_looks_measured():
    before, _, rest = (ROOT / "README.md").read_text().partition(readme.BEGIN)
    text = prose(before + rest.partition(readme.END)[2])
    text = text.replace("Python 3.11", "")  # the oldest that is supported
    assert re.findall(r"\S*\.\d{2,}\S*", text) == []


def test_a_changed_result_changes_the_page():
    results = {name: content for name, content in readme.Results().items()}
    names = readme.Names(results)
    template = (TEMPLATES / "README.md").read_text()
    same = readme.wrap(number_text.fill(template, names))
    results["headline"] = copy.deepcopy(results["headline"])
    results["headline"]["tiny"]["minus_uniform"]["oracle"]["validation_end"]["mean"] = 0.123
    changed = number_text.fill(template, readme.Names(results))
    assert "gains .123 in validation" in re.sub(r"\s+", " ", changed) and changed != same
    assert readme.between_marks(readme.README.read_text(), same) == readme.README.read_text()


def test_every_figure_that_can_be_named_is():
    text = " ".join(template.read_text() for template in TEMPLATES.rglob("*.md"))
    assert [name for name in FIGURES if not re.search(rf"\{{{name}\b", text)] == []


@pytest.mark.parametrize("module", [number_text, readme], ids=lambda m: m.__name__)
def test_examples_run(module):
    result = doctest.testmod(module)
    assert result.attempted > 0 and result.failed == 0


def test_a_field_that_leads_nowhere_is_named():
    names = {"a": {"b": 1.0, "words": "text", "gain": {"mean": 0.5, "low": 0.25, "high": 0.75}}}
    with pytest.raises(ValueError, match=r"\{a\[c\]\}"):
        number_text.fill("{a[c]:.2f}", names)
    with pytest.raises(ValueError, match=r"\{d\}"):
        number_text.fill("{d}", names)
    with pytest.raises(ValueError, match="can't be written"):
        number_text.fill("{a[words]:.2f}", names)
    with pytest.raises(ValueError, match="can't be written"):
        number_text.fill("{a[b]:.2f to}", names)
    written = number_text.fill("{a[words]}: {a[gain]:+.2f ()}, {a[gain]:.2f ±}", names)
    assert written == "text: +.50 (.25 to .75), .50 ± .25"
    assert number_text.fill("{a[gain]:+.2f, to}", names) == "+.50, .25 to .75"


def test_paragraphs_are_filled_again_and_never_made_into_lists():
    table = "| " + "x " * 80 + "|"
    text = "word " * 30 + f"\n\n{table}\n\n* one\n  two\n* three\n"
    lines = readme.wrap(text).splitlines()
    assert max(len(line) for line in lines if not line.startswith("|")) <= 100
    assert lines[-4:] == [table, "", "* one two", "* three"]
    with pytest.raises(ValueError, match="would begin a list: - b"):
        readme.wrap("a" * 99 + "\n- b")


def test_marks_that_are_not_there_once_are_refused():
    page = f"a\n{readme.BEGIN}\nold\n{readme.END}\nb\n"
    assert readme.between_marks(page, "new\n") == (f"a\n{readme.BEGIN}\n\nnew\n\n{readme.END}\nb\n")
    for broken in ("a", readme.BEGIN, readme.END + readme.BEGIN, page + page):
        with pytest.raises(ValueError, match="once, in this order"):
            readme.between_marks(broken, "new")


def test_check_names_the_first_line_that_differs_and_writes_nothing(tmp_path, monkeypatch, capsys):
    page = tmp_path / "page.md"
    page.write_text("one\ntwo\nthree\n")
    monkeypatch.setattr(readme, "pages", lambda: {page: "one\n2\n3\n"})
    monkeypatch.setattr(readme, "written_reports", lambda: {})
    (found,) = readme.main(readme.Config(check=True))["different"]
    assert found.splitlines() == [f"{page}:2", "  is        two", "  should be 2"]
    assert "page.md:2" in capsys.readouterr().out and page.read_text() == "one\ntwo\nthree\n"
    readme.main(readme.Config())
    assert page.read_text() == "one\n2\n3\n"
    assert readme.main(readme.Config(check=True)) == {"different": []}


def anchors(page):
    """What GitHub calls the headings of a page."""
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    headings = re.findall(r"^#+ (.*)$", text, flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in headings}


@pytest.mark.parametrize("page", ALL_PAGES, ids=lambda p: p.relative_to(ROOT).as_posix())
def test_every_link_and_figure_leads_somewhere(page):
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    # No link is broken over lines by more than its words.
    targets = [t for t in re.findall(r"\]\(([^)\s]+)\)", text) if "://" not in t]
    missing = []
    for target in targets:
        path, _, anchor = target.partition("#")
        place = Path(page.parent, path) if path else page
        if not place.exists() or (anchor and anchor not in anchors(place)):
            missing.append(target)
    assert missing == []
