{{- /* Made by `make generate` from operator/rlhf_operator/permissions.py. */ -}}
{{- define "rlhf-operator.permissions.watched" -}}
# follow jobs; the operator writes nothing of a job but its status
- apiGroups: ["rlhf-operator.dev"]
  resources: [rlhfjobs]
  verbs: [get, list, watch]
# report the state of a job
- apiGroups: ["rlhf-operator.dev"]
  resources: [rlhfjobs/status]
  verbs: [patch]
# own a job's objects where the API server checks who may block a deletion
- apiGroups: ["rlhf-operator.dev"]
  resources: [rlhfjobs/finalizers]
  verbs: [update]
# one cluster for each attempt of a job, under a name that nobody else has taken; patch releases the workers of a job that has ended
- apiGroups: ["ray.io"]
  resources: [rayclusters]
  verbs: [get, list, watch, create, patch, delete]
# report why pods do not start; delete workers that a driver left dirty
- apiGroups: [""]
  resources: [pods]
  verbs: [list, watch, delete]
# the manifest in force of each job; get checks that the one with a job's code exists
- apiGroups: [""]
  resources: [configmaps]
  verbs: [get, create]
# each cluster's token; no Secret is ever read
- apiGroups: [""]
  resources: [secrets]
  verbs: [create]
# keep others away from a job's pods
- apiGroups: ["networking.k8s.io"]
  resources: [networkpolicies]
  verbs: [create]
# keep drains away from pods of jobs that ask for it
- apiGroups: ["policy"]
  resources: [poddisruptionbudgets]
  verbs: [create]
# check that the checkpoint claim exists, and that several nodes can mount it
- apiGroups: [""]
  resources: [persistentvolumeclaims]
  verbs: [get]
# check if another release, which created a job's cluster, is still installed
- apiGroups: ["coordination.k8s.io"]
  resources: [leases]
  verbs: [get]
# report kubelets' reasons why a pod does not start
- apiGroups: [""]
  resources: [events]
  verbs: [list]
# record events about jobs
- apiGroups: [""]
  resources: [events]
  verbs: [create]
{{- end }}

{{- define "rlhf-operator.permissions.proxiedHeads" -}}
# reach heads through the API server (headAccess: proxy)
- apiGroups: [""]
  resources: [pods/proxy]
  verbs: [get, create]
{{- end }}

{{- define "rlhf-operator.permissions.own" -}}
# the operator's key, made at its first start
- apiGroups: [""]
  resources: [secrets]
  verbs: [create]
# read that key, the only Secret that it may read
- apiGroups: [""]
  resources: [secrets]
  resourceNames: [{{ include "rlhf-operator.keySecret" . | quote }}]
  verbs: [get]
# elect a leader if the chart's own Lease was deleted
- apiGroups: ["coordination.k8s.io"]
  resources: [leases]
  verbs: [create]
# hold the Lease that the release's replicas share
- apiGroups: ["coordination.k8s.io"]
  resources: [leases]
  resourceNames: [{{ include "rlhf-operator.lease" . | quote }}]
  verbs: [get, patch]
{{- end }}
