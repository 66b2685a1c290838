"""Alerts fire when they should; alerts and dashboard use metrics that the operator has."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from rlhf_api.status import JobPhase
from rlhf_operator.process.metric_names import METRICS

from ..cluster.devcluster import CommandFailed, output_of
from .helm import CHART

pytestmark = pytest.mark.slow

ALERTS = CHART / "files" / "alerts.yaml"
RECORDS = CHART / "files" / "records.yaml"
DASHBOARD = CHART / "files" / "dashboard.json"
CASES = Path(__file__).parent / "alerts.test.yaml"
GUIDE = Path(__file__).parents[2] / "docs" / "kubernetes" / "install.md"
METRIC = re.compile(r"(?<!:)\brlhf_[a-z_]+")
RECORD = re.compile(r"\bnamespace[a-z_]*:[a-z_]+:\w+")
PHASE = re.compile(r'phase="(\w+)"')


def rules(file: Path) -> list[dict[str, Any]]:
    groups = yaml.safe_load(file.read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def alerts() -> list[dict[str, Any]]:
    return rules(ALERTS)


def records() -> list[dict[str, Any]]:
    return rules(RECORDS)


def shown() -> list[str]:
    """Expressions of the dashboard's panels."""
    panels = json.loads(DASHBOARD.read_text())["panels"]
    return [target["expr"] for panel in panels for target in panel.get("targets", ())]


def run(promtool: Path, *arguments: str) -> str:
    done = subprocess.run(
        [str(promtool), *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    return output_of(done)


def test_alerts_fire_when_they_should(promtool: Path) -> None:
    run(promtool, "check", "rules", "--lint-fatal", str(RECORDS), str(ALERTS))
    run(promtool, "test", "rules", str(CASES))


@pytest.mark.parametrize("rule", [each["alert"] for each in alerts()])
def test_every_alert_is_tried_and_a_wrong_limit_is_noticed(
    promtool: Path, tmp_path: Path, rule: str
) -> None:
    require_failure(promtool, tmp_path, ALERTS, rule)


@pytest.mark.parametrize("rule", [each["record"] for each in records()])
def test_every_record_is_tried(promtool: Path, tmp_path: Path, rule: str) -> None:
    require_failure(promtool, tmp_path, RECORDS, rule)


def require_failure(promtool: Path, folder: Path, file: Path, name: str) -> None:
    """Run the cases with one rule that never gives a value."""
    for source in (RECORDS, ALERTS):
        text = source.read_text()
        if source == file:
            document = yaml.safe_load(text)
            for rule in (rule for group in document["groups"] for rule in group["rules"]):
                if name in (rule.get("alert"), rule.get("record")):
                    rule["expr"] = f"({rule['expr']}) and vector(1) == 0"
            text = yaml.safe_dump(document)
        (folder / source.name).write_text(text)
    cases = yaml.safe_load(CASES.read_text()) | {"rule_files": [RECORDS.name, ALERTS.name]}
    cases["tests"] = [case for case in cases["tests"] if name in yaml.safe_dump(case)]
    (folder / CASES.name).write_text(yaml.safe_dump(cases))
    with pytest.raises(CommandFailed, match=name):
        run(promtool, "test", "rules", str(folder / CASES.name))


def test_expressions_of_the_dashboard_can_be_read(promtool: Path, tmp_path: Path) -> None:
    rules = [{"record": f"panel:{i}", "expr": expr} for i, expr in enumerate(shown())]
    file = tmp_path / "rules.yaml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": rules}]}))
    assert f"{len(rules)} rules found" in run(promtool, "check", "rules", str(file))


def test_alerts_and_dashboard_use_metrics_and_phases_that_exist() -> None:
    expressions = [each["expr"] for each in alerts() + records()] + shown()
    known = {each.name for each in METRICS} | {
        f"{each.name}_{part}"
        for each in METRICS
        if each.kind == "histogram"
        for part in ("bucket", "sum", "count")
    }
    used = {name for each in expressions for name in METRIC.findall(each)}
    assert used and used <= known
    assert {name for each in expressions for name in PHASE.findall(each)} <= set(JobPhase)


def test_every_record_is_on_the_dashboard_and_no_other_is_used() -> None:
    recorded = {each["record"] for each in records()}
    in_alerts = {name for each in alerts() for name in RECORD.findall(each["expr"])}
    in_panels = {name for each in shown() for name in RECORD.findall(each)}
    assert in_panels == recorded and in_alerts <= recorded


def test_every_metric_is_on_the_dashboard() -> None:
    text = " ".join(shown())
    assert [each.name for each in METRICS if each.name not in text] == []


def test_panels_have_places_of_their_own() -> None:
    panels = json.loads(DASHBOARD.read_text())["panels"]
    assert len({each["id"] for each in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        grid = panel["gridPos"]
        cells = {(grid["x"] + x, grid["y"] + y) for x in range(grid["w"]) for y in range(grid["h"])}
        assert not cells & taken and grid["x"] + grid["w"] <= 24
        taken |= cells


def test_the_guide_lists_every_alert() -> None:
    listed = re.findall(r"^\| (RLHF\w+) \|", GUIDE.read_text(), re.MULTILINE)
    assert listed == [each["alert"] for each in alerts()]


def test_every_alert_says_what_happened_what_to_do_and_how_bad_it_is() -> None:
    for each in alerts():
        assert each["labels"]["severity"] in ("critical", "warning")
        assert set(each["annotations"]) == {"summary", "description"}
