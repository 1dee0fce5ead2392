"""What pdoc shows of the packages: types as written, fields from Attributes, links between pages.

pdoc would show types as their `repr`, a NamedTuple's fields as "Alias for field number 0", and no
link from `presets.fade` to its page unless the name is written in full.
"""

import ast
import builtins
import importlib
import inspect
import re
import textwrap
from collections.abc import Iterator
from typing import Any

from pdoc import doc
from pdoc.render_helpers import relative_link

from experiments.docstring_check import section

REFERENCE = re.compile(r"(?<![\[`\w])`([A-Za-z_][\w.]*)(\(\))?`(?!`)")
FILES = ("json", "jsonl", "npz", "py")
MOST_CHARACTERS = 80
"""Longer default values are left out."""


class _Source:
    """Stands for an annotation or a default; shown as it is written in the source."""

    def __init__(self, node: ast.expr):
        self.text = ast.unparse(node)

    def __repr__(self) -> str:
        return self.text


def prepare(modules: dict[str, doc.Module]) -> list[str]:
    """Rewrites what pdoc will show.

    Args:
        modules: by name; changed.

    Returns:
        Names in backticks that begin with a module or class of ours and lead nowhere, a sentence
        each.
    """
    broken: list[str] = []
    for name, module in modules.items():
        below = [other for other in modules if other.rpartition(".")[0] == name]
        _show(module, "submodules", [modules[other] for other in below])
        _show_constants(module)
        inside = list(_documented(module))
        for each in inside:
            if isinstance(each, doc.Function):
                _show_signature(each)
        for each in inside:  # their constructors' signatures are replaced once more
            if isinstance(each, doc.Class):
                _show_fields(each)
    for module in modules.values():
        _show_passed_on(module, modules)
    for module in modules.values():
        for each in _documented(module):
            text, missing = _link(each.docstring, module, modules)
            _show(each, "docstring", text)
            if isinstance(each, doc.Function):  # what begins with a parameter is one's own
                own = each.signature.parameters
                missing = [word for word in missing if word.partition(".")[0] not in own]
            broken += [f"{each.fullname}: `{word}` leads nowhere" for word in missing]
    return broken


def _show(each: doc.Doc, attribute: str, value: Any) -> None:
    """Replaces what pdoc works out and keeps."""
    each.__dict__[attribute] = value


def _documented(each: doc.Doc) -> Iterator[doc.Doc]:
    """The module, its members and theirs; other modules have pages of their own."""
    yield each
    if isinstance(each, doc.Namespace):
        for member in each.own_members:
            public = member.name == "__init__" or not member.name.startswith("_")
            if public and not isinstance(member, doc.Module):
                yield from _documented(member)


def _definition(each: doc.Doc) -> Any:
    """The syntax tree of a function or class; None for what has no source."""
    if not each.source:
        return None
    return ast.parse(textwrap.dedent(each.source)).body[0]


def _show_signature(function: doc.Function) -> None:
    node = _definition(function)
    if not isinstance(node, ast.FunctionDef):
        return
    arguments = node.args
    given = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    given += [arg for arg in (arguments.vararg, arguments.kwarg) if arg is not None]
    types = {arg.arg: _Source(arg.annotation) for arg in given if arg.annotation is not None}
    positional = [*arguments.posonlyargs, *arguments.args]
    defaults = dict(zip([a.arg for a in positional[::-1]], arguments.defaults[::-1], strict=False))
    named = zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    defaults |= {arg.arg: default for arg, default in named if default is not None}
    parameters = []
    for parameter in function.signature.parameters.values():
        default: Any = parameter.default
        if parameter.name in defaults:
            default = _Source(defaults[parameter.name])
        annotation = types.get(parameter.name, inspect.Parameter.empty)
        parameters.append(parameter.replace(annotation=annotation, default=default))
    returns: Any = inspect.Signature.empty if node.returns is None else _Source(node.returns)
    shown = type(function.signature)(parameters, return_annotation=returns)
    _show(function, "signature", shown)


def _show_fields(cls: doc.Class) -> None:
    """Gives each field its type as written, and its text from the class's Attributes."""
    node = _definition(cls)
    if not isinstance(node, ast.ClassDef):
        return
    written = {
        each.target.id: each
        for each in node.body
        if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)
    }
    described = dict(section(cls.docstring, "Attributes"))
    for member in cls.own_members:
        field = written.get(member.name)
        if isinstance(member, doc.Variable) and field is not None:
            _show_variable(member, field.annotation, field.value)
            if member.name in described:
                _show(member, "docstring", described[member.name])
    if described and set(described) <= set(written):
        _show(cls, "docstring", _without(cls.docstring, "Attributes"))
    constructor, call = (cls.get(each) for each in ("__init__", "__call__"))
    if not isinstance(constructor, doc.Function):
        return
    if isinstance(call, doc.Function) and "Protocol" in map(ast.unparse, node.bases):
        # A protocol is called, not made.
        _show_signature(call)
        _show(constructor, "signature", call.signature)
        _show(constructor, "docstring", call.docstring)
    elif written:
        if constructor.docstring.startswith("Create new instance of"):
            _show(constructor, "docstring", "")
        parameters = []
        for parameter in constructor.signature.parameters.values():
            field = written.get(parameter.name)
            if field is not None:
                default: Any = parameter.default
                if default is not inspect.Parameter.empty and field.value is not None:
                    default = _Source(field.value)
                source: Any = _Source(field.annotation)
                parameter = parameter.replace(annotation=source, default=default)
            parameters.append(parameter)
        _show(constructor, "signature", type(constructor.signature)(parameters))


