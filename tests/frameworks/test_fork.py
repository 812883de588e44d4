"""A forked child starts with an empty, working client, and no answer goes to the wrong process (F7).

A child that hangs is ended by its own guard and counted by its exit code.
"""

from __future__ import annotations

import textwrap

import pytest
from run_script import run_script

from tests.levels import sampled

FAMILY = """
from smartbatch import BatchingClient, WrongProcess
from exit_scenes import echo, say, Endless

def in_child(work, guard=15):
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        faulthandler.register(signal.SIGALRM, chain=True)
        signal.alarm(guard)
        work()
        code = 0
    except BaseException:
        import traceback
        traceback.print_exc()
    finally:
        os._exit(code)

def code_of(pid):
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
"""


def passes(script: str, *, out: list[str], guard: float = 30) -> None:
    ended = run_script(FAMILY + textwrap.dedent(script), guard=guard)
    assert ended.err == ""
    assert ended.lines == out
    assert ended.code == 0


@pytest.mark.full
def test_a_child_of_a_periodic_reporter_reports_nothing():
    passes(
        """
        from smartbatch.observe.reporters import PeriodicReporter
        class Told:
            def report(self):
                say("parent" if os.getpid() == parent else "child")
        parent = os.getpid()
        with PeriodicReporter(Told(), "1h") as reporter:
            with reporter._monitor:
                pid = in_child(lambda: reporter.__exit__(None, None, None))
            say(code_of(pid))
        """,
        out=["0", "parent"],
    )


@pytest.mark.full
def test_300_forks_under_load_leave_no_child_hanging():
    passes(
        """
        import itertools
        numbers = itertools.count()
        client = BatchingClient(echo, parallelism=4, deduplicate=False)
        ending = threading.Event()
        def load(count):
            while not ending.is_set():
                future = client.submit(f"parent {next(count)}")
                future.add_done_callback(lambda _: None)
                result = future.result()
                assert result.text == f"{result.context} by {os.getpid()}" or result.context is None
                client.status_summary()
        threads = [threading.Thread(target=load, args=(numbers,)) for _ in range(3)]
        for thread in threads:
            thread.start()
        def ask():
            text = client.submit("child").result(timeout=15).text
            assert text == f"child by {os.getpid()}", text
            client.status_summary()
        codes = [code_of(in_child(ask)) for _ in range(300)]
        ending.set()
        for thread in threads:
            thread.join()
        client.stop()
        say(f"{codes.count(0)} of {len(codes)}")
        """,
        out=["300 of 300"],
    )


@pytest.mark.full
def test_no_answer_reaches_the_wrong_process_over_http():
    passes(
        """
        from smartbatch.testing import answer_for, emulator
        server_pid_in, server_pid_out = os.pipe()
        server = os.fork()
        if server == 0:  # the server has a process of its own
            with emulator(latency=0.002) as emu:
                os.write(server_pid_out, emu.base_url.encode())
                signal.pause()
        os.environ["OPENAI_BASE_URL"] = os.read(server_pid_in, 100).decode()
        os.environ["OPENAI_API_KEY"] = "sk-test-0000"
        client = BatchingClient("openai:gpt-5-mini", parallelism=8)
        def ask(n):
            prompts = [f"{n} prompt {k} of {os.getpid()}" for k in range(n)]
            results = client.generate(prompts)
            right = [answer_for(p, "gpt-5-mini") for p in prompts]
            wrong = [r for r, text in zip(results, right, strict=True) if r.text != text]
            assert not wrong, wrong
        ask(16)
        going = threading.Thread(target=ask, args=(400,))
        going.start()
        children = [in_child(lambda: ask(60)) for _ in range(4)]
        ask(61)
        codes = [code_of(child) for child in children]
        going.join()
        client.stop()
        os.kill(server, signal.SIGKILL)
        os.waitpid(server, 0)
        say(str(codes))
        """,
        out=["[0, 0, 0, 0]"],
    )


def test_a_child_starts_empty_and_the_parents_futures_say_whose_they_are():
    passes(
        """
        call = Endless()
        client = BatchingClient(call, parallelism=2)
        futures = [client.submit(f"p{n}") for n in range(20)]
        call.began.wait()
        def look():
            errors = {type(future.exception(timeout=5)) for future in futures}
            assert errors == {WrongProcess}, errors
            assert client.queue_size == 0 and client.counts.submitted == 0, client.counts
            assert client.metrics.snapshot().submitted == 0
            assert client.cancel_pending() == 0
        say(f"{code_of(in_child(look))} {client.counts.submitted} {any(future.done() for future in futures)}")
        client.stop(timeout=0)
        """,
        out=["0 20 False"],
    )


