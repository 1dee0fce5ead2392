"""Templates whose fields are looked up in results, and how the numbers found are written.

A field is a path into results with the format of `str.format`: `{quickstart[methods][fade]
[informative_realised]:.3f}`. Numbers lose the zero before the point. After a number's format may
stand `()` for the mean with its interval, `to` for the interval alone, `±` for half of it,
`range` for the smallest and the largest of the values.
"""

import re
import string
from collections.abc import Mapping
from typing import Any

from experiments import intervals

WORDS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
WORDS += ("eleven", "twelve", "thirteen", "fourteen", "fifteen", "sixteen")

_SPEC = re.compile(r"(.*?) *(\(\)|, to|to|±|range|)")


def show(number: float, spec: str = "") -> str:
    """A number as text.

    Args:
        number: to write.
        spec: of `format`; `words` for a small count in words, empty for thousands with commas.

    >>> show(0.1014, ".3f"), show(-0.08, "+.2f"), show(0.005, "+.3f"), show(1.25, ".1f")
    ('.101', '-.08', '+.005', '1.2')
    >>> show(8192), show(3, "words"), show(0.0003, ".2%"), show(9.6e-16, ".0e")
    ('8,192', 'three', '.03 %', '1e-15')
    """
    if spec == "words":
        return WORDS[int(number)]
    if spec == "":
        spec = ",.0f" if number == int(number) else "g"
    text = format(number, spec).replace("e-0", "e-").replace("%", " %")
    return re.sub(r"^([-+]?)0(?=\.\d)", r"\1", text)


class Found:
    """Something found in results: `[key]` goes on, formatting writes it.

    Args:
        value: JSON.
    """

    def __init__(self, value: Any):
        self.value = value

    def __getitem__(self, key: int | str) -> "Found":
        # str.format reads [5] as a number; JSON's keys are text.
        return Found(self.value[str(key) if isinstance(self.value, Mapping) else key])

    def __str__(self) -> str:
        return format(self, "")

    def __format__(self, spec: str) -> str:
        match = _SPEC.fullmatch(spec)
        assert match is not None
        form, part = match.groups()
        value = self.value
        if isinstance(value, str) and not spec:
            return value
        if isinstance(value, list):
            value = intervals.of([x for x in value if x is not None])
        if isinstance(value, Mapping):
            return _interval(value, form, part)
        if part or isinstance(value, bool) or not isinstance(value, int | float):
            raise ValueError(f"can't be written as {spec!r}: {value!r}")
        return show(value, form)


def _interval(value: Mapping[str, Any], form: str, part: str) -> str:
    """Mean, interval, or both; only the mean carries a plus."""
    mean, bare = show(value["mean"], form), form.removeprefix("+")
    if part == "":
        return mean
    if part == "range":
        return f"{show(min(value['values']), bare)} to {show(max(value['values']), bare)}"
    if part == "±":
        return f"{mean} ± {show(value['mean'] - value['low'], bare)}"
    ends = f"{show(value['low'], bare)} to {show(value['high'], bare)}"
    return {"to": ends, ", to": f"{mean}, {ends}", "()": f"{mean} ({ends})"}[part]


class _Formatter(string.Formatter):
    """Names the field that is not there."""

    def get_field(self, field_name, args, kwargs):
        try:
            found, used = super().get_field(field_name, args, kwargs)
        except (KeyError, IndexError, TypeError, AttributeError) as error:
            raise ValueError(f"nothing is called {{{field_name}}}: {error!r}") from error
        return found, used

    def format_field(self, value, format_spec):
        return format(value if isinstance(value, Found) else Found(value), format_spec)


def fill(template: str, names: Mapping[str, Any]) -> str:
    """Fills a template's fields.

    Args:
        template: text with fields.
        names: what a field may begin with; JSON values.

    Raises:
        ValueError: a field leads nowhere, or what it leads to is no number; names it.

    >>> fill("{a[b]:.2f}, {a[c]:+.1f ()}", {"a": {"b": 0.5, "c": [1.0, 2.0, 3.0]}})
    '.50, +2.0 (-.5 to 4.5)'
    """
    return _Formatter().vformat(template, (), _Names(names))


class _Names(Mapping[str, Found]):
    """Wraps what it is asked for, and no more: results are read when they are needed."""

    def __init__(self, names: Mapping[str, Any]):
        self._names = names

    def __getitem__(self, name: str) -> Found:
        return Found(self._names[name])

    def __iter__(self):
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)
