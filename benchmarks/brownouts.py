"""What partial failures cost: 1,000 rows, 64 wide, 50 ms an answer, against a server that fails in part.

    python -m benchmarks.brownouts --quick
    python -m benchmarks.brownouts --case "30 % 503" --timeline
    python -m benchmarks.brownouts --virtual --runs 1

Each case runs next to the undisturbed one, a hand-written loop and the vendor's SDK, over real HTTP to a
server in another process; the median of ``--runs`` counts. Each contestant is a process of its own, so that
nothing one run learned is known to the next. A run that is not over after its patience is ended.

With ``--virtual`` the client runs alone, in virtual time and on the same faults: within seconds and without
noise, for work on the control of the lanes. What counts are the figures of real time.

*calls* are those made over those the failures need, N / (1 − p); *lost* are rows without their answer.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import pairwise
from typing import Any

import urllib3
from attrs import evolve, field, frozen

from benchmarks.faulty_provider import FaultyProvider
from benchmarks.faulty_server import GOOD, WARM_UP, Faults, Script, as_json, served
from benchmarks.serial_clock import SerialClock
from benchmarks.virtual_run import send
from smartbatch import BatchingClient
from smartbatch.errors import SmartbatchError
from smartbatch.providers.openai.provider import OpenAIProvider

KEY = "benchmark"
WIDE = 64
TRIES = 5
"""Tries of the loop and of the SDK."""
RETRIED = frozenset({408, 409, 429, *range(500, 600)})


@frozen(kw_only=True)
class Wanted:
    """What a case is held to; ``None`` is not judged.

    Attributes:
        ratio: wall time over the undisturbed one.
        seconds: wall time.
        late: seconds beyond the undisturbed time and the outage.
        pause: seconds without a call while rows are left.
        calls: calls over those that the failures need.
        most_calls: calls in all.
        no_slower_than_sdk: whether the SDK may not be faster.
        lost: rows without their answer.
    """

    ratio: float | None = None
    seconds: float | None = None
    late: float | None = None
    pause: float | None = None
    calls: float | None = None
    most_calls: int | None = None
    no_slower_than_sdk: bool = False
    lost: int | None = 0


@frozen(kw_only=True)
class Case:
    """A disturbance and what it may cost.

    Attributes:
        needed: calls that N rows need, over N.
        patience: seconds until a run is given up.
    """

    name: str
    faults: Faults
    wanted: Wanted
    rows: int = 1000
    needed: float = 1.0
    patience: float = 120.0


def brownout(name: str, rates: dict[str, float], wanted: Wanted, **more: Any) -> Case:
    failing = sum(share for kind, share in rates.items() if kind != "slow")
    return Case(name=name, faults=Faults(rates=rates), wanted=wanted, needed=1 / (1 - failing), **more)


def same_for_all(name: str, fault: str, probes: int = 0) -> Case:
    """A refusal that every row would get: no more calls than run in parallel, and so many probes."""
    wanted = Wanted(most_calls=WIDE + probes, lost=None)
    return Case(name=name, faults=Faults(always=fault), wanted=wanted, rows=200, patience=60)


MIXED = {"429 after 1 s": 0.01, "500": 0.01, "503": 0.01, "reset": 0.01, "slow": 0.01}
NEEDED = 1.05

CASES: Sequence[Case] = (
    Case(name="undisturbed", faults=Faults(), wanted=Wanted(calls=1.0)),
    brownout("10 % 503", {"503": 0.10}, Wanted(ratio=2.0, calls=NEEDED)),
    brownout("30 % 503", {"503": 0.30}, Wanted(ratio=3.5, calls=NEEDED)),
    brownout("50 % 503", {"503": 0.50}, Wanted(ratio=8.0, calls=NEEDED)),
    brownout("20 % 529", {"529": 0.20}, Wanted(ratio=3.0, calls=NEEDED)),
    brownout("2 % 429", {"429": 0.02}, Wanted(ratio=3.0, calls=NEEDED)),
    brownout("1 % 429 after 1 s", {"429 after 1 s": 0.01}, Wanted(ratio=4.0, calls=NEEDED)),
    brownout("5 % mixed", MIXED, Wanted(no_slower_than_sdk=True, calls=NEEDED)),
    Case(name="outage of 10 s", faults=Faults(outage=(400, 10.0)), wanted=Wanted(late=3.0, pause=5.0)),
    Case(
        name="500 times 503",
        faults=Faults(refused=(300, 500)),
        wanted=Wanted(seconds=60.0, pause=5.0, calls=NEEDED),
        needed=1.5,
    ),
    Case(
        name="named limit, from the first answer",
        faults=Faults(named_limit=60),
        wanted=Wanted(late=15.0, calls=1.0),
        rows=1500,
        patience=60,
    ),
    Case(
        name="named limit, after 500 calls",
        faults=Faults(named_limit=60, named_from=500),
        wanted=Wanted(late=15.0, calls=1.0),
        rows=1500,
        patience=60,
    ),
    Case(
        name="named limit, in one answer",
        faults=Faults(named_limit=60, named_from=500, named_for=1),
        wanted=Wanted(late=15.0, calls=1.0),
        rows=1500,
        patience=60,
    ),
    brownout("1 % pages and empty bodies", {"page": 0.005, "empty": 0.005}, Wanted(calls=NEEDED)),
    Case(
        name="10 rows that always fail",
        faults=Faults(poisoned=10),
        wanted=Wanted(late=10.0, calls=NEEDED, lost=10),
    ),
    same_for_all("unknown model", "404"),
    same_for_all("no permission", "403"),
    same_for_all("wrong key", "401"),
    same_for_all("no money", "no money"),
    same_for_all("wrong address", "page", probes=1),
)
"""The cases, and the figures that are wanted of each."""


# -- the contestants -----------------------------------------------------------------------------------------


def ours(base_url: str, texts: list[str], *, model: str = "gpt-5-mini") -> list[str | None]:
    provider = OpenAIProvider(KEY, base_url)
    with BatchingClient(model, provider=provider, parallelism=WIDE) as client:
        return list(client.generate(texts).texts)


def loop(base_url: str, texts: list[str], *, model: str = "gpt-5-mini") -> list[str | None]:
    """What a careful user writes: five tries, exponential back-off with full jitter, Retry-After obeyed."""
    pool = urllib3.PoolManager(maxsize=WIDE, block=True, retries=False)
    headers = {"Authorization": f"Bearer {KEY}", "Content-Type": "application/json"}

    def once(body: bytes) -> tuple[str | None, float | None]:
        """Return the answer, or how long to wait; neither when trying again is no use."""
        try:
            response = pool.request("POST", f"{base_url}/chat/completions", body=body, headers=headers)
            if response.status == 200:
                return json.loads(response.data)["choices"][0]["message"]["content"], None
            asked = float(response.headers.get("Retry-After", 0))
            return None, asked if response.status in RETRIED else None
        except (urllib3.exceptions.HTTPError, ValueError):
            return None, 0.0

    def ask(text: str) -> str | None:
        body = json.dumps({"model": model, "messages": [{"role": "user", "content": text}]}).encode()
        for attempt in range(TRIES):
            answer, asked = once(body)
            if answer is not None or asked is None:
                return answer
            if attempt + 1 < TRIES:
                time.sleep(asked or random.uniform(0.0, min(8.0, 0.5 * 2**attempt)))
        return None

    with ThreadPoolExecutor(WIDE) as executor:
        return list(executor.map(ask, texts))


def sdk(base_url: str, texts: list[str], *, model: str = "gpt-5-mini") -> list[str | None]:
    """The vendor's client and its own retries, in a thread pool."""
    import openai

    client = openai.OpenAI(api_key=KEY, base_url=base_url, max_retries=TRIES - 1)

    def ask(text: str) -> str | None:
        try:
            answer = client.chat.completions.create(model=model, messages=[{"role": "user", "content": text}])
            return answer.choices[0].message.content
        except (openai.OpenAIError, AttributeError, TypeError, ValueError, IndexError):
            return None

    with ThreadPoolExecutor(WIDE) as executor:
        return list(executor.map(ask, texts))


