"""The rows of a source to whose responses a reward applies."""

from __future__ import annotations

import json
from collections.abc import Iterator

from rlhf_api.spec.job import RLHFJobSpec
from rlhf_api.spec.rewards import RewardSpec
from rlhf_runtime.data.load import source_names
from rlhf_runtime.data.prompt_table import PromptTable
from rlhf_runtime.data.source_setting import SourceSetting, Split
from rlhf_runtime.rewards.applicable_samples import applies


def applicable_rows(
    reward: RewardSpec, spec: RLHFJobSpec, table: PromptTable, setting: SourceSetting
) -> list[int]:
    """Return the numbers of the rows, in the table, to which a reward applies.

    Args:
        reward: of the job.
        spec: of the job.
        table: of the source.
        setting: the manifest's field of the source.
    """
    if not reward.is_partial:
        return list(range(len(table.records)))
    name = _source_name(spec, setting)
    return [
        number
        for number, text in enumerate(table.records)
        if applies(reward, json.loads(text), name)
    ]


def rows_without_reward(
    spec: RLHFJobSpec, table: PromptTable, setting: SourceSetting
) -> Iterator[str]:
    """Warn of rows whose responses no reward scores.

    Args:
        spec: of the job.
        table: of the source.
        setting: the manifest's field of the source.
    """
    if not table.records or not all(reward.is_partial for reward in spec.rewards):
        return
    scored = {
        number
        for reward in spec.rewards
        for number in applicable_rows(reward, spec, table, setting)
    }
    left = [number for number in range(len(table.records)) if number not in scored]
    if left:
        yield (
            f"no reward applies to {len(left):,} of {len(table.records):,} rows of {setting}, such "
            f"as {table.row_name(left[0])}: their responses are left out; correct where or sources "
            "of the rewards, or remove the rows"
        )


def _source_name(spec: RLHFJobSpec, setting: SourceSetting) -> str | None:
    if setting.index is None:
        return None
    data = spec.data.evaluation if setting.split is Split.EVALUATION else spec.data.train
    return source_names(data)[setting.index] if data is not None else None
