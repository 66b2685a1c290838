{{- define "rlhf-operator.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 53 | trimSuffix "-" }}
{{- end }}

{{- /* The release's name, unless it says the chart's already. */ -}}
{{- define "rlhf-operator.fullname" -}}
{{- $name := include "rlhf-operator.name" . }}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride }}
{{- else if contains $name .Release.Name }}
{{- .Release.Name | replace "." "-" | trunc 53 | trimSuffix "-" }}
{{- else }}
{{- printf "%s-%s" .Release.Name $name | replace "." "-" | trunc 53 | trimSuffix "-" }}
{{- end }}
{{- end }}

{{- define "rlhf-operator.serviceAccount" -}}
{{- if .Values.serviceAccount.create }}
{{- default (include "rlhf-operator.fullname" .) .Values.serviceAccount.name }}
{{- else }}
{{- default "default" .Values.serviceAccount.name }}
{{- end }}
{{- end }}

{{- define "rlhf-operator.keySecret" -}}
{{- default (printf "%s-key" (include "rlhf-operator.fullname" .)) .Values.keySecret.name }}
{{- end }}

{{- define "rlhf-operator.lease" -}}
{{- include "rlhf-operator.fullname" . }}
{{- end }}

{{- define "rlhf-operator.image" -}}
{{- with .Values.image }}
{{- if .digest }}
{{- printf "%s@%s" .repository .digest }}
{{- else }}
{{- printf "%s:%s" .repository (default $.Chart.AppVersion .tag) }}
{{- end }}
{{- end }}
{{- end }}
