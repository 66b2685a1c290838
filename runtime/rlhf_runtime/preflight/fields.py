"""Checks that rows have the fields that built-in verifiers read.

The fields that a user's verifier reads are unknown before it is called.
"""

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
"""Verifiers that compare with a field of the row, by default `answer`."""


def check_fields(spec: RLHFJobSpec, table: PromptTable, findings: Findings) -> None:
    """Check the fields that verifiers read in the first row of a source.

    Args:
        spec: of the job.
        table: of the source.
        findings: collects errors.
    """
    if not table.records:
        return
    names = list(json.loads(table.records[0]))
    for number, reward in enumerate(spec.rewards):
        function = reward.function
        if function is None or function.entrypoint not in READERS:
            continue
        with findings.about("spec", "rewards", number, "function"):
            _check(function, names, f"data.{table.split.value}")


def _check(function: FunctionReward, names: list[str], source: str) -> None:
    field = str(function.parameters.get("field", "answer"))
    if field in names:
        return
    near = get_close_matches(field, names, n=1)
    raise InvalidReward(
        f"{function.entrypoint} reads a field that rows of {source} do not have: got {field}, "
        f"allowed {', '.join(names)}; "
        + (f"did you mean {near[0]}? " if near else "")
        + "write parameters: {field: NAME}, or add it to the data"
    )
