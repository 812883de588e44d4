"""Creates prompts from table rows, by filling in a template or by reading a column."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, Self, get_args

from attrs import frozen

from smartbatch.tables.cells import BadField, check_present, listed, text_of
from smartbatch.tables.file_cells import FileColumns, check_is_text
from smartbatch.tables.templates import Template, TemplateError, template_of
from smartbatch.types import OnMissing, TemplateSource

ANSWER_FIELD: Final = "answer"  # of an example
MAX_EXAMPLES: Final = 1000  # all of them are part of every prompt
ON_MISSING: Final[tuple[OnMissing, ...]] = get_args(OnMissing)

# beginning of a chat written as text
_CHAT_START: Final = re.compile(r"""\s*(\[\s*)?\{\s*(\\?["'])(role|messages|content)\2\s*:""")
_MAX_DEPTH: Final = 200  # nesting depth of a chat written as text


@frozen
class SkippedRow:
    """Takes the place of the prompt of a skipped row."""

    reason: str


@frozen
class RowPrompts:
    fields: list[str]  # fields that prompts name; empty if each row decides
    on_missing: OnMissing = "error"
    _template: Template | None = None
    files: FileColumns | None = None
    examples: Sequence[Mapping[str, str]] = ()  # turns before each prompt, from :meth:`example`

    @classmethod
    def of(
        cls,
        template: TemplateSource | None,
        column: str | None,
        on_missing: OnMissing = "error",
        files: FileColumns | None = None,
    ) -> Self:
        """Create prompts with a template or, without one, from a column.

        Raises:
            TemplateError: the template is invalid, or its file cannot be read, or there is none for files.
        """
        if template is None:
            if files is not None:
                raise TemplateError(
                    f"is needed to place the files of {listed(files.kinds)}, as in 'What is this? "
                    f"{{{next(iter(files.kinds), 'photo')}}}'"
                )
            return cls([] if column is None else [column], on_missing)
        found = template_of(template, allows_blanks=on_missing == "empty", files=files)
        return cls(found.fields, on_missing, found, files)

    @property
    def reads_all_fields(self) -> bool:
        """Whether prompts may contain fields that are not in :attr:`fields`."""
        return self._template is not None and self._template.reads_all_fields

    def prompt(self, row: Mapping[str, Any]) -> Any:
        """Return the unvalidated prompt of a row: a string, a list of texts and files or of messages, or an
        invalid value.

        Raises:
            MissingFields: the row lacks a field that must not be left empty, or a file.
            BadField: a value does not fit its format, or looks like a chat but cannot be read, or the prompt
                is a chat and there are examples.
        """
        prompt = self._prompt(row)
        if not self.examples:
            return prompt
        if self._template is None and not isinstance(prompt, str):
            raise BadField("the prompt is a chat, which cannot begin with examples: write it as text")
        return [*self.examples, {"role": "user", "content": prompt}]

    def example(self, row: Mapping[str, Any]) -> tuple[Mapping[str, str], Mapping[str, str]]:
        """Return the turns of an example: its prompt, made like all prompts, and its field ``answer``.

        Raises:
            MissingFields: the row lacks a field of the prompt or the answer.
            BadField: see :meth:`prompt`.
        """
        if ANSWER_FIELD in self.fields:
            raise BadField(
                f"the field {ANSWER_FIELD!r} of an example is its answer and cannot be part of the prompt: "
                "rename that field of the input"
            )
        check_present([ANSWER_FIELD], row)
        prompt = self._prompt({name: value for name, value in row.items() if name != ANSWER_FIELD})
        if not isinstance(prompt, str):
            raise BadField("the prompt of an example must be text, not a chat and without files")
        check_is_text(ANSWER_FIELD, row[ANSWER_FIELD])
        answer = text_of(row[ANSWER_FIELD])
        return {"role": "user", "content": prompt}, {"role": "assistant", "content": answer}

    def _prompt(self, row: Mapping[str, Any]) -> Any:
        if self._template is not None:
            return self._template.fill(row)
        name = self.fields[0] if self.fields else _only_text(row)
        check_present([name], row, ", and a prompt cannot be empty" if self.on_missing == "empty" else "")
        value = row[name]
        return _chat_of(value, name) if isinstance(value, str) else value


def _only_text(row: Mapping[str, Any]) -> str:
    """Return the name of the prompt field, if none was configured.

    Raises:
        BadField: several fields are possible.
    """
    for name in ("prompt", "messages"):
        if name in row:
            return name
    others = [name for name in row if name != "id"]
    texts = [name for name in others if isinstance(row[name], str)]
    if len(texts) == 1:
        return texts[0]
    if len(others) == 1 and row[others[0]] is None:
        return others[0]
    raise BadField(
        f"the prompt field is ambiguous; the row has {listed(row)}; use --prompt-field or --template"
    )


def _chat_of(text: str, name: str) -> Any:
    """Return the chat that a string contains as JSON, or any other string unchanged.

    Raises:
        BadField: the string begins like a chat but is not one.
    """
    if not text.lstrip().startswith(("[", "{")):
        return text
    begins_so = _CHAT_START.match(text) is not None
    try:
        value = json.loads(text) if text.count("[") + text.count("{") <= _MAX_DEPTH or begins_so else None
    except (ValueError, RecursionError) as error:
        if not begins_so and name != "messages":
            return text
        where = f": {error.msg} (character {error.colno})" if isinstance(error, json.JSONDecodeError) else ""
        raise BadField(
            f"field {name!r} looks like a chat, but is not valid JSON{where}; write it with json.dumps"
        ) from None
    if isinstance(value, dict) and isinstance(value.get("messages"), list):
        value = value["messages"]
    elif isinstance(value, dict) and "role" in value and "content" in value:
        value = [value]
    if isinstance(value, list) and value and all(isinstance(one, dict) and "role" in one for one in value):
        return value
    if name == "messages":
        raise BadField(f"field {name!r} is JSON, but not a chat: a list of messages with role and content")
    return text
