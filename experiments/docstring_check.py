"""Finds what is public in a package and not documented, by reading its source.

Public is what has no leading underscore: modules, classes, functions, methods, fields, constants.
Nothing is imported, so the whole of both packages takes about a second.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

FIELD_OWNERS = ("NamedTuple", "dataclass")
ENTRY = re.compile(r"^(\*{0,2}\w+(?:, \*{0,2}\w+)*)\s*(?:\([^)]*\))?:")
SECTION = re.compile(r"^(\w+):$")


def problems_of(package: Path) -> list[str]:
    """Everything undocumented, or documented wrongly, in a package.

    Args:
        package: its folder.

    Returns:
        A sentence each, `file:line name: what is wrong`, in order.
    """
    found = []
    for path in sorted(package.rglob("*.py")):
        tree = ast.parse(path.read_text())
        public = not any(part.startswith("_") for part in _module_parts(path, package))
        where = path.relative_to(package.parent)
        found += [f"{where}:{line} {text}" for line, text in _module_problems(tree, public)]
    return found


def section(docstring: str, name: str) -> list[tuple[str, str]]:
    r"""The entries of a Google-style section.

    Args:
        docstring: cleaned, as `ast.get_docstring` gives it.
        name: "Args", "Attributes", ...

    Returns:
        (name, description) of each; `a, b: text` gives one entry for a and one for b.

    >>> section("One line.\n\nArgs:\n    x, y: two numbers\n        of a kind.\n", "Args")
    [('x', 'two numbers of a kind.'), ('y', 'two numbers of a kind.')]
    """
    entries: list[tuple[list[str], list[str]]] = []
    inside, indent = False, 0
    for line in docstring.splitlines():
        heading = SECTION.match(line)
        if line and not line.startswith(" "):
            inside = heading is not None and heading.group(1) == name
            indent = 0
            continue
        if not inside or not line.strip():
            continue
        depth = len(line) - len(line.lstrip())
        indent = indent or depth
        entry = ENTRY.match(line.strip()) if depth == indent else None
        if entry:
            names = entry.group(1).split(", ")
            entries.append((names, [line.strip()[entry.end() :].strip()]))
        elif entries:
            entries[-1][1].append(line.strip())
    return [(each, " ".join(text).strip()) for names, text in entries for each in names]


def has_section(docstring: str, name: str) -> bool:
    """Whether a docstring has a section."""
    return any(line == f"{name}:" for line in docstring.splitlines())


def fields_of(node: ast.ClassDef) -> dict[str, tuple[int, str | None]]:
    """The fields of a NamedTuple or dataclass.

    Args:
        node: of the class.

    Returns:
        By name: the line, and the string that follows the field, if one does.
    """
    if not _has_fields(node):
        return {}
    return {
        name: (line, text)
        for name, line, text in _assignments(node.body)
        if not name.startswith("_")
    }


def _module_parts(path: Path, package: Path) -> list[str]:
    parts = list(path.relative_to(package).with_suffix("").parts)
    return parts[:-1] if parts[-1] == "__init__" else parts


def _module_problems(tree: ast.Module, public: bool) -> Iterator[tuple[int, str]]:
    if public and not ast.get_docstring(tree):
        yield 1, "module: has no docstring"
    if public:
        for name, line, text in _assignments(tree.body):
            if not name.startswith("_") and not _is_machinery(name) and not text:
                yield line, f"{name}: constant without a string below it"
    for node in tree.body:
        yield from _definition_problems(node, "", public)


def _is_machinery(name: str) -> bool:
    return name.startswith("__")


def _definition_problems(node: ast.stmt, prefix: str, public: bool) -> Iterator[tuple[int, str]]:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        yield from _function_problems(node, prefix, public)
    elif isinstance(node, ast.ClassDef):
        yield from _class_problems(node, prefix, public)


def _class_problems(node: ast.ClassDef, prefix: str, public: bool) -> Iterator[tuple[int, str]]:
    name, text = prefix + node.name, ast.get_docstring(node) or ""
    public = public and not node.name.startswith("_")
    if public and not text:
        yield node.lineno, f"{name}: class without a docstring"
    fields, described = fields_of(node), [entry for entry, _ in section(text, "Attributes")]
    if public:
        for field, (line, own) in fields.items():
            if field not in described and not own:
                yield (
                    line,
                    f"{name}.{field}: field neither under Attributes nor with a string below",
                )
    if fields:
        for entry in described:
            if entry not in fields and not _is_property(node, entry):
                yield node.lineno, f"{name}: Attributes names {entry!r}, which is no field"
        order = [field for field in fields if field in described]
        if order != [entry for entry in described if entry in fields]:
            yield node.lineno, f"{name}: Attributes are not in the order of the fields"
    makers = [each for each in node.body if isinstance(each, ast.FunctionDef)]
    for maker in makers:
        if maker.name == "__init__" and has_section(text, "Args"):
            yield from _args_problems(maker, text, name, method=True)
    for child in node.body:
        yield from _definition_problems(child, f"{name}.", public)


def _function_problems(
    node: ast.FunctionDef | ast.AsyncFunctionDef, prefix: str, public: bool
) -> Iterator[tuple[int, str]]:
    name, text = prefix + node.name, ast.get_docstring(node) or ""
    own = not node.name.startswith("_") or node.name == "__call__"
    if public and own and not text and not _is_overload(node):
        yield node.lineno, f"{name}: function without a docstring"
    if has_section(text, "Args"):
        yield from _args_problems(node, text, name, method=bool(prefix))


def _args_problems(
    node: ast.FunctionDef | ast.AsyncFunctionDef, text: str, name: str, method: bool
) -> Iterator[tuple[int, str]]:
    described = section(text, "Args")
    names, wanted = [entry for entry, _ in described], _parameters(node, method)
    if names != wanted:
        yield node.lineno, f"{name}: Args names {names}, the signature has {wanted}"
    empty = [entry for entry, words in described if not words]
    if empty:
        yield node.lineno, f"{name}: Args says nothing of {empty}"


def _parameters(node: ast.FunctionDef | ast.AsyncFunctionDef, method: bool) -> list[str]:
    a = node.args
    plain = [arg.arg for arg in (*a.posonlyargs, *a.args)]
    static = any(isinstance(d, ast.Name) and d.id == "staticmethod" for d in node.decorator_list)
    if method and not static:
        plain = plain[1:]
    plain += [f"*{a.vararg.arg}"] if a.vararg else []
    plain += [arg.arg for arg in a.kwonlyargs]
    return plain + ([f"**{a.kwarg.arg}"] if a.kwarg else [])


def _assignments(body: list[ast.stmt]) -> Iterator[tuple[str, int, str | None]]:
    """(name, line, string below) of every assignment to a name."""
    for node, after in zip(body, [*body[1:], None], strict=True):
        if isinstance(node, ast.Assign):
            names = [name for target in node.targets for name in _names(target)]
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names = [node.target.id]
        else:
            continue
        if isinstance(node.value, ast.Call) and ast.unparse(node.value.func).endswith("TypeVar"):
            continue
        text = None
        if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
            text = after.value.value if isinstance(after.value.value, str) else None
        yield from ((name, node.lineno, text) for name in names)


def _names(target: ast.expr) -> list[str]:
    if isinstance(target, ast.Tuple):
        return [each.id for each in target.elts if isinstance(each, ast.Name)]
    return [target.id] if isinstance(target, ast.Name) else []


def _has_fields(node: ast.ClassDef) -> bool:
    words = [ast.unparse(each) for each in (*node.bases, *node.decorator_list)]
    return any(owner in word for owner in FIELD_OWNERS for word in words)


def _is_property(node: ast.ClassDef, name: str) -> bool:
    return any(isinstance(each, ast.FunctionDef) and each.name == name for each in node.body)


def _is_overload(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return any("overload" in ast.unparse(d) for d in node.decorator_list)
