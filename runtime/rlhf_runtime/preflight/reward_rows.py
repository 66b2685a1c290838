"""Checks of what rewards read in the rows of a source."""

from __future__ import annotations

import json
from collections.abc import Sequence

from rlhf_api.spec.job import RLHFJobSpec
from rlhf_api.spec.rewards import RewardSpec
from rlhf_runtime.data.load import source_names
from rlhf_runtime.data.prompt_table import PromptTable
from rlhf_runtime.data.source_setting import SourceSetting, Split
from rlhf_runtime.preflight.findings import Findings
from rlhf_runtime.preflight.judge_questions import check_question
from rlhf_runtime.preflight.reference_answers import check_answers
from rlhf_runtime.rewards.applicable_samples import applies


def check_reward_rows(
    spec: RLHFJobSpec, table: PromptTable, setting: SourceSetting, findings: Findings
) -> None:
    """Check the rows of a source for each reward that applies to them.

    Args:
        spec: of the job.
        table: of the source.
        setting: the manifest's field of the source.
        findings: collects errors, and warnings of rows that are not scored.
    """
    rewarded: set[int] = set()
    for number, reward in enumerate(spec.rewards):
        rows = _applicable_rows(reward, spec, table, setting)
        rewarded.update(rows)
        if not rows:
            continue
        path = ("spec", "rewards", number, reward.chosen)
        if reward.function is not None:
            with findings.about(*path):
                findings.warnings += check_answers(reward.function, table, rows, setting)
        if reward.judge is not None:
            with findings.about(*path, "prompt"):
                findings.warnings += check_question(reward.judge, table, rows, setting)
    if spec.rewards and len(rewarded) < len(table.records):
        findings.warnings.append(_unrewarded(rewarded, table, setting))


def _applicable_rows(
    reward: RewardSpec, spec: RLHFJobSpec, table: PromptTable, setting: SourceSetting
) -> Sequence[int]:
    """Return the numbers of the rows, in the table, to which a reward applies."""
    if not reward.is_partial:
        return range(len(table.records))
    name = _source_name(spec, setting)
    return [
        number
        for number, text in enumerate(table.records)
        if applies(reward, json.loads(text), name)
    ]


def _unrewarded(rewarded: set[int], table: PromptTable, setting: SourceSetting) -> str:
    left = [number for number in range(len(table.records)) if number not in rewarded]
    return (
        f"no reward applies to {len(left):,} of {len(table.records):,} rows of {setting}, such as "
        f"{table.row_name(left[0])}: their responses are left out; correct where or sources of the "
        "rewards, or remove the rows"
    )


def _source_name(spec: RLHFJobSpec, setting: SourceSetting) -> str | None:
    if setting.index is None:
        return None
    data = spec.data.evaluation if setting.split is Split.EVALUATION else spec.data.train
    return source_names(data)[setting.index] if data is not None else None
