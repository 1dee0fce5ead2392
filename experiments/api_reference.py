"""Builds the reference of both packages from their docstrings, as pages of HTML.

    python -m experiments.api_reference
    python -m experiments.api_reference --out site

Needs the extra `docs`. Every public module has a page, `assumptions.html` says what the models take
for granted. Nothing is built while a public name has no docstring, an Args section differs from its
signature, or a name in backticks leads nowhere: then each of them is printed.
"""

import dataclasses
import importlib
import pkgutil
import types
from pathlib import Path
from typing import Any

import tyro

from experiments import command_line, docstring_check, run_folder
from experiments.assumption_figures import ASSUMPTIONS, for_site, sources

PACKAGES = ("fade_jax", "paced_jax")
ROOT = Path(__file__).resolve().parent.parent


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config:
    """The API reference."""

    out: Path = Path("site")
    """Folder to write to."""


def public_modules() -> list[str]:
    """Names of all public modules, packages first."""
    names = []
    for package in PACKAGES:
        module = importlib.import_module(package)
        found = pkgutil.walk_packages(module.__path__, f"{package}.")
        names += [package, *(each.name for each in found)]
    return [name for name in names if not any(part[0] == "_" for part in name.split("."))]


def check() -> list[str]:
    """What forbids a build: what is public and undocumented, or documented wrongly."""
    return [
        problem for package in PACKAGES for problem in docstring_check.problems_of(ROOT / package)
    ]


def main(config: Config) -> dict[str, Any]:
    """Builds the pages.

    Args:
        config: where to.

    Returns:
        The folder and how many pages it holds.

    Raises:
        ValueError: something is undocumented, naming all of it.
    """
    problems = check()
    if problems:
        raise ValueError(
            "\n".join([*problems, f"docstrings: {len(problems)} of them are not whole"])
        )
    try:
        from pdoc import doc, render

        from experiments import api_pages
    except ImportError as error:
        raise ImportError("pdoc is missing: pip install -e '.[docs]'") from error

    names = public_modules()
    modules = {name: doc.Module.from_name(name) for name in names}
    summaries = {name: modules[name].docstring.partition("\n")[0] for name in names}
    broken = api_pages.prepare(modules)
    if broken:
        raise ValueError("\n".join([*broken, f"docstrings: {len(broken)} names lead nowhere"]))
    texts = {"assumptions": for_site(ASSUMPTIONS.read_text()), "index": _index(summaries)}
    pages = modules | {name: doc.Module(_page(name, text)) for name, text in texts.items()}
    render.configure(docformat="google", show_source=False, search=True)
    for name, module in pages.items():
        path = config.out / f"{name.replace('.', '/')}.html"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(render.html_module(module, modules))
    (config.out / "search.js").write_text(render.search_index(modules))
    for source in sources(ASSUMPTIONS.read_text()):
        target = config.out / source
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes((ASSUMPTIONS.parent / source).read_bytes())
    run_folder.console.print(f"{len(pages)} pages; begin with {config.out / 'index.html'}")
    return {"out": str(config.out), "pages": len(pages)}


def _page(name: str, text: str) -> types.ModuleType:
    """A page of its own, given to pdoc as a module that has nothing but a docstring."""
    return types.ModuleType(name, text)


def _index(summaries: dict[str, str]) -> str:
    """The first page: every module and its first sentence."""
    lines = ["# Reference of fade_jax and paced_jax", ""]
    lines += ["[Assumptions and where they break](assumptions.html)", ""]
    for package in PACKAGES:
        lines += ["", f"## {package}", ""]
        for name, summary in summaries.items():
            if name.partition(".")[0] == package:
                lines.append(f"* `{name}`: {summary}")
    return "\n".join(lines)


if __name__ == "__main__":
    command_line.run(main, lambda: tyro.cli(Config, description=__doc__))
