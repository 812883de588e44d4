"""Answers in a form: the smallest value that follows a JSON schema, and the answer to packed prompts."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from math import ceil, floor, isfinite
from typing import Any

_DEPTH = 16  # recursive schemas end here
_PACK = re.compile(r'\[\{"id": "[a-z2-7]{8}", "check": "[a-z2-7]{6}", "prompt": "')
"""How the library begins a prompt that holds several."""


def packed_answers(prompt: str, answer_to: Callable[[str], str]) -> str | None:
    """Answer several prompts packed into one, each as it is answered alone; ``None`` for no pack."""
    if _PACK.match(prompt) is None:
        return None
    try:
        said = [
            {"id": item["id"], "answer": f"{item['check']} {answer_to(item['prompt'])} {item['check']}"}
            for item in json.loads(prompt)
        ]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    return json.dumps({"answers": said}, ensure_ascii=False)


def called_tools(names: Sequence[str], choice: str, prompt: str, *, answered: bool) -> list[str]:
    """Return the tools that a simulated model calls. In order:

    1. One has to be called: the named one, or the first.
    2. The prompt names some of them, and their results are not there yet: these.

    Args:
        names: of the tools that are offered.
        choice: ``auto``, ``none``, ``required`` or the name of a tool.
        prompt: the text of the last user message.
        answered: whether the conversation ends with results of tools.
    """
    if choice == "none" or not names:
        return []
    if choice == "auto":
        return [] if answered else [name for name in names if _mentions(prompt, name)]
    return [names[0] if choice == "required" else choice]


def _mentions(prompt: str, name: str) -> bool:
    return re.search(rf"(?<![\w-]){re.escape(name)}(?![\w-])", prompt) is not None


def instance(schema: Mapping[str, Any], text: str) -> Any:
    """Return a value that follows ``schema``: required properties only, strings are ``text``.

    Local references are followed; patterns, formats and ``uniqueItems`` are not.
    """
    return _value(schema, text, schema, 0)


def _value(schema: Any, text: str, root: Mapping[str, Any], depth: int) -> Any:
    """Return a small value that fits a schema. The cases, in order: too deep, or no schema; a reference; a
    constant; a choice; branches; then by type, where a text is the default."""
    if not isinstance(schema, Mapping) or depth > _DEPTH:
        return None
    if isinstance(reference := schema.get("$ref"), str):
        return _value(_resolve(reference, root), text, root, depth + 1)
    if "const" in schema:
        return schema["const"]
    if schema.get("enum"):
        return schema["enum"][0]
    for word in ("anyOf", "oneOf", "allOf"):
        if schema.get(word):
            # The last branch is by custom the one that ends a recursion, such as null.
            return _value(schema[word][-1 if depth > _DEPTH // 2 else 0], text, root, depth + 1)
    kind = schema.get("type")
    if isinstance(kind, (list, tuple)):
        kind = kind[0] if kind else None
    if kind == "object" or (kind is None and "properties" in schema):
        properties = schema.get("properties", {})
        required = schema.get("required", ())
        return {name: _value(properties.get(name, {}), text, root, depth + 1) for name in required}
    if kind == "array":
        first = [_value(each, text, root, depth + 1) for each in schema.get("prefixItems", ())]
        further = int(schema.get("minItems", 0)) - len(first)
        return first + [_value(schema.get("items"), text, root, depth + 1)] * further
    if kind in ("integer", "number"):
        return number_within({**schema, "type": kind}, 1)
    return {"boolean": True, "null": None}.get(str(kind), _text(schema, text))


def _text(schema: Mapping[str, Any], text: str) -> str:
    return text.ljust(int(schema.get("minLength", 0)), ".")[: schema.get("maxLength")]


def number_within(schema: Mapping[str, Any], usual: int) -> int | float:
    """Return a number of the type, bounds and step of a schema: the least, or ``usual`` where that is none.

    Where its bounds leave no number, any is returned.
    """
    step = _exact(schema.get("multipleOf"))
    if schema.get("type") == "integer":
        step = Fraction(step.numerator if step else 1)  # what is whole of the multiples of p/q
    low, above = _exact(schema.get("minimum")), _exact(schema.get("exclusiveMinimum"))
    high, below = _exact(schema.get("maximum")), _exact(schema.get("exclusiveMaximum"))
    least = max((bound for bound in (low, above) if bound is not None), default=None)
    most = min((bound for bound in (high, below) if bound is not None), default=None)
    wanted = [] if least is None else [least, least + (step or 1)]
    wanted.append(Fraction(usual))
    wanted += [] if most is None else [most, most - (step or 1)]
    wanted += [] if least is None or most is None else [(least + most) / 2]
    numbers = [
        number
        for each in wanted
        for number in ((ceil(each / step) * step, floor(each / step) * step) if step else (each,))
    ]
    fitting = (
        number
        for number in numbers
        if (least is None or number >= least)
        and (most is None or number <= most)
        and number not in (above, below)
    )
    found = next(fitting, numbers[0])
    return found.numerator if found.denominator == 1 else float(found)


def _exact(number: Any) -> Fraction | None:
    """Return a number of a schema as it is written: 0.1 is a tenth. ``None`` for anything else."""
    if isinstance(number, int) and not isinstance(number, bool):
        return Fraction(number)
    return Fraction(repr(number)) if isinstance(number, float) and isfinite(number) else None


def _resolve(reference: str, root: Mapping[str, Any]) -> Any:
    found: Any = root
    for part in reference.removeprefix("#").strip("/").split("/"):
        if part:
            found = found.get(part) if isinstance(found, Mapping) else None
    return found
