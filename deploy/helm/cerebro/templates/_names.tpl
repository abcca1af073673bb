{{/* Names, labels and images. */}}

{{/* The release's name where it contains the chart's, so that a release "cerebro" has objects "cerebro-...". At most 40
     characters: names of pods and claims are made of it. */}}
{{- define "cerebro.fullname" -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else if contains $name .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{/* What tells a component's pods from all others. Of: (dict "root" $ "component" "redis"). Part of immutable selectors:
     never add to it. */}}
{{- define "cerebro.selector" -}}
app.kubernetes.io/name: {{ default .root.Chart.Name .root.Values.nameOverride }}
app.kubernetes.io/instance: {{ .root.Release.Name | quote }}
{{- with .component }}
app.kubernetes.io/component: {{ . }}
{{- end }}
{{- end -}}

{{/* Labels of an object. Pods get the selector and the user's labels only: a label with a version in it would restart
     what a new chart did not change. */}}
{{- define "cerebro.labels" -}}
{{ include "cerebro.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/part-of: cerebro
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version }}
{{- with .root.Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "cerebro.podLabels" -}}
{{ include "cerebro.selector" . }}
{{- with .root.Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* A component's name, and that of its service account, service and so on: "cerebro-redis". */}}
{{- define "cerebro.component" -}}
{{ include "cerebro.fullname" .root }}-{{ .component }}
{{- end -}}

{{- define "cerebro.metadata" -}}
name: {{ include "cerebro.component" . }}
namespace: {{ .root.Release.Namespace }}
labels:
  {{- include "cerebro.labels" . | nindent 2 }}
{{- end -}}

{{/* Image reference. Of: (dict "root" $ "image" "control"). */}}
{{- define "cerebro.image" -}}
{{- $images := .root.Values.images -}}
{{- $image := index $images .image -}}
{{- $repository := $image.repository -}}
{{- with $images.registry }}{{ $repository = printf "%s/%s" (trimSuffix "/" .) $repository }}{{ end -}}
{{- if $image.digest -}}
{{- printf "%s@%s" $repository $image.digest -}}
{{- else -}}
{{- printf "%s:%s" $repository (coalesce $image.tag $images.tag .root.Chart.AppVersion) -}}
{{- end -}}
{{- end -}}
