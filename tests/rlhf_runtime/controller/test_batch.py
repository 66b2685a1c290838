import pytest

from rlhf_runtime.controller.batch import Batch, Shards

PROMPTS = ("p0",)
ROWS = ("r0", "r1")
SCORED = ("s0",)


def batch_of(base: tuple[str, ...], **columns: tuple[tuple[str, ...], tuple[str, ...]]) -> Batch:
    """A batch with, for every column, references to its indexes and to its shards."""
    return Batch(base, {name: Shards(*shards) for name, shards in columns.items()})


GENERATED = batch_of(ROWS, tokens=(ROWS, ("t0", "t1")), log_probs=(ROWS, ("l0", "l1")))
REWARDS = batch_of(SCORED, scores=(SCORED, ("c0",)))


def test_a_union_has_the_columns_of_both_and_the_rows_of_the_first() -> None:
    both = GENERATED | REWARDS
    assert both.fields == {"tokens", "log_probs", "scores"}
    assert both.base == ROWS
    assert both.columns["scores"] == REWARDS.columns["scores"]
    assert GENERATED.fields == {"tokens", "log_probs"}


def test_where_both_have_a_column_the_others_counts() -> None:
    newer = batch_of(ROWS, log_probs=(ROWS, ("n0", "n1")))
    assert (GENERATED | newer).columns["log_probs"].columns == ("n0", "n1")
    assert (newer | GENERATED).columns["log_probs"].columns == ("l0", "l1")


def test_indexes_are_sent_once() -> None:
    sources, indexes = (GENERATED | REWARDS).sources(("log_probs", "scores", "tokens"))
    assert indexes == ["r0", "r1", "s0"]
    assert [(source.first_index, dict(source.columns)) for source in sources] == [
        (0, {"log_probs": ("l0", "l1"), "tokens": ("t0", "t1")}),
        (2, {"scores": ("c0",)}),
    ]


def test_the_base_is_not_sent_where_a_column_lists_the_same_rows() -> None:
    sources, indexes = (GENERATED | REWARDS).sources(("scores",))
    assert indexes == ["s0"]
    assert [source.first_index for source in sources] == [0]


def test_columns_that_are_not_read_are_not_sent() -> None:
    sources, indexes = (GENERATED | REWARDS).sources(("tokens",))
    assert indexes == ["r0", "r1"]
    assert [dict(source.columns) for source in sources] == [{"tokens": ("t0", "t1")}]


def test_a_call_that_reads_nothing_gets_the_base_only() -> None:
    assert GENERATED.sources(()) == ((), ["r0", "r1"])


def test_a_column_that_is_not_there_is_not_read() -> None:
    with pytest.raises(KeyError, match="values"):
        GENERATED.sources(("values",))


def test_columns_are_chosen_and_renamed_without_a_look_at_them() -> None:
    batch = (GENERATED | REWARDS).select("scores", "tokens").rename(scores="baseline")
    assert batch.fields == {"baseline", "tokens"} and batch.base == ROWS
    assert batch.columns["baseline"] == REWARDS.columns["scores"]


def test_a_broadcast_column_is_read_at_the_rows_of_the_other_batch() -> None:
    """Scores of one row for a prompt, beside four samples of it; and, of those, two each."""
    four = Batch(ROWS, GENERATED.columns, samples=4)
    laid = four | REWARDS.rename(scores="baseline").broadcast(four)
    assert laid.base == ROWS and laid.samples == 4
    sources, indexes = laid.sources(("baseline", "tokens"))
    assert indexes == ["r0", "r1", "s0"], "rows and their lengths are the samples' own"
    assert [(source.first_index, source.repeat) for source in sources] == [(0, 1), (2, 4)]
    eight = Batch(("e0",), {}, samples=8)
    assert laid.broadcast(eight).columns["baseline"].repeat == 8
    assert laid.broadcast(eight).columns["tokens"].repeat == 2


def test_fields_of_the_data_that_no_call_reads_are_not_there_to_be_selected() -> None:
    assert GENERATED.select("tokens", "never_read").fields == {"tokens"}
