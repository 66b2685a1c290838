"""Pods that a job may have, and what it may not set, as tables for models and API servers."""

from __future__ import annotations

from typing import Any

from .rule_cases import Case

POD = "spec.resources.pod"
HEAD = "spec.resources.headPod"
WORKERS = "spec.resources.nodePools[0].pod"

EVERYTHING: dict[str, Any] = {
    "labels": {"team": "a", "example.com/cost": "x_1"},
    "annotations": {"kueue.x-k8s.io/podset-preferred-topology": "example.com/rack"},
    "nodeSelector": {"kubernetes.io/arch": "amd64"},
    "affinity": {
        "nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {
                "nodeSelectorTerms": [
                    {
                        "matchExpressions": [
                            {"key": "zone", "operator": "In", "values": ["a", "b"]},
                            {"key": "spot", "operator": "DoesNotExist"},
                            {"key": "generation", "operator": "Gt", "values": ["3"]},
                        ],
                        "matchFields": [
                            {"key": "metadata.name", "operator": "NotIn", "values": ["node-7"]}
                        ],
                    }
                ]
            },
            "preferredDuringSchedulingIgnoredDuringExecution": [
                {
                    "weight": 50,
                    "preference": {
                        "matchExpressions": [{"key": "fast", "operator": "Exists"}],
                    },
                }
            ],
        },
        "podAffinity": {
            "preferredDuringSchedulingIgnoredDuringExecution": [
                {
                    "weight": 100,
                    "podAffinityTerm": {
                        "topologyKey": "example.com/rack",
                        "labelSelector": {"matchLabels": {"rlhf-operator.dev/job": "sort"}},
                        "matchLabelKeys": ["team"],
                    },
                }
            ]
        },
        "podAntiAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": [
                {
                    "topologyKey": "kubernetes.io/hostname",
                    "labelSelector": {
                        "matchExpressions": [{"key": "noisy", "operator": "In", "values": ["true"]}]
                    },
                    "namespaceSelector": {},
                }
            ]
        },
    },
    "topologySpreadConstraints": [
        {
            "maxSkew": 1,
            "minDomains": 2,
            "topologyKey": "zone",
            "whenUnsatisfiable": "DoNotSchedule",
            "labelSelector": {"matchLabels": {"team": "a"}},
            "nodeAffinityPolicy": "Ignore",
            "nodeTaintsPolicy": "Honor",
        }
    ],
    "tolerations": [{"operator": "Exists"}],
    "resources": {
        "requests": {"ephemeral-storage": "10Gi"},
        "limits": {
            "cpu": 8,
            "memory": "32Gi",
            "ephemeral-storage": "20Gi",
            "rdma/hca": 1,
            "hugepages-2Mi": "1Gi",
        },
    },
    "sharedMemory": "16Gi",
    "volumes": [
        {"name": "data", "persistentVolumeClaim": {"claimName": "datasets", "readOnly": True}},
        {"name": "chat", "configMap": {"name": "chat", "items": [{"key": "a", "path": "b"}]}},
        {"name": "netrc", "secret": {"secretName": "netrc", "defaultMode": 0o400}},
        {"name": "cache", "emptyDir": {"medium": "Memory", "sizeLimit": "1Gi"}},
        {
            "name": "local",
            "ephemeral": {
                "volumeClaimTemplate": {
                    "metadata": {"labels": {"team": "a"}},
                    "spec": {
                        "storageClassName": "nvme",
                        "resources": {"requests": {"storage": "100Gi"}},
                    },
                }
            },
        },
    ],
    "volumeMounts": [
        {"name": "data", "mountPath": "/data", "subPath": "sums", "readOnly": True},
        {"name": "chat", "mountPath": "/chat"},
        {"name": "netrc", "mountPath": "/home/rlhf/.netrc", "subPath": "netrc", "readOnly": True},
        {"name": "cache", "mountPath": "/tmp/cache"},
        {"name": "local", "mountPath": "/local"},
    ],
    "envFrom": [
        {"configMapRef": {"name": "settings"}},
        {"prefix": "JUDGE_", "secretRef": {"name": "judge", "optional": True}},
    ],
    "securityContext": {
        "runAsNonRoot": True,
        "runAsUser": 2000,
        "runAsGroup": 2000,
        "fsGroup": 3000,
        "fsGroupChangePolicy": "Always",
        "supplementalGroups": [4000],
        "seccompProfile": {"type": "Localhost", "localhostProfile": "rlhf.json"},
    },
    "schedulerName": "volcano",
    "priorityClassName": "urgent",
    "runtimeClassName": "nvidia",
    "serviceAccountName": "trainer",
    "automountServiceAccountToken": True,
    "initContainers": [
        {
            "name": "unpack",
            "image": "tools:1",
            "command": ["tar", "-x"],
            "args": ["-f", "/data/a.tar"],
            "workingDir": "/local",
            "env": [{"name": "A", "value": "1"}],
            "envFrom": [{"secretRef": {"name": "judge"}}],
            "resources": {"limits": {"cpu": 1, "memory": "1Gi"}},
            "volumeMounts": [
                {"name": "data", "mountPath": "/data"},
                {"name": "local", "mountPath": "/local"},
            ],
        }
    ],
    "sidecars": [{"name": "proxy", "image": "proxy:1", "imagePullPolicy": "Always"}],
    "terminationGracePeriodSeconds": 300,
}
"""A template of pods with every field."""

