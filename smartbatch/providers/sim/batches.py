"""The embedded provider's Batch API: its remote side is a folder, so that another process can go on.

Files and batches lie in ``$SMARTBATCH_SIM_DIR``, or in ``smartbatch-sim-UID`` of the system's folder for
temporary files. A batch runs by the clock: what it has done is a function of its age, and its answers are
made when they are fetched. A create names an uploaded file, as OpenAI's does, and is refused once that is
gone.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import secrets
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from attrs import asdict

from smartbatch.chats import PART_FORMS, message_form, read_message
from smartbatch.errors import ConfigError, ErrorKind, InvalidRequest, ProviderError
from smartbatch.providers.batch_api import (
    BatchAbilities,
    BatchApi,
    BatchPage,
    Creation,
    Line,
    NotRun,
    RemoteBatch,
    RemoteFile,
    RemoteState,
    line_of,
)
from smartbatch.providers.foreign_text import count, unusable
from smartbatch.providers.http.json_text import encode_json
from smartbatch.types import Answer, Generation, Kind, Request, Tool, Usage

_NAME = re.compile(r"[A-Za-z0-9_-]{1,80}")
_FILE_ID = re.compile(r"file_\d{17}[0-9a-f]{8}-[A-Za-z0-9_-]{1,80}")
_BATCH_ID = re.compile(r"batch_\d{17}[0-9a-f]{8}")
_PAGE = 100
_VALIDATED = 0.1
"""Share of its time a batch is validated."""
_PARAMS = ("system", "max_tokens", "response_format", "schema", "tools", "tool_choice", "logprobs")
"""What of a request's parameters changes a simulated answer."""

AnswerTo = Callable[[Request, str, str], "Answer | str"]
"""``answer_to(request, model, wire_id)`` returns the answer, or the name of the fault it meets instead."""


