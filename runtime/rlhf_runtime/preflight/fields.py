"""Whether rows have the fields that verifiers of this project read. What one of the user's own
reads is known when it is called."""

from __future__ import annotations

import json
from difflib import get_close_matches

from rlhf_api.spec.job import RLHFJobSpec
from rlhf_api.spec.rewards import FunctionReward
from rlhf_runtime.data.prompt_table import PromptTable
from rlhf_runtime.preflight.findings import Findings
from rlhf_runtime.rewards import exact_match, math
from rlhf_runtime.rewards.errors import InvalidReward

READERS = (f"{exact_match.__name__}:score", f"{math.__name__}:verify")
"""Verifiers that compare with a field of the row, `answer` where they are told no other."""


def check_fields(spec: RLHFJobSpec, table: PromptTable, findings: Findings) -> None:
    """Compare what verifiers read with the first row of a source.

    Args:
        spec: of the job.
        table: of the source.
        findings: get what is missing.
    """
    if not table.records:
        return
    known = list(json.loads(table.records[0]))
    for number, reward in enumerate(spec.rewards):
        function = reward.function
        if function is None or function.entrypoint not in READERS:
            continue
        with findings.about("spec", "rewards", number, "function"):
            _check(function, known, f"data.{table.split.value}")


def _check(function: FunctionReward, known: list[str], source: str) -> None:
    field = str(function.parameters.get("field", "answer"))
    if field in known:
        return
    near = get_close_matches(field, known, n=1)
    raise InvalidReward(
        f"{function.entrypoint} reads a field that rows of {source} do not have: got {field}, "
        f"allowed {', '.join(known)}; "
        + (f"did you mean {near[0]}? " if near else "")
        + "write parameters: {field: NAME}, or add it to the data"
    )
