{{/* Decision for the claim of the notebook's home. */}}
{{- define "cerebro.notebook.home" -}}
{{- $name := printf "%s-notebook-home" (include "cerebro.fullname" .) -}}
{{- include "cerebro.storage.own" (dict
      "root" .
      "field" "notebook.home"
      "volume" .Values.notebook.home
      "found" (lookup "v1" "PersistentVolumeClaim" .Release.Namespace $name)) -}}
{{- end -}}
