"""Tries the verifiers and services of a job on rows of its data, before anything starts.

Each gets the reference answer of a row as a response, and an empty response.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from textwrap import indent

import numpy as np

from rlhf_api.problems import FieldPath
from rlhf_api.report import REWARD_MEAN
from rlhf_api.spec.job import RLHFJobSpec
from rlhf_api.spec.rewards import RewardSpec
from rlhf_api.spec.services import OnRewardError
from rlhf_runtime.preflight.findings import Findings
from rlhf_runtime.preflight.trial_rows import TrialRow
from rlhf_runtime.rewards.applicable_samples import PartialScorer, RewardScorer
from rlhf_runtime.rewards.errors import InvalidReward, RewardError
from rlhf_runtime.rewards.make_scorer import service_scorer
from rlhf_runtime.rewards.messages import RewardFault
from rlhf_runtime.rewards.pool import VerifierPool
from rlhf_runtime.rewards.scorer import combine_scores
from rlhf_runtime.rewards.scores import FailedSamples, Scores
from rlhf_runtime.telemetry.shortened_text import shorten
from rlhf_runtime.telemetry.visible_text import visible_text

# If a job has this role, its score is the job's reward; that of others may be a cost.
REWARD_ROLE = REWARD_MEAN.partition("/")[0]
# Each may cost timeoutSeconds again: no further row is tried.
LOST = (RewardFault.TIMED_OUT, RewardFault.DIED)
# Faults that another machine may not have: it has other files, devices, memory or addresses.
DEPENDS_ON_MACHINE = (*LOST, RewardFault.RAISED, RewardFault.REFUSED, RewardFault.UNREADABLE)
# Limits of texts that are shown.
SHOWN_CHARACTERS = 60
DETAIL_CHARACTERS = 3000


@dataclass(frozen=True, slots=True)
class TriedResponse:
    """A response, and what a verifier made of it.

    row: name of its row.
    text: the response; empty if it is not the reference answer.
    score: None without one.
    failure: None with a score, and if the verifier abstained.
    """

    row: str
    text: str
    score: float | None
    failure: FailedSamples | None

    @property
    def verdict(self) -> str:
        """The score, or the reason for its absence, in a few words."""
        if self.failure is not None:
            return self.failure.fault.value
        return "abstains" if self.score is None else f"{self.score:g}"

    @property
    def description(self) -> str:
        """The response in words."""
        if not self.text:
            return "an empty response"
        return f"the answer {shorten(self.text, SHOWN_CHARACTERS)!r}"


@dataclass
class Trial:
    """The trial of one reward."""

    reward: RewardSpec
    scorer: RewardScorer
    scores: dict[str, Scores] = field(default_factory=dict)
    """By row: of the reference answer, if there is one, and of an empty response."""
    responses: list[TriedResponse] = field(default_factory=list)
    is_over: bool = False
    """True if no further row is tried."""

    def submit(self, row: TrialRow) -> Future[Scores]:
        """Start to score the responses to a row."""
        return self.scorer.submit([row.sample(text) for text in self._texts(row)])

    def record(self, row: TrialRow, request: Future[Scores]) -> None:
        """Wait for the scores of a row.

        Raises:
            RewardError: the verifier cannot be started again.
        """
        try:
            scores = request.result()
        except RewardError:
            self.is_over = True
            raise
        self.scores[row.name] = scores
        for index, text in enumerate(self._texts(row)):
            score = float(scores.values[index]) if scores.valid[index] else None
            failure = _failure_of(scores, index)
            self.responses.append(TriedResponse(row.name, text, score, failure))
        self.is_over = any(failure.fault in LOST for failure in scores.failures)

    def _texts(self, row: TrialRow) -> list[str]:
        reference = row.reference(self.reward)
        return [""] if reference is None else [reference, ""]


def try_rewards(
    spec: RLHFJobSpec,
    verifiers: Sequence[tuple[RewardSpec, VerifierPool]],
    services: Sequence[RewardSpec],
    rows: Sequence[TrialRow],
    one_machine: bool,
    findings: Findings,
) -> None:
    """Score responses to rows of the data.

    Args:
        spec: of the job.
        verifiers: those that have loaded their functions.
        services: rewards by services that can be asked from here.
        rows: of the data; empty: they are not here.
        one_machine: True if verifiers will score on this machine.
        findings: collects errors, what each reward said, and warnings.
    """
    # One mistake is reported once: a reward whose rows or settings are wrong would fail here, too.
    wrong = {error.location[:3] for error in findings.gathered.errors}
    correct = [
        reward
        for index, reward in enumerate(spec.rewards)
        if ("spec", "rewards", index) not in wrong
    ]
    verifiers = [(reward, pool) for reward, pool in verifiers if reward in correct]
    services = [reward for reward in services if reward in correct]
    if not verifiers and not services:
        return
    if not rows:
        findings.unchecked.append("scores of verifiers: there are no rows here to try them on")
        return
    with ExitStack() as stack:
        scorers: list[tuple[RewardSpec, RewardScorer]] = [*verifiers] + [
            (reward, stack.enter_context(closing(service_scorer(collecting_errors(reward)))))
            for reward in services
        ]
        trials = [Trial(reward, PartialScorer(reward, scorer)) for reward, scorer in scorers]
        trials.sort(key=lambda trial: spec.rewards.index(trial.reward))
        for row in rows:
            # All rewards score a row at the same time.
            requests = [(trial, trial.submit(row)) for trial in trials if not trial.is_over]
            for trial, request in requests:
                with findings.about(*field_of(spec, trial.reward)):
                    trial.record(row, request)
    for trial in trials:
        with findings.about(*field_of(spec, trial.reward)):
            _report(trial, one_machine, findings)
    if not any(one.text for trial in trials for one in trial.responses):
        findings.unchecked.append(
            "scores of right answers: the rows that were tried have none (answerField names it)"
        )
    findings.warnings += _worthless_answers(spec, trials, rows)


def collecting_errors(reward: RewardSpec) -> RewardSpec:
    """Return a reward that scores all samples, also after one that failed."""
    return reward.with_settings(on_error=OnRewardError.EXCLUDE)


def field_of(spec: RLHFJobSpec, reward: RewardSpec) -> FieldPath:
    """Return the field of the manifest that names a reward's function or service."""
    name = "entrypoint" if reward.function is not None else "url"
    return "spec", "rewards", spec.rewards.index(reward), reward.chosen, name


