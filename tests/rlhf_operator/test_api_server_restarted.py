"""The API server is gone for a while: jobs go on, and nothing is done twice."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from ..cluster.definition import DEFINITION
from ..cluster.kubectl import Kubectl
from ..cluster.session import own_cluster
from ..waiting import wait_until
from .cluster import SECONDS, a_team

pytestmark = pytest.mark.cluster


def test_a_job_goes_on_when_the_api_server_comes_back(tmp_path: Path) -> None:
    with own_cluster("restarted", "--fake-nodes", "1") as cluster:
        kubectl = Kubectl(cluster.state / "bin" / "kubectl", cluster.kubeconfig, tmp_path / "cache")
        kubectl("apply", f"--filename={DEFINITION}")
        with a_team(kubectl, tmp_path) as team:
            head = team.train("steady")
            requests = team.heads.requests
            os.kill(cluster.pids()["kube-apiserver"], signal.SIGKILL)
            wait_until(
                lambda: team.heads.requests > requests + 2, SECONDS, "looks at the driver meanwhile"
            )
            head.advance(4, checkpoint=3)
            cluster.up()
            head.finish()
            team.wait_for("Succeeded", "steady")
            team.wait_for_rest("steady")
            assert head.submitted == ["steady-1-0"]
            assert team.status("steady").restarts.total == 0
            again = team.train("later")  # watches are alive again
            again.finish()
            team.wait_for("Succeeded", "later")
            assert "Traceback" not in team.operator.log.read_text()
