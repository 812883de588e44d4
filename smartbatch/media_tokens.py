"""Estimates the tokens of images, documents and audio by each provider's published rule.

Sources (November 2026): OpenAI's guide to images, "Calculating costs" (patches of 32 pixels, or tiles of
512), and its guides to files (the text and an image of each page) and audio (10 tokens per second);
Anthropic's guides to vision (a token per patch of 28 pixels, after scaling to 1,568 pixels and tokens, or
for newer models to 2,576 and 4,784) and PDF support (1,500 to 3,000 tokens of text per page, and an image
of it); Google's guides to images (258 tokens per tile), media resolution (1,120 tokens per image and 560
per page for Gemini 3) and audio (32 tokens per second). Reported usage corrects these estimates like those
of texts.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from functools import lru_cache
from typing import Final

from attrs import frozen

from smartbatch.media import Audio, Document, Image, Media

UNKNOWN_TOKENS: Final = 765  # an image of 1,024 × 1,024 pixels at high detail (OpenAI: 85 + 4 × 170)
UNKNOWN_MOST_TOKENS: Final = 5000  # room for a large image; a long document or recording can take more
_PAGE_PIXELS = (1224, 1584)  # a letter at 144 dots per inch
_BYTES_PER_TOKEN = 4  # of a text, as in ``tokens.estimate``


@frozen
class MediaRule:
    """How a model's provider counts files. ``most_…`` are upper bounds, for budgets."""

    image: Callable[[int, int], int]  # tokens of an image by its width and height
    most_image: Callable[[int, int], int]
    page_text: int = 500  # tokens of the text of a page
    most_page_text: int = 3000
    page_image: bool = True  # whether a page is counted as an image too
    second: float = 10.0  # tokens of a second of audio

    def expected(self, media: Media) -> int:
        return self._tokens(media, self.image, self.page_text, _BYTES_PER_TOKEN, UNKNOWN_TOKENS)

    def most(self, media: Media) -> int:
        return self._tokens(media, self.most_image, self.most_page_text, 1, UNKNOWN_MOST_TOKENS)

    def _tokens(
        self, media: Media, image: Callable[[int, int], int], page_text: int, text_bytes: int, unknown: int
    ) -> int:
        if isinstance(media, Image) and media.width and media.height:
            return image(*media.sent_size())
        if isinstance(media, Document) and media.pages:
            page = image(*_PAGE_PIXELS) if self.page_image else 0
            return media.pages * (page_text + page)
        if isinstance(media, Document) and media.size is not None:
            return math.ceil(media.size / text_bytes)
        if isinstance(media, Audio) and media.seconds is not None:
            return math.ceil(media.seconds * self.second)
        return unknown


def _fitted(width: int, height: int, side: float) -> tuple[int, int]:
    factor = min(1.0, side / max(width, height))
    return max(1, round(width * factor)), max(1, round(height * factor))


def _patches(pixels: int, budget: float, side: float, multiplier: float = 1.0) -> Callable[[int, int], int]:
    """Count square patches, after scaling to the longer ``side`` and to at most ``budget`` patches."""

    def tokens(width: int, height: int) -> int:
        width, height = _fitted(width, height, side)
        if math.ceil(width / pixels) * math.ceil(height / pixels) > budget:
            factor = math.sqrt(pixels**2 * budget / (width * height))
            across, down = width * factor / pixels, height * factor / pixels
            factor *= min(max(1, math.floor(across)) / across, max(1, math.floor(down)) / down)
            width, height = round(width * factor), round(height * factor)
        patches = max(1, math.ceil(width / pixels)) * max(1, math.ceil(height / pixels))
        return math.ceil(min(patches, budget) * multiplier)

    return tokens


def _tiles(base: int, tile: int) -> Callable[[int, int], int]:
    """Scale to fit 2,048 × 2,048 pixels and to a shorter side of 768, then count tiles of 512."""

    def tokens(width: int, height: int) -> int:
        width, height = _fitted(width, height, 2048)
        factor = min(1.0, 768 / min(width, height))
        return base + tile * math.ceil(width * factor / 512) * math.ceil(height * factor / 512)

    return tokens


def _gemini_tiles(width: int, height: int) -> int:
    if max(width, height) <= 384:
        return 258
    unit = min(768, max(256, math.floor(min(width, height) / 1.5)))
    return 258 * math.ceil(width / unit) * math.ceil(height / unit)


def _openai(image: Callable[[int, int], int]) -> MediaRule:
    return MediaRule(image, image)


_CLAUDE = MediaRule(_patches(28, 1568, 1568), _patches(28, 4784, 2576), page_text=2250, most_page_text=3000)
_GEMINI_2 = MediaRule(_gemini_tiles, _gemini_tiles, 258, 258, page_image=False, second=32)
_GEMINI = MediaRule(lambda *_: 1120, lambda *_: 2240, 560, 1120, page_image=False, second=32)
_OTHER = _openai(_tiles(85, 170))
# the first that matches the name of a model, with or without the provider
_RULES: Final[tuple[tuple[re.Pattern[str], MediaRule], ...]] = tuple(
    (re.compile(pattern), rule)
    for pattern, rule in (
        (r"gpt-(5|5\.4|4\.1)-mini", _openai(_patches(32, 1536, 2048, 1.62))),
        (r"gpt-(5|5\.4|4\.1)-nano", _openai(_patches(32, 1536, 2048, 2.46))),
        (r"o4-mini", _openai(_patches(32, 1536, 2048, 1.72))),
        (r"gpt-5\.[23]", _openai(_patches(32, 1536, 2048))),
        (r"gpt-5\.4", _openai(_patches(32, 2500, 2048))),
        (r"gpt-5\.5", _openai(_patches(32, 10_000, 6000))),
        (r"gpt-5\.([6-9]|\d\d)", _openai(_patches(32, math.inf, math.inf))),
        (r"gpt-5", _openai(_tiles(70, 140))),
        (r"gpt-4o-mini", _openai(_tiles(2833, 5667))),
        (r"\bo[13]\b", _openai(_tiles(75, 150))),
        (r"claude", _CLAUDE),
        (r"gemini-[12]", _GEMINI_2),
        (r"gemini-", _GEMINI),
    )
)


@lru_cache(maxsize=256)
def media_rule(model: str) -> MediaRule:
    """Return the rule of a model; that of GPT-4o for unknown models."""
    return next((rule for pattern, rule in _RULES if pattern.search(model)), _OTHER)