def _failure_of(scores: Scores, index: int) -> FailedSamples | None:
    """Return the failure of a sample; None if the verifier answered."""
    if scores.valid[index] or scores.abstained[index]:
        return None
    return next(
        failure
        for failure in scores.failures
        if failure.start <= index < failure.start + failure.size
    )


def _report(trial: Trial, one_machine: bool, findings: Findings) -> None:
    """Describe a trial.

    Raises:
        InvalidReward: the verifier failed on all reference answers, or on all empty responses; or
            on any, if that ends a job.
    """
    findings.facts += _facts(trial)
    for is_answer in (True, False):
        tried = [one for one in trial.responses if bool(one.text) is is_answer]
        failed = [one for one in tried if one.failure is not None]
        if not failed:
            continue
        failure = failed[0].failure
        assert failure is not None
        is_elsewhere = not one_machine and failure.fault in DEPENDS_ON_MACHINE
        # A service may start later than the job.
        if is_elsewhere or failure.fault is RewardFault.UNREACHABLE:
            findings.unchecked.append(_unchecked_text(trial, failed[0], failure))
            return
        ends_job = trial.reward.on_error is OnRewardError.FAIL
        problem = _problem(trial, failed[0], failure)
        if len(failed) == len(tried) or ends_job:
            raise InvalidReward(problem)
        findings.warnings.append(f"for {len(failed)} of {len(tried)} responses {problem}")
    findings.warnings += _only_together(trial)


