"""The result of a call that generates: columns of responses, and statistics of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from rlhf_api.plan import GraphName
from rlhf_api.spec.job import RLHFJobSpec
from rlhf_api.spec.stopping import CONVERSATION_REASONS, OnStop, StopAction, StopReason
from rlhf_flow.step.columns import PROMPT_TOKENS, RECORD, RETAINED
from rlhf_runtime.calls.inputs import CallInputs
from rlhf_runtime.calls.reports import Statistics
from rlhf_runtime.data.row_record import rows_by_source
from rlhf_runtime.dataplane.columns import Column
from rlhf_runtime.dataplane.shards import ShardIndex
from rlhf_runtime.engines.response_batch import Generated
from rlhf_runtime.roles.context import Result
from rlhf_runtime.roles.early_rows import EarlyRows
from rlhf_runtime.roles.response_columns import response_columns
from rlhf_runtime.roles.sequence_migration import Prompts

NO_COLUMNS: Mapping[str, Column] = MappingProxyType({})
# Number of responses that are not trained on, by the treatment of their stop reasons.
ACTION_METRICS = {
    StopAction.MASK: "response/masked",
    StopAction.LEAVE_OUT: "response/left_out",
}


class ResponseResults:
    """Makes the results of a job's generate calls."""

    def __init__(self, spec: RLHFJobSpec) -> None:
        self._spec = spec

    def result(
        self,
        inputs: CallInputs,
        prompts: Prompts,
        generated: Generated,
        early: EarlyRows,
        columns: Mapping[str, Column] = NO_COLUMNS,
    ) -> Result:
        """Return the result of a call.

        Args:
            inputs: of the call.
            prompts: of the responses.
            generated: the responses.
            early: has the texts of those that were sent before.
            columns: further ones, and those that replace columns of the prompts.
        """
        columns = {**prompts.columns, **columns}
        prompt_lengths = columns[PROMPT_TOKENS].lengths
        num_tokens = generated.tokens.lengths
        assert num_tokens is not None and prompt_lengths is not None
        prompt_index = prompts.index
        index = ShardIndex(prompt_index.rows, prompt_index.groups, prompt_lengths + num_tokens)
        lengths = generated.num_sampled
        # All ranks of a replica have the same responses; the first one decodes and counts them.
        is_first = inputs.at.tensor == inputs.at.pipeline == 0
        texts = early.texts(prompt_index.rows, generated.tokens) if is_first else []
        count = float(len(index.rows))
        num_cut_off = count - float(generated.finished.sum())
        means = {
            "response/length_mean": (float(lengths.sum()), count),
            "response/empty": (float(num_empty(texts)), float(len(texts))),
            "response/truncated": (num_cut_off, count),
            **self._reason_shares(generated.reasons),
            **self._lengths_by_source(prompts, lengths),
        }
        tokens = float(index.lengths.sum()) if is_first else 0.0
        maxima = {"response/length_max": float(lengths.max(initial=0))}
        return Result(
            columns={**columns, **self._response_columns(generated, texts, prompt_index.groups)},
            statistics=Statistics(
                means,
                maxima,
                {
                    "batch/tokens": tokens,
                    **self._untrained(inputs.graph, generated.reasons if is_first else ()),
                },
            ),
            index=index,
        )

    def _response_columns(
        self, generated: Generated, texts: Sequence[str], groups: NDArray[np.int64]
    ) -> dict[str, Column]:
        """Return the columns of responses; leave out those of prompts with too few samples."""
        own = response_columns(generated, texts, self._on_stop)
        fewest = self._spec.rollout.min_valid_samples
        if fewest is not None:
            own[RETAINED] = Column(in_large_groups(own[RETAINED].values != 0, groups, fewest))
        return own

    def _lengths_by_source(
        self, prompts: Prompts, lengths: NDArray[np.int32]
    ) -> dict[str, tuple[float, float]]:
        """Return the mean lengths of responses to prompts of each of several data sources."""
        data = self._spec.data
        if not data.train.source_names and not data.evaluation_names:
            return {}
        by_source = rows_by_source(prompts.columns[RECORD].texts())
        return {
            f"response/{source}/length_mean": (float(lengths[rows].sum()), float(len(rows)))
            for source, rows in by_source.items()
        }

    def _reason_shares(
        self, reasons: Sequence[StopReason | None]
    ) -> dict[str, tuple[float, float]]:
        """Return the share of responses with each stop reason."""
        has_conversations = self._spec.rollout.environment is not None
        return {
            f"response/stop_reason/{reason.value}": (
                float(reasons.count(reason)),
                float(len(reasons)),
            )
            for reason in StopReason
            if has_conversations or reason not in CONVERSATION_REASONS
        }

    @property
    def _on_stop(self) -> OnStop:
        return self._spec.rollout.stop_actions

    def _untrained(
        self, graph: GraphName, reasons: Sequence[StopReason | None]
    ) -> dict[str, float]:
        """Return the metrics of responses that are masked or left out."""
        # An evaluation measures all responses.
        if graph is not GraphName.STEP:
            return {}
        actions = [self._on_stop.action(reason) for reason in reasons if reason is not None]
        return {
            metric: float(actions.count(action))
            for action, metric in ACTION_METRICS.items()
            if self._on_stop.has(action)
        }


def in_large_groups(
    retained: NDArray[np.bool_], groups: NDArray[np.int64], fewest: int
) -> NDArray[np.int8]:
    """Mark the retained rows of groups with enough of them.

    Args:
        retained: bool[rows].
        groups: int64[rows], of complete groups.
        fewest: number of retained rows that a group must have; all, if it has fewer rows.
    """
    _, group_of = np.unique(groups, return_inverse=True)
    counts = np.bincount(group_of, weights=retained, minlength=1)
    # A baseline's greedy response is alone in its group.
    required = np.minimum(fewest, np.bincount(group_of, minlength=1))
    large: NDArray[np.int8] = (retained & (counts >= required)[group_of]).astype(np.int8)
    return large


def num_empty(texts: Sequence[str]) -> int:
    """Count the responses that hold no text but white space."""
    return sum(not text.strip() for text in texts)
