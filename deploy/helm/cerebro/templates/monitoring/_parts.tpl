{{/* Where services tell their metrics: component -> port's name -> number. Never the ports that others are served on. */}}
{{- define "cerebro.monitoring.ports" -}}
controller: {health: 7071}
dispatcher: {health: 7074}
kvs-api: {health: 7075}
worker: {health: 7072, etl-health: 7073}
{{- end -}}

{{/* Label matchers of this release's metrics: two releases, also of one namespace, are told apart. */}}
{{- define "cerebro.monitoring.matchers" -}}
namespace={{ .Release.Namespace | quote }},service=~"{{ include "cerebro.fullname" . }}-(controller|dispatcher|kvs-api|worker)-metrics"
{{- end -}}
