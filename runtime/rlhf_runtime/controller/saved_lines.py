"""Lines that a step saves: fetched by the driver after the step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from rlhf_flow.step.calls import SaveOptions
from rlhf_flow.step.columns import LINES
from rlhf_runtime.calls.inputs import CallInputs
from rlhf_runtime.calls.requests import CallRequest, InputBatch
from rlhf_runtime.controller.batch import Batch
from rlhf_runtime.controller.results import wait_for
from rlhf_runtime.dataplane.protocol import Coordinates
from rlhf_runtime.hooks import Hook


@dataclass(frozen=True)
class SaveCall:
    """A call that saves lines. It is not sent to workers."""

    request: CallRequest
    """The call; its batch has no sources."""
    batch: Batch

    @property
    def name(self) -> str:
        """Name of the saved file."""
        options = self.request.call.options
        assert isinstance(options, SaveOptions)
        return options.name

    def lines(self, poll: Hook) -> bytes:
        """Wait for the lines of its rows, in the order of rows."""
        shape = self.batch.shape
        sources, references = self.batch.sources((LINES,)).for_rows(range(shape.num_rows))
        request = replace(self.request, batches=(InputBatch(shape, tuple(sources)),))
        shards = wait_for(references, poll)
        inputs = CallInputs(request, shards, Coordinates(data=0, data_size=1))
        texts = inputs.load(inputs.rows())[LINES].runs()
        return b"".join(text.tobytes() + b"\n" for text in texts if len(text))


def lines_by_name(saves: Sequence[SaveCall], poll: Hook) -> Mapping[str, bytes]:
    """Return the lines that a step saves, by name, call after call.

    Args:
        saves: in the order of the calls.
        poll: called every few seconds.
    """
    lines: dict[str, bytes] = {}
    for call in saves:
        lines[call.name] = lines.get(call.name, b"") + call.lines(poll)
    return lines
