{{/* Checks for values that contradict each other or the cluster. Each check yields a line with the field and the
     remedy. */}}

{{- define "cerebro.checks" -}}
{{- include "cerebro.checks.worker" . }}
{{- include "cerebro.checks.store" . }}
{{- include "cerebro.checks.pages" . }}
{{- include "cerebro.checks.storage" . }}
{{- include "cerebro.checks.podSecurity" . }}
{{- include "cerebro.checks.secrets" . }}
{{- include "cerebro.checks.monitoring" . }}
{{- end -}}

{{/* Checks that the Prometheus operator's kinds exist. Skipped without access to a cluster. */}}
{{- define "cerebro.checks.monitoring" -}}
{{- if and (dig "nodes" 0 (include "cerebro.storage.cluster" . | fromJson)) (not (.Capabilities.APIVersions.Has "monitoring.coreos.com/v1")) }}
{{- range list "serviceMonitor" "rules" }}
{{- if (index $.Values.monitoring .).enabled }}
monitoring.{{ . }}.enabled is true and the cluster has no Prometheus operator (monitoring.coreos.com/v1): install it first (deploy/helm/monitoring), or set monitoring.{{ . }}.enabled=false
{{- end }}
{{- end }}
{{- end }}
{{- end -}}

{{- define "cerebro.checks.worker" -}}
{{- $worker := .Values.worker }}
{{- if and (eq .Values.autoscaler.mode "act") (eq $worker.shards.whenScaled "Delete") (lt (int .Values.autoscaler.minWorkers) (int $worker.replicas)) }}
autoscaler.mode is act, and worker.shards.whenScaled is Delete: what workers hold would be made anew after each rest; set worker.shards.whenScaled=Retain, or autoscaler.minWorkers={{ $worker.replicas }}
{{- end }}
{{- if and (gt (int .Values.autoscaler.mostWorkers) 0) (gt (int .Values.autoscaler.minWorkers) (int .Values.autoscaler.mostWorkers)) }}
autoscaler.minWorkers is {{ .Values.autoscaler.minWorkers }} and autoscaler.mostWorkers is {{ .Values.autoscaler.mostWorkers }}: set autoscaler.minWorkers to at most that
{{- end }}
{{- if and .Values.autoscaler.resize (not .Values.autoscaler.maxMemory) }}
autoscaler.resize is true and autoscaler.maxMemory is empty: say how much memory a worker may be given, such as autoscaler.maxMemory=64Gi
{{- end }}
{{- if and .Values.autoscaler.maxMemory (not .Values.autoscaler.resize) }}
autoscaler.maxMemory is {{ .Values.autoscaler.maxMemory }} and autoscaler.resize is false: set autoscaler.resize=true, or leave it out
{{- end }}
{{- if and (gt (int $worker.gpus) 0) (not .Values.images.worker.cuda) }}
worker.gpus is {{ $worker.gpus }} and images.worker.cuda is false: build the worker image with CUDA and set images.worker.cuda=true, or set worker.gpus=0
{{- end }}
{{- $cores := include "cerebro.worker.cores" (dict "worker" $worker "container" "worker") }}
{{- if gt (int $worker.gpus) 0 }}
{{- if gt (int $worker.devices) (int $worker.gpus) }}
worker.devices is {{ $worker.devices }} and worker.gpus is {{ $worker.gpus }}: each device is a GPU; set at most worker.devices={{ $worker.gpus }}, or 0 for all
{{- end }}
{{- else if and (ne $cores "node") (gt (int $worker.devices) (int $cores)) }}
worker.devices is {{ $worker.devices }} and each worker has {{ $cores }} thread(s): a device needs one; set worker.resources.worker.requests.cpu={{ $worker.devices }} or more, or fewer devices
{{- end }}
{{- range $container, $resources := $worker.resources }}
{{- range list "limits" "requests" }}
{{- if hasKey (index $resources . | default dict) $worker.gpuResource }}
worker.resources.{{ $container }}.{{ . }} names {{ $worker.gpuResource }}: GPUs belong to the container `worker`; set worker.gpus instead
{{- end }}
{{- end }}
{{- end }}
{{- end -}}