CONTESTANTS: dict[str, Callable[..., list[str | None]]] = {"ours": ours, "loop": loop, "sdk": sdk}


def texts(rows: int) -> list[str]:
    return [f"row {number}: how many apples are left in the basket?" for number in range(rows)]


def contest(name: str, url: str, rows: int, patience: float) -> None:
    """Run one contestant in this process, print what came of it and end the process."""
    base_url, ask_all = f"{url}/v1", CONTESTANTS[name]
    ask_all(base_url, ["warm"], model=WARM_UP)
    prompts = texts(rows)
    report: dict[str, Any] = {"wall": patience, "lost": rows, "over": False}

    def run() -> None:
        began = time.perf_counter()
        try:
            answers = ask_all(base_url, prompts)
        except SmartbatchError:  # a list of which nothing succeeded raises
            answers = [None] * rows
        wall = time.perf_counter() - began
        wrong = sum(
            got is not None and got != f"answer to {text}" for text, got in zip(prompts, answers, strict=True)
        )
        if wrong:
            raise AssertionError(f"{wrong} answers belong to other rows")
        report.update(wall=wall, lost=answers.count(None), over=True)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(patience)
    print(json.dumps(report), flush=True)
    os._exit(0)  # what still runs would only use the machine of the next one


# -- measuring -----------------------------------------------------------------------------------------------