class SimBatches(BatchApi):
    """Batches of one :class:`~smartbatch.providers.sim.provider.SimProvider`.

    Args:
        answer_to: makes an answer, or says which fault it meets instead.
        fault_of: the error a fault stands for.
        wall: Unix seconds.
        seconds: from the create of a batch to its end.
    """

    name = "sim"
    abilities = BatchAbilities(max_requests=50_000, max_bytes=200_000_000, priced=False)

    def __init__(
        self,
        scope: str,
        *,
        answer_to: AnswerTo,
        fault_of: Callable[[str], ProviderError],
        wall: Callable[[], float],
        seconds: float,
    ) -> None:
        self.scope = scope
        self._answer_to = answer_to
        self._fault_of = fault_of
        self._wall = wall
        self._seconds = seconds

    # -- input -----------------------------------------------------------------------------------------------

    def encode(self, request: Request, *, model: str, wire_id: str) -> bytes:
        """See :meth:`BatchApi.encode <smartbatch.providers.batch_api.BatchApi.encode>`."""
        prompt = request.prompt
        asked: Any = prompt if isinstance(prompt, str) else [message_form(message) for message in prompt]
        line = {"custom_id": wire_id, "model": model, "prompt": asked}
        given = {name: getattr(request.params, name) for name in _PARAMS}
        if request.params.tools is not None:
            given["tools"] = [asdict(tool) for tool in request.params.tools]
        return encode_json({**line, **{n: value for n, value in given.items() if value is not None}})

    def upload(self, name: str, source: Path, timeout: float) -> RemoteFile:  # noqa: ARG002
        """Copy ``source`` into the folder, whole or not at all."""
        if not _NAME.fullmatch(name):
            raise InvalidRequest("that is no name of an input file", field="name")
        files = self._folder("files")
        file_id = f"file_{self._stamp(files)}{secrets.token_hex(4)}-{name}"
        partial = files / f".{file_id}"
        shutil.copyfile(source, partial)
        partial.replace(files / file_id)
        return RemoteFile(file_id, name, (files / file_id).stat().st_size)

    def find_file(self, name: str, timeout: float) -> RemoteFile | None:  # noqa: ARG002
        """Return the newest file of that name."""
        files = self._folder("files")
        for each in _newest_first(files, _FILE_ID):
            if each.partition("-")[2] == name:
                with contextlib.suppress(FileNotFoundError):
                    return RemoteFile(each, name, (files / each).stat().st_size)
        return None

    def delete_file(self, file_id: str, timeout: float) -> None:  # noqa: ARG002
        """Delete a file; a batch made of it keeps its own copy."""
        (self._folder("files") / _checked(file_id, _FILE_ID)).unlink(missing_ok=True)

    # -- batches ---------------------------------------------------------------------------------------------

    def create(self, creation: Creation, timeout: float) -> RemoteBatch:  # noqa: ARG002
        """Create a batch: it is there once its folder has its name, or not at all."""
        batches = self._folder("batches")
        self._forget_old(batches)
        source = self._folder("files") / _checked(creation.file_id or "", _FILE_ID)
        batch_id = f"batch_{self._stamp(batches)}{secrets.token_hex(4)}"
        told = {
            "mark": creation.mark,
            "size": creation.size,
            "file_id": creation.file_id,
            "created_at": self._wall(),
            "seconds": self._seconds,
        }
        with tempfile.TemporaryDirectory(dir=self._root, ignore_cleanup_errors=True) as scratch:
            made = Path(scratch) / batch_id
            made.mkdir()
            try:
                shutil.copyfile(source, made / "input")
            except FileNotFoundError:
                raise ProviderError(
                    "simulated: 400, there is no such input file",
                    kind=ErrorKind.CLIENT_ERROR,
                    status=400,
                    code="invalid_file",
                ) from None
            (made / "batch").write_bytes(encode_json(told))
            made.rename(batches / batch_id)
        return self._described(batch_id, told, None)

    def get(self, batch_id: str, timeout: float) -> RemoteBatch | None:  # noqa: ARG002
        """Return the batch as it stands by now."""
        return self._look(_checked(batch_id, _BATCH_ID))

    def page(self, after: str | None, timeout: float) -> BatchPage:  # noqa: ARG002
        """Return up to 100 batches."""
        names = _newest_first(self._folder("batches"), _BATCH_ID)
        names = [name for name in names if after is None or name < after]
        found = (self._look(name) for name in names[:_PAGE])
        more = names[_PAGE - 1] if len(names) > _PAGE else None
        return BatchPage(tuple(each for each in found if each is not None), more, self._wall())

    def cancel(self, batch_id: str, timeout: float) -> None:  # noqa: ARG002
        """End a batch now, with what it has done."""
        batch = self._look(_checked(batch_id, _BATCH_ID))
        if batch is not None and not batch.state.ended:
            folder = self._folder("batches") / batch_id
            with tempfile.NamedTemporaryFile("w", dir=folder, delete=False) as file:
                file.write(str(self._wall()))
            with contextlib.suppress(FileExistsError):
                os.link(file.name, folder / "cancelled")  # the first cancel counts
            os.unlink(file.name)

    def delete_batch(self, batch_id: str, timeout: float) -> None:  # noqa: ARG002
        """Delete a batch and its results."""
        shutil.rmtree(self._folder("batches") / _checked(batch_id, _BATCH_ID), ignore_errors=True)

    # -- results ---------------------------------------------------------------------------------------------

    def download(self, batch: RemoteBatch, output: str, timeout: float) -> Iterator[bytes]:  # noqa: ARG002
        """Make the results and yield them line by line."""
        shown = self._look(_checked(batch.id, _BATCH_ID))
        if shown is None or output not in shown.outputs:
            raise ProviderError("simulated: 404, no such results", kind=ErrorKind.CLIENT_ERROR, status=404)
        with open(self._folder("batches") / batch.id / "input", "rb") as lines:
            for position, line in enumerate(lines):
                yield self._result(json.loads(line), ran=position < shown.completed)

    def read_line(self, line: bytes, kind: Kind) -> Line:  # noqa: ARG002
        """See :meth:`BatchApi.read_line <smartbatch.providers.batch_api.BatchApi.read_line>`."""
        return line_of(line, "custom_id", self._read)

    def _read(self, data: dict[str, Any]) -> Answer:
        match data:
            case {"error": "cancelled"}:
                raise NotRun(ProviderError("simulated: cancelled before it ran", kind=ErrorKind.SERVER_ERROR))
            case {"error": str(fault)}:
                raise self._fault_of(fault)
            case {"text": str(text), "in": asked, "out": made, "finish": str(finish)}:
                usage = Usage(count(asked) or 0, count(made) or 0)
                parts = {name: read(data[name]) for name, (_, read) in PART_FORMS.items() if name in data}
                return Answer(text=text, usage=usage, finish_reason=finish, model=data.get("model"), **parts)
        raise unusable("the line is neither an answer nor an error", status=200)

    # -- errors ----------------------------------------------------------------------------------------------

    def classify(self, error: Exception) -> ProviderError:
        """Errors of the folder are those of a network: nothing was created, and it may pass."""
        if isinstance(error, OSError):
            where = f"the simulation's folder {self._root} cannot be used ({error.strerror})"
            return ProviderError(where, kind=ErrorKind.NETWORK_ERROR, code="folder")
        return super().classify(error)

    @cached_property
    def _root(self) -> Path:
        own = hashlib.sha256(self.scope.encode()).hexdigest()[:16]
        return sim_folder() / own

    def _folder(self, name: str) -> Path:
        folder = self._root / name
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return folder

    def _stamp(self, folder: Path) -> str:
        """Microseconds by the clock, but after all that is there: newest first must hold when clocks jump."""
        newest = next(iter(_newest_first(folder, _BATCH_ID if folder.name == "batches" else _FILE_ID)), "")
        last = int(newest.partition("_")[2][:17] or 0)
        return f"{max(int(self._wall() * 1e6), last + 1):017d}"

    def _forget_old(self, batches: Path) -> None:
        oldest = (self._wall() - self.abilities.retention) * 1e6
        for folder, form in ((batches, _BATCH_ID), (self._folder("files"), _FILE_ID)):
            for name in reversed(_newest_first(folder, form)):
                if int(name.partition("_")[2][:17]) >= oldest:
                    break
                if folder is batches:
                    shutil.rmtree(folder / name, ignore_errors=True)
                else:
                    (folder / name).unlink(missing_ok=True)

    def _look(self, batch_id: str) -> RemoteBatch | None:
        folder = self._folder("batches") / batch_id
        try:
            told = json.loads((folder / "batch").read_bytes())
        except FileNotFoundError:
            return None
        cancelled = None
        with contextlib.suppress(FileNotFoundError):
            cancelled = float((folder / "cancelled").read_text())
        return self._described(batch_id, told, cancelled)

    def _described(self, batch_id: str, told: Mapping[str, Any], cancelled: float | None) -> RemoteBatch:
        """What the batch has come to by now, or by its cancel."""
        age = (self._wall() if cancelled is None else cancelled) - told["created_at"]
        share = 1.0 if age >= told["seconds"] else max(0.0, age / max(told["seconds"], 1e-9))
        ended = share >= 1 or cancelled is not None
        done = max(0.0, (share - _VALIDATED) / (1 - _VALIDATED))
        word = "in_progress" if share >= _VALIDATED else "validating"
        if ended:
            word = "completed" if cancelled is None else "cancelled"
        return RemoteBatch(
            id=batch_id,
            state=RemoteState(word) if ended else RemoteState.RUNNING,
            word=word,
            created_at=told["created_at"],
            mark=told["mark"],
            file_id=told["file_id"],
            total=told["size"],
            completed=int(told["size"] * done),
            outputs=("output",) if ended else (),
        )

    def _result(self, line: dict[str, Any], *, ran: bool) -> bytes:
        wire_id = line["custom_id"]
        said: Answer | str = self._answer_to(_request(line), line["model"], wire_id) if ran else "cancelled"
        result: dict[str, Any] = {"custom_id": wire_id, "error": said}
        if isinstance(said, Answer):
            usage = said.usage or Usage()
            result = {"custom_id": wire_id, "model": said.model, "text": said.text}
            result |= {"finish": said.finish_reason, "in": usage.input_tokens, "out": usage.output_tokens}
            for name, (write, _) in PART_FORMS.items():
                if value := getattr(said, name):
                    result[name] = write(value)
        return encode_json(result) + b"\n"


