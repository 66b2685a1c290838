"""What tools get of the job's surroundings."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from rlhf_runtime.environments.isolation import tool_variables

from .conftest import LIMITS

SECRETS = {
    name: "secret"
    for name in (
        *("WANDB_API_KEY", "HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "MLFLOW_TRACKING_PASSWORD"),
        *("GOOGLE_APPLICATION_CREDENTIALS", "OPENAI_API_KEY", "MY_OWN_NAME", "KUBERNETES_TOKEN"),
        *("HOME", "SSH_AUTH_SOCK", "https_proxy", "HTTP_PROXY"),
    )
}
NEEDED = {"PATH": "/bin", "LANG": "C", "LC_ALL": "C", "TZ": "UTC", "LD_LIBRARY_PATH": "/lib"}


def test_variables_are_those_that_programs_need() -> None:
    kept = tool_variables({**SECRETS, **NEEDED}, (), allow_network=False)
    assert NEEDED.items() <= kept.items()
    assert "secret" not in kept.values()
    assert kept["PYTHONHASHSEED"] == "0", "sets of texts keep their order in every process"


def test_users_may_let_tools_have_more() -> None:
    kept = tool_variables({**SECRETS, **NEEDED}, ("MY_OWN_NAME", "UNSET"), allow_network=True)
    assert {name for name, value in kept.items() if value == "secret"} == {
        *("MY_OWN_NAME", "https_proxy", "HTTP_PROXY")
    }


LEAVING = """
import os, sys
from rlhf_runtime.environments.isolation import leave_network
if sys.argv[1] == "other":
    os.setgroups([]), os.setgid(65534), os.setuid(65534)
user, problem = os.getuid(), leave_network()
interfaces = [line.split(":")[0].strip() for line in open("/proc/net/dev") if ":" in line]
print(repr(problem), interfaces, os.getuid() == user)
"""


@pytest.mark.parametrize("user", ["same", "other"])
def test_a_process_that_has_left_the_network_has_no_interfaces(user: str) -> None:
    done = subprocess.run([sys.executable, "-c", LEAVING, user], capture_output=True, text=True)
    assert done.stdout == "'' ['lo'] True\n", done.stdout + done.stderr


DESCRIBING = (
    f"LIMITS = {LIMITS}"
    + """
import sys
from rlhf_runtime.environments.episodes import describe_environment
from rlhf_runtime.environments.settings import EnvironmentSettings

entrypoints = {"": "my_environments:WordleEnv"}
for allow_network in (False, True):
    settings = EnvironmentSettings(entrypoints, allow_network=allow_network, **LIMITS)
    print(*describe_environment(settings, sys.argv[1:]).notices, sep=",")
"""
)
# In a namespace of its own a process may forbid itself more of them.
FORBID = 'echo 0 > /proc/sys/user/max_net_namespaces && exec "$@"'


def test_a_node_that_lets_nobody_leave_the_network_is_reported(module: Path) -> None:
    command = ["unshare", "--map-root-user", "sh", "-c", FORBID, "sh"]
    command += [sys.executable, "-c", DESCRIBING, str(module)]
    done = subprocess.run(command, capture_output=True, text=True)
    first, second, *rest = done.stdout.split("\n")
    assert first.startswith("tools may reach the network: this node lets no process"), done.stderr
    assert (second, rest) == ("", [""])
