"""Batch API of the embedded provider: the emulator's batch backend, shared by the processes that use
one folder.

The folder is ``$SMARTBATCH_SIM_DIR``, or ``smartbatch-sim-UID`` in the system's temporary folder. As
with OpenAI, a create call names an uploaded file and is refused once the file is deleted.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from attrs import asdict

from smartbatch._fork import PerProcess
from smartbatch.chats import PART_FORMS, message_form, read_message
from smartbatch.emulator.batches.batch_records import BatchBackendError, BatchSnapshot, Entry, OutputLine
from smartbatch.emulator.batches.shared_backend import SharedBackend
from smartbatch.emulator.parsed_requests import ApiError, ModelOutput
from smartbatch.emulator.settings import EmulatorSettings
from smartbatch.errors import ConfigError, ErrorKind, ProviderError
from smartbatch.providers.answer_parts import ReturnedFiles
from smartbatch.providers.batch_api import (
    BatchAbilities,
    BatchApi,
    BatchPage,
    Creation,
    Line,
    RemoteBatch,
    RemoteFile,
    RemoteKind,
    RemoteState,
    line_of,
    not_run,
)
from smartbatch.providers.foreign_text import count, unusable
from smartbatch.providers.http.content import encode_json
from smartbatch.providers.media_parts import translated
from smartbatch.providers.sim.parts import PARTS
from smartbatch.types import Answer, Generation, Kind, Request, Tool, Usage

_BATCHES_PER_PAGE = 100
_DELETES = frozenset({RemoteKind.INPUT, RemoteKind.BATCH})
# request parameters that affect a simulated answer
_PARAMS = (
    *("system", "max_tokens", "stop", "reasoning_effort", "response_format", "schema", "tools"),
    *("tool_choice", "logprobs"),
)


class SimBatches(BatchApi):
    """Batches of one :class:`~smartbatch.providers.sim.provider.SimProvider`.

    Args:
        scope: as in :class:`~smartbatch.providers.batch_api.BatchApi`.
        settings: settings of the emulator, with the times of batches.
        answer_to: returns the answer to ``(request, model, wire_id)``, or the name of a fault.
        error_of: creates the error for a fault.
        wall: Unix seconds.
    """

    name = "sim"
    abilities = BatchAbilities(
        max_requests=50_000, max_bytes=200_000_000, result_files=False, deletes=_DELETES, priced=False
    )

    def __init__(
        self,
        scope: str,
        settings: EmulatorSettings,
        *,
        answer_to: Callable[[Request, str, str], Answer | str],
        error_of: Callable[[str], ProviderError],
        wall: Callable[[], float],
    ) -> None:
        self.scope = scope
        self._answer_to = answer_to
        self._error_of = error_of
        self._wall = wall
        own = hashlib.sha256(scope.encode()).hexdigest()[:16]
        self._backend = PerProcess(lambda: SharedBackend(sim_folder() / own, settings, self._entry))

    # -- input -----------------------------------------------------------------------------------------------

    def encode(self, request: Request, *, model: str, wire_id: str) -> bytes:
        prompt = translated(request.prompt, PARTS)
        asked: Any = prompt if isinstance(prompt, str) else [message_form(message) for message in prompt]
        given = {name: getattr(request.params, name) for name in _PARAMS}
        if request.params.tools is not None:
            given["tools"] = [asdict(tool) for tool in request.params.tools]
        params = {name: value for name, value in given.items() if value is not None}
        return encode_json({"custom_id": wire_id, "model": model, "prompt": asked, **params})

    def upload(self, name: str, source: Path, timeout: float) -> RemoteFile:  # noqa: ARG002
        return self._file(self._backend.get().upload(name, source, self._wall()).id, name)

    def find_file(self, name: str, timeout: float) -> RemoteFile | None:  # noqa: ARG002
        files = self._backend.get().files(self._wall())
        return next((self._file(file.id, name) for file in files if file.name == name), None)

    def delete_file(self, file_id: str, timeout: float) -> None:  # noqa: ARG002
        """A batch created from the file keeps its lines."""
        self._backend.get().delete_file(file_id, self._wall())

    def _file(self, file_id: str, name: str) -> RemoteFile:
        return RemoteFile(file_id, name, self._backend.get().size(file_id))

    # -- batches ---------------------------------------------------------------------------------------------

    def create(self, creation: Creation, timeout: float) -> RemoteBatch:  # noqa: ARG002
        try:
            batch = self._backend.get().create(
                creation.file_id or "", creation.mark, creation.size, self._wall()
            )
        except BatchBackendError as error:
            raise _refused(400, error) from None
        return _shown(batch)

    def get(self, batch_id: str, timeout: float) -> RemoteBatch | None:  # noqa: ARG002
        found = self._backend.get().batch(batch_id, self._wall())
        return None if found is None else _shown(found)

    def page(self, after: str | None, timeout: float) -> BatchPage:  # noqa: ARG002
        found = self._backend.get().batches(self._wall())
        begin = next((at for at, batch in enumerate(found, 1) if batch.id == after), 0)
        shown = [_shown(batch) for batch in found[begin : begin + _BATCHES_PER_PAGE]]
        more = shown[-1].id if len(found) > begin + _BATCHES_PER_PAGE else None
        return BatchPage(tuple(shown), more, self._wall())

    def cancel(self, batch_id: str, timeout: float) -> None:  # noqa: ARG002
        """The results so far are kept."""
        self._backend.get().cancel(batch_id, self._wall())

    def delete_batch(self, batch_id: str, timeout: float) -> None:  # noqa: ARG002
        self._backend.get().delete(batch_id, self._wall())

    # -- results ---------------------------------------------------------------------------------------------

    def download(self, batch: RemoteBatch, output: str, timeout: float) -> Iterator[bytes]:  # noqa: ARG002
        try:
            lines = self._backend.get().outputs(batch.id, self._wall())
        except BatchBackendError as error:
            raise _refused(404, error) from None
        yield from map(_line_bytes, lines)

    def read_line(self, line: bytes, kind: Kind) -> Line:  # noqa: ARG002
        return line_of(line, "custom_id", self._read)

    def _read(self, data: dict[str, Any]) -> Answer:
        match data:
            case {"ended": "cancelled" | "expired" as ended}:
                raise not_run(ended)
            case {"body": {"fault": str(fault)}}:
                raise self._error_of(fault)
            case {"body": {"text": str(text), "in": asked, "out": made, "finish": str(finish), **parts}}:
                thought = count(parts.get("reasoned")) or 0
                usage = Usage(count(asked) or 0, count(made) or 0, reasoning_tokens=thought)
                found = {name: read(parts[name]) for name, (_, read) in PART_FORMS.items() if name in parts}
                model: Any = parts.get("model")
                files, given = ReturnedFiles(), parts.get("files")
                for data in given if isinstance(given, list) else ():
                    files.take(data)
                return Answer(
                    text=text, usage=usage, finish_reason=finish, model=model, files=tuple(files), **found
                )
        raise unusable("the line is neither an answer nor an error", status=200)

    def _entry(self, line: bytes) -> Entry:
        """Parse an input line. Running the entry gives the body of a result line."""
        data = json.loads(line)

        def run(_identity: str) -> ModelOutput:
            said = self._answer_to(_request(data), data["model"], data["custom_id"])
            if isinstance(said, str):
                raise ApiError(500, said, encode_json({"fault": said}))
            usage = said.usage or Usage()
            body: dict[str, Any] = {"model": said.model, "text": said.text, "finish": said.finish_reason}
            body |= {"in": usage.input_tokens, "out": usage.output_tokens}
            if usage.reasoning_tokens:
                body["reasoned"] = usage.reasoning_tokens
            if said.files:
                body["files"] = [base64.b64encode(file.content()).decode() for file in said.files]
            body |= {name: write(v) for name, (write, _) in PART_FORMS.items() if (v := getattr(said, name))}
            return ModelOutput(encode_json(body), usage.output_tokens, usage.total_tokens)

        return Entry(data["custom_id"], "", 0, run)

    # -- errors ----------------------------------------------------------------------------------------------

    def classify(self, error: Exception) -> ProviderError:
        """Errors of the folder are network errors, so nothing was created."""
        if isinstance(error, OSError):
            where = f"the simulation's folder {sim_folder()} cannot be used ({error.strerror})"
            return ProviderError(where, kind=ErrorKind.NETWORK_ERROR, code="folder")
        return super().classify(error)


def sim_folder() -> Path:
    """Return the folder of the simulated remote side, which only its owner can read.

    Raises:
        ConfigError: the folder belongs to another user, or cannot be created.
    """
    named = os.environ.get("SMARTBATCH_SIM_DIR", "").strip()
    folder = Path(named) if named else Path(tempfile.gettempdir()) / f"smartbatch-sim-{os.getuid()}"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        owned = os.lstat(folder).st_uid == os.getuid() and (named or not folder.is_symlink())
    except OSError as error:
        raise ConfigError(
            f"the simulation's folder {folder} cannot be created ({error.strerror}); set SMARTBATCH_SIM_DIR"
        ) from None
    if not owned:
        raise ConfigError(f"the simulation's folder {folder} belongs to another user; set SMARTBATCH_SIM_DIR")
    return folder


def _shown(batch: BatchSnapshot) -> RemoteBatch:
    state = RemoteState.ENDING if batch.state == "finalizing" else RemoteState.RUNNING
    return RemoteBatch(
        id=batch.id,
        state=RemoteState(batch.state) if batch.ended else state,
        word=batch.state,
        created_at=batch.created_at,
        mark=batch.label["mark"],
        file_id=batch.file_id,
        total=batch.counts.total,
        completed=batch.counts.succeeded,
        failed=batch.counts.errored,
        outputs=("output",) if batch.ended else (),
    )


def _line_bytes(line: OutputLine) -> bytes:
    if line.outcome in ("cancelled", "expired"):
        return encode_json({"custom_id": line.custom_id, "ended": line.outcome}) + b"\n"
    return b'{"custom_id": %b, "body": %b}\n' % (json.dumps(line.custom_id).encode(), line.body)


def _request(line: Mapping[str, Any]) -> Request:
    prompt = line["prompt"]
    if not isinstance(prompt, str):
        prompt = tuple(map(read_message, prompt))
    params = {name: line[name] for name in _PARAMS if name in line}
    if "tools" in params:
        params["tools"] = tuple(Tool(**tool) for tool in params["tools"])
    return Request(prompt, Generation(**params))


def _refused(status: int, error: BatchBackendError) -> ProviderError:
    text = f"simulated: {status}, {error.message}"
    return ProviderError(text, kind=ErrorKind.CLIENT_ERROR, status=status, code=error.reason)