def _show_constants(module: doc.Module) -> None:
    source = inspect.getsource(module.obj)
    for node in ast.parse(source).body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            name, annotation = node.target.id, node.annotation
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            name, annotation = node.targets[0].id, None
        else:
            continue
        member = module.members.get(name)
        if isinstance(member, doc.Variable):
            _show_variable(member, annotation, node.value)


def _show_passed_on(module: doc.Module, modules: dict[str, doc.Module]) -> None:
    """Gives a constant that a package passes on the text it has where it is defined."""
    for name, member in module.members.items():
        if not isinstance(member, doc.Variable) or member.docstring:
            continue
        value = getattr(module.obj, name)
        for other in modules.values():
            at_home = other.members.get(name)
            same = getattr(other.obj, name, None) is value
            if same and isinstance(at_home, doc.Variable) and at_home.docstring:
                for attribute in ("docstring", "annotation_str", "default_value_str"):
                    _show(member, attribute, getattr(at_home, attribute))


def _show_variable(
    variable: doc.Variable, annotation: ast.expr | None, value: ast.expr | None
) -> None:
    text = "" if annotation is None else f": {ast.unparse(annotation)}"
    _show(variable, "annotation_str", "" if text == ": TypeAlias" else text)
    shown = "" if value is None else ast.unparse(value)
    _show(variable, "default_value_str", shown if len(shown) <= MOST_CHARACTERS else "...")


def _without(docstring: str, name: str) -> str:
    """A docstring without one of its sections."""
    kept, inside = [], False
    for line in docstring.splitlines():
        if line and not line.startswith(" "):
            inside = line == f"{name}:"
        if not inside:
            kept.append(line)
    return "\n".join(kept).strip()


def _link(text: str, module: doc.Module, modules: dict[str, doc.Module]) -> tuple[str, list[str]]:
    """Makes links of the names in backticks; and says which ought to be links and can't be."""
    missing: list[str] = []

    def replace(match: re.Match[str]) -> str:
        name = match.group(1)
        target = _find(name, module, modules)
        if target is not None and name.partition(".")[0] in modules:
            return match.group(0)  # in full: pdoc makes the link
        if target is not None:
            page, anchor = target
            url = relative_link(module.modulename, page)
            # pdoc would take a dot in an address for a reference of its own.
            url += "#" + anchor.replace(".", "%2E") if anchor else ""
            return f"[{match.group(0)}]({url})" if url else match.group(0)
        first = name.partition(".")[0]
        is_file = name.rpartition(".")[2] in FILES
        if "." in name and not is_file and _find(first, module, modules) is not None:
            missing.append(name)
        return match.group(0)

    return REFERENCE.sub(replace, text), missing


def _find(name: str, module: doc.Module, modules: dict[str, doc.Module]) -> tuple[str, str] | None:
    """Page and anchor of a name as somebody in that module would write it."""
    package = module.modulename.partition(".")[0]
    beside = module.modulename.rpartition(".")[0]
    for start in dict.fromkeys((module.modulename, beside, package, "fade_jax", "paced_jax", "")):
        found = _below(start, name.split("."), modules) if start else None
        if found is not None:
            return found
    return _below(name.partition(".")[0], name.split(".")[1:], modules)


def _below(start: str, parts: list[str], modules: dict[str, doc.Module]) -> tuple[str, str] | None:
    """Follows a dotted name from a module, through what it imports."""
    if start not in modules:
        return None
    page, names = start, list(parts)
    while names:
        if f"{page}.{names[0]}" in modules:
            page = f"{page}.{names.pop(0)}"
            continue
        value = getattr(importlib.import_module(page), names[0], builtins)
        if inspect.ismodule(value) and value.__name__ in modules and value.__name__ != page:
            page = value.__name__
            names.pop(0)
            continue
        break
    if not names:
        return page, ""
    value = getattr(importlib.import_module(page), names[0], None)
    home = getattr(value, "__module__", page)
    if home in modules and home != page and names[0] in modules[home].members:
        page = home
    qualname = ".".join(names)
    return (page, qualname) if modules[page].get(qualname) is not None else None