def sim_folder() -> Path:
    """Return the folder of the simulated remote side, readable by its owner only.

    Raises:
        ConfigError: when it belongs to somebody else, or cannot be made.
    """
    named = os.environ.get("SMARTBATCH_SIM_DIR", "").strip()
    folder = Path(named) if named else Path(tempfile.gettempdir()) / f"smartbatch-sim-{os.getuid()}"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        owned = os.lstat(folder).st_uid == os.getuid() and (named or not folder.is_symlink())
    except OSError as error:
        raise ConfigError(
            f"the simulation's folder {folder} cannot be made ({error.strerror}); set SMARTBATCH_SIM_DIR"
        ) from None
    if not owned:
        raise ConfigError(f"the simulation's folder {folder} is another user's; set SMARTBATCH_SIM_DIR")
    return folder


def _request(line: Mapping[str, Any]) -> Request:
    prompt = line["prompt"]
    if not isinstance(prompt, str):
        prompt = tuple(map(read_message, prompt))
    params = {name: line[name] for name in _PARAMS if name in line}
    if "tools" in params:
        params["tools"] = tuple(Tool(**tool) for tool in params["tools"])
    return Request(prompt, Generation(**params))


def _newest_first(folder: Path, form: re.Pattern[str]) -> list[str]:
    return sorted((name for name in os.listdir(folder) if form.fullmatch(name)), reverse=True)


def _checked(remote_id: str, form: re.Pattern[str]) -> str:
    if not form.fullmatch(remote_id):
        raise InvalidRequest("that is no id of a simulated file or batch", field="id")
    return remote_id
