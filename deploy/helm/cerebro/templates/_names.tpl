{{/* Names, labels and images. */}}

{{/* The release's name if it contains the chart's name, so that objects of the release "cerebro" are called
     "cerebro-...". At most 40 characters, because names of pods and claims start with it. */}}
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

{{/* Labels that select a component's pods. Of: (dict "root" $ "component" "redis"). Part of immutable selectors: never
     add to them. */}}
{{- define "cerebro.selector" -}}
app.kubernetes.io/name: {{ default .root.Chart.Name .root.Values.nameOverride }}
app.kubernetes.io/instance: {{ .root.Release.Name | quote }}
{{- with .component }}
app.kubernetes.io/component: {{ . }}
{{- end }}
{{- end -}}

{{/* Labels of an object. Pods get only the selector and the user's labels: a version label would restart pods that a
     new chart does not change. */}}
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

{{/* Name of a component, and of its service account, Service and so on: "cerebro-redis". */}}
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
