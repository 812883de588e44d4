"""The dashboard under gunicorn: by itself, inside Flask and inside Django, for whoever has the token."""

from __future__ import annotations

import http.client
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlencode

from attrs import frozen

from tests.dashboard.visits import TOKEN
from tests.jobs.stores import Bench

BOARD = """
from smartbatch.dashboard import TokenAccess, app
application = app(store={place!r}, shared="off", access=TokenAccess(token={token!r}), streams=4)
"""
FLASK = """
from flask import Flask
from smartbatch.dashboard import TokenAccess
from smartbatch.integrations.flask import Smartbatch, dashboard_blueprint

application = Flask("board")
application.config.update(SMARTBATCH_STORE={place!r}, SMARTBATCH_SHARED="off")
Smartbatch(application)
access = TokenAccess(token={token!r})
application.register_blueprint(dashboard_blueprint(access, url_prefix="/inside/jobs"))
"""
DJANGO = """
import sys
from django.conf import settings
from django.core.wsgi import get_wsgi_application
from django.urls import include, path

settings.configure(
    ROOT_URLCONF="board",
    ALLOWED_HOSTS=["127.0.0.1"],
    SECRET_KEY="a secret",
    DATABASES={{}},
    INSTALLED_APPS=["smartbatch.integrations.django"],
    SMARTBATCH={{"model": "sim:demo", "store": {place!r}, "shared": "off"}},
)
application = get_wsgi_application()

from smartbatch.integrations.django.urls import dashboard_urls

def access(request):
    return "all" if request.headers.get("Authorization") == "Bearer " + {token!r} else None

urlpatterns = [path("ops/board/", include(dashboard_urls(access)))]
"""
KINDS = {
    "sync": ("sync",),
    "gthread": ("gthread", "--threads", "8"),
    "gevent": ("gevent",),
    "gthread, preloaded": ("gthread", "--threads", "8", "--preload"),
    "gevent, preloaded": ("gevent", "--preload"),
}
WAIT = 60.0


@frozen
class Host:
    process: subprocess.Popen[str]
    port: int

    def open(self, path: str) -> http.client.HTTPResponse:
        return self._ask("GET", path, "", {})

    def post(self, path: str, form: dict[str, str], **headers: str) -> http.client.HTTPResponse:
        own = {"Origin": f"http://127.0.0.1:{self.port}", "Content-Type": "application/x-www-form-urlencoded"}
        return self._ask("POST", path, urlencode(form), {**own, **headers})

    def _ask(self, method: str, path: str, body: str, headers: dict[str, str]) -> http.client.HTTPResponse:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=WAIT)
        known = {"Authorization": f"Bearer {TOKEN}", "Connection": "close"}
        connection.request(method, path, body, {**known, **headers})
        return connection.getresponse()


@contextmanager
def running(shelf: Bench, options: tuple[str, ...], program: str = BOARD) -> Iterator[Host]:
    Path(shelf.folder, "board.py").write_text(program.format(place=shelf.place, token=TOKEN))
    command = [sys.executable, "-m", "gunicorn", "board:application", "--chdir", str(shelf.folder)]
    command += ["--bind", "127.0.0.1:0", "--graceful-timeout", "5", "--no-control-socket", "-k", *options]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environ) as process:
        assert process.stderr is not None
        found = None
        while found is None:
            line = process.stderr.readline()
            assert line, "gunicorn ended"
            found = re.search(r"Listening at: http://127.0.0.1:(\d+)", line)
        try:
            yield Host(process, int(found[1]))
        finally:
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=WAIT)
    assert process.returncode == 0
