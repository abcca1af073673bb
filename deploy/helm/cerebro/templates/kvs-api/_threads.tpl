{{/* Two containers per worker wait for their inbox and may report at the same time, and any replica may have to serve them
     all; the controller, notebooks and pages come on top. */}}
{{- define "cerebro.kvsApi.threads" -}}
{{- $needed := add 32 (mul 4 .Values.worker.replicas) -}}
{{- .Values.kvsApi.threads | default (max 64 $needed) -}}
{{- end -}}
