{{/* Names under which the page may be asked for, with commas: the service's, the Ingress' and the user's. */}}
{{- define "cerebro.dispatcher.hosts" -}}
{{- $service := printf "%s-dispatcher" (include "cerebro.fullname" .) -}}
{{- $hosts := list $service -}}
{{- range list "" ".svc" ".svc.cluster.local" -}}
{{- $hosts = append $hosts (printf "%s.%s%s" $service $.Release.Namespace .) -}}
{{- end -}}
{{- if .Values.dispatcher.ingress.enabled }}{{ $hosts = append $hosts .Values.dispatcher.ingress.host }}{{ end -}}
{{- concat $hosts .Values.dispatcher.publicHosts | uniq | join "," -}}
{{- end -}}

{{- define "cerebro.dispatcher.link.tensorboard" -}}
{{- $forwarded := ternary "http://127.0.0.1:6006" "" .Values.tensorboard.enabled -}}
{{- .Values.dispatcher.links.tensorboard | default $forwarded -}}
{{- end -}}

{{- define "cerebro.dispatcher.link.notebook" -}}
{{- $own := include "cerebro.exposed.address" (dict "ingress" .Values.notebook.ingress "port" 8888) -}}
{{- .Values.dispatcher.links.notebook | default (ternary $own "" .Values.notebook.enabled) -}}
{{- end -}}
