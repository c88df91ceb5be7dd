{{- define "perdure.name" -}}
{{- printf "%s-operator" .Release.Name | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{- define "perdure.selector" -}}
app.kubernetes.io/name: perdure-operator
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "perdure.labels" -}}
{{ include "perdure.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end -}}

{{- /* The Secret that is mounted for metrics; empty if none is. */ -}}
{{- define "perdure.certificate" -}}
{{- if .Values.metrics.enabled }}{{ .Values.metrics.certificateSecret }}{{ end -}}
{{- end -}}

{{- /* An upgrade with --reuse-values from a chart without reports has no such values, or some of them. */ -}}
{{- define "perdure.reports" -}}
{{- if (.Values.reports | default dict).enabled }}true{{ end -}}
{{- end -}}

{{- /* The user's Secret that is mounted for reports; empty if none is. */ -}}
{{- define "perdure.reportsCertificate" -}}
{{- if include "perdure.reports" . }}{{ .Values.reports.certificateSecret }}{{ end -}}
{{- end -}}

{{- /* The Secret in which the operator keeps its own certificates; empty if it keeps none. */ -}}
{{- define "perdure.keysSecret" -}}
{{- if and (include "perdure.reports" .) (not .Values.reports.certificateSecret) }}{{ include "perdure.name" . }}-keys{{ end -}}
{{- end -}}

{{- define "perdure.reportsPort" -}}
{{- int ((.Values.reports | default dict).port | default 8444) -}}
{{- end -}}
