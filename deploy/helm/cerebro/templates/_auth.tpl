{{/* The cluster's token, those of services where there are users, and Redis' password. */}}

{{- define "cerebro.auth.serviceKeys" -}}
controller-token dispatcher-token export-token worker-token
{{- end -}}

{{- define "cerebro.auth.name" -}}
{{- .Values.auth.existingSecret | default (printf "%s-auth" (include "cerebro.fullname" .)) -}}
{{- end -}}

{{/* 32 random bytes, URL-safe: the password becomes part of a URL. */}}
{{- define "cerebro.auth.random" -}}
{{- randBytes 32 | replace "+" "-" | replace "/" "_" | trimAll "=" | b64enc -}}
{{- end -}}

{{/* The Secret's data as YAML: what it holds in the cluster stays, the rest is made. Of: (dict "data" DATA "users" true), the
     data of the Secret as it is, or nothing, and whether services have tokens of their own. */}}
{{- define "cerebro.auth.data" -}}
{{- $data := .data | default dict -}}
{{- $own := ternary (splitList " " (include "cerebro.auth.serviceKeys" .)) list (.users | default false) -}}
{{- range concat (list "redis-password" "token") $own | sortAlpha }}
{{ . }}: {{ index $data . | default (include "cerebro.auth.random" $) | quote }}
{{- end }}
{{- end -}}

{{/* The same data for all templates of one rendering: made once, remembered beside the release's facts. Not in the values:
     those are stored with the release. */}}
{{- define "cerebro.auth.once" -}}
{{- $made := printf "AuthData-%s" .Values.auth.mode -}}
{{- if not (hasKey .Release $made) -}}
{{- $name := include "cerebro.auth.name" . -}}
{{- $found := lookup "v1" "Secret" .Release.Namespace $name | default dict -}}
{{- $_ := set .Release $made (include "cerebro.auth.data" (dict "data" $found.data "users" (eq .Values.auth.mode "users"))) -}}
{{- end -}}
{{- index .Release $made -}}
{{- end -}}

{{/* Pod annotations that change when a Secret does, so that what uses it is started again. Of a Secret that is not ours
     the version, not a hash: its content may be guessable. */}}
{{- define "cerebro.auth.checksum" -}}
{{- if .Values.auth.existingSecret -}}
{{- $found := lookup "v1" "Secret" .Release.Namespace .Values.auth.existingSecret | default dict -}}
checksum/auth: {{ dig "metadata" "resourceVersion" .Values.auth.existingSecret $found | quote }}
{{- else -}}
checksum/auth: {{ include "cerebro.auth.once" . | sha256sum | quote }}
{{- end }}
{{- end -}}

{{- define "cerebro.objectStore.checksum" -}}
{{- include "cerebro.objectStore.checksumOf" (dict "root" . "secret" .Values.objectStore.existingSecret) }}
{{- end -}}

{{/* Of: (dict "root" $ "secret" NAME), or no name. */}}
{{- define "cerebro.objectStore.checksumOf" -}}
{{- with .secret }}
{{- $found := lookup "v1" "Secret" $.root.Release.Namespace . | default dict }}
checksum/object-store: {{ dig "metadata" "resourceVersion" . $found | quote }}
{{- end }}
{{- end -}}
