"""The host of verifiers, in this process: parts of a call come to what the whole comes to."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from rlhf_api.calls import CallKind
from rlhf_api.plan import GraphName
from rlhf_flow.step.calls import ModelCall
from rlhf_runtime.calls.ended_rows import EndedRows, ScoreCall
from rlhf_runtime.calls.reports import CallReport, merge_statistics
from rlhf_runtime.calls.requests import CallRequest, ColumnSource, InputBatch, Segment
from rlhf_runtime.controller.scoring import require_scores, unscored_samples
from rlhf_runtime.data import row_location
from rlhf_runtime.data.row_names import joint_row
from rlhf_runtime.dataplane.columns import Column, pack_texts
from rlhf_runtime.dataplane.partition import BatchShape, Slice
from rlhf_runtime.dataplane.shards import Shard, ShardIndex
from rlhf_runtime.workers import reward_host as module
from rlhf_runtime.workers.reward_host import RewardHost

from ..controller.jobs import make_job

VERIFIERS = """
from rlhf_runtime.rewards import measures

@measures("number")
def number(samples):
    return [float(sample.response) for sample in samples]

def length(samples):
    return [float(len(sample.response)) for sample in samples]
"""
REWARDS = [
    {"name": "number", "function": {"entrypoint": "numbers_of_responses:number", "batchSize": 3}},
    {"name": "length", "weight": -0.5, "function": {"entrypoint": "numbers_of_responses:length"}},
]
CALL = ModelCall(
    "reward.score",
    "reward",
    "score",
    CallKind.SCORE,
    reads=("finished", "prompt_id", "record", "response_text"),
    writes=("reward_scores", "reward_valid", "reward_number_scores"),
)
RESPONSES = [*("1", "nan", "3.5", "-2", "nan", "nan", "8", "0.25"), *("nan", "7", "5", "1e3")]
"""Two to each prompt; of the third prompt nothing can be scored."""


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RewardHost]:
    folder = tmp_path_factory.mktemp("verifiers")
    (folder / "numbers_of_responses.py").write_text(VERIFIERS)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "configure_process", lambda *_: None)
        patch.syspath_prepend(str(folder))
        made = RewardHost(
            make_job(rewards=REWARDS), Path("reward.log"), (), "reward 1", Slice(1, 2)
        )
        assert made.start() == {"number": "number"}
    yield made
    made.close()


def score(
    host: RewardHost,
    parts: int,
    num_retained: int | None = None,
    graph: GraphName = GraphName.STEP,
    step: int = 3,
) -> tuple[list[CallReport], dict[str, list[float]]]:
    """The reports of all parts, and the columns of all rows; the last rows are left out."""
    rows = np.arange(len(RESPONSES), dtype=np.int64)
    index = ShardIndex(rows, rows // 2, np.ones(len(rows), dtype=np.int32))
    record = json.dumps({"prompt": "p", "record": {}})
    columns = {
        "response_text": pack_texts(RESPONSES),
        "record": pack_texts([record] * len(rows)),
        "prompt_id": Column(100 + rows // 2),
        "finished": Column(np.ones(len(rows), dtype=np.int8)),
    }
    call = CALL
    if num_retained is not None:
        columns["retained"] = Column((rows < num_retained).astype(np.int8))
        call = replace(CALL, reads=(*CALL.reads, "retained"))
    source = ColumnSource((Segment(1, {name: name for name in columns}),))
    batch = InputBatch(BatchShape(len(rows) // 2, 2), (source,))
    request = CallRequest(call, step, graph, "one", (batch,))
    reports, made = [], []
    for number in range(parts):
        message = replace(request, batch_slice=Slice(number, parts)).to_message(
            [Shard(index, columns)]
        )
        report, shard = host.run(*message)
        reports.append(CallReport.from_bytes(report))
        made.append(shard)
    assert np.concatenate([shard.index.rows for shard in made]).tolist() == rows.tolist()
    return reports, {
        name: np.concatenate([shard.columns[name].values for shard in made]).tolist()
        for name in CALL.writes
    }


@pytest.mark.parametrize("parts", [2, 3, 6])
def test_parts_come_to_what_the_whole_comes_to(host: RewardHost, parts: int) -> None:
    """Of six parts the third has only faults."""
    (whole,), expected = score(host, 1)
    reports, columns = score(host, parts)
    assert columns == expected
    assert {span.process for report in reports for span in report.spans} == {"reward 1"}
    metrics = merge_statistics([report.statistics for report in reports])
    assert metrics == pytest.approx(merge_statistics([whole.statistics]), rel=1e-12)
    numbers = np.asarray([float(each) for each in RESPONSES])
    scoring = ~np.isnan(numbers)
    rewards = (numbers - 0.5 * np.asarray([len(each) for each in RESPONSES]))[scoring]
    assert metrics["reward/number"] == pytest.approx(numbers[scoring].mean())
    assert metrics["reward/length"] == pytest.approx(np.mean([len(each) for each in RESPONSES]))
    assert metrics["reward/mean"] == pytest.approx(rewards.mean())
    assert metrics["reward/std"] == pytest.approx(rewards.std())
    assert metrics["score/invalid"] == metrics["score/nonFinite"] == (~scoring).sum()
    require_scores(reports, GraphName.STEP, 3)
    assert unscored_samples(reports) == unscored_samples([whole])
    assert [(name, f"{each.what} to {each.row}") for name, each in unscored_samples(reports)] == [
        ("number", f"the response 'nan' to train.jsonl, row {100 + row // 2}, counted from 0")
        for row in np.flatnonzero(~scoring)
    ]


@pytest.mark.parametrize("graph", [GraphName.STEP, GraphName.EVALUATION])
def test_responses_that_came_early_have_the_same_scores(host: RewardHost, graph: GraphName) -> None:
    """In two slices, of which one came completely, in an order of its own, and one in part. The
    other columns, metrics and messages are those without it."""
    expected, columns = score(host, 2, graph=graph)
    record = json.dumps({"prompt": "p", "record": {}})
    for rows, slice_rows in (
        ((5, 2, 3), range(6)),
        ((0, 4, 1), range(6)),
        ((8, 6, 7, 11), range(6, 12)),
    ):
        ended = EndedRows(
            calls=(ScoreCall(CALL.id, "reward"),),
            step=5,
            graph=graph,
            repetition=0,
            round=0,
            slice_rows=slice_rows,
            rows=rows,
            records=(record,) * len(rows),
            texts=tuple(RESPONSES[row] for row in rows),
            finished=(True,) * len(rows),
        )
        host.score_early(ended.to_bytes())
    reports, early_columns = score(host, 2, graph=graph, step=5)
    assert early_columns == columns
    for ours, plain in zip(reports, expected, strict=True):
        assert ours.statistics == plain.statistics
        assert ours.scoring == plain.scoring
    calls = [[span.call for span in report.spans] for report in reports]
    assert {*calls[0][:-1]} == {"score_early"}
    assert [names[-1] for names in calls] == ["score", "score"], "the last span names the process"
    assert {span.call for report in expected for span in report.spans} == {"score"}


@pytest.mark.parametrize(("num_retained", "num_counted"), [(7, 4), (None, 8)])
def test_a_score_of_a_response_that_is_left_out_does_not_count(
    host: RewardHost, num_retained: int | None, num_counted: int
) -> None:
    """Of the first seven responses three have no number."""
    (report,), columns = score(host, 1, num_retained)
    assert report.scoring is not None
    assert report.scoring.num_counted == num_counted
    assert report.scoring.num_failed == {"number": 4, "length": 0}
    assert sum(columns["reward_valid"]) == 8, "the step itself leaves them out"


def test_failed_rows_are_named_without_reading_the_file_to_them_again(
    host: RewardHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file's first half, before the rows that are asked for, is not there the second time."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(row_location, "MARK_ROWS", 10)
    rows = "".join(f'{{"n": {number}}}\n\n' for number in range(200))
    first_half = rows.index('\n{"n": 100}')
    told = []
    for content in (rows, "\x00" * first_half + rows[first_half:]):
        Path("train.jsonl").write_text(content)
        told.append([each.row for _, each in unscored_samples(score(host, 1)[0])])
    lines = [201, 205, 205, 209]
    assert told == [[f"train.jsonl, line {line}" for line in lines]] * 2


def test_rows_of_several_sources_are_named_and_averaged_by_their_source(
    host: RewardHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    sources = [{"path": "a.jsonl", "name": "math"}, {"builtin": "SortDigits"}]
    data = make_job(data={"train": {"sources": sources}}).spec.data
    monkeypatch.setattr(host, "_data", data)
    rows = np.arange(4, dtype=np.int64)
    records = [
        json.dumps({"prompt": "p", "record": {}, "source": name})
        for name in ("math", "1", "math", "1")
    ]
    columns = {
        "response_text": pack_texts(["1", "nan", "3", "4"]),
        "record": pack_texts(records),
        "prompt_id": Column(np.array([7, joint_row(1, 9), 8, joint_row(1, 5)])),
        "finished": Column(np.ones(4, dtype=np.int8)),
    }
    source = ColumnSource((Segment(1, {name: name for name in columns}),))
    request = CallRequest(
        CALL, 3, GraphName.STEP, "one", (InputBatch(BatchShape(4, 1), (source,)),)
    )
    shard = Shard(ShardIndex(rows, rows, np.ones(4, dtype=np.int32)), columns)
    message, _ = host.run(*replace(request, batch_slice=Slice(0, 1)).to_message([shard]))
    report = CallReport.from_bytes(message)
    metrics = merge_statistics([report.statistics])
    assert metrics["reward/math/number"] == 2.0 and metrics["reward/math/mean"] == 1.5
    assert metrics["reward/1/number"] == 4.0 and metrics["reward/1/mean"] == 3.5
    assert metrics["reward/mean"] == pytest.approx((0.5 + 2.5 + 3.5) / 3)
    ((_, failure),) = unscored_samples([report])
    assert failure.row == "SortDigits, row 9, counted from 0"