HOST_PATH = f"{POD}.volumes=[{{name: fast, hostPath: {{path: /mnt/nvme, type: Directory}}}}]"
CLAIM = "{name: data, persistentVolumeClaim: {claimName: a}}"
VOLUME = f"{POD}.volumes=[{CLAIM}]"


def _required(terms: str) -> str:
    required = "requiredDuringSchedulingIgnoredDuringExecution"
    return f"{POD}.affinity.nodeAffinity.{required}={{nodeSelectorTerms: [{terms}]}}"


def _mounted(path: str) -> tuple[str, ...]:
    return (VOLUME, f"{POD}.volumeMounts=[{{name: data, mountPath: {path}}}]")


_MOUNT = f"{POD}.volumeMounts[0].mountPath"
_NEEDED = "a path that the job's own files or the system need"

REFUSED: dict[str, Case] = {
    # Fields that the operator sets itself.
    "a command": Case((f"{POD}.command=[bash]",), f"{POD}.command", "the operator starts Ray"),
    "a port of the head": Case(
        (f"{HEAD}.ports=[{{containerPort: 1}}]",), f"{HEAD}.ports", "Ray need fixed ports"
    ),
    "a probe of workers": Case(
        (f"{WORKERS}.livenessProbe={{}}",), f"{WORKERS}.livenessProbe", "the operator probes Ray"
    ),
    "a name": Case((f"{POD}.hostname=a",), f"{POD}.hostname", "KubeRay names pods"),
    "the node's network": Case((f"{POD}.hostNetwork=true",), f"{POD}.hostNetwork", "of their own"),
    "more rights": Case(
        (f"{POD}.securityContext.privileged=true",),
        f"{POD}.securityContext.privileged",
        "the restricted profile",
    ),
    "capabilities": Case(
        (f"{POD}.securityContext.capabilities={{add: [IPC_LOCK]}}",),
        f"{POD}.securityContext.capabilities",
        "the restricted profile",
    ),
    "a security context of a sidecar": Case(
        (f"{POD}.sidecars=[{{name: a, image: b, securityContext: {{}}}}]",),
        f"{POD}.sidecars[0].securityContext",
        "all containers of a job have the restricted one",
    ),
    "an unknown field": Case((f"{POD}.gpus=1",), f"{POD}.gpus", "unknown field: got gpus"),
    # Values.
    "root": Case(
        (f"{POD}.securityContext.runAsUser=0",),
        f"{POD}.securityContext.runAsUser",
        "got 0, allowed an integer from 1",
    ),
    "root by another field": Case(
        (f"{POD}.securityContext.runAsNonRoot=false",),
        f"{POD}.securityContext.runAsNonRoot",
        "allowed True",
    ),
    "a seccomp profile without its file": Case(
        (f"{POD}.securityContext.seccompProfile={{type: Localhost}}",),
        f"{POD}.securityContext.seccompProfile.localhostProfile",
        "or Localhost without one",
    ),
    "a label of KubeRay": Case(
        (f"{POD}.labels={{ray.io/group: a}}",), f"{POD}.labels[ray.io/group]", "KubeRay read"
    ),
    "a label of the operator": Case(
        (f"{HEAD}.labels={{rlhf-operator.dev/job: a}}",),
        f"{HEAD}.labels[rlhf-operator.dev/job]",
        "rename it",
    ),
    "an annotation of KubeRay": Case(
        (f"{WORKERS}.annotations={{ray.io/overwrite-container-cmd: 'false'}}",),
        f"{WORKERS}.annotations[ray.io/overwrite-container-cmd]",
        "KubeRay read",
    ),
    "a label's value with a blank": Case(
        (f"{POD}.labels={{team: a b}}",), f"{POD}.labels.team", "not of the right form"
    ),
    "a selector by a key with a blank": Case(
        (f"{POD}.nodeSelector={{a b: c}}",), f"{POD}.nodeSelector[a b]", "a key that is not"
    ),
    "values for Exists": Case(
        (_required("{matchExpressions: [{key: a, operator: Exists, values: [b]}]}"),),
        f"{POD}.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution"
        ".nodeSelectorTerms[0].matchExpressions[0].values",
        "got 1 with Exists, allowed none",
    ),
    "a text for Gt": Case(
        (_required("{matchExpressions: [{key: a, operator: Gt, values: [b]}]}"),),
        f"{POD}.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution"
        ".nodeSelectorTerms[0].matchExpressions[0].values",
        "allowed one integer",
    ),
    "no values for In": Case(
        (
            f"{POD}.topologySpreadConstraints=[{{maxSkew: 1, topologyKey: a, whenUnsatisfiable: "
            "DoNotSchedule, labelSelector: {matchExpressions: [{key: a, operator: In}]}}]",
        ),
        f"{POD}.topologySpreadConstraints[0].labelSelector.matchExpressions[0].values",
        "got none with In, allowed at least one",
    ),
    "fewest places without force": Case(
        (
            f"{POD}.topologySpreadConstraints=[{{maxSkew: 1, topologyKey: a, minDomains: 2, "
            "whenUnsatisfiable: ScheduleAnyway}]",
        ),
        f"{POD}.topologySpreadConstraints[0].minDomains",
        "whenUnsatisfiable: DoNotSchedule",
    ),
    # Resources.
    "a resource without a domain": Case(
        (f"{POD}.resources.limits={{gpus: 1}}",),
        f"{POD}.resources.limits.gpus",
        "such as rdma/hca",
    ),
    "half a device": Case(
        (f"{POD}.resources.limits={{rdma/hca: 500m}}",),
        f"{POD}.resources.limits[rdma/hca]",
        "got 500m, allowed an integer",
    ),
    "a device without a limit": Case(
        (f"{POD}.resources.requests={{rdma/hca: 1}}",),
        f"{POD}.resources.requests[rdma/hca]",
        "allowed the limit, which is missing",
    ),
    "huge pages above their request": Case(
        (
            f"{POD}.resources.limits={{hugepages-2Mi: 2Gi}}",
            f"{WORKERS}.resources.requests={{hugepages-2Mi: 1Gi}}",
        ),
        f"{WORKERS}.resources.requests.hugepages-2Mi",
        "got 1Gi, allowed the limit, 2Gi",
    ),
    "a request above the limit of all pods": Case(
        (f"{POD}.resources.limits={{cpu: 4}}", f"{HEAD}.resources.requests={{cpu: 8}}"),
        f"{HEAD}.resources.requests.cpu",
        "got 8, allowed at most the limit, 4",
    ),
    "the pool's devices": Case(
        (f"{WORKERS}.resources.limits={{nvidia.com/gpu: 8}}",),
        f"{WORKERS}.resources.limits[nvidia.com/gpu]",
        "whose number is devicesPerNode",
    ),
    "the pool's devices by another name": Case(
        (
            "spec.resources.nodePools[0].deviceResource=amd.com/gpu",
            f"{WORKERS}.resources.limits={{amd.com/gpu: 8}}",
        ),
        f"{WORKERS}.resources.limits[amd.com/gpu]",
        "whose number is devicesPerNode",
    ),
    "memory that is written twice": Case(
        ("spec.resources.head.memory=8Gi", f"{HEAD}.resources.limits={{memory: 8Gi}}"),
        f"{HEAD}.resources.limits.memory",
        "remove one of them",
    ),
    # Volumes.
    "a volume without a source": Case(
        (f"{POD}.volumes=[{{name: a}}]",), f"{POD}.volumes[0]", "got none"
    ),
    "a volume with two sources": Case(
        (f"{POD}.volumes=[{{name: a, emptyDir: {{}}, configMap: {{name: b}}}}]",),
        f"{POD}.volumes[0]",
        "got configMap and emptyDir",
    ),
    "two volumes of one name": Case(
        (f"{POD}.volumes=[{CLAIM}, {CLAIM}]",), f"{POD}.volumes[1].name", "used twice"
    ),
    "the operator's volume": Case(
        (f"{POD}.volumes=[{{name: run, emptyDir: {{}}}}]",),
        f"{POD}.volumes[0].name",
        "the operator defines itself",
    ),
    "a mount without a volume": Case(
        (VOLUME, f"{WORKERS}.volumeMounts=[{{name: date, mountPath: /data}}]"),
        f"{WORKERS}.volumeMounts[0].name",
        "got date, allowed data",
    ),
    "a mount of a sidecar without a volume": Case(
        (f"{POD}.sidecars=[{{name: a, image: b, volumeMounts: [{{name: c, mountPath: /d}}]}}]",),
        f"{POD}.sidecars[0].volumeMounts[0].name",
        "got c, allowed none: it has no volumes",
    ),
    "two mounts at a path": Case(
        (
            VOLUME,
            f"{POD}.volumeMounts=[{{name: data, mountPath: /a}}, {{name: data, mountPath: /a/}}]",
        ),
        f"{POD}.volumeMounts[1].mountPath",
        "a path with two mounts",
    ),
    "a mount over the run's folder": Case(_mounted("/rlhf/run"), _MOUNT, _NEEDED),
    "a mount in the code": Case(_mounted("/etc/rlhf/code/mine"), _MOUNT, _NEEDED),
    "a mount over everything": Case(_mounted("//"), _MOUNT, _NEEDED),
    "a mount over a home": Case(_mounted("/home/"), _MOUNT, _NEEDED),
    "a mount over temporary files": Case(_mounted("//tmp"), _MOUNT, _NEEDED),
    "a mount in the kernel's files": Case(_mounted("/proc/1"), _MOUNT, _NEEDED),
    "a relative mount": Case(_mounted("data"), _MOUNT, "a slash first"),
    # Containers and accounts.
    "a container of KubeRay": Case(
        (f"{POD}.initContainers=[{{name: wait-gcs-ready, image: b}}]",),
        f"{POD}.initContainers[0].name",
        "choose another name",
    ),
    "a sidecar with the name of an init container": Case(
        (f"{POD}={{initContainers: [{{name: a, image: b}}], sidecars: [{{name: a, image: b}}]}}",),
        f"{POD}.sidecars[0].name",
        "used twice",
    ),
    "a token of nobody": Case(
        (f"{POD}.automountServiceAccountToken=true",),
        f"{POD}.automountServiceAccountToken",
        "name it in serviceAccountName",
    ),
    "no time to end": Case(
        (f"{POD}.terminationGracePeriodSeconds=0",),
        f"{POD}.terminationGracePeriodSeconds",
        "allowed an integer from 30",
    ),
}
"""Manifests whose pods are refused by `rlhf validate` and the operator, with the message."""
