{{- /* The rules in namespaces with jobs. */ -}}
{{- define "rlhf-operator.jobRules" -}}
{{ include "rlhf-operator.permissions.watched" . }}
{{- if eq .Values.headAccess "proxy" }}
{{ include "rlhf-operator.permissions.proxiedHeads" . }}
{{- end }}
{{- end }}

{{- define "rlhf-operator.subjects" -}}
subjects:
  - kind: ServiceAccount
    name: {{ include "rlhf-operator.serviceAccount" . }}
    namespace: {{ .Release.Namespace }}
{{- end }}