@frozen
class Run:
    """What one run took.

    Attributes:
        wall: seconds.
        lost: rows without their answer; of a run that was given up, those it had not come to.
        over: False when it was given up.
        calls: when each call arrived, what it met and when it was answered, in monotonic seconds.
        outage: when the outage began and ended.
    """

    wall: float
    lost: int
    over: bool
    calls: list[tuple[float, str, float | None]] = field(repr=False)
    outage: tuple[float, float] | None = None

    @property
    def pause(self) -> float:
        """The longest time between two calls."""
        return max((after[0] - before[0] for before, after in pairwise(self.calls)), default=0.0)


def run(url: str, case: Case, contestant: str, seed: int) -> Run:
    """Run a case once."""
    faults = as_json(evolve(case.faults, seed=seed))
    urllib3.request("POST", f"{url}/_case", body=faults)
    command = [sys.executable, "-m", "benchmarks.brownouts", "--contestant", contestant, "--url", url]
    command += ["--rows", str(case.rows), "--patience", str(case.patience)]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    report = json.loads(printed.splitlines()[-1])
    page = urllib3.request("GET", f"{url}/_calls").json()
    began, outage = page["outage_began"], None
    if began is not None and case.faults.outage is not None:
        outage = began, began + case.faults.outage[1]
    calls = [tuple(call) for call in page["calls"]]
    left = case.rows - sum(at is not None for _, _, at in calls)
    return Run(
        report["wall"], report["lost"] if report["over"] else max(0, left), report["over"], calls, outage
    )


def run_virtual(case: Case, _: str, seed: int) -> Run:
    """Run the client on a case once in virtual time, without a server."""
    clock = SerialClock()
    script = Script(evolve(case.faults, seed=seed))
    provider = FaultyProvider(script, clock)
    came = send(provider, clock, texts(case.rows), seed=seed, patience=case.patience, parallelism=WIDE)
    outage = None
    if script.outage_began is not None and case.faults.outage is not None:
        outage = script.outage_began, script.outage_began + case.faults.outage[1]
    calls = [tuple(call) for call in script.calls]
    return Run(came.seconds, case.rows - came.answered, came.over, calls, outage)


def after_outage(run: Run) -> tuple[float, float] | None:
    """Return the seconds from the outage's end to the first good answer, and to half the rate of before."""
    if run.outage is None:
        return None
    began, end = run.outage
    answers = sorted(at for _, _, at in run.calls if at is not None)
    before, after = [at for at in answers if at <= began], [at for at in answers if at > end]
    if not after:
        return None
    width = 0.25
    enough = min(0.5 * len(before) / (began - before[0]) * width, len(after))
    usual = next(
        (at for at in after if sum(at <= other < at + width for other in after) >= enough), after[-1]
    )
    return after[0] - end, usual - end


def timeline(run: Run, step: float = 0.5) -> Iterable[str]:
    """Yield a line for each half second: the calls that arrived, and what they met."""
    first = run.calls[0][0]
    slots: dict[int, Counter[str]] = {}
    for at, name, _ in run.calls:
        slots.setdefault(int((at - first) / step), Counter())[name] += 1
    last = -1
    for slot in sorted(slots):
        if slot > last + 1:
            yield f"      {'…':>6}"
        met = slots[slot]
        failed = ", ".join(f"{name} {count}" for name, count in sorted(met.items()) if name != GOOD)
        yield f"      {slot * step:6.1f} s  {met[GOOD]:5} good  {failed}"
        last = slot


# -- judging -------------------------------------------------------------------------------------------------


@frozen
class Figures:
    """The medians of one contestant's runs of a case, as :class:`Run` has them."""

    wall: float
    lost: float
    calls: float
    pause: float
    over: bool

    @classmethod
    def of(cls, runs: Sequence[Run]) -> Figures:
        return cls(
            statistics.median(run.wall for run in runs),
            statistics.median(run.lost for run in runs),
            statistics.median(len(run.calls) for run in runs),
            statistics.median(run.pause for run in runs),
            statistics.median(run.over for run in runs) >= 0.5,
        )

    def __str__(self) -> str:
        lost = f", {self.lost:g} {'lost' if self.over else 'left'}" if self.lost else ""
        return f"{'' if self.over else '> '}{self.wall:.1f} s{lost}"


@frozen
class Judged:
    """A figure next to what is wanted of it."""

    what: str
    measured: str
    wanted: str
    met: bool


