"""Rows of the data that verifiers and environments are tried on."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from rlhf_api.spec.rewards import RewardSpec
from rlhf_api.spec.row_sources import DataSource
from rlhf_runtime.data.prompt_table import PromptTable
from rlhf_runtime.data.row_responses import prompt_and_answer
from rlhf_runtime.data.source_setting import SourceSetting
from rlhf_runtime.environments.settings import EnvironmentDescription
from rlhf_runtime.preflight.reference_answers import ANSWER_READERS
from rlhf_runtime.rewards.sample import Sample
from rlhf_runtime.row_values import answer_texts, field_value

# Rows of a single source. Of several sources the first rows of each, about as many together.
NUM_ROWS = 3


@dataclass(frozen=True, slots=True)
class TrialRow:
    """A row whose prompt gets responses of a trial.

    name: its source and number, for messages.
    prompt: as the model reads it.
    record: the row, with all its fields.
    source: name of its source; None if the data has a single one.
    answer: its reference answer; None: it has none.
    marked_prompt: the prompt with OBSERVATION_MARK; empty if environments add no observation.
    """

    name: str
    prompt: str
    record: Mapping[str, Any]
    source: str | None
    answer: str | None
    marked_prompt: str = ""

    def reference(self, reward: RewardSpec) -> str | None:
        """Return the reference answer of a reward: that of the field that it compares responses
        with, if this is known, else the row's; None without one.

        The row's may be the end of a conversation that is trained on, right or wrong.
        """
        scorer = reward.function or reward.http
        field = None if scorer is None else scorer.parameters.get("field")
        if field is None and reward.function is not None:
            field = ANSWER_READERS.get(reward.function.entrypoint)
        if not isinstance(field, str):
            return self.answer
        try:
            return answer_texts(field_value(self.record, field))[0]
        except (KeyError, ValueError):
            return self.answer

    def sample(self, response: str) -> Sample:
        """Return a response to the prompt, as a verifier gets it."""
        return Sample(self.prompt, response, self.record, True, self.source)


def trial_rows(
    table: PromptTable,
    setting: SourceSetting,
    source: DataSource,
    names: tuple[str, ...],
    environment: EnvironmentDescription | None = None,
) -> list[TrialRow]:
    """Return the first rows of a source, and the first one of every environment.

    Args:
        table: of the source.
        setting: the manifest's field of the source.
        source: of the rows.
        names: of all sources of the split, if these are several.
        environment: the environments of conversations. None: there are none.
    """
    name = None if setting.index is None else names[setting.index]
    rows = []
    first = range(min(len(table), -(-NUM_ROWS // max(1, len(names)))))
    for index in sorted({*first, *_first_of_environments(table, environment)}):
        record = table.record(index)
        _, answer = prompt_and_answer(record, source)
        row = f"{setting}: {table.row_name(index)}"
        text = None if answer is None else answer["content"]
        marked = table.marked_texts[index] if table.marked_texts else ""
        rows.append(TrialRow(row, table.texts[index], record, name, text, marked))
    return rows


def _first_of_environments(
    table: PromptTable, environment: EnvironmentDescription | None
) -> Collection[int]:
    """Return the numbers of the first row of every environment that rows choose."""
    if environment is None or len(environment.environments) == 1:
        return ()
    first: dict[str | None, int] = {}
    for index in range(len(table)):
        first.setdefault(environment.environment_of(table.record(index)), index)
        if len(first) == len(environment.environments):
            break
    return first.values()