@pytest.mark.full
def test_the_future_of_several_answers_ends_in_a_child_as_others_do():
    passes(
        """
        call = Endless()
        client = BatchingClient(call, parallelism=1)
        whole = client.submit("prompt", n=3)
        call.began.wait()
        def look():
            assert type(whole.exception(timeout=5)) is WrongProcess
            assert len(client.submit("own", n=1, call=echo).result(timeout=5).text) > 0
        say(f"{code_of(in_child(look))} {whole.done()}")
        client.stop(timeout=0)
        """,
        out=["0 False"],
    )


@pytest.mark.full
def test_money_held_for_the_parents_calls_is_free_in_the_child():
    passes(
        """
        from smartbatch import Answer, Price, Usage
        from smartbatch.providers.base import Capabilities, Provider
        began, parent = threading.Event(), os.getpid()
        class Priced(Provider):
            name, scope, capabilities = "priced", "priced", Capabilities()
            def generate(self, request, *, model, attempt, timeout):
                began.set()
                if os.getpid() == parent:
                    threading.Event().wait()
                return Answer("x", usage=Usage(1, 1))
        client = BatchingClient(
            "m", provider=Priced(), budget=1.0, max_tokens=900_000, prices={"m": Price(input=0.0, output=1.0)}
        )
        client.submit("one")
        began.wait()
        say(str(code_of(in_child(lambda: client.submit("two").result(timeout=15)))))
        client.stop(timeout=0)
        """,
        out=["0"],
    )


@pytest.mark.full
def test_two_children_do_not_throw_the_same_rng():
    passes(
        """
        from smartbatch import ErrorKind
        from smartbatch.events import RetryScheduled
        from smartbatch.testing import MockProvider
        def tell(event):
            if isinstance(event, RetryScheduled):
                say(repr(event.delay))
                os._exit(0)
        failing = MockProvider(fail_on=dict.fromkeys(range(9), ErrorKind.SERVER_ERROR))
        client = BatchingClient(failing, observers=[tell])
        read, write = os.pipe()
        out = os.dup(1)
        os.dup2(write, 1)
        codes = [code_of(in_child(lambda: client.submit("p").result(timeout=15))) for _ in range(2)]
        os.dup2(out, 1)
        delays = os.read(read, 1000).split()
        say(f"{codes} {len(set(delays))}")
        """,
        out=["[0, 0] 2"],
    )


@pytest.mark.full
def test_a_child_that_ends_as_scripts_do_runs_its_exit_within_the_grace():
    passes(
        """
        client = BatchingClient(echo, exit_grace=300)
        client.submit("p").result()
        pid = os.fork()
        if pid == 0:
            client.submit("q").result()
            sys.exit(4)
        say(f"{code_of(pid)} {client.submit('r').result().ok}")
        """,
        out=["4 True"],
    )


@pytest.mark.full
def test_a_fork_inside_a_callback_works():
    passes(
        """
        client = BatchingClient(echo)
        codes = []
        heard = threading.Event()
        def fork_there(_):
            def ask():
                told = threading.Event()
                client.submit("p").add_done_callback(lambda _: told.set())
                assert told.wait(15)
            codes.append(code_of(in_child(ask)))
            heard.set()
        gate = threading.Event()
        from smartbatch import Request
        future = client.submit(Request("first", call=lambda r, a: gate.wait() and "x"))
        future.add_done_callback(fork_there)
        gate.set()
        heard.wait()
        say(f"{codes} {client.submit('after').result().ok}")
        """,
        out=["[0] True"],
    )


@pytest.mark.full
def test_a_child_that_reads_on_in_the_parents_list_is_told_so():
    passes(
        """
        client = BatchingClient(echo)
        stream = client.map(f"p{n}" for n in range(5000))
        next(stream)
        def read_on():
            try:
                list(stream)
            except WrongProcess:
                return
            raise AssertionError("no error")
        say(f"{code_of(in_child(read_on))} {len(list(stream))}")
        """,
        out=["0 4999"],
    )


@pytest.mark.full
def test_another_librarys_hook_may_use_the_client_in_the_child():
    passes(
        """
        def hook():
            try:
                client.submit("hook").result(timeout=15)
            except Exception as error:
                os.write(2, repr(error).encode())
        os.register_at_fork(after_in_child=hook)
        client = BatchingClient(echo)
        client.submit("p").result()
        say(str(code_of(in_child(lambda: client.submit("p").result(timeout=15)))))
        """,
        out=["0"],
    )


WORKERS = """
import multiprocessing, os, sys
from smartbatch import BatchingClient
from exit_scenes import echo

client = BatchingClient(echo)

def ask(n):
    return client.submit(f"p{n}").result(timeout=15).text == f"p{n} by {os.getpid()}"

if __name__ == "__main__":
    assert ask(0)
    with multiprocessing.get_context(sys.argv[1]).Pool(2) as pool:
        print(all(pool.map(ask, range(50))))
"""


