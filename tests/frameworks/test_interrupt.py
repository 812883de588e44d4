"""Ctrl-C cancels what has not started, whenever it comes, and leaves the client usable (A9, F7).

Every script asks 200 times with 4 workers and is interrupted in the 24th call. The calls under way end only
when all others are cancelled, so more than 24 lines say that the interrupt did not reach them.
"""

from __future__ import annotations

import signal

import pytest
from run_script import run_script

from tests.levels import sampled

SETTING = """
from smartbatch import BatchingClient
from exit_scenes import Interrupted, say
call = Interrupted(at=21, of=200, workers=4)
prompts = [f"p{n}" for n in range(200)]
def new_client(**settings):
    return BatchingClient(call, exit_grace=20, observers=[call.observe], **settings)
"""

CAUGHT = {
    "in the result of a future": """
client = new_client()
futures = [client.submit(prompt) for prompt in prompts]
try:
    for future in futures:
        future.result()
except KeyboardInterrupt:
    say(str(client.submit("after").result().ok))
""",
    "inside map": """
client = new_client()
try:
    for result in client.map(prompts):
        pass
except KeyboardInterrupt:
    say(str(client.submit("after").result().ok))
""",
    "inside the client's generate": """
client = new_client()
try:
    client.generate(prompts)
except KeyboardInterrupt:
    say(str(client.submit("after").result().ok))
""",
    "while a with block ends": """
try:
    with new_client() as client:
        for prompt in prompts:
            client.submit(prompt)
except KeyboardInterrupt:
    with client:
        say(str(client.submit("after").result().ok))
""",
    "while stop waits": """
client = new_client()
for prompt in prompts:
    client.submit(prompt)
try:
    client.stop()
except KeyboardInterrupt:
    with client:
        say(str(client.submit("after").result().ok))
""",
}

COLLECTING = {
    "of a client": "client = new_client()\nask = lambda: client.generate(prompts)",
    "of a plan": "client = new_client()\nplan = client.plan(prompts)\nask = lambda: plan.run()",
    "of a script": """
import smartbatch
ask = lambda: smartbatch.generate(prompts, model=call, exit_grace=20, observers=[call.observe])
""",
}

UNCAUGHT = {
    "in the result of a future": """
client = new_client()
for future in [client.submit(prompt) for prompt in prompts]:
    future.result()
""",
    "in the standard library's wait": """
import concurrent.futures
client = new_client()
concurrent.futures.wait([client.submit(prompt) for prompt in prompts])
""",
    "in a wait of the user's own": """
client = new_client()
for prompt in prompts:
    client.submit(prompt)
threading.Event().wait()
""",
}


@pytest.mark.full
@pytest.mark.parametrize("place", sampled(CAUGHT))
def test_a_caught_interrupt_leaves_the_client_usable(place):
    ended = run_script(SETTING + CAUGHT[place])
    assert ended.err == ""
    assert ended.lines == ["call"] * 25 + ["True"]
    assert ended.code == 0


@pytest.mark.parametrize("place", sampled(UNCAUGHT, keep=1))
def test_an_interrupt_that_nobody_catches_ends_the_script(place):
    ended = run_script(SETTING + UNCAUGHT[place])
    last = ended.err.splitlines()[-1]
    assert last == "KeyboardInterrupt" or last.startswith("smartbatch.results.Interrupted: interrupted; ")
    assert "smartbatch-" not in ended.err
    assert ended.lines == ["call"] * 24
    assert ended.code == -signal.SIGINT