def judge(case: Case, mine: Figures, usual: float, sdk: Figures | None) -> list[Judged]:
    """Compare the medians with what is wanted.

    Args:
        usual: seconds of the undisturbed run for 1,000 rows.
    """
    wanted, judged = case.wanted, []
    usual *= case.rows / 1000

    def add(what: str, value: float, most: float | None, show: str, unit: str = "") -> None:
        if most is not None:
            met = value <= most + 1e-9 and (mine.over or what == "lost")
            judged.append(Judged(what, f"{value:{show}}{unit}", f"{most:{show}}{unit}", met))

    add("× undisturbed", mine.wall / usual, wanted.ratio, ".1f")
    add("wall", mine.wall, wanted.seconds, ".1f", " s")
    outage = case.faults.outage[1] if case.faults.outage is not None else 0.0
    add("late", mine.wall - usual - outage, wanted.late, ".1f", " s")
    add("longest pause", mine.pause, wanted.pause, ".1f", " s")
    if wanted.no_slower_than_sdk and sdk is not None:
        add("wall, SDK's", mine.wall, sdk.wall, ".1f", " s")
    add("calls / needed", mine.calls / (case.rows * case.needed), wanted.calls, ".3f")
    add("calls", mine.calls, wanted.most_calls, ".0f")
    add("lost", mine.lost, wanted.lost, ".0f")
    return judged


RunOne = Callable[[Case, str, int], Run]
"""Runs a contestant once on a case, with a seed."""


def measure(
    cases: Sequence[Case], runs: int, peers: Sequence[str], run_one: RunOne, *, show_timeline: bool
) -> bool:
    """Run the cases and print a row for each; return whether everything wanted is met."""
    undisturbed = CASES[0]
    everything = True
    print("| case | ours | × | wanted: measured (at most) | loop | SDK | calls: ours, loop, SDK |")
    print("|" + "---|" * 7, flush=True)
    for case in cases:
        usual, found = [], {name: list[Run]() for name in ("ours", *peers)}
        for number in range(runs):
            for name, own in found.items():
                own.append(run_one(case, name, number))
            own = found["ours"]
            usual.append(own[-1] if case is undisturbed else run_one(undisturbed, "ours", number))
        figures = {name: Figures.of(own) for name, own in found.items()}
        typical = statistics.median(each.wall for each in usual)
        judged = judge(case, figures["ours"], typical, figures.get("sdk"))
        everything = everything and all(each.met for each in judged)
        print(line(case, figures, typical, judged), flush=True)
        back = [each for each in map(after_outage, found["ours"]) if each is not None]
        if back:
            first, half = (statistics.median(each[k] for each in back) for k in (0, 1))
            print(f"    after the outage: first answer {first:.1f} s, half the usual rate {half:.1f} s")
        if show_timeline:
            print("\n".join(timeline(found["ours"][0])))
    return everything


def line(case: Case, figures: dict[str, Figures], usual: float, judged: Sequence[Judged]) -> str:
    mine = figures["ours"]
    told = "; ".join(
        f"{each.what} {each.measured} ({each.wanted}) {'met' if each.met else 'MISSED'}" for each in judged
    )
    loop, sdk = (str(figures[name]) if name in figures else "–" for name in ("loop", "sdk"))
    calls = ", ".join(f"{figures[name].calls:g}" for name in CONTESTANTS if name in figures)
    ratio = mine.wall / usual / (case.rows / 1000)
    return f"| {case.name} | {mine} | {ratio:.1f} | {told} | {loop} | {sdk} | {calls} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--case", action="append", help="a case's name or part of it; several may be given")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="one run, without the peers, 30 s of patience")
    parser.add_argument("--peers", action="store_true", help="with the peers although --quick")
    parser.add_argument("--virtual", action="store_true", help="in virtual time, without HTTP and the peers")
    parser.add_argument("--timeline", action="store_true", help="what arrived in each half second")
    parser.add_argument("--patience", type=float, help="seconds after which a run is given up")
    for hidden in ("--contestant", "--url", "--rows"):
        parser.add_argument(hidden, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.contestant:
        contest(options.contestant, options.url, int(options.rows), options.patience)
        return
    cases = [case for case in CASES if not options.case or any(part in case.name for part in options.case)]
    patience = options.patience or (30.0 if options.quick else None)
    if patience is not None:
        cases = [evolve(case, patience=min(patience, case.patience)) for case in cases]
    peers = () if options.virtual or (options.quick and not options.peers) else ("loop", "sdk")
    runs = 1 if options.quick else options.runs
    show = options.timeline
    if options.virtual:
        met = measure(cases, runs, peers, run_virtual, show_timeline=show)
    else:
        with served() as url:
            met = measure(cases, runs, peers, partial(run, url), show_timeline=show)
    raise SystemExit(0 if met else 1)


if __name__ == "__main__":
    main()
