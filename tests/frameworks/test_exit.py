"""However an interpreter ends, it ends soon, with its own exit code, and says at most how many requests were
not answered (A9, F7).

Each case is a script in a process of its own. Where an exit must not wait at all, its grace is longer than
the guard against hanging, so waiting for it would be found.
"""

from __future__ import annotations

import re
import signal

import pytest
from attrs import field, frozen
from run_script import run_script

from tests.levels import sampled

LOST = (
    r"requests not answered when the program ended: {} \(exit_grace is [\d.]+ m?s\); "
    r"leave the client's with block, or call stop\(\), to wait for all\n"
)

LONG = 300


@frozen
class Case:
    """A script, and how it must end.

    Attributes:
        code: the exit code; negative for a signal.
        out: the lines it must print.
        err: what must be the last line on standard error, of the user's own traceback; empty for nothing.
        warning: what the library must say there before it.
        guard: seconds it may take, interpreter start included.
    """

    script: str
    code: int = 0
    out: list[str] = field(factory=list)
    err: str = ""
    warning: str = ""
    guard: float = 30


ENDS = {
    "the script ends and everything was answered": Case(
        f"""
        from smartbatch import BatchingClient
        from exit_scenes import echo
        client = BatchingClient(echo, exit_grace={LONG})
        print(client.submit("one").result().ok)
        """,
        out=["True"],
    ),
    "a thread of the user goes on asking after the main thread has ended": Case(
        f"""
        from smartbatch import BatchingClient
        from exit_scenes import echo, say
        client = BatchingClient(echo, exit_grace={LONG})
        def work():
            threading.main_thread().join()
            for n in range(5):
                say(client.submit(f"p{{n}}").result().text.split()[0])
        threading.Thread(target=work).start()
        """,
        out=["p0", "p1", "p2", "p3", "p4"],
    ),
    "the main thread raises": Case(
        f"""
        from smartbatch import BatchingClient
        from exit_scenes import echo
        client = BatchingClient(echo, exit_grace={LONG})
        client.submit("one").result()
        raise ValueError("the user's own")
        """,
        code=1,
        err="ValueError: the user's own",
    ),
    "the main thread raises inside a with block, with calls that never return": Case(
        """
        from smartbatch import BatchingClient
        from exit_scenes import Endless
        with BatchingClient(Endless(), exit_grace=0.1) as client:
            for n in range(50):
                client.submit(f"p{n}")
            raise ValueError("the user's own")
        """,
        code=1,
        err="ValueError: the user's own",
    ),
    "sys.exit in a callback ends only the callback, and is logged": Case(
        f"""
        from smartbatch import BatchingClient
        from exit_scenes import echo
        client = BatchingClient(echo, exit_grace={LONG})
        future = client.submit("one")
        future.add_done_callback(lambda _: sys.exit(3))
        future.result()
        print(client.submit("two").result().ok)
        """,
        out=["True"],
        err="SystemExit: 3",
    ),
    "sys.exit in an own call fails that request": Case(
        f"""
        from smartbatch import BatchingClient
        client = BatchingClient(lambda request, attempt: sys.exit(3), exit_grace={LONG}, retries=0)
        print(type(client.submit("one").exception()).__name__)
        """,
        out=["ProviderError"],
    ),
    "SIGTERM ends the process as it would without us": Case(
        f"""
        from smartbatch import BatchingClient
        from exit_scenes import Endless
        call = Endless()
        client = BatchingClient(call, exit_grace={LONG})
        future = client.submit("one")
        call.began.wait()
        os.kill(os.getpid(), signal.SIGTERM)
        future.result()
        """,
        code=-signal.SIGTERM,
    ),
    "os._exit does not wait": Case(
        f"""
        from smartbatch import BatchingClient
        from exit_scenes import Endless
        call = Endless()
        client = BatchingClient(call, exit_grace={LONG})
        client.submit("one")
        call.began.wait()
        os._exit(7)
        """,
        code=7,
    ),
}

