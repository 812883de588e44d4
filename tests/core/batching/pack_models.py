"""A simulated model that answers a pack correctly, and functions that damage what it wrote."""

from __future__ import annotations

import json
import random
from collections.abc import Callable

from smartbatch.core.batching.packing import Packed
from smartbatch.types import Request

__all__ = ["DAMAGE", "answer_to", "honest", "items_of", "written"]

Items = list[dict[str, str]]


def answer_to(prompt: str) -> str:
    """The one right answer: it repeats the prompt, so hostile text ends up in the answers as well."""
    return f"You said: {prompt.strip()!r}. And raw: {prompt.strip()} End."


def items_of(request: Request) -> Items:
    """The items a packed prompt carries, as a model reads them."""
    items: Items = json.loads(str(request.prompt))
    return items


def honest(packed: Packed) -> Items:
    return [
        {"id": item["id"], "answer": f"{item['check']} {answer_to(item['prompt'])} {item['check']}"}
        for item in items_of(packed.request)
    ]


def written(items: Items) -> str:
    return json.dumps({"answers": items}, ensure_ascii=False)


def _two(items: Items, rng: random.Random) -> tuple[int, int]:
    first = rng.randrange(len(items))
    return first, (first + 1 + rng.randrange(len(items) - 1)) % len(items)


def _swap(key: str) -> Callable[[Items, random.Random], str]:
    def swapped(items: Items, rng: random.Random) -> str:
        for _ in range(1 + rng.randrange(3)):
            a, b = _two(items, rng)
            items[a][key], items[b][key] = items[b][key], items[a][key]
        return written(items)

    return swapped


def _dropped(items: Items, rng: random.Random) -> str:
    return written([item for item in items if rng.random() < 0.7])


def _doubled(items: Items, rng: random.Random) -> str:
    a, b = _two(items, rng)
    return written([*items, {"id": items[a]["id"], "answer": items[b]["answer"]}])


def _doubled_outside(items: Items, rng: random.Random) -> str:
    a, b = _two(items, rng)
    return written(items) + "\n" + written([{**items[a], "answer": items[b]["answer"]}])


def _doubled_key(items: Items, rng: random.Random) -> str:
    a, b = _two(items, rng)
    answers = ", ".join(
        f'{{"id": "{item["id"]}", "answer": "x", "answer": {json.dumps(items[b]["answer"])}}}'
        if i == a
        else json.dumps(item)
        for i, item in enumerate(items)
    )
    return f'{{"answers": [{answers}]}}'


def _renumbered(items: Items, rng: random.Random) -> str:
    return written([{"id": str(i), "answer": item["answer"]} for i, item in enumerate(items)])


def _shifted(items: Items, rng: random.Random) -> str:
    ids = [item["id"] for item in items]
    by = 1 + rng.randrange(len(ids) - 1)
    return written([{**item, "id": ids[(i + by) % len(ids)]} for i, item in enumerate(items)])


def _cut(items: Items, rng: random.Random) -> str:
    whole = written(items)
    return whole[: rng.randrange(len(whole))]


def _spliced(items: Items, rng: random.Random) -> str:
    whole = written(items)
    a, b = sorted((rng.randrange(len(whole)), rng.randrange(len(whole))))
    return whole[:a] + whole[b:]


def _repeated(items: Items, rng: random.Random) -> str:
    whole = written(items)
    a, b = sorted((rng.randrange(len(whole)), rng.randrange(len(whole))))
    return whole[:b] + whole[a:]


def _noise(items: Items, rng: random.Random) -> str:
    whole = written(items)
    at = rng.randrange(len(whole))
    return whole[:at] + rng.choice(['"', "}", "{", "]", "\\", ",", '"}, {"', "\n", "x"]) + whole[at:]


def _merged(items: Items, rng: random.Random) -> str:
    a, b = _two(items, rng)
    items[a]["answer"] += " " + items[b]["answer"]
    return written([item for i, item in enumerate(items) if i != b])


def _without_checks(items: Items, rng: random.Random) -> str:
    return written([{**item, "answer": item["answer"].partition(" ")[2]} for item in items])


def _wrong_types(items: Items, rng: random.Random) -> str:
    odd = [None, 5, True, ["x"], {"a": 1}]
    return json.dumps({"answers": [{**i, "answer": rng.choice([i["answer"], *odd])} for i in items]})


def _fenced(items: Items, rng: random.Random) -> str:
    return f"Here you are:\n```json\n{written(items)}\n```\nAnything else?"


def _bare(items: Items, rng: random.Random) -> str:
    return json.dumps(items, indent=2)


def _reversed(items: Items, rng: random.Random) -> str:
    return written(items[::-1])


DAMAGE: dict[str, Callable[[Items, random.Random], str]] = {
    "dropped": _dropped,
    "doubled": _doubled,
    "doubled outside": _doubled_outside,
    "doubled key": _doubled_key,
    "ids swapped": _swap("id"),
    "answers swapped": _swap("answer"),
    "renumbered": _renumbered,
    "shifted": _shifted,
    "cut": _cut,
    "spliced": _spliced,
    "repeated": _repeated,
    "noise": _noise,
    "merged": _merged,
    "without checks": _without_checks,
    "wrong types": _wrong_types,
    "fenced": _fenced,
    "bare": _bare,
    "reversed": _reversed,
}
"""Ways in which a reply arrives otherwise than it was meant."""
