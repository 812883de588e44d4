"""What the library leaves alone: nothing at import, no time while idle, nothing open after a stop (F7)."""

from __future__ import annotations

import threading

import pytest
from run_script import run_script

from smartbatch import BatchingClient
from smartbatch.testing import MockProvider, VirtualClock

HEAVY = (
    "urllib3",
    "requests",
    "genai_prices",
    "pydantic",
    "tqdm",
    "structlog",
    "anthropic",
    "google",
    "openai",
)


def test_importing_the_library_starts_and_opens_nothing():
    ended = run_script(
        f"""
        before = set(sys.modules)
        opened = []
        def audit(event, details):
            if event in ("socket.__new__", "_thread.start_new_thread", "subprocess.Popen", "sqlite3.connect"):
                opened.append(event)
            if event == "open" and not str(details[0]).endswith((".py", ".pyc")):
                opened.append(f"open {{details[0]}}")
        sys.dont_write_bytecode = True
        sys.addaudithook(audit)
        import smartbatch
        new = sorted(name for name in set(sys.modules) - before if name.startswith("smartbatch"))
        print(opened, [name for name in {HEAVY!r} if name in sys.modules], threading.active_count(), new)
        """
    )
    assert ended.err == ""
    assert ended.lines == ["[] [] 1 ['smartbatch', 'smartbatch._version']"]


@pytest.mark.full
def test_nothing_that_is_made_at_module_level_has_a_lock_yet():
    ended = run_script(
        """
        import queue, tempfile
        made = []
        def counted(original, name):
            def make(*args, **settings):
                frame = sys._getframe(1)
                while frame.f_globals["__name__"].startswith(("threading", "concurrent.", "queue")):
                    frame = frame.f_back
                if frame.f_globals["__name__"].startswith("smartbatch"):
                    made.append(f"{name} in {frame.f_code.co_qualname} of {frame.f_code.co_filename}")
                return original(*args, **settings)
            return make
        for name in ("Lock", "RLock", "Event", "Semaphore"):
            setattr(threading, name, counted(getattr(threading, name), name))
        queue.SimpleQueue = counted(queue.SimpleQueue, "SimpleQueue")
        import smartbatch
        from smartbatch import BatchingClient
        from smartbatch.observe.metrics import BatchMetrics
        from smartbatch.observe.reporters import ConsoleReporter, PeriodicReporter
        from smartbatch.stored_jobs import StoredJobs
        from smartbatch.testing import MockProvider
        folder = tempfile.mkdtemp()
        models = "openai:m", "anthropic:m", "gemini:m", "sim:demo", MockProvider(), lambda request, _: ""
        kept = [BatchingClient(model, cache=f"{folder}/a.db", store=f"{folder}/j.db") for model in models]
        kept += [BatchMetrics(), PeriodicReporter(ConsoleReporter(BatchMetrics()), every=9), StoredJobs()]
        print(made, os.listdir(folder), threading.active_count())
        """,
        environ=dict.fromkeys(("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "GEMINI_API_KEY"), "sk-test-0000"),
    )
    assert ended.err == ""
    assert ended.lines == ["[] [] 1"]


def test_an_idle_client_neither_polls_nor_waits_for_a_time():
    clock = VirtualClock()
    with BatchingClient(MockProvider(latency=0.5, sleep=clock.sleep), clock=clock) as client:
        assert [result.ok for result in client.map([f"p{n}" for n in range(20)])] == [True] * 20
        client.metrics.snapshot()
        with clock.held():
            assert clock.pending() == 0


@pytest.mark.full
def test_a_stopped_client_has_nothing_open():
    ended = run_script(
        """
        import gc
        from smartbatch import BatchingClient
        from smartbatch.testing import emulator
        with emulator(latency=0.001) as emu:
            os.environ["OPENAI_BASE_URL"] = emu.base_url
            with BatchingClient("openai:gpt-5-mini", parallelism=8) as client:
                assert all(result.ok for result in client.map([f"p{n}" for n in range(100)]))
            left = [thread for thread in threading.enumerate() if thread.name.startswith("smartbatch-")]
            for thread in left:
                if thread.name != "smartbatch-emulator":
                    thread.join(15)
            names = {thread.name for thread in threading.enumerate()}
        del client
        gc.collect()
        print(sorted(names))
        """,
        "-X",
        "dev",
        "-W",
        "error::ResourceWarning",
        environ={"OPENAI_API_KEY": "sk-test-0000"},
    )
    assert ended.err == ""
    assert ended.lines == ["['MainThread', 'smartbatch-emulator']"]


@pytest.mark.full
@pytest.mark.parametrize("allowed", [1, 2])
def test_with_too_few_threads_the_workers_there_are_do_all_the_work(allowed, monkeypatch):
    start, started = threading.Thread.start, []

    def limited(thread: threading.Thread) -> None:
        if thread.name.startswith("smartbatch-worker"):
            if len(started) >= allowed:
                raise RuntimeError("can't start new thread")
            started.append(thread)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", limited)
    provider = MockProvider()
    with BatchingClient(provider, parallelism=8, deduplicate=False) as client:
        results = client.generate([f"p{n}" for n in range(200)])
    assert all(result.ok for result in results)
    assert sorted(provider.prompts) == sorted(f"p{n}" for n in range(200))


def test_without_a_thread_at_all_a_request_fails_and_says_so(monkeypatch):
    start = threading.Thread.start

    def refused(thread: threading.Thread) -> None:
        if thread.name.startswith("smartbatch-worker"):
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refused)
    provider = MockProvider()
    with BatchingClient(provider) as client:
        error = client.submit("one").exception(timeout=30)
    assert "no thread could be started, so nothing was sent" in str(error)
    assert provider.calls == []