PENDING = {
    "calls in flight against a server that never answers": Case(
        """
        from smartbatch import BatchingClient
        from exit_scenes import deaf_server, say
        url, heard = deaf_server()
        os.environ["OPENAI_BASE_URL"] = url
        client = BatchingClient("openai:m", exit_grace=0.2)
        future = client.submit("one")
        future.add_done_callback(lambda f: say(type(f.exception()).__name__))
        heard()
        """,
        out=["ClientClosed"],
        warning=LOST.format(1),
        guard=10,
    ),
    "an own call that blocks for ever, with others behind it": Case(
        """
        from smartbatch import BatchingClient
        from exit_scenes import Endless, say
        call = Endless()
        client = BatchingClient(call, exit_grace=0.2, parallelism=2)
        futures = [client.submit(f"p{n}") for n in range(10)]
        for future in futures:
            future.add_done_callback(lambda f: say(type(f.exception()).__name__))
        call.began.wait()
        """,
        out=["ClientClosed"] * 10,
        warning=LOST.format(10),
        guard=10,
    ),
    "a job whose items are asked in real time, which goes on from its store": Case(
        """
        from smartbatch import BatchingClient
        from exit_scenes import Endless
        call = Endless()
        client = BatchingClient(call, exit_grace=0.2)
        client.submit_batch(["one", "two"], strategy="individual")
        call.began.wait()
        """,
        guard=10,
    ),
    "a retry that is not due for a long time": Case(
        """
        from smartbatch import BatchingClient
        from smartbatch.testing import MockProvider
        from smartbatch.events import RetryScheduled
        paused = threading.Event()
        client = BatchingClient(
            MockProvider(rate_limit_on=[1], retry_after=200), exit_grace=0.2,
            observers=[lambda event: paused.set() if isinstance(event, RetryScheduled) else None],
        )
        client.submit("one")
        paused.wait()
        """,
        warning="mock:default: a request that failed is not sent again for 3.. min, "
        "as the provider requested\n" + LOST.format(1),
        guard=10,
    ),
    "six clients share one grace": Case(
        """
        from smartbatch import BatchingClient
        from exit_scenes import Endless
        clients = []
        for _ in range(6):
            call = Endless()
            clients.append(BatchingClient(call, exit_grace=3))
            clients[-1].submit("one")
            call.began.wait()
        """,
        warning=f"({LOST.format(1)}){{6}}",
        guard=12,
    ),
    "a hook that runs after ours is refused by name": Case(
        f"""
        import atexit
        @atexit.register
        def too_late():
            try:
                client.submit("late").result()
            except Exception as error:
                say(type(error).__name__)
        from smartbatch import BatchingClient
        from exit_scenes import echo, say
        client = BatchingClient(echo, exit_grace={LONG})
        client.submit("one").result()
        """,
        out=["ClientClosed"],
    ),
    "a hook that runs after ours makes a client of its own": Case(
        f"""
        import atexit
        @atexit.register
        def late():
            with BatchingClient(echo, exit_grace={LONG}) as other:
                say(str(other.submit("late").result().ok))
        from smartbatch import BatchingClient
        from exit_scenes import echo, say
        """,
        out=["True"],
    ),
    "a daemon thread that keeps submitting": Case(
        """
        from smartbatch import BatchingClient, ClientClosed
        from exit_scenes import echo
        client = BatchingClient(echo, exit_grace=5, queue_capacity=500)
        flowing = threading.Event()
        def work():
            for n in range(10**9):
                try:
                    client.submit(f"p{n}")
                except ClientClosed:
                    return
                if n > 500:
                    flowing.set()
        for _ in range(3):
            threading.Thread(target=work, daemon=True).start()
        flowing.wait()
        """,
        guard=10,
    ),
    "stop from a signal handler while the main thread waits": Case(
        """
        from smartbatch import BatchingClient, ClientClosed
        from exit_scenes import Endless, when_main_waits
        call = Endless()
        client = BatchingClient(call)
        signal.signal(signal.SIGTERM, lambda *_: client.stop(timeout=0.2))
        future = client.submit("one")
        threading.Thread(
            target=when_main_waits, args=(lambda: os.kill(os.getpid(), signal.SIGTERM),), daemon=True
        ).start()
        try:
            future.result()
        except ClientClosed:
            print("closed")
        """,
        out=["closed"],
        guard=10,
    ),
    "calls and callbacks that both block share one grace": Case(
        """
        from smartbatch import BatchingClient, Request
        from exit_scenes import Endless, echo
        client = BatchingClient(echo, exit_grace=4)
        entered, call = threading.Event(), Endless()
        future = client.submit(Request("one", call=lambda r, a: entered.wait() and "x" or "x"))
        future.add_done_callback(lambda _: threading.Event().wait())
        entered.set()
        client.submit(Request("two", call=call))
        call.began.wait()
        """,
        warning=LOST.format(1),
        guard=7.5,
    ),
    "a hook at exit submits and waits": Case(
        f"""
        import atexit
        from smartbatch import BatchingClient
        from exit_scenes import echo, say
        client = BatchingClient(echo, exit_grace={LONG})
        @atexit.register
        def last_words():
            say(str(client.submit("late").result().ok))
        """,
        out=["True"],
    ),
    "a thread waits for a result while the interpreter ends": Case(
        """
        from smartbatch import BatchingClient
        from exit_scenes import Endless, say
        call = Endless()
        client = BatchingClient(call, exit_grace=0.2)
        future = client.submit("one")
        threading.Thread(target=future.exception, daemon=True).start()
        future.add_done_callback(lambda f: say("told"))
        call.began.wait()
        """,
        out=["told"],
        warning=LOST.format(1),
        guard=10,
    ),
    "stop from a signal handler that interrupts a submit": Case(
        f"""
        from smartbatch import BatchingClient, ClientClosed
        from exit_scenes import echo
        client = BatchingClient(echo, exit_grace={LONG})
        def quit(*_):
            client.stop()
            sys.exit(5)
        signal.signal(signal.SIGALRM, quit)
        signal.setitimer(signal.ITIMER_REAL, 0.3)
        while True:
            client.submit("p")
        """,
        code=5,
    ),
}


def check(case: Case) -> None:
    ended = run_script(case.script, guard=case.guard, environ={"OPENAI_API_KEY": "sk-test-0000"})
    warned = re.match(case.warning, ended.err)  # the times in it vary by a second
    assert warned is not None, ended.err
    last = ended.err[warned.end() :].strip().rpartition("\n")[2]
    assert last == case.err, ended.err
    assert ended.err.count("Traceback") == bool(case.err), ended.err
    assert "smartbatch-" not in ended.err  # the names of our threads
    assert sorted(ended.lines) == sorted(case.out), ended.err
    assert ended.code == case.code


@pytest.mark.parametrize("name", sampled(ENDS))
def test_the_interpreter_ends_when(name):
    check(ENDS[name])


@pytest.mark.full
@pytest.mark.parametrize("name", sampled(PENDING))
def test_nothing_holds_up_the_exit(name):
    check(PENDING[name])
