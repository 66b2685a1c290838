"""The graph of a custom algorithm's step in a manifest, for planning without the algorithm's code.

`rlhf fill` writes it. These models define its form; rlhf_flow checks its consistency when it reads
it.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from rlhf_api.base import KEY_PATTERN, Contract, Count, Identifier, NonNegativeCount
from rlhf_api.calls import CallId

# Largest number of calls of a step: some 100 KiB, well below the limit of a Kubernetes object.
MAX_CALLS = 256
# Largest number of rows of a call for one prompt.
MAX_ROWS = 1_000_000

# Name of a setting. Lists and maps have one for each entry: reads.0, terms.reward_scores.
SettingName = Annotated[str, Field(min_length=1, max_length=128, pattern=KEY_PATTERN)]
# A boolean, a number, or a short text; for an enumeration its member's name.
Setting = (
    bool
    | Annotated[int, Field(ge=-(2**53), le=2**53)]
    | float
    | Annotated[str, Field(max_length=1024)]
)
# The first 16 hexadecimal digits of a SHA-256 sum.
Digest = Annotated[str, Field(min_length=16, max_length=16, pattern=KEY_PATTERN)]
# Fields of a batch.
Columns = Annotated[tuple[Identifier, ...], Field(max_length=128)]


class RoleKind(StrEnum):
    """Class of a role in rlhf_flow."""

    LANGUAGE_MODEL = "LanguageModel"
    """A model with log-probabilities, which may generate."""
    SCALAR_MODEL = "ScalarModel"
    """A model with one number for each token."""
    REWARD_SOURCE = "RewardSource"
    """A source of scores: the manifest's rewards of the role."""


class GraphRole(Contract):
    """A role of the algorithm, or of a reward's model."""

    name: Identifier
    """Its name."""
    kind: RoleKind
    """Class of the role."""


class GraphTerm(Contract):
    """A loss or an operation of the step."""

    type: Identifier
    """Its class in rlhf_flow, such as ClippedLoss or GroupAdvantages."""
    settings: Annotated[dict[SettingName, Setting], Field(max_length=256)] = {}
    """Its settings, except those with their default value."""


class GraphSampling(Contract):
    """Sampling of a generate call."""

    samples: Annotated[int, Field(ge=1, le=MAX_ROWS)]
    """Responses to each prompt."""
    temperature: float | None = None
    """Sampling temperature. Default: rollout.temperature."""
    greedy: bool = False
    """If true, the most probable token is taken every time."""


class GraphTraining(Contract):
    """Losses of a train call."""

    loss: GraphTerm
    """The loss that is minimized."""
    from_step: NonNegativeCount = 0
    """Number of first steps in which the role is not trained."""
    auxiliary: Annotated[tuple[GraphTerm, ...], Field(max_length=8)] = ()
    """Losses on other batches, added to the loss."""
    auxiliary_reads: Annotated[tuple[Columns, ...], Field(max_length=8)] = ()
    """The fields that each auxiliary loss reads."""


class GraphSource(Contract):
    """Source of fields that a call reads."""

    source: CallId
    """The call that wrote them; prompts or pretraining: the data."""
    fields: Annotated[tuple[Identifier, ...], Field(min_length=1, max_length=128)]
    """Names of these fields."""


class GraphRows(Contract):
    """Number of rows of a call for each of the step's prompts."""

    expected: Annotated[float, Field(ge=0, le=MAX_ROWS)]
    """Mean number in one run of the call."""
    most: Annotated[int, Field(ge=0, le=MAX_ROWS)]
    """Largest number, if regions repeat as often as allowed."""


class GraphCall(Contract):
    """One call of the step."""

    id: CallId
    """Id in the step, such as actor.generate or every-10/actor.log_probs."""
    role: Identifier | None = None
    """Role that is called. Default: none; the call computes or saves without a model."""
    method: Identifier
    """The primitive's name, such as generate; compute or save without a role."""
    reads: Columns = ()
    """Fields that it reads."""
    writes: Columns = ()
    """Fields that it writes."""
    sources: Annotated[tuple[GraphSource, ...], Field(max_length=64)] = ()
    """Sources of the fields that it reads."""
    rows: GraphRows
    """Number of rows that it reads or writes."""
    responses: Annotated[tuple[CallId, ...], Field(max_length=16)] = ()
    """The generate calls whose responses it works on."""
    generate: GraphSampling | None = None
    """Sampling; only for method generate."""
    train: GraphTraining | None = None
    """Losses; only for method train."""
    compute: Annotated[tuple[GraphTerm, ...], Field(max_length=32)] = ()
    """Operations in order; only for method compute."""
    weights_of: Identifier | None = None
    """Role whose weights it copies; only for method copy_weights_from."""
    folder: Identifier | None = None
    """Folder of the saved lines; only for method save."""


class RegionKind(StrEnum):
    """Kind of a part of a step that does not run exactly once."""

    EVERY = "Every"
    """It runs in every n-th step."""
    REPEAT = "Repeat"
    """It runs in rounds until enough rows are collected."""


class GraphRegion(Contract):
    """A part of the step that does not run exactly once."""

    id: CallId
    """Prefix of the ids of its calls."""
    kind: RegionKind
    """Every or Repeat."""
    expected_count: Annotated[float, Field(gt=0, le=MAX_ROWS)]
    """Mean number of runs for one run of its enclosing part."""


class AlgorithmGraph(Contract):
    """Calls of a custom algorithm's step, traced by `rlhf fill`, which also updates it. A driver
    traces the code again and refuses a graph that differs."""

    version: Annotated[int, Field(ge=1, le=1)]
    """Version of this format: 1."""
    code_digest: Digest
    """Digest of the Python files of the traced code."""
    settings_digest: Digest
    """Digest of the manifest fields that tracing reads: entry point and parameters, samples per
    prompt, form of the data, rewards."""
    roles: Annotated[tuple[GraphRole, ...], Field(min_length=1, max_length=32)]
    """Roles in the algorithm's order, then models of rewards."""
    prompt_batches: Annotated[Count, Field(le=MAX_ROWS)] = 1
    """Largest number of prompt batches of a step."""
    calls: Annotated[tuple[GraphCall, ...], Field(min_length=1, max_length=MAX_CALLS)]
    """Calls in program order."""
    regions: Annotated[tuple[GraphRegion, ...], Field(max_length=64)] = ()
    """Regions, outer before inner."""
