"""What jobs and machines can say without end: bounded, or told in a line."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlhf_operator import __main__
from rlhf_operator.process.metrics import MAX_REASONS, OTHER, Metrics

SERIES = "rlhf_operator_job_restarts_total"


def test_reasons_that_drivers_think_of_do_not_grow_the_metrics_without_end() -> None:
    metrics = Metrics()
    for number in range(3 * MAX_REASONS):
        metrics.count_restarts("drivers", f"Reason{number}", 1)
    metrics.count_restarts("clusters", "Reason0", 2)
    (family,) = (each for each in metrics.registry.collect() if each.name + "_total" == SERIES)
    counted = {
        (each.labels["kind"], each.labels["reason"]): each.value
        for each in family.samples
        if each.name == SERIES
    }
    assert len(counted) == MAX_REASONS + 2
    assert counted["drivers", OTHER] == 2 * MAX_REASONS and counted["clusters", "Reason0"] == 2


@pytest.mark.parametrize(
    ("text", "says"),
    [(None, "not in a pod of a cluster"), ("", "is empty"), ("x: [", "expected")],
)
def test_an_operator_without_a_cluster_says_what_to_name(
    text: str | None,
    says: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("KUBECONFIG", "")  # the command sets it: it is put back afterwards
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    monkeypatch.setattr(__main__, "set_up_logs", lambda *_: None)  # this process keeps its own
    words = []
    if text is not None:
        (tmp_path / "config").write_text(text)
        words = ["--kubeconfig", str(tmp_path / "config")]
    assert __main__.main(words) == 2
    told = capsys.readouterr().err
    assert told.startswith("error: ") and says in told and "--kubeconfig" in told