{{/* Checks that the namespace allows pods with a root init container; otherwise the API server rejects the pods.
     Skipped without access to a cluster. */}}
{{- define "cerebro.checks.podSecurity" -}}
{{- if and (eq .Values.storage.handOver "always") (not (include "cerebro.podUser" .)) }}
podSecurityContext.runAsUser is null and storage.handOver is always: volumes cannot be handed over to a user that the cluster chooses; name the user, or set storage.handOver=never
{{- end }}
{{- if dig "nodes" 0 (include "cerebro.storage.cluster" . | fromJson) }}
{{- $namespace := lookup "v1" "Namespace" "" .Release.Namespace | default dict }}
{{- if eq "restricted" (dig "metadata" "labels" "pod-security.kubernetes.io/enforce" "" $namespace) }}
{{- $roots := list }}
{{- range list "checkpoints" "code" "metrics" "shared" }}
{{- if include "cerebro.storage.isRoots" (dict "root" $ "decision" (include "cerebro.storage.shared" (dict "root" $ "name" .) | fromJson)) }}
{{- $roots = append $roots (printf "storage.%s" .) }}
{{- end }}
{{- end }}
{{- range list (dict "component" "worker" "field" "worker.shards" "volume" .Values.worker.shards) (dict "component" "redis" "field" "redis.storage" "volume" .Values.redis.storage) }}
{{- if include "cerebro.storage.isRoots" (dict "root" $ "decision" (include "cerebro.storage.template" (merge (dict "root" $) .) | fromJson)) }}
{{- $roots = append $roots .field }}
{{- end }}
{{- end }}
{{- with $roots }}
namespace {{ $.Release.Namespace }} enforces the Pod Security profile `restricted`, and volumes of {{ join ", " . }} belong to root (storage.handOver={{ $.Values.storage.handOver }}), so that pods would have to begin as root and would never be made: set storage.className and storage.podClassName to classes whose volumes their user may write to; or storage.handOver=never, with volumes that belong to user {{ include "cerebro.podUser" $ | default "of the namespace" }}; or have the namespace enforce less (kubectl label namespace {{ $.Release.Namespace }} --overwrite pod-security.kubernetes.io/enforce=baseline)
{{- end }}
{{- end }}
{{- end }}
{{- end -}}

{{- define "cerebro.checks.store" -}}
{{- $external := .Values.redis.external }}
{{- if and $external.enabled (not $external.existingSecret) }}
redis.external.existingSecret is empty and redis.external.enabled is true: name the Secret whose key redis.external.key ({{ $external.key }}) holds the URL
{{- end }}
{{- if and $external.existingSecret (not $external.enabled) }}
redis.external.existingSecret is set and redis.external.enabled is false: set redis.external.enabled=true, or leave the Secret out
{{- end }}
{{- $kvs := .Values.kvsApi }}
{{- if and $kvs.podDisruptionBudget.enabled (ge (int $kvs.podDisruptionBudget.minAvailable) (int $kvs.replicas)) }}
kvsApi.podDisruptionBudget.minAvailable is {{ $kvs.podDisruptionBudget.minAvailable }} of kvsApi.replicas={{ $kvs.replicas }}: no node could ever be drained; lower it, or set kvsApi.podDisruptionBudget.enabled=false
{{- end }}
{{- end -}}

{{- define "cerebro.checks.pages" -}}
{{- if and .Values.export.mlflow.enabled (not .Values.export.mlflow.url) }}
export.mlflow.enabled is true and export.mlflow.url is empty: set the address of the tracking server, such as http://mlflow.mlflow:5000
{{- end }}
{{- range $name := list "tensorboard" "notebook" }}
{{- if and (index $.Values.dispatcher.links $name) (not (index $.Values $name).enabled) }}
dispatcher.links.{{ $name }} is set and {{ $name }}.enabled is false: the page would link what is not there; set {{ $name }}.enabled=true, or leave the link out
{{- end }}
{{- end }}
{{- range $name := list "dispatcher" "notebook" }}
{{- $page := index $.Values $name }}
{{- if $page.ingress.enabled }}
{{- if not (dig "enabled" true (omit $page "ingress")) }}
{{ $name }}.ingress.enabled is true and {{ $name }}.enabled is false: set {{ $name }}.enabled=true, or {{ $name }}.ingress.enabled=false
{{- end }}
{{- if not $page.ingress.host }}
{{ $name }}.ingress.host is empty: set the name under which browsers reach it
{{- end }}
{{- end }}
{{- if and $page.service.nodePort (ne $page.service.type "NodePort") }}
{{ $name }}.service.nodePort is {{ $page.service.nodePort }} and {{ $name }}.service.type is {{ $page.service.type }}: set the type to NodePort, or nodePort to 0
{{- end }}
{{- end }}
{{- $auth := .Values.dispatcher.auth }}
{{- if ne (empty $auth.header) (empty $auth.proxies) }}
dispatcher.auth.header is {{ $auth.header | quote }} and dispatcher.auth.proxies is {{ $auth.proxies | toJson }}: a header is believed of the proxies that are named; set both, or none
{{- end }}
{{- if and (eq .Values.auth.mode "users") $auth.header }}
dispatcher.auth.header is {{ $auth.header | quote }} and auth.mode is users: a bare header is not believed there; have the proxy hand on the ID token, and set auth.oidc
{{- end }}
{{- $oidc := .Values.auth.oidc }}
{{- if and $oidc.issuer (ne .Values.auth.mode "users") }}
auth.oidc.issuer is {{ $oidc.issuer | quote }} and auth.mode is {{ .Values.auth.mode }}: set auth.mode=users
{{- end }}
{{- if and $oidc.issuer (or (not $oidc.audience) (not $oidc.groups)) }}
auth.oidc.issuer is set without audience or groups: name the client's id at the provider, and what at least one group is
{{- end }}
{{- if and (eq .Values.auth.mode "users") .Values.notebook.enabled }}
notebook.enabled is true and auth.mode is users: everybody would act with one token there; set notebook.enabled=false, and give each user's notebook a token of theirs
{{- end }}
{{- $own := .Values.dispatcher.objectStore }}
{{- if and (or $own.existingSecret $own.serviceAccountAnnotations) (not $own.enabled) }}
dispatcher.objectStore names credentials and dispatcher.objectStore.enabled is false: set dispatcher.objectStore.enabled=true, or leave them out
{{- end }}
{{- $common := .Values.objectStore }}
{{- if and $own.enabled (not (or $own.existingSecret $own.serviceAccountAnnotations $common.existingSecret $common.serviceAccountAnnotations)) }}
dispatcher.objectStore.enabled is true and nothing says with which credentials: name a Secret in dispatcher.objectStore.existingSecret, or annotations of a service account; roles of nodes are not used
{{- end }}
{{- $hosts := list .Values.dispatcher.ingress .Values.notebook.ingress }}
{{- if and (first $hosts).enabled (last $hosts).enabled (first $hosts).host (eq (first $hosts).host (last $hosts).host) }}
notebook.ingress.host is dispatcher.ingress.host ({{ (first $hosts).host }}): both answer at "/", so each needs a name of its own
{{- end }}
{{- end -}}

