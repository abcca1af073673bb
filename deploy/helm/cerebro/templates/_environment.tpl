{{/* Environment of the containers. Settings are in the pod specs, not in ConfigMaps: a changed value changes only the
     pods that use it, and Kubernetes restarts only these. */}}

{{/* How pods find services: "dns", or "environment" (variables that the kubelet sets). In a cluster with DNS, a system
     service has port 53. */}}
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

{{/* Environment of all clients of kvs-api. With auth.mode users, services have separate tokens.
     Of: (dict "root" $ "role" "worker"); without a role: the cluster's token. */}}
{{- define "cerebro.env.client" -}}
{{- $key := ternary (printf "%s-token" .role) "token" (and (eq .root.Values.auth.mode "users") (ne .role "")) -}}
- name: CEREBRO_SERVER
  value: {{ include "cerebro.server" .root }}
{{ include "cerebro.env.secret" (dict "root" .root "name" "CEREBRO_TOKEN" "key" $key) }}
{{- end -}}

{{/* Identity provider that the page trusts. */}}
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

{{/* For threads that mostly wait: more malloc arenas or compute threads would only cost memory. */}}
{{- define "cerebro.env.controlPlane" -}}
- name: MALLOC_ARENA_MAX
  value: "2"
- name: OMP_NUM_THREADS
  value: "1"
{{- end -}}

{{/* Environment of all services that write logs, with the port for health and metrics. Of: (dict "root" $ "port"
     7071). */}}
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

{{/* Environment from a Secret. Of: the Secret's name, or nothing. */}}
{{- define "cerebro.envFrom.secret" -}}
{{- with . }}
envFrom:
  - secretRef:
      name: {{ . }}
{{- end }}
{{- end -}}
