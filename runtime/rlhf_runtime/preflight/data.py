"""The rows of a job: read, written and tokenized as the data host does it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from rlhf_api.spec.data import DataSource
from rlhf_api.spec.job import RLHFJobSpec
from rlhf_runtime.data.errors import EmptyDataset
from rlhf_runtime.data.load import DataUse, check_rows, load_table, rows_needed, sources_in_use
from rlhf_runtime.data.prompt_table import PromptTable
from rlhf_runtime.data.prompts import CHUNK_ROWS
from rlhf_runtime.data.retokenizer import retokenizers
from rlhf_runtime.data.rows import Split, find_sources
from rlhf_runtime.data.tokenizer import TextTokenizer
from rlhf_runtime.preflight.findings import Findings
from rlhf_runtime.preflight.limits import SomeRows


def check_data(
    spec: RLHFJobSpec, use: DataUse, policy: Path | None, seconds: float | None, findings: Findings
) -> None:
    """Read the rows of local files and builtin tasks.

    Args:
        spec: of the job.
        use: of its data.
        policy: the folder of the policy's model, with its tokenizer. None: it cannot be had; then
            only whether files are there is checked.
        seconds: for each source; rows after that are left to workers.
        findings: get what is wrong, and the longest prompts.
    """
    tokenizer = None
    if policy is not None:
        with findings.gathered.check():
            tokenizer = TextTokenizer(policy)
    if tokenizer is None:
        with findings.gathered.check():
            find_sources(spec.data)
        findings.unchecked.append("rows of the data: there is no tokenizer to read them with")
        return
    for split, source in sources_in_use(spec, use).items():
        if source.hugging_face is not None:
            text = f"data.{split.value}: workers load {source.hugging_face} when they start"
            findings.unchecked.append(text)
            continue
        some = SomeRows(seconds, _enough(spec, split, source, use, seconds))
        with findings.gathered.check():
            try:
                table = load_table(spec, split, source, tokenizer, use, some)
            except EmptyDataset:
                if not some.is_late:  # rows further on may be of use
                    raise
            else:
                findings.facts.append(_described(table, source, spec.rollout.max_prompt_tokens))
                if not some.is_late:
                    check_rows(spec, table, use)
        if some.is_late:
            text = f"data.{split.value}: the rows after the first {some.num_read:,}"
            findings.unchecked.append(text)


def check_reward_tokenizers(
    spec: RLHFJobSpec, folders: Mapping[str, Path], findings: Findings
) -> None:
    """Check that reward models with a tokenizer of their own can write the prompts.

    Args:
        spec: of the job.
        folders: of models, by role.
        findings: get what is wrong.
    """
    for role in spec.reward_models.keys() & folders.keys():
        with findings.gathered.check():
            retokenizers(spec, role, folders[role])


def _enough(
    spec: RLHFJobSpec, split: Split, source: DataSource, use: DataUse, seconds: float | None
) -> int | None:
    """Rows of a builtin task, which are all alike, that tell enough where time matters."""
    if source.builtin is None or seconds is None:
        return None
    return max(CHUNK_ROWS, rows_needed(spec, split, use))


def _described(table: PromptTable, source: DataSource, most: int) -> str:
    """How many rows there are, and the longest prompt."""
    where = f" of {source.path}" if source.path is not None else ""
    row, tokens = table.longest_prompt()
    return (
        f"data.{table.split.value}: {len(table):,} rows{where}; the longest prompt is row {row:,} "
        f"with {tokens:,} tokens (rollout.maxPromptTokens = {most:,})"
    )
