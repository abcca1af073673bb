{{/* The cluster's token, the services' tokens with auth.mode users, and Redis' password. */}}

{{- define "cerebro.auth.serviceKeys" -}}
controller-token dispatcher-token export-token worker-token
{{- end -}}

{{- define "cerebro.auth.name" -}}
{{- .Values.auth.existingSecret | default (printf "%s-auth" (include "cerebro.fullname" .)) -}}
{{- end -}}

{{/* 32 random bytes, URL-safe, because the password is part of a URL. */}}
{{- define "cerebro.auth.random" -}}
{{- randBytes 32 | replace "+" "-" | replace "/" "_" | trimAll "=" | b64enc -}}
{{- end -}}

{{/* The Secret's data as YAML: keep existing keys, generate missing keys.
     Of: (dict "data" DATA "users" true)
       data: the existing Secret's data, or nothing
       users: true if services have separate tokens */}}
{{- define "cerebro.auth.data" -}}
{{- $data := .data | default dict -}}
{{- $own := ternary (splitList " " (include "cerebro.auth.serviceKeys" .)) list (.users | default false) -}}
{{- range concat (list "redis-password" "token") $own | sortAlpha }}
{{ . }}: {{ index $data . | default (include "cerebro.auth.random" $) | quote }}
{{- end }}
{{- end -}}

{{/* The same data for all templates of one rendering: generated once, cached in the release object. Not in the values,
     because Helm stores these with the release. */}}
{{- define "cerebro.auth.once" -}}
{{- $made := printf "AuthData-%s" .Values.auth.mode -}}
{{- if not (hasKey .Release $made) -}}
{{- $name := include "cerebro.auth.name" . -}}
{{- $found := lookup "v1" "Secret" .Release.Namespace $name | default dict -}}
{{- $_ := set .Release $made (include "cerebro.auth.data" (dict "data" $found.data "users" (eq .Values.auth.mode "users"))) -}}
{{- end -}}
{{- index .Release $made -}}
{{- end -}}

{{/* Pod annotations that change with a Secret, so that its pods restart. For a user's Secret the annotation is the
     version, not a hash, because an attacker could guess the content from a hash. */}}
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