@pytest.mark.full
@pytest.mark.parametrize("method", sampled(["fork", "forkserver", "spawn"]))
def test_every_start_method_of_multiprocessing_works(method, tmp_path):
    script = tmp_path / "workers.py"
    script.write_text(WORKERS)
    ended = run_script(
        f"import runpy; sys.argv = ['workers.py', {method!r}]; "
        f"runpy.run_path({str(script)!r}, run_name='__main__')"
        if method == "fork"
        else f"os.execv(sys.executable, [sys.executable, {str(script)!r}, {method!r}])",
        guard=30,
    )
    assert ended.err == ""
    assert ended.out == "True\n"
    assert ended.code == 0


@pytest.mark.full
def test_a_pickled_client_refuses_and_says_what_to_do():
    passes(
        """
        import pickle
        client = BatchingClient(echo)
        try:
            pickle.dumps(client)
        except TypeError as error:
            say(str("Create one in each process" in str(error)))
        """,
        out=["True"],
    )


HOOKLESS = """
import contextlib, ctypes, pathlib
from smartbatch import BatchingClient, WrongProcess
from exit_scenes import echo, say, Endless

def switches():
    found = {}
    for task in pathlib.Path("/proc/self/task").glob("*"):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            lines = (task / "status").read_text().splitlines()
            if int(task.name) != threading.get_native_id():
                found[task.name] = [line for line in lines if "ctxt" in line]
    return found

def fork_without_hooks():
    # A child inherits the interpreter's lock as it is: a thread that waits for it just then would be waited
    # for in the child, where it is not. So fork only once no other thread has moved for a while.
    before = None
    while (now := switches()) != before:
        before = now
        threading.Event().wait(0.03)
    return ctypes.PyDLL(None).fork()  # as uWSGI and other C code do; PyDLL keeps the interpreter's lock

def in_child(work, guard=15):
    pid = fork_without_hooks()
    if pid:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    code = 1
    try:
        signal.alarm(guard)
        work()
        code = 0
    except BaseException:
        import traceback
        traceback.print_exc()
    finally:
        os._exit(code)
"""


def passes_without_hooks(script: str, *, out: list[str]) -> None:
    ended = run_script(HOOKLESS + textwrap.dedent(script))
    assert ended.err == ""
    assert ended.lines == out


@pytest.mark.full
def test_a_child_forked_without_hooks_works_and_ends_what_it_inherited():
    passes_without_hooks(
        """
        call = Endless()
        busy = BatchingClient(call, parallelism=2)
        left = [busy.submit(f"p{n}") for n in range(5)]
        call.began.wait()
        client = BatchingClient(echo)
        client.submit("p").result()
        def ask():
            assert client.submit("c").result(timeout=10).text == f"c by {os.getpid()}"
            assert client.counts.submitted == 1, client.counts
            ended()
        def ended():
            assert {type(future.exception()) for future in left} == {WrongProcess}
            assert all(future.done() for future in left) and not left[0].cancel()
        codes = [in_child(look) for look in (ask, ended)]
        say(f"{codes} {any(future.done() for future in left)}")
        busy.stop(timeout=0)
        """,
        out=["[0, 0] False"],
    )


@pytest.mark.full
def test_children_forked_without_hooks_open_own_connections():
    passes_without_hooks(
        """
        import tempfile
        from smartbatch.testing import answer_for, emulator
        folder = tempfile.mkdtemp()
        server_in, server_out = os.pipe()
        server = os.fork()
        if server == 0:
            with emulator(latency=0.002, batch_turnaround=0.1) as emu:
                os.write(server_out, emu.base_url.encode())
                signal.pause()
        os.environ["OPENAI_BASE_URL"] = os.read(server_in, 100).decode()
        os.environ["OPENAI_API_KEY"] = "sk-test-0000"
        client = BatchingClient(
            "openai:gpt-5-mini",
            store=f"{folder}/jobs.db",
            cache=f"{folder}/answers.db",
            batch_poll_interval=0.1,
        )
        def ask():
            prompts = [f"prompt {n}" for n in range(20)]
            results = client.generate(prompts)
            assert [result.text for result in results] == [answer_for(p, "gpt-5-mini") for p in prompts]
            own = client.submit_and_wait([f"row {n} of {os.getpid()}" for n in range(12)], timeout=15)
            assert all(result.ok for result in own)
        ask()
        client.stop()
        for thread in set(threading.enumerate()) - {threading.current_thread()}:
            thread.join(10)  # a fork waits for nobody here, and a thread that runs has the interpreter's lock
        say(str([in_child(ask, 30) for _ in range(3)]))
        client.stop()
        os.kill(server, signal.SIGKILL)
        """,
        out=["[0, 0, 0]"],
    )
