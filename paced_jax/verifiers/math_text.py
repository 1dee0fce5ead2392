r"""Answers to mathematics problems as text: finding them, tidying them, splitting lists of them."""

import re

# Names of one unit. Two written units must be the same; a missing one matches any.
_UNITS = {
    "degree": r"\^\{?\\circ\}?|°|degrees?|deg",
    "dollar": r"\\?\$|dollars?|usd",
    "cent": "cents?",
    "percent": r"\\?%|percent",
    "centimetre": "cm|centimet(?:er|re)s?",
    "millimetre": "mm|millimet(?:er|re)s?",
    "kilometre": "km|kilomet(?:er|re)s?",
    "metre": "m|met(?:er|re)s?",
    "inch": "in|inch(?:es)?",
    "foot": "ft|foot|feet",
    "yard": "yards?",
    "mile": "miles?",
    "mile per hour": "mph",
    "second": "s|sec|seconds?",
    "minute": "min|minutes?",
    "hour": "h|hours?",
    "day": "days?",
    "gram": "g|grams?",
    "kilogram": "kg|kilograms?",
    "litre": "l|lit(?:er|re)s?",
    "unit": "units?",
}
# Short units only inside \text or right after a number: elsewhere m, s, h, g, l are variables.
_WRAPPED = r"\\(?:text|mathrm|textrm|rm|mbox)\s*\{{\s*(?:{0})\.?\s*\}}"
_POWER = r"(?:\s*\^\s*\{?\s*(?P<power>[23])\s*\}?)?"


def _unit_pattern(names: str) -> re.Pattern[str]:
    long_names = "|".join(n for n in names.split("|") if not re.fullmatch("[a-z]{1,2}", n))
    bare = rf"|(?:\\[ ,;!])*\s*(?:{long_names})" if long_names else ""
    return re.compile(rf"(?:\\[ ,;!])*\s*(?:{_WRAPPED.format(names)}{bare}){_POWER}$", re.I)


_SUFFIXES = {unit: _unit_pattern(names) for unit, names in _UNITS.items()}
_TEXT = re.compile(r"\\(?:text|textbf|textit|textrm|mathrm|mathbf|mbox|emph)\s*\{([^{}]*)\}")


def find_answer(response: str) -> str | None:
    r"""Finds the final answer of a response: the last box wins, also when it never closes.

    Without any box: what follows the last `####` or "answer is" / "answer:" on its line, or the
    whole response when it is one line of at most 100 characters.

    Returns:
        The answer's text; None without one, an empty string for an empty or unterminated box.

    >>> find_answer(r"First \boxed{4}, no: \boxed{\text{E}}."), find_answer(r"\boxed{4} \boxed{")
    ('\\text{E}', '')
    """
    starts = list(re.finditer(r"\\f?boxed\s*(\{|[^\s{$.,]+)", response))
    opened = re.search(r"\\f?boxed\s*$", response)
    if opened:
        return ""
    if starts:
        last = starts[-1]
        return (braced(response, last.end()) or "") if last[1] == "{" else last[1]
    marks = list(re.finditer(r"####\s*(.*)|answer(?:\s+is|\s*:)\s*:?\s*(.*)", response, re.I))
    if marks:
        return next(part for part in marks[-1].groups() if part is not None).strip(" *.")
    line = response.strip()
    return line if line and "\n" not in line and len(line) <= 100 else None


def braced(text: str, start: int) -> str | None:
    r"""The text from `start`, which follows a brace, to the brace that closes it.

    None where nothing closes it; `\{` and `\}` are content.
    """
    depth = 1
    for match in re.finditer(r"\\.|[{}]", text[start:], re.S):
        depth += {"{": 1, "}": -1}.get(match[0], 0)
        if depth == 0:
            return text[start : start + match.start()]
    return None


def tidy(answer: str) -> str:
    r"""Removes what carries no meaning: delimiters, spacing, sizes, a final full stop.

    >>> tidy(r"$\dfrac{1}{2}\,.$"), tidy(r"\left( 3, 1{,}000\right)")
    ('\\frac{1}{2}', '( 3, 1000)')
    """
    answer = answer.strip()
    for opening, closing in ((r"\(", r"\)"), (r"\[", r"\]"), ("$$", "$$"), ("$", "$")):
        if answer.startswith(opening) and answer.endswith(closing) and len(answer) > len(opening):
            answer = answer[len(opening) : -len(closing)].strip()
    answer = re.sub(r"(?<!\\)\$", "", answer)
    answer = re.sub(
        r"\\(?:left|right|displaystyle|bigl?|bigr|Bigl?|Bigr)(?![a-zA-Z])\.?", "", answer
    )
    answer = re.sub(r"\\[dtc]frac(?![a-zA-Z])", r"\\frac", answer)
    answer = answer.replace(r"\!", "").replace("{,}", ",").replace("−", "-").replace("~", " ")
    answer = re.sub(r"(?:\\[,;: ]|\\q?quad\b|\s)+", " ", answer).strip()
    answer = re.sub(r"(?<!\.)\.$", "", answer).strip()
    answer = re.sub(r"(\d)[eE]([+-]?\d+)(?![\w}])", r"\1 \\times 10^{\2}", answer)
    # Thousands: groups of exactly three digits, no space after the comma.
    return re.sub(
        r"(?<![\d.,])\d{1,3}(?:,\d{3})+(?![\d,])", lambda m: m[0].replace(",", ""), answer
    )


