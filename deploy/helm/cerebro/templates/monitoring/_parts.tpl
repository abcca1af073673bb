{{/* Metrics ports: component -> port name -> number. Always separate from the public ports. */}}
{{- define "cerebro.monitoring.ports" -}}
controller: {health: 7071}
dispatcher: {health: 7074}
kvs-api: {health: 7075}
worker: {health: 7072, etl-health: 7073}
{{- end -}}

{{/* Label matchers for this release's metrics, to separate it from other releases in the same namespace. */}}
{{- define "cerebro.monitoring.matchers" -}}
namespace={{ .Release.Namespace | quote }},service=~"{{ include "cerebro.fullname" . }}-(controller|dispatcher|kvs-api|worker)-metrics"
{{- end -}}
