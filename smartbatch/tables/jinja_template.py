"""Jinja templates, with conditions and loops, filled from the fields of a table row."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from types import TracebackType
from typing import Any, Final

import jinja2
import jinja2.meta
import jinja2.sandbox
from jinja2.utils import missing

from smartbatch.tables.cells import BadField, MissingFields, check_present, missing_fields, text_of
from smartbatch.tables.file_cells import rejecting_files

_ROW: Final = "row"  # variable with all fields, for names that are not identifiers


class _BlankField(jinja2.StrictUndefined):
    """A blank field may be tested, as in ``{% if title %}``, but not inserted."""

    __bool__ = jinja2.Undefined.__bool__  # type: ignore[assignment]

    def __init__(
        self,
        hint: str | None = None,
        obj: Any = missing,
        name: str | None = None,
        exc: Any = jinja2.UndefinedError,
    ) -> None:
        if exc is jinja2.UndefinedError:  # not an attribute that the sandbox forbids
            exc = partial(MissingFields, names=[str(name)])
        super().__init__(hint, obj, name, exc)


class JinjaTemplate:
    """A template in a sandbox, without access to files, attributes of Python objects or other templates.

    Blank fields are undefined. Values are inserted as by placeholders: strings unchanged, others as JSON.

    Args:
        allows_blanks: whether an undefined field is left empty; otherwise its row is rejected.

    Raises:
        ValueError: the template is invalid; the error says where.
    """

    def __init__(self, text: str, *, allows_blanks: bool) -> None:
        environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
            trim_blocks=True,
            lstrip_blocks=True,
            undefined=jinja2.Undefined if allows_blanks else _BlankField,
            finalize=text_of,
        )
        environment.globals.clear()  # a column may be called range
        try:
            parsed = environment.parse(text)
            self._template = environment.from_string(text)
        except jinja2.TemplateSyntaxError as error:
            raise ValueError(f"line {error.lineno}: {error.message}") from error
        except RecursionError as error:
            raise ValueError("its expressions are nested too deeply") from error
        if any(True for _ in jinja2.meta.find_referenced_templates(parsed)):
            raise ValueError("a template cannot include, import or extend others: copy their text into it")
        names = jinja2.meta.find_undeclared_variables(parsed)
        self.reads_all_fields = _ROW in names
        self.fields = sorted(names - {_ROW})
        if not names:
            raise ValueError(
                "without a field in the template, all prompts would be identical; write {{ field }} for a "
                "field, because the name ends in .j2"
            )

    def fill(self, row: Mapping[str, Any]) -> str:
        blank = set(missing_fields(row, row))
        fields = {name: rejecting_files(name, value) for name, value in row.items() if name not in blank}
        try:
            return self._template.render({_ROW: fields, **fields})
        except MissingFields as error:
            check_present(error.names, row)
            raise
        except BadField:
            raise
        except Exception as error:  # from the filters, tests and operators of the template
            # Only messages of Jinja itself repeat no value.
            problem = str(error) if isinstance(error, jinja2.TemplateError) else type(error).__name__
            place = _line(error.__traceback__)
            raise BadField(f"{place}the template cannot be filled in: {problem}") from error


def _line(traceback: TracebackType | None) -> str:
    """Return the line of the template on which an error occurred."""
    found = ""
    while traceback is not None:
        if traceback.tb_frame.f_code.co_filename == "<template>":
            found = f"line {traceback.tb_lineno} of the template: "
        traceback = traceback.tb_next
    return found
