"""Real images of installed packages and PDFs made by matplotlib, as files that benchmarks send."""

from __future__ import annotations

import hashlib
import io
import sysconfig
from collections.abc import Iterator
from contextlib import suppress
from itertools import count
from pathlib import Path

from PIL import Image

TYPES = {"PNG": ".png", "JPEG": ".jpg", "WEBP": ".webp"}  # the formats that all three providers accept
_MOST_BYTES = 1_000_000
_LEAST_SIDE, _MOST_SIDE = 16, 2000
_PAGES = 3


def write_images(folder: Path, number: int) -> list[Path]:
    """Write different images: those of installed packages first, then scaled versions of them."""
    contents = dict.fromkeys(_of_packages())
    originals = list(contents)
    if not originals:
        raise RuntimeError("no installed package contains images; install scikit-image")
    for step in count(1):
        for original in originals:
            if len(contents) >= number:
                break
            contents[_scaled(original, step)] = None
        if len(contents) >= number:
            break
    return [_written(folder, content) for content in list(contents)[:number]]


def _of_packages() -> Iterator[bytes]:
    folders = {Path(sysconfig.get_path(name)) for name in ("purelib", "platlib", "stdlib")}
    names = sorted({path for folder in folders for end in TYPES.values() for path in folder.rglob(f"*{end}")})
    for path in names:
        content = path.read_bytes()
        if len(content) <= _MOST_BYTES and _format(content) is not None:
            yield content


def _format(content: bytes) -> str | None:
    """Return the format of an image that can be decoded and sent."""
    with suppress(Exception), Image.open(io.BytesIO(content)) as image:
        image.load()
        fits = min(image.size) >= _LEAST_SIDE and max(image.size) <= _MOST_SIDE
        return image.format if image.format in TYPES and fits else None
    return None


def _scaled(content: bytes, step: int) -> bytes:
    """Return a smaller version in another format. ``step`` selects size and format."""
    with Image.open(io.BytesIO(content)) as image:
        factor = 0.95**step
        size = max(_LEAST_SIDE, int(image.width * factor)), max(_LEAST_SIDE, int(image.height * factor))
        smaller = image.convert("RGB").resize(size)
    file = io.BytesIO()
    smaller.save(file, format=list(TYPES)[step % len(TYPES)])
    return file.getvalue()


def write_photos(folder: Path, number: int, kilobytes: int) -> list[Path]:
    """Write different JPEG images of about the given size: noise, which hardly compresses."""
    paths = []
    side = int((kilobytes * 1000 / 0.85) ** 0.5)
    for seed in range(number):
        image = Image.frombytes("L", (side, side), hashlib.shake_128(b"%d" % seed).digest(side * side))
        file = io.BytesIO()
        image.save(file, format="JPEG", quality=90)
        paths.append(_written(folder, file.getvalue()))
    return paths


def write_pdfs(folder: Path, number: int) -> list[Path]:
    """Write PDFs of several pages, each with a table of numbers and a figure."""
    from matplotlib.backends.backend_pdf import PdfPages
    from matplotlib.figure import Figure

    paths = []
    for document in range(number):
        file = io.BytesIO()
        with PdfPages(file) as pages:
            for page in range(_PAGES):
                figure = Figure()
                upper, lower = figure.subplots(2)
                upper.set_title(f"Report {document}, page {page}")
                upper.plot([(document * value) % 7 for value in range(30)])
                digest = hashlib.shake_128(b"%d %d" % (document, page)).digest(10_000)
                lower.imshow([list(digest[row * 100 : row * 100 + 100]) for row in range(100)])
                pages.savefig(figure)
        paths.append(_written(folder, file.getvalue()))
    return paths


def _written(folder: Path, content: bytes) -> Path:
    image = _format(content)
    path = folder / (hashlib.sha256(content).hexdigest()[:16] + (TYPES[image] if image else ".pdf"))
    path.write_bytes(content)
    return path
