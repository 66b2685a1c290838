"""The record of a row, which travels with its prompt.

A JSON object of `prompt`, `record` and, where the data has several sources, `source`. Where
environments may add observations, `marked_prompt` says where they belong.
"""

from __future__ import annotations

import json
from collections.abc import Iterable


def row_record(prompt: str, row: str, source: str | None, marked_prompt: str = "") -> str:
    """Write a record.

    Args:
        prompt: the prompt's text.
        row: JSON of the data's row.
        source: name of the row's source; None: the data has a single one.
        marked_prompt: the prompt's text with OBSERVATION_MARK. Empty: nothing is added to it.
    """
    named = "" if source is None else f', "source": {json.dumps(source)}'
    marked = f', "marked_prompt": {json.dumps(marked_prompt)}' if marked_prompt else ""
    return f'{{"prompt": {json.dumps(prompt)}, "record": {row}{named}{marked}}}'


def rows_by_source(records: Iterable[str]) -> dict[str, list[int]]:
    """Number the records of each of several sources; empty for those of a single one."""
    rows: dict[str, list[int]] = {}
    # All responses to a prompt have its record.
    sources: dict[str, str | None] = {}
    for row, record in enumerate(records):
        if record not in sources:
            sources[record] = json.loads(record).get("source")
        if (source := sources[record]) is not None:
            rows.setdefault(source, []).append(row)
    return rows
