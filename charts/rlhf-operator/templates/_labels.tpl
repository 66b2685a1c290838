{{- /* What pods are selected by. Each job's NetworkPolicy admits pods of this name. */ -}}
{{- define "rlhf-operator.selector" -}}
app.kubernetes.io/name: rlhf-operator
app.kubernetes.io/instance: {{ .Release.Name | trunc 63 | trimSuffix "-" }}
app.kubernetes.io/component: operator
{{- end }}

{{- /* What every object carries, besides its component. */ -}}
{{- define "rlhf-operator.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{ include "rlhf-operator.selector" . }}
{{- end }}