def _facts(trial: Trial) -> Iterator[str]:
    """Yield what a reward said of each row."""
    for row, scores in trial.scores.items():
        said = [f"{one.verdict} for {one.description}" for one in trial.responses if one.row == row]
        assert len(said) == len(scores.values)
        yield visible_text(f"{row}, the reward {trial.reward.name}: {', '.join(said)}")


def _problem(trial: Trial, response: TriedResponse, failure: FailedSamples) -> str:
    """Describe a failure, with the verifier's own message as the last lines."""
    source = "service or its url" if trial.reward.service is not None else "function or the row"
    slow = ", or raise timeoutSeconds" if failure.fault is RewardFault.TIMED_OUT else ""
    return visible_text(
        f"{trial.scorer.title} gives no score: got {failure.fault.value} for "
        f"{response.description}, {response.row}, allowed a finite number, or None to abstain; "
        f"correct the {source}{slow}:\n{indent(shorten(failure.detail, DETAIL_CHARACTERS), '    ')}"
    )


def _unchecked_text(trial: Trial, response: TriedResponse, failure: FailedSamples) -> str:
    """Describe a failure that workers may not have, in one line."""
    *_, last = failure.detail.splitlines() or [""]
    return visible_text(
        f"the reward {trial.reward.name}: here it gives no score ({failure.fault.value}) for "
        f"{response.description}, {response.row}: {shorten(last, DETAIL_CHARACTERS)}"
    )


def _only_together(trial: Trial) -> Iterator[str]:
    """Warn of a verifier that fails on several samples at once, but not on each alone."""
    for scores in trial.scores.values():
        for failure in scores.failures:
            if failure.only_together:
                detail = shorten(failure.detail, DETAIL_CHARACTERS)
                yield visible_text(f"{trial.scorer.title}: {failure.fault.value}: {detail}")
                return


def _worthless_answers(
    spec: RLHFJobSpec, trials: Sequence[Trial], rows: Sequence[TrialRow]
) -> Iterator[str]:
    """Warn if no row's reference answer has a higher reward than an empty response."""
    roles = [reward.role for reward in spec.rewards]
    role = REWARD_ROLE if REWARD_ROLE in roles else roles[0]
    rewards = [reward for reward in spec.rewards if reward.role == role]
    by_name = {trial.reward.name: trial for trial in trials}
    # A model's score is not known here, and without weights the sum is always 0.
    if not all(reward.name in by_name for reward in rewards) or not any(
        reward.weight for reward in rewards
    ):
        return
    gains = list(_gains(rewards, {name: trial.scores for name, trial in by_name.items()}, rows))
    if gains and max(gains) <= 0:
        yield (
            "a reference answer gets no higher reward than an empty response: got at most "
            f"{max(gains):+g} for the sum of {', '.join(reward.name for reward in rewards)} in "
            f"{len(gains)} rows; a reward that no answer earns teaches nothing: check what the "
            "verifiers read, and whether they expect a form (a box, tags) that the data's answers "
            "lack"
        )


def _gains(
    rewards: Sequence[RewardSpec],
    scores: Mapping[str, Mapping[str, Scores]],
    rows: Sequence[TrialRow],
) -> Iterator[float]:
    """Yield by how much a reference answer's reward exceeds that of an empty response, for rows
    with both."""
    for row in rows:
        parts = [scores[reward.name].get(row.name) for reward in rewards]
        known = [part for part in parts if part is not None and len(part.values) == 2]
        if len(known) < len(parts) or any(part.errors for part in known):
            continue
        total = combine_scores(rewards, known, 2)
        # A response on which all abstain counts as 0: nothing is learned from it.
        yield float(np.subtract(*total.values)) if total.valid[0] else 0.0
