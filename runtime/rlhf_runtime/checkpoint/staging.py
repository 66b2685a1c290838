"""Where the state is copied to before it is written."""

from __future__ import annotations

from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions


class Staging:
    """Gives torch's stagers memory for copies, one copy at a time.

    Pinning memory takes long, so what is pinned is kept for the next copy: as much as the state, as
    long as what was copied lives. Other memory is given back once a copy is written.
    """

    def __init__(self, options: StagingOptions, keeps_memory: bool) -> None:
        self._options = options
        self._keeps_memory = keeps_memory
        self._kept: DefaultStager | None = None

    @staticmethod
    def on(device_type: str) -> Staging:
        """For state that is on devices of this type: "cuda" or "cpu"."""
        pinned = device_type == "cuda"
        options = StagingOptions(
            use_pinned_memory=pinned,
            use_shared_memory=False,
            use_async_staging=False,
            use_non_blocking_copy=pinned,
        )
        return Staging(options, keeps_memory=pinned)

    def take(self) -> DefaultStager:
        """A stager for one copy; it belongs to the caller until it is given back."""
        taken, self._kept = self._kept, None
        return taken or DefaultStager(self._options)

    def give_back(self, stager: DefaultStager) -> None:
        """The copy is written, or never will be."""
        if self._keeps_memory:
            self._kept = stager
        else:
            stager.close()  # it holds the copy, in a cycle
