{{/* Host names of the page, separated by commas: the Service's, the Ingress' and the user's. */}}
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

{{/* The page's credentials for object stores, as JSON: a Secret, and annotations of its service account. The
     dispatcher's credentials override the common ones, so that they can have fewer permissions. Empty if the page
     checks no object store. */}}
{{- define "cerebro.dispatcher.credentials" -}}
{{- $own := .Values.dispatcher.objectStore -}}
{{- $has := or (ne $own.existingSecret "") (gt (len $own.serviceAccountAnnotations) 0) -}}
{{- $chosen := ternary $own .Values.objectStore $has -}}
{{- pick (ternary $chosen dict $own.enabled) "existingSecret" "serviceAccountAnnotations" | toJson -}}
{{- end -}}