{{- define "cerebro.checks.storage" -}}
{{- range list "checkpoints" "code" "metrics" "shared" }}
{{- if not (index $.Values.storage .).existingClaim }}
{{- with (include "cerebro.storage.shared" (dict "root" $ "name" .) | fromJson).problem }}
{{ . }}
{{- end }}
{{- end }}
{{- end }}
{{- $own := list (dict "component" "worker" "field" "worker.shards" "volume" .Values.worker.shards) }}
{{- if not .Values.redis.external.enabled }}
{{- $own = append $own (dict "component" "redis" "field" "redis.storage" "volume" .Values.redis.storage) }}
{{- end }}
{{- range $own }}
{{- with (include "cerebro.storage.template" (merge (dict "root" $) .) | fromJson).problem }}
{{ . }}
{{- end }}
{{- end }}
{{- if and .Values.notebook.enabled (not .Values.notebook.home.existingClaim) }}
{{- with (include "cerebro.notebook.home" . | fromJson).problem }}
{{ . }}
{{- end }}
{{- end }}
{{- end -}}

{{/* Checks that the user's Secrets exist. Skipped without access to a cluster. */}}
{{- define "cerebro.checks.secrets" -}}
{{- if dig "nodes" 0 (include "cerebro.storage.cluster" . | fromJson) }}
{{- $redis := .Values.redis.external }}
{{- $authKeys := ternary (list "token") (list "token" "redis-password") $redis.enabled }}
{{- if eq .Values.auth.mode "users" }}
{{- $authKeys = concat $authKeys (splitList " " (include "cerebro.auth.serviceKeys" .)) }}
{{- end }}
{{- range $it := list
      (dict "field" "auth.existingSecret" "name" .Values.auth.existingSecret "keys" $authKeys)
      (dict "field" "redis.external.existingSecret" "name" $redis.existingSecret "keys" (list $redis.key))
      (dict "field" "objectStore.existingSecret" "name" .Values.objectStore.existingSecret "keys" list)
      (dict "field" "dispatcher.objectStore.existingSecret" "name" .Values.dispatcher.objectStore.existingSecret "keys" list) }}
{{- if .name }}
{{- $secret := lookup "v1" "Secret" $.Release.Namespace .name }}
{{- if not $secret }}
{{ .field }} is {{ .name }}: there is no such Secret in namespace {{ $.Release.Namespace }}; create it first
{{- else }}
{{- $missing := without .keys }}
{{- range .keys }}{{ if hasKey ($secret.data | default dict) . }}{{ $missing = without $missing . }}{{ end }}{{ end }}
{{- with $missing }}
{{ $it.field }} is {{ $it.name }}, a Secret without the key {{ join ", " . }}: add it
{{- end }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}
{{- end -}}
