"""Checks the answers that built-in verifiers read in the rows of a source."""

from __future__ import annotations

import json
from collections.abc import Sequence
from difflib import get_close_matches

from rlhf_api.spec.rewards import FunctionReward
from rlhf_runtime import reasoning_gym_datasets
from rlhf_runtime.data.prompt_table import PromptTable
from rlhf_runtime.data.source_setting import SourceSetting
from rlhf_runtime.rewards.errors import InvalidReward
from rlhf_runtime.row_values import answer_texts, field_value

# Built-in verifiers that compare responses with a field of the row, with its default name. By
# name: the mathematical one imports sympy, for which no other job should wait.
ANSWER_READERS = {
    "rlhf_runtime.rewards.exact_match:score": "answer",
    "rlhf_runtime.rewards.math:verify": "answer",
}
# Built-in verifiers that read a field of the row. The fields that a user's verifier reads are
# unknown before it is called.
READERS = {
    **ANSWER_READERS,
    reasoning_gym_datasets.VERIFIER: reasoning_gym_datasets.DATASET_FIELD,
}


def check_answers(
    function: FunctionReward, table: PromptTable, rows: Sequence[int], source: SourceSetting
) -> list[str]:
    """Check the answers that a built-in verifier reads.

    Args:
        function: any function; others than built-in ones are not checked.
        table: of the source.
        rows: numbers of the rows to which the function applies, at least one.
        source: the manifest's field of the source.

    Returns:
        A warning if it can use the answers of some rows only.

    Raises:
        InvalidReward: it can use no answer of the source.
    """
    if function.entrypoint not in READERS:
        return []
    field = str(function.parameters.get("field", READERS[function.entrypoint]))
    first, num_missing = json.loads(table.records[rows[0]]), 0
    problems: list[str] = []
    for index in rows:
        try:
            answer_texts(field_value(json.loads(table.records[index]), field))
        except KeyError:
            num_missing += 1
            problems.append(f"{table.row_name(index)}: no {field}")
        except ValueError as error:
            problems.append(f"{table.row_name(index)}: {error}")
    if num_missing == len(rows):
        near = get_close_matches(field, list(first), n=1)
        raise InvalidReward(
            f"{function.entrypoint} reads a field that rows of {source} do not have: got {field}, "
            f"allowed {', '.join(first)}; "
            + (f"did you mean {near[0]}? " if near else "")
            + _other_field(function)
        )
    if len(problems) == len(rows):
        raise InvalidReward(
            f"{function.entrypoint} cannot use {field} in any row of {source}: got {problems[0]}"
        )
    if not problems:
        return []
    return [
        f"{function.entrypoint} cannot score {len(problems):,} of {len(rows):,} rows of {source}, "
        f"for their {field}: got {problems[0]}"
    ]


def _other_field(function: FunctionReward) -> str:
    """What to do about a verifier whose field no row has."""
    if function.entrypoint == reasoning_gym_datasets.VERIFIER:
        return "take rows of reasoningGym, or another verifier"
    return "write parameters: {field: NAME}, or add it to the data"
