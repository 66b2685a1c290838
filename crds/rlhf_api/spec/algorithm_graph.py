"""The graph of a custom algorithm's step, as a manifest holds it: what is planned without its code.

`rlhf fill` writes it. Here is its form; what its parts have to do with each other is checked where
it is read, in rlhf_flow.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from rlhf_api.base import KEY_PATTERN, Contract, Count, Identifier, NonNegativeCount
from rlhf_api.calls import CallId

MAX_CALLS = 256
"""Calls of a step: some 100 KiB, well below what a Kubernetes object may have."""
MAX_ROWS = 1_000_000
"""Rows of a call for one prompt."""

SettingName = Annotated[str, Field(min_length=1, max_length=128, pattern=KEY_PATTERN)]
"""A setting's name; of a list or a map one for each entry: reads.0, terms.reward_scores."""
Setting = (
    bool
    | Annotated[int, Field(ge=-(2**53), le=2**53)]
    | float
    | Annotated[str, Field(max_length=1024)]
)
"""True or false, a number, or a short text; of an enumeration its member's name."""
Digest = Annotated[str, Field(min_length=16, max_length=16, pattern=KEY_PATTERN)]
"""The beginning of a SHA-256 sum, in hexadecimal digits."""
Columns = Annotated[tuple[Identifier, ...], Field(max_length=128)]
"""Fields of a batch."""


class RoleKind(StrEnum):
    """What a role is, by its class in rlhf_flow."""

    LANGUAGE_MODEL = "LanguageModel"
    """A model that gives log-probabilities, and may generate."""
    SCALAR_MODEL = "ScalarModel"
    """A model that gives one number for each token."""
    REWARD_SOURCE = "RewardSource"
    """What scores responses: the manifest's rewards of the role."""


class GraphRole(Contract):
    """A role of the algorithm, or of a reward's model."""

    name: Identifier
    """Its name."""
    kind: RoleKind
    """What it is."""


class GraphTerm(Contract):
    """A loss or an operation, as the step's code makes it."""

    type: Identifier
    """Its class in rlhf_flow, such as ClippedLoss or GroupAdvantages."""
    settings: Annotated[dict[SettingName, Setting], Field(max_length=256)] = {}
    """What it is made with, but for defaults."""


class GraphSampling(Contract):
    """How a call generates."""

    samples: Annotated[int, Field(ge=1, le=MAX_ROWS)]
    """Responses to each prompt."""
    temperature: float | None = None
    """Of sampling. Default: rollout.temperature."""
    greedy: bool = False
    """Whether the likeliest token is taken every time."""


class GraphTraining(Contract):
    """What a call trains by."""

    loss: GraphTerm
    """What is minimized."""
    from_step: NonNegativeCount = 0
    """Steps at the beginning in which the role is not trained."""
    auxiliary: Annotated[tuple[GraphTerm, ...], Field(max_length=8)] = ()
    """Losses on batches of their own, added to it."""
    auxiliary_reads: Annotated[tuple[Columns, ...], Field(max_length=8)] = ()
    """The fields that each of these reads."""


class GraphSource(Contract):
    """Where a call gets fields from."""

    source: CallId
    """The call that wrote them; prompts or pretraining: the data."""
    fields: Annotated[tuple[Identifier, ...], Field(min_length=1, max_length=128)]
    """Their names there."""


class GraphRows(Contract):
    """Rows of a call for each of the step's prompts."""

    expected: Annotated[float, Field(ge=0, le=MAX_ROWS)]
    """In one run of the call, on average."""
    most: Annotated[int, Field(ge=0, le=MAX_ROWS)]
    """Where rounds repeat as often as they may."""


class GraphCall(Contract):
    """One call of the step."""

    id: CallId
    """Where it stands in the step, such as actor.generate or every-10/actor.log_probs."""
    role: Identifier | None = None
    """Whose call it is. Default: it computes, or saves, without a model."""
    method: Identifier
    """The primitive's name, such as generate; compute or save without a role."""
    reads: Columns = ()
    """Fields that it needs."""
    writes: Columns = ()
    """Fields that it makes."""
    sources: Annotated[tuple[GraphSource, ...], Field(max_length=64)] = ()
    """Where what it needs comes from."""
    rows: GraphRows
    """How many it works on, or makes."""
    responses: Annotated[tuple[CallId, ...], Field(max_length=16)] = ()
    """The generate calls whose responses it works on."""
    generate: GraphSampling | None = None
    """How it samples; of generate only."""
    train: GraphTraining | None = None
    """What it trains by; of train only."""
    compute: Annotated[tuple[GraphTerm, ...], Field(max_length=32)] = ()
    """Its operations, one after the other; of compute only."""
    weights_of: Identifier | None = None
    """The role whose weights it takes over; of copy_weights_from only."""
    folder: Identifier | None = None
    """Where it writes lines; of save only."""


class RegionKind(StrEnum):
    """How often a part of a step runs."""

    EVERY = "Every"
    """In one of several steps."""
    REPEAT = "Repeat"
    """In rounds, until they are enough."""


class GraphRegion(Contract):
    """A part of the step that does not run exactly once."""

    id: CallId
    """How the ids of its calls begin."""
    kind: RegionKind
    """Every or Repeat."""
    expected_count: Annotated[float, Field(gt=0, le=MAX_ROWS)]
    """Runs of it for one run of what encloses it, on average."""


class AlgorithmGraph(Contract):
    """What the step of a custom algorithm calls, traced by `rlhf fill`, which also brings it up to
    date. A driver traces the code anew and refuses a graph that is another one."""

    version: Annotated[int, Field(ge=1, le=1)]
    """Of this form: 1."""
    code_digest: Digest
    """Of the Python files that it was traced from."""
    settings_digest: Digest
    """Of all in the manifest that it was traced with: the entry point and its parameters, samples
    per prompt, the form of the data, rewards."""
    roles: Annotated[tuple[GraphRole, ...], Field(min_length=1, max_length=32)]
    """In the order in which the algorithm names them; models of rewards last."""
    prompt_batches: Annotated[Count, Field(le=MAX_ROWS)] = 1
    """Batches of prompts that a step takes at most."""
    calls: Annotated[tuple[GraphCall, ...], Field(min_length=1, max_length=MAX_CALLS)]
    """In program order."""
    regions: Annotated[tuple[GraphRegion, ...], Field(max_length=64)] = ()
    """Outer before inner."""
