"""The process that scores responses with verifier processes and services. A Ray actor."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rlhf_api.plan import GraphName
from rlhf_api.spec.job import RLHFJob
from rlhf_flow.step.columns import (
    EPISODE,
    FINISHED,
    PROMPT_ID,
    RECORD,
    RESPONSE_TEXT,
    RETAINED,
    scores_column,
    term_scores_column,
    valid_column,
)
from rlhf_runtime.calls.ended_rows import EndedRows
from rlhf_runtime.calls.inputs import CallInputs
from rlhf_runtime.calls.reports import CallReport, ScoringReport, Statistics
from rlhf_runtime.calls.requests import CallRequest
from rlhf_runtime.data.load import evaluation_source
from rlhf_runtime.data.row_location import RowLocations
from rlhf_runtime.data.row_names import source_and_row
from rlhf_runtime.dataplane.columns import Column
from rlhf_runtime.dataplane.partition import Slice
from rlhf_runtime.dataplane.protocol import Coordinates
from rlhf_runtime.dataplane.shards import Shard
from rlhf_runtime.faults import Fault, FaultPhase, Faults
from rlhf_runtime.journal.answers import AnswerJournal, CallAnswers, CallScope
from rlhf_runtime.journal.folder import Attempt, Position
from rlhf_runtime.python_path import PythonPath
from rlhf_runtime.rewards.early_scores import EarlyScores, EndedResponse, Question
from rlhf_runtime.rewards.sample import Sample
from rlhf_runtime.rewards.scorer import start_scorers
from rlhf_runtime.rewards.scores import SampleName
from rlhf_runtime.telemetry.records import Span
from rlhf_runtime.workers.activity import ActivityServer, ProgressSignal
from rlhf_runtime.workers.process import configure_process, resident_bytes

logger = logging.getLogger(__name__)

# Name of scoring while responses are generated, in the timeline.
EARLY_CALL = "score_early"
# Characters of a response that messages show.
SHOWN_CHARACTERS = 60


class RewardHost(ActivityServer):
    """Scores slices of batches, several at a time. Groups are never split."""

    def __init__(
        self,
        job: RLHFJob,
        log_file: Path,
        python_path: PythonPath,
        name: str,
        host: Slice,
        attempt: Attempt | None = None,
        faults: tuple[Fault, ...] = (),
    ) -> None:
        """
        Args:
            job: the job.
            log_file: log of this process.
            python_path: the user's code and its packages.
            name: name of this host, in the timeline.
            host: index of this host among the job's hosts.
            attempt: of the journal; None: no answers are kept.
            faults: injected faults.
        """
        configure_process(log_file, 1, python_path)
        super().__init__()
        self._name, self._host = name, host
        self._faults = Faults(faults, log_file.parent, "reward")
        self._rewards, self._data = job.spec.rewards, job.spec.data
        self._row_locations = RowLocations()
        self._journal = None if attempt is None else AnswerJournal(attempt, name)

    def start(self) -> dict[str, str]:
        """Import the verifiers and start their processes.

        Returns:
            The metrics that they declare, by the reward's name.
        """
        with self.activity.during("start", progress=ProgressSignal.OWN_LIMIT):
            self._scorers = start_scorers(self._rewards, self._host)
        rewards = {role: scorer.rewards for role, scorer in self._scorers.items()}
        self._early = EarlyScores(rewards, self._journal)
        return {
            name: metric
            for scorer in self._scorers.values()
            for name, metric in scorer.declared_metrics.items()
        }

    def score_early(self, message: bytes) -> None:
        """Score responses that ended while others are generated, without waiting."""
        # No activity: a call that scores will wait for it, and only ranks make progress now.
        try:
            self._score_early(EndedRows.from_bytes(message))
        except Exception:
            # Nobody waits for the result, and the call asks for what is not there.
            logger.exception("responses could not be scored early")

    def _score_early(self, ended: EndedRows) -> None:
        episodes = ended.episodes or [""] * len(ended.rows)
        questions = list(zip(ended.records, ended.texts, ended.finished, episodes, strict=True))
        samples = [_sample(*question) for question in questions]
        responses = {
            row: EndedResponse(question, sample)
            for row, question, sample in zip(ended.rows, questions, samples, strict=True)
        }
        for call in ended.calls:
            scope = _scope(ended.graph, ended.step, ended.repetition, call.id, ended.round)
            self._early.add(scope, call.role, responses, ended.slice_rows)

    def run(self, header: bytes, own: bytes, *shards: Shard) -> tuple[bytes, Shard]:
        """Score the rows of the request's slice: a report, then scores and their validity."""
        request = CallRequest.from_message(header, own)
        with self.activity.during(request.call.id, request.step):
            return self._run(request, shards)

    def _run(self, request: CallRequest, shards: Sequence[Shard]) -> tuple[bytes, Shard]:
        start, role = time.time(), request.call.role
        assert role is not None
        if request.graph is GraphName.STEP:
            self._faults.enter(FaultPhase.SCORE, request.step)
        # A host is a mesh of one: the driver chose its slice of the rows.
        at = Coordinates(data=request.batch_slice.index, data_size=request.batch_slice.count)
        inputs = CallInputs(request, shards, at)
        rows = inputs.rows()
        columns = inputs.load(rows)
        # Verifiers have time limits of their own.
        with self.activity.during(request.call.id, request.step, ProgressSignal.OWN_LIMIT):
            questions = _questions(columns)
            samples = [_sample(*question) for question in questions]
            name_samples = partial(self._names, request.graph, samples, columns[PROMPT_ID].values)
            scope = _scope(
                *(request.graph, request.step, request.repetition, request.call.id, request.round)
            )
            answers = self._answers(scope, rows.tolist())
            early = self._early.take(scope, role, rows.tolist(), questions)
            scored = self._scorers[role].score(samples, name_samples, answers, early)
        report = CallReport(
            request.call.id,
            Statistics(scored.means, sums=scored.counts, spreads=scored.spreads),
            (
                *(
                    Span(self._name, role, EARLY_CALL, *busy)
                    for busy in self._early.take_busy(scope)
                ),
                Span(self._name, role, request.call.method, start, time.time()),
            ),
            resident_bytes(),
            ScoringReport(
                request.round,
                len(scored.valid),
                int(_counted(scored.valid, columns).sum()),
                scored.num_failed,
                scored.failures,
                () if answers is None else _notices(answers),
            ),
        )
        results = {
            scores_column(role): Column(scored.values),
            valid_column(role): Column(scored.valid.astype(np.int8)),
            **{
                term_scores_column(role, name): Column(values)
                for name, values in scored.terms.items()
                if term_scores_column(role, name) in request.call.writes
            },
        }
        return report.to_bytes(), Shard(inputs.index.find(rows), results)

    def _answers(self, scope: CallScope, rows: Sequence[int]) -> CallAnswers | None:
        """Return the journal's answers about a call's rows."""
        return None if self._journal is None else self._journal.call_answers(scope, rows)

    def _names(
        self,
        graph: GraphName,
        samples: Sequence[Sample],
        source_rows: np.ndarray,
        numbers: Sequence[int],
    ) -> list[SampleName]:
        """Return names for messages: the response, and the location of the prompt's row."""
        evaluation_data = evaluation_source(self._data) if graph is GraphName.EVALUATION else None
        parts = (evaluation_data or self._data.train).parts
        rows = [source_and_row(int(source_rows[number])) for number in numbers]
        locations = [self._row_locations.find(parts[part], [row])[0] for part, row in rows]
        return [
            SampleName(f"the response {samples[number].response[:SHOWN_CHARACTERS]!r}", location)
            for number, location in zip(numbers, locations, strict=True)
        ]

    def close(self) -> None:
        """End the verifiers' processes."""
        for scorer in self._scorers.values():
            scorer.close()