@pytest.mark.full
@pytest.mark.parametrize("call", COLLECTING)
def test_an_interrupted_list_has_what_was_answered_and_says_how_to_go_on(call):
    ended = run_script(
        SETTING
        + COLLECTING[call]
        + """
import smartbatch, traceback
try:
    ask()
except smartbatch.Interrupted as error:
    trace = traceback.format_exception(error)
    while error.results.succeeded < 24:
        os.sched_yield()
    for place, result in enumerate(error.results):
        if result.ok:
            assert result.text == f"answer to p{place}", result
        else:
            assert type(result.error) is smartbatch.RequestCancelled, result
    say(f"{len(error.results)} {error.__context__}")
    lines = "".join(trace).splitlines()
    assert "pays for all of them again" in lines[-1] and "results had arrived" in lines[-1], lines
    say(f"{len(lines)} {lines.count('Traceback (most recent call last):')}")
"""
    )
    assert ended.err == ""
    assert ended.lines[:24] == ["call"] * 24
    results, trace = ended.lines[24:]
    assert results == "200 None"
    assert int(trace.split()[0]) <= 10
    assert trace.endswith(" 1")


@pytest.mark.full
def test_a_loop_that_is_interrupted_finds_what_it_was_not_given():
    ended = run_script(
        """
        import smartbatch
        from exit_scenes import say, when_main_waits
        first = threading.Event()
        def call(request, attempt):
            if request.prompt == "p0":
                first.wait()
            return request.prompt
        client = smartbatch.BatchingClient(call, parallelism=4)
        def count(progress):
            if progress.finished == 5:
                threading.Thread(target=when_main_waits, args=(interrupt,)).start()
        def interrupt():
            os.kill(os.getpid(), signal.SIGINT)
        try:
            for result in client.map([f"p{n}" for n in range(6)], on_progress=count):
                say("given")
        except smartbatch.Interrupted as error:
            say(" ".join(sorted(result.text for result in error.results)))
            first.set()
            while len(error.results) < 6:
                os.sched_yield()
            say(error.results[0].text)
        """
    )
    assert ended.err == ""
    assert ended.lines == ["p1 p2 p3 p4 p5", "p0"]


@pytest.mark.full
def test_a_second_interrupt_ends_a_stop_at_once():
    ended = run_script(
        """
        from smartbatch import BatchingClient
        from exit_scenes import Endless, say, when_main_waits
        call = Endless()
        client = BatchingClient(call, exit_grace=300)
        future = client.submit("one")
        call.began.wait()
        def interrupt_twice():
            when_main_waits(lambda: os.kill(os.getpid(), signal.SIGINT), inside="result")
            when_main_waits(lambda: os.kill(os.getpid(), signal.SIGINT), inside="stop")
        try:
            with client:
                threading.Thread(target=interrupt_twice, daemon=True).start()
                future.result()
        except KeyboardInterrupt:
            say(type(future.exception(timeout=0)).__name__)
        """
    )
    assert ended.err == ""
    assert ended.lines == ["ClientClosed"]
    assert ended.code == 0


@pytest.mark.full
@pytest.mark.parametrize("landing", sampled(["KeyboardInterrupt", "SystemExit"]))
def test_many_signals_leave_neither_a_lock_nor_a_request_behind(landing):
    ended = run_script(
        f"""
        import random
        from smartbatch import BatchingClient
        from smartbatch.events import ClientStopped
        from exit_scenes import echo, say
        def told(event):
            if isinstance(event, ClientStopped):
                say(f"stopped, {{event.failed}} unanswered, {{client.metrics.snapshot().waiting}} waiting")
        rng = random.Random(7)
        client = BatchingClient(echo, parallelism=4, observers=[told]).start()
        def submit_until_interrupted(n):
            signal.setitimer(signal.ITIMER_REAL, rng.uniform(0.0002, 0.002))
            k = 0
            while True:
                k += 1
                client.submit(f"p{{n}} {{k}}")
        def interrupt(*_):
            raise {landing}
        signal.signal(signal.SIGALRM, interrupt)
        for n in range(300):
            try:
                submit_until_interrupted(n)
            except {landing}:
                assert client.submit(f"after {{n}}").result(timeout=20).ok
        client.stop(timeout=20)
        """,
        guard=60,
    )
    assert ended.err == ""
    assert ended.lines == ["stopped, 0 unanswered, 0 waiting"]
    assert ended.code == 0
