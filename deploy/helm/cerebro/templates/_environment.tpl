{{/* What containers are told. Settings stand in the pods themselves and not in ConfigMaps: a changed value changes the
     pods that it concerns, and Kubernetes restarts these and no others. */}}

{{/* How pods find services: "dns", or "environment" by the variables that the kubelet sets. Of a cluster that serves DNS,
     some system service has port 53. */}}
{{- define "cerebro.discovery" -}}
{{- $mode := .Values.serviceDiscovery -}}
{{- if eq $mode "auto" -}}
{{- $mode = "dns" -}}
{{- if dig "nodes" 0 (include "cerebro.storage.cluster" . | fromJson) -}}
{{- $ports := list -}}
{{- range concat (lookup "v1" "Service" "kube-system" "").items (dig "items" list (lookup "v1" "Service" "openshift-dns" "")) -}}
{{- range .spec.ports }}{{ $ports = append $ports (int .port) }}{{ end -}}
{{- end -}}
{{- if not (has 53 $ports) }}{{ $mode = "environment" }}{{ end -}}
{{- end -}}
{{- end -}}
{{- $mode -}}
{{- end -}}

{{/* A service's host. Of: (dict "root" $ "component" "kvs-api"). */}}
{{- define "cerebro.host" -}}
{{- $name := include "cerebro.component" . -}}
{{- if eq "environment" (include "cerebro.discovery" .root) -}}
$({{ $name | upper | replace "-" "_" }}_SERVICE_HOST)
{{- else -}}
{{ $name }}
{{- end -}}
{{- end -}}

{{- define "cerebro.server" -}}
http://{{ include "cerebro.host" (dict "root" . "component" "kvs-api") }}:7070
{{- end -}}

{{/* A key of the Secret with tokens. Of: (dict "root" $ "name" "CEREBRO_TOKEN" "key" "token"). */}}
{{- define "cerebro.env.secret" -}}
- name: {{ .name }}
  valueFrom:
    secretKeyRef:
      name: {{ include "cerebro.auth.name" .root }}
      key: {{ .key }}
{{- end -}}

{{- define "cerebro.env.token" -}}
{{- include "cerebro.env.secret" (dict "root" . "name" "CEREBRO_TOKEN" "key" "token") -}}
{{- end -}}

{{/* Of everyone who talks to kvs-api; where there are users, services have tokens of their own.
     Of: (dict "root" $ "role" "worker"), or no role: with the token of the cluster. */}}
{{- define "cerebro.env.client" -}}
{{- $key := ternary (printf "%s-token" .role) "token" (and (eq .root.Values.auth.mode "users") (ne .role "")) -}}
- name: CEREBRO_SERVER
  value: {{ include "cerebro.server" .root }}
{{ include "cerebro.env.secret" (dict "root" .root "name" "CEREBRO_TOKEN" "key" $key) }}
{{- end -}}

{{/* Whose ID tokens the page believes. */}}
{{- define "cerebro.env.oidc" -}}
{{- $oidc := .Values.auth.oidc -}}
{{- if $oidc.issuer }}
{{- range $name, $value := dict "ISSUER" $oidc.issuer "AUDIENCE" $oidc.audience "JWKS_URL" $oidc.jwksUrl "HEADER" $oidc.header "NAME_CLAIM" $oidc.nameClaim "GROUPS_CLAIM" $oidc.groupsClaim "GROUPS" (toJson $oidc.groups) }}
- name: CEREBRO_OIDC_{{ $name }}
  value: {{ $value | quote }}
{{- end }}
{{- end }}
{{- end -}}

{{- define "cerebro.env.authMode" -}}
{{- if eq .Values.auth.mode "users" }}
- name: CEREBRO_AUTH_MODE
  value: users
{{- end }}
{{- end -}}

{{/* Threads that mostly wait: more arenas or computing threads would cost memory and bring nothing. */}}
{{- define "cerebro.env.controlPlane" -}}
- name: MALLOC_ARENA_MAX
  value: "2"
- name: OMP_NUM_THREADS
  value: "1"
{{- end -}}

{{/* Of everyone that writes a log, and where else than on its public port it can be asked. Of: (dict "root" $ "port" 7071). */}}
{{- define "cerebro.env.observed" -}}
- name: CEREBRO_LOG_FORMAT
  value: {{ .root.Values.logs.format }}
- name: CEREBRO_HEALTH_BIND
  value: "[::]:{{ .port }}"
{{- end -}}

{{- define "cerebro.env.objectStore" -}}
{{- with .Values.objectStore.endpoint }}
- name: AWS_ENDPOINT_URL
  value: {{ . | quote }}
{{- end }}
{{- with .Values.objectStore.region }}
- name: AWS_REGION
  value: {{ . | quote }}
- name: AWS_DEFAULT_REGION
  value: {{ . | quote }}
{{- end }}
{{- end -}}

{{- define "cerebro.envFrom.objectStore" -}}
{{- include "cerebro.envFrom.secret" .Values.objectStore.existingSecret }}
{{- end -}}

{{/* Of the name of a Secret, or nothing. */}}
{{- define "cerebro.envFrom.secret" -}}
{{- with . }}
envFrom:
  - secretRef:
      name: {{ . }}
{{- end }}
{{- end -}}
