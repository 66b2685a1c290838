"""Checks the entries of rows that judges' questions name."""

from __future__ import annotations

import json
from collections.abc import Sequence

from rlhf_api.spec.services import JudgeReward
from rlhf_runtime.data.prompt_table import PromptTable
from rlhf_runtime.data.source_setting import SourceSetting
from rlhf_runtime.rewards.errors import InvalidReward
from rlhf_runtime.rewards.judge_question import named_entries
from rlhf_runtime.row_values import field_value


def check_question(
    judge: JudgeReward, table: PromptTable, rows: Sequence[int], source: SourceSetting
) -> list[str]:
    """Check the entries of rows that a judge's question names.

    Args:
        judge: with the question.
        table: of the source.
        rows: numbers of the rows to which the judge applies, at least one.
        source: the manifest's field of the source.

    Returns:
        A warning for each entry that some rows lack.

    Raises:
        InvalidReward: no row has an entry.
    """
    warnings = []
    for entry in named_entries(judge.prompt):
        missing = [index for index in rows if not _has(table.records[index], entry)]
        if len(missing) == len(rows):
            columns = ", ".join(json.loads(table.records[rows[0]]))
            raise InvalidReward(
                f"a judge's question names an entry that no row of {source} has: got "
                f"{{record.{entry}}}, allowed {columns}; correct the question, or add it to the "
                "data"
            )
        if missing:
            warnings.append(
                f"a judge cannot be asked about {len(missing):,} of {len(rows):,} rows of "
                f"{source}: {table.row_name(missing[0])} has no {{record.{entry}}}"
            )
    return warnings


def _has(record: str, entry: str) -> bool:
    try:
        field_value(json.loads(record), entry)
    except (KeyError, ValueError):
        return False
    return True
