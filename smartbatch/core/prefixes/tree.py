"""Finds the prefixes that many prompts share, in one pass and a few microseconds per prompt.

A radix tree over the rendered prompts has a node wherever prompts diverge. Prefixes shorter than the
provider's minimum, or that add little to a shorter one, are not considered.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice

from attrs import define, evolve, field

from smartbatch.chats import Message, texts_in
from smartbatch.core.prefixes.rendering import Rendering, rendering_of
from smartbatch.media import Media
from smartbatch.shared_prefixes import CacheMark, CachingRules, SharedPrefix
from smartbatch.types import Request

MIN_STEP_TOKENS = 256
"""A longer prefix is considered only if it adds this much to a shorter one, because each has an entry of
its own that must be written.
"""
_MIN_STEP_CHARS = MIN_STEP_TOKENS // 2  # fewer characters never have that many tokens, in any script
_MAX_NODES_ON_PATH = 64
WINDOW_REQUESTS = 5_000
WINDOW_SIZE = 32_000_000
"""Maximum number of requests of a stream that are compared with each other, which is the default for a batch,
and maximum total of the characters of their texts and the bytes of their files.
"""


@define(eq=False)
class _Node:
    rendering: Rendering  # of any request that passes through it
    depth: int  # characters of its text
    parent: _Node | None
    uses: int = 0
    ends: int = 0  # requests that end here
    children: dict[str, _Node] = field(factory=dict)  # by the first character of their own text
    tokens: int = -1  # computed when it is needed
    prefixes: tuple[SharedPrefix, ...] | None = None  # computed when it is needed


class PrefixTree:
    """The prompts of requests to one model."""

    def __init__(self, rules: CachingRules) -> None:
        self._rules = rules
        self._roots: dict[bytes, _Node] = {}

    def add(self, rendering: Rendering) -> _Node:
        """Add a prompt and return the last node on its path."""
        head, text = rendering.head, rendering.text
        node = self._roots.get(head.digest)
        if node is None:
            node = self._roots[head.digest] = _Node(rendering, 0, None)
        node.uses += 1
        for _ in range(_MAX_NODES_ON_PATH):
            if len(text) - node.depth < _MIN_STEP_CHARS:
                node.ends += node.depth == len(text)
                return node
            first = text[node.depth]
            child = node.children.get(first)
            if child is None:
                child = _Node(rendering, len(text), node, uses=1, ends=1)
                node.children[first] = child
                return child
            shared = _common(child.rendering.text, text, node.depth, child.depth)
            if shared < child.depth:
                middle = _Node(child.rendering, shared, node, child.uses)
                middle.children[child.rendering.text[shared]] = child
                child.parent = node.children[first] = middle
                child = middle
            child.uses += 1
            node = child
        return node

    def prefixes(self, node: _Node) -> tuple[SharedPrefix, ...]:
        """Return the prefixes worth caching on the path to ``node``, shortest first.

        All prompts must have been added.
        """
        path: list[_Node] = []
        each: _Node | None = node
        while each is not None and each.prefixes is None:
            path.append(each)
            each = each.parent
        for each in reversed(path):
            before = () if each.parent is None else each.parent.prefixes or ()
            own = self._prefix(each, before[-1].tokens if before else 0)
            each.prefixes = before if own is None else (*before, own)
        return node.prefixes or ()

    def _prefix(self, node: _Node, before: int) -> SharedPrefix | None:
        parent, rendering = node.parent, node.rendering
        if parent is None:
            node.tokens = rendering.head.tokens
        else:
            node.tokens = parent.tokens + rendering.tokens_between(parent.depth, node.depth)
        if node.uses < self._rules.break_even() or node.tokens < max(
            self._rules.min_tokens, before + MIN_STEP_TOKENS
        ):
            return None
        return rendering.prefix(node.depth, node.tokens, node.uses, whole=node.ends == node.uses)


def _common(one: str, other: str, start: int, end: int) -> int:
    """Return the end of the common prefix, given that the strings agree before ``start``."""
    end = min(end, len(other))
    if one[start:end] == other[start:end]:
        return end
    while end - start > 1:
        middle = (start + end) // 2
        if one[start:middle] == other[start:middle]:
            start = middle
        else:
            end = middle
    return start


def with_shared_prefixes(
    requests: Sequence[Request],
    rules_of: Callable[[Request], CachingRules | None],
    shares: Callable[[Request], bool],
) -> list[Request]:
    """Return the requests, each with the prefixes that it shares with others.

    Args:
        rules_of: how the request's model caches prompts; ``None`` if it does not.
        shares: whether the request shares the answer of an identical one, which is then sent once.
    """
    trees: dict[str | None, tuple[PrefixTree, CachingRules] | None] = {}
    found: list[tuple[int, PrefixTree, _Node]] = []
    seen: set[tuple[bytes, str]] = set()
    for at, request in enumerate(requests):
        known = trees.get(request.model, ...)
        if known is ...:
            rules = rules_of(request)
            known = trees[request.model] = None if rules is None else (PrefixTree(rules), rules)
        if known is None or (rendering := rendering_of(request)) is None:
            continue
        tree, rules = known
        if rendering.head.tokens + 2 * len(rendering.text) < rules.min_tokens and not rendering.pieces:
            continue
        if shares(request):
            identity = (rendering.head.digest, rendering.text)
            if identity in seen:
                continue
            seen.add(identity)
        found.append((at, tree, tree.add(rendering)))
    marked = list(requests)
    marks: dict[tuple[SharedPrefix, ...], CacheMark] = {}
    for at, tree, node in found:
        prefixes = tree.prefixes(node)
        if prefixes:
            mark = marks.setdefault(prefixes, CacheMark(prefixes))
            marked[at] = evolve(marked[at], cache=mark)
    return marked


def in_windows(
    requests: Iterable[Request],
    rules_of: Callable[[Request], CachingRules | None],
    shares: Callable[[Request], bool],
) -> Iterator[Request]:
    """Yield the requests of a stream as :func:`with_shared_prefixes` does, in windows of bounded size."""
    stream = iter(requests)
    while window := list(_window(stream)):
        is_done = any(request.cache is not None for request in window)
        yield from window if is_done else with_shared_prefixes(window, rules_of, shares)


def _window(stream: Iterator[Request]) -> Iterator[Request]:
    size = 0
    for request in islice(stream, WINDOW_REQUESTS):
        yield request
        size += _size(request.prompt)
        if size > WINDOW_SIZE:
            return


def _size(prompt: str | Sequence[Message]) -> int:
    """Return the characters of the texts and the bytes of the files."""
    if isinstance(prompt, str):
        return len(prompt)
    contents = [message.content for message in prompt]
    texts = sum(len(text) for content in contents for text in texts_in(content))
    parts = (part for content in contents if not isinstance(content, str) for part in content)
    return texts + sum(part.size or 0 for part in parts if isinstance(part, Media))
