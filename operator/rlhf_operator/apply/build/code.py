"""The user's own Python in the pods: from a ConfigMap, or cloned by an init container."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rlhf_api.on_cluster import CODE_FOLDER
from rlhf_api.spec.cluster import GitCode
from rlhf_api.spec.job import RLHFJob
from rlhf_api.spec.resources import PodResources
from rlhf_operator.apply.build.resources import init_container_resources

CLONE = """set -eu
checkout=/tmp/checkout
rm -rf "$checkout"
git init --quiet "$checkout"
cd "$checkout"
git fetch --quiet --depth 1 -- "$GIT_URL" "$GIT_REVISION"
git checkout --quiet FETCH_HEAD
cp -R "$checkout/$GIT_SUB_PATH/." "$CODE_FOLDER"
"""
"""Fetches one revision: a branch, a tag or a commit. Removes what a failed run of the same
container has left."""
ASK_PASS = "/tmp/ask-pass"
ASK_PASS_SCRIPT = f"""cat > {ASK_PASS} <<'END'
#!/bin/sh
case "$1" in Username*) answer=$GIT_USERNAME ;; *) answer=$GIT_PASSWORD ;; esac
printf '%s\\n' "$answer"
END
chmod 700 {ASK_PASS}
"""
"""Writes the program that Git asks for the password, so that it is in no command line or file."""
# printf, because some shells' echo interprets backslashes.


def code_volume(job: RLHFJob) -> Mapping[str, Any]:
    """Return the volume with the code."""
    code = job.spec.code
    if code is not None and code.config_map is not None:
        return {"name": "code", "configMap": {"name": code.config_map.name}}
    return {"name": "code", "emptyDir": {}}


def code_init_containers(
    job: RLHFJob, resources: PodResources, isolation: Mapping[str, Any]
) -> Sequence[Mapping[str, Any]]:
    """Return the init container that clones the code from Git, if any.

    Args:
        resources: of the pod.
        isolation: security context of all containers.
    """
    code = job.spec.code
    if code is None or code.git is None or job.spec.image is None:
        return []
    return [
        {
            "name": "fetch-code",
            "image": job.spec.image.runtime,
            "imagePullPolicy": job.spec.image.pull_policy,
            "command": ["/bin/sh", "-c", _script(code.git)],
            "env": _environment(code.git),
            # The same restrictions as for the main container: the repository is untrusted, too.
            "securityContext": isolation,
            "resources": init_container_resources(resources, "100m", "128Mi", "1Gi"),
            "volumeMounts": [
                {"name": "code", "mountPath": CODE_FOLDER},
                {"name": "scratch", "mountPath": "/tmp", "subPath": "tmp"},
            ],
        }
    ]


def _script(git: GitCode) -> str:
    return CLONE if git.secret_name is None else ASK_PASS_SCRIPT + CLONE


def _environment(git: GitCode) -> list[Mapping[str, Any]]:
    plain = {
        "HOME": "/tmp",
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_URL": git.url,
        "GIT_REVISION": git.revision,
        "GIT_SUB_PATH": git.sub_path or ".",
        "CODE_FOLDER": CODE_FOLDER,
    }
    env: list[Mapping[str, Any]] = [{"name": name, "value": value} for name, value in plain.items()]
    if git.secret_name is not None:
        env.append({"name": "GIT_ASKPASS", "value": ASK_PASS})
        for variable, key in (("GIT_USERNAME", "username"), ("GIT_PASSWORD", "password")):
            reference = {"name": git.secret_name, "key": key}
            env.append({"name": variable, "valueFrom": {"secretKeyRef": reference}})
    return env
