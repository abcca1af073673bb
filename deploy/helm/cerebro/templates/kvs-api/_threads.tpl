{{/* Two containers per worker wait for their inbox and may report at the same time, and any replica may have to serve them
     all; the controller, notebooks and pages come on top. */}}
{{- define "cerebro.kvsApi.needed" -}}
{{- add 16 (mul 4 .Values.worker.replicas) -}}
{{- end -}}

{{- define "cerebro.kvsApi.threads" -}}
{{- .Values.kvsApi.threads | default (include "cerebro.kvsApi.needed" . | int | max 64) -}}
{{- end -}}