def words(answer: str) -> str:
    r"""The answer as bare text, to compare answers that are words or letters.

    >>> words(r"\text{(C)}"), words(r"\text{Evelyn }"), words(r"\textbf{(E)} ")
    ('c', 'evelyn', 'e')
    """
    while (plain := _TEXT.sub(r"\1", answer)) != answer:
        answer = plain
    answer = re.sub(r"\s+", "", answer).casefold()
    return answer[1:-1] if re.fullmatch(r"\([a-z]\)", answer) else answer


def split_parts(answer: str) -> list[str]:
    r"""Splits a list or set of answers at its top level; `\pm` counts as two answers.

    Pairs, tuples and intervals in brackets stay whole.

    >>> split_parts(r"1331 \text{ and } 1728"), split_parts(r"\{1, (2, 3)\}"), split_parts(r"\pm 3")
    (['1331', '1728'], ['1', '(2, 3)'], ['3', '-3'])
    """
    inside = re.fullmatch(r"\\\{(.*)\\\}", answer.strip(), re.S)
    answer = inside[1] if inside and r"\}" not in inside[1] else answer
    answer = re.sub(r"\\(?:text|mathrm|textrm|mbox)\s*\{\s*,?\s*(?:and|or)\s*\}", ",", answer)
    answer = re.sub(r"(?<![a-zA-Z\\])(?:and|or)(?![a-zA-Z])", ",", answer)
    parts, depth, part = [], 0, ""
    for token in re.findall(r"\\.|.", answer, re.S):
        depth += (token in ("(", "[", "{", r"\{")) - (token in (")", "]", "}", r"\}"))
        if token in (",", ";") and depth <= 0:
            parts.append(part)
            part = ""
        else:
            part += token
    parts = [p.strip() for p in [*parts, part] if p.strip()]
    signed = [(p.replace(r"\pm", "+"), p.replace(r"\pm", "-")) for p in parts]
    both = [
        [plus.removeprefix("+").strip(), re.sub(r"^-\s+", "-", minus)]
        if part.count(r"\pm") == 1
        else [part]
        for part, (plus, minus) in zip(parts, signed, strict=True)
    ]
    return [p for pair in both for p in pair]


def split_unit(answer: str) -> tuple[str, str | None]:
    r"""Takes a unit off the end (or a dollar sign off the front).

    >>> split_unit(r"5.4 \text{ cents}"), split_unit(r"336^\circ"), split_unit("12 m")
    (('5.4', 'cent'), ('336', 'degree'), ('12', 'metre'))
    """
    if answer.startswith(r"\$"):
        return answer[2:].strip(), "dollar"
    for unit, pattern in _SUFFIXES.items():
        match = pattern.search(answer)
        if match and match.start() > 0:
            power = match["power"]
            return answer[: match.start()].strip(), unit + (f"^{power}" if power else "")
    number = re.fullmatch(r"(-?\d[\d.,/]*)\s*([a-zA-Z]{1,2})", answer)
    for unit, names in _UNITS.items():
        if number and number[2] in names.split("|"):
            return number[1], unit
    return answer, None


_FUNCTIONS = {"sin", "cos", "tan", "cot", "sec", "csc", "ln", "log", "arcsin", "arccos", "arctan"}
_CONSTANTS = {"pi": r"\pi", "infinity": r"\infty", "inf": r"\infty", "oo": r"\infty"}
_GREEK = {"alpha", "beta", "gamma", "delta", "theta", "lambda", "mu", "sigma", "phi", "omega"}


def plain_to_latex(answer: str) -> str:
    r"""Writes plain-text mathematics as LaTeX; text with a backslash or unknown words stays.

    >>> plain_to_latex("-1+exp(16)"), plain_to_latex("sqrt(2)*pi/2^10"), plain_to_latex("Evelyn")
    ('-1+e^{16}', '\\sqrt{2} \\cdot \\pi /2^{10}', 'Evelyn')
    """
    names = re.findall(r"[A-Za-z]+", answer)
    known = {"sqrt", "exp", *_FUNCTIONS, *_CONSTANTS, *_GREEK}
    if "\\" in answer or "{" in answer or any(len(n) > 1 and n not in known for n in names):
        return answer
    answer = re.sub(r"(\d)\.(?!\d)", r"\1", answer.replace("**", "^"))
    answer = _call(_call(answer, "sqrt", r"\sqrt{"), "exp", "e^{")
    answer = _call(answer, r"\^", "^{")
    answer = re.sub(r"\^\s*(-?[A-Za-z]+|-?\d+(?:\.\d+)?)", r"^{\1}", answer)
    answer = re.sub(r"\s*\*\s*", r" \\cdot ", answer)
    for name in {*_FUNCTIONS, *_GREEK}:
        answer = re.sub(rf"(?<![A-Za-z\\]){name}(?![A-Za-z])", rf"\\{name} ", answer)
    for name, latex in _CONSTANTS.items():
        answer = re.sub(rf"(?<![A-Za-z\\]){name}(?![A-Za-z])", lambda _, x=latex: x + " ", answer)
    return answer.strip()


def _call(text: str, name: str, opening: str) -> str:
    """Rewrites `name(...)` as `opening...}`, innermost brackets included."""
    pattern = re.compile(rf"(?<![A-Za-z\\]){name}\s*\(" if name[0] != "\\" else rf"{name}\s*\(")
    while match := pattern.search(text):
        depth, end = 1, match.end()
        while end < len(text) and depth:
            depth += (text[end] == "(") - (text[end] == ")")
            end += 1
        if depth:
            return text
        text = text[: match.start()] + opening + text[match.end() : end - 1] + "}" + text[end:]
    return text