def _counted(valid: NDArray[np.bool_], columns: Mapping[str, Column]) -> NDArray[np.bool_]:
    """Mark samples whose score counts."""
    # The step itself leaves them out later, whoever computes its scores.
    retained = columns.get(RETAINED)
    return valid if retained is None else valid & (retained.values != 0)


def _notices(answers: CallAnswers) -> tuple[str, ...]:
    """Say what the journal was used for. The same texts in every step: they are shown once."""
    notices = []
    if answers.num_read:
        notices.append(
            "scores of steps that run again are read from the journal: services are not asked again"
        )
    if answers.num_different:
        notices.append(
            "steps that run again have other responses than in the interrupted attempt: these are "
            "scored again"
        )
    return (*notices, *answers.damage_notices)


def _questions(columns: Mapping[str, Column]) -> list[Question]:
    """Return what rewards get of each row."""
    finished = [bool(value) for value in columns[FINISHED].values]
    records, texts = columns[RECORD].texts(), columns[RESPONSE_TEXT].texts()
    episodes = columns[EPISODE].texts() if EPISODE in columns else [""] * len(finished)
    return list(zip(records, texts, finished, episodes, strict=True))


def _sample(record: str, response: str, is_finished: bool, episode: str) -> Sample:
    row = json.loads(record)
    sample = Sample(row["prompt"], response, row["record"], is_finished, row.get("source"))
    if not episode:
        return sample
    conversation = json.loads(episode)
    turns = tuple(turn["text"] for turn in conversation["turns"])
    # Answers of tools are not the model's: a verifier that reads them would reward the tool.
    last = turns[-1] if turns else ""
    return replace(sample, response=last, turns=turns, environment_reward=conversation["reward"])


def _scope(graph: GraphName, step: int, repetition: int, call: str, number: int) -> CallScope:
    position = Position(step, graph is GraphName.EVALUATION)
    return CallScope(position, repetition, call, number)
