{{- /* The operator's settings file. */ -}}
{{- define "rlhf-operator.settings" -}}
namespaces: {{ .Values.watchNamespaces | toJson }}
keySecret: {name: {{ include "rlhf-operator.keySecret" . | quote }}}
leaseName: {{ include "rlhf-operator.lease" . }}
podPolicy: {{ .Values.podPolicy | toJson }}
bounds: {{ .Values.bounds | toJson }}
headAccess: {{ .Values.headAccess }}
reconcileWorkers: {{ .Values.reconcileWorkers | int }}
plannerProcesses: {{ .Values.plannerProcesses | int }}
logLevel: {{ .Values.logging.level }}
logFormat: {{ .Values.logging.format }}
jobLogFormat: {{ .Values.logging.jobs }}
jobDefaults:
  {{- with .Values.jobDefaults }}
  nodePools: {{ toJson .nodePools }}
  head: {{ toJson .head }}
  worker: {{ toJson .worker }}
  {{- range $name := list "pod" "headPod" "workerPod" "namespaces" }}
  {{- with get $.Values.jobDefaults $name }}
  {{ $name }}: {{ toJson . }}
  {{- end }}
  {{- end }}
  {{- with .image }}
  image: {{ toJson . }}
  {{- end }}
  {{- with .storage }}
  storage: {{ toJson . }}
  {{- end }}
  {{- end }}
{{- end }}
