{{/* Building blocks of NetworkPolicies. */}}

{{/* Head of the policy of one component. Of: (dict "root" $ "component" "redis"). */}}
{{- define "cerebro.policy" -}}
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata:
  {{- include "cerebro.metadata" . | nindent 2 }}
spec:
  podSelector:
    matchLabels:
      {{- include "cerebro.selector" . | nindent 6 }}
  policyTypes: [Ingress, Egress]
{{- end -}}

{{/* Peers that are components of this release. Of: (dict "root" $ "components" (list "controller" "worker")). */}}
{{- define "cerebro.policy.components" -}}
{{- range .components }}
- podSelector:
    matchLabels:
      {{- include "cerebro.selector" (dict "root" $.root "component" .) | nindent 6 }}
{{- end }}
{{- end -}}

{{/* DNS, at any address. */}}
{{- define "cerebro.policy.dns" -}}
- ports:
    - port: 53
      protocol: UDP
    - port: 53
      protocol: TCP
{{- end -}}

{{/* To kvs-api. */}}
{{- define "cerebro.policy.store" -}}
- to:
    {{- include "cerebro.policy.components" (dict "root" . "components" (list "kvs-api")) | trim | nindent 4 }}
  ports:
    - port: 7070
{{- end -}}

{{/* To the peers of a list; to any destination if the list is empty. */}}
{{- define "cerebro.policy.peers" -}}
{{- if . -}}
- to:
    {{- toYaml . | nindent 4 }}
{{- else -}}
- {}
{{- end -}}
{{- end -}}

{{/* From the page to the object store and its port. Without a user's endpoint the store is AWS, so without peers only
     public addresses are allowed. */}}
{{- define "cerebro.policy.objectStore" -}}
{{- $place := .Values.networkPolicy.egress.objectStore -}}
{{- $peers := $place.peers | default .Values.networkPolicy.egress.peers -}}
{{- $endpoint := urlParse .Values.objectStore.endpoint -}}
{{- $usual := ternary 80 443 (eq $endpoint.scheme "http") -}}
{{- $port := regexFind ":[0-9]+$" $endpoint.host | trimPrefix ":" | default $usual -}}
- ports:
    - port: {{ $place.port | default $port }}
  {{- if $peers }}
  to:
    {{- toYaml $peers | nindent 4 }}
  {{- else if not .Values.objectStore.endpoint }}
  to:
    {{- include "cerebro.policy.public" . | nindent 4 }}
  {{- end }}
{{- end -}}

{{/* From the page to the keys of the identity provider. */}}
{{- define "cerebro.policy.oidc" -}}
{{- $place := urlParse (.Values.auth.oidc.jwksUrl | default .Values.auth.oidc.issuer) -}}
{{- $usual := ternary 80 443 (eq $place.scheme "http") -}}
- ports:
    - port: {{ regexFind ":[0-9]+$" $place.host | trimPrefix ":" | default $usual }}
  to:
  {{- with .Values.networkPolicy.egress.oidc }}
    {{- toYaml . | nindent 4 }}
  {{- else }}
    {{- include "cerebro.policy.public" . | nindent 4 }}
  {{- end }}
{{- end -}}

{{/* From Prometheus to a component's metrics ports, if the ServiceMonitor is enabled. Of: (dict "root" $ "component"
     "worker"). */}}
{{- define "cerebro.policy.metrics" -}}
{{- if .root.Values.monitoring.serviceMonitor.enabled }}
- ports:
    {{- range index (include "cerebro.monitoring.ports" .root | fromYaml) .component }}
    - port: {{ . }}
    {{- end }}
  {{- with .root.Values.networkPolicy.ingress.prometheus }}
  from:
    {{- toYaml . | nindent 4 }}
  {{- end }}
{{- end }}
{{- end -}}

{{/* From the peers of a list; from any source if the list is empty. Of: (dict "peers" PEERS "port" 7080). */}}
{{- define "cerebro.policy.outside" -}}
- ports:
    - port: {{ .port }}
  {{- with .peers }}
  from:
    {{- toYaml . | nindent 4 }}
  {{- end }}
{{- end -}}

{{/* Public IPv4 and IPv6 addresses, without private addresses and metadata services. */}}
{{- define "cerebro.policy.public" -}}
- ipBlock:
    cidr: 0.0.0.0/0
    except: [10.0.0.0/8, 100.64.0.0/10, 169.254.0.0/16, 172.16.0.0/12, 192.168.0.0/16]
- ipBlock:
    cidr: 2000::/3
{{- end -}}
