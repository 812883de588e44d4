"""Feeds malformed inputs to every parser and checks the outcome, the CPU time and the memory.

    python -m benchmarks.fuzz --inputs 5000000 --seed 1
    python -m benchmarks.fuzz --inputs 50000 --parser "rows of CSV"

Inputs are malformed in their structure or in single bytes. Each has its own seed, which failures report. A
parser must return a usable value or raise its documented error within two seconds of CPU time. All parsers
run in one process, whose memory must not grow with the number of inputs.
"""

from __future__ import annotations

import argparse
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))  # as with pytest
fuzzing: Any = import_module("properties.fuzzing")
PARSERS: dict[str, Any] = {
    **import_module("properties.test_fuzz_parsers").TARGETS,
    **import_module("properties.test_fuzz_records").TARGETS,
}
_HEAD = (
    "| parser | inputs | made sense | µs of CPU an input, its making included | slowest, ms | memory, MB |"
)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--inputs", type=int, default=5_000_000, help="in all; as many for each parser")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--parser", choices=sorted(PARSERS), help="one only")
    options = parser.parse_args()
    names = [options.parser] if options.parser else list(PARSERS)
    rounds = -(-options.inputs // len(names))
    print(_HEAD)
    print("|" + "---|" * (_HEAD.count("|") - 1), flush=True)
    whole = 0
    for name in names:
        # no two seeds of the command share an input
        found = fuzzing.fuzz(name, PARSERS[name], rounds, options.seed * 1_000_000_000)
        whole += found.inputs
        cells = (
            *(name, f"{found.inputs:,}", f"{found.good / found.inputs:.0%}"),
            *(
                f"{found.cpu / found.inputs * 1e6:.0f}",
                f"{found.slowest * 1e3:.0f}",
                f"{found.grown / 1e6:.0f}",
            ),
        )
        print("| " + " | ".join(cells) + " |", flush=True)
    print(f"{whole:,} inputs")


if __name__ == "__main__":
    main()
