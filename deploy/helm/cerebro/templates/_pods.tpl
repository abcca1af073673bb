{{/* Settings that all pods share: user, permissions, placement. */}}

{{/* Head of every pod spec. Of: (dict "root" $ "component" "redis" "place" .Values.redis "tier" "controlPlane").
       tier: selects the nodes
       priority: tier for the PriorityClass, if different: a notebook must not preempt a worker */}}
{{- define "cerebro.podSpec" -}}
serviceAccountName: {{ include "cerebro.component" . }}
automountServiceAccountToken: {{ eq .component "controller" }}
# Variables for each Service of the namespace: needed only without DNS.
enableServiceLinks: {{ eq "environment" (include "cerebro.discovery" .root) }}
securityContext:
  runAsNonRoot: true
  {{- range $name, $id := .root.Values.podSecurityContext }}
  {{- if not (kindIs "invalid" $id) }}
  {{ $name }}: {{ int64 $id }}
  {{- end }}
  {{- end }}
  fsGroupChangePolicy: OnRootMismatch
  seccompProfile:
    type: RuntimeDefault
{{- with .root.Values.images.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
{{- with include "cerebro.priorityClass" (dict "root" .root "tier" (.priority | default .tier)) }}
priorityClassName: {{ . }}
{{- end }}
{{- $common := ternary .root.Values.controlPlane dict (eq .tier "controlPlane") }}
{{- with .place.nodeSelector | default $common.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .place.tolerations | default $common.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .place.affinity | default $common.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* Name of a tier's PriorityClass; empty for none. Of: (dict "root" $ "tier" "worker"). */}}
{{- define "cerebro.priorityClass" -}}
{{- $classes := .root.Values.priorityClasses -}}
{{- $name := (index $classes .tier).name -}}
{{- if $name -}}
{{- $name -}}
{{- else if $classes.create -}}
{{- printf "%s-%s-%s" .root.Release.Namespace (include "cerebro.fullname" .root) (kebabcase .tier) -}}
{{- end -}}
{{- end -}}

{{/* Part of every container. Of: (dict "root" $ "image" "control"). */}}
{{- define "cerebro.container" -}}
image: {{ include "cerebro.image" . }}
imagePullPolicy: {{ .root.Values.images.pullPolicy }}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities:
    drop: [ALL]
{{- end -}}

{{/* Spread over nodes, if possible. */}}
{{- define "cerebro.spread" -}}
topologySpreadConstraints:
  - maxSkew: 1
    topologyKey: kubernetes.io/hostname
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels:
        {{- include "cerebro.selector" . | nindent 8 }}
{{- end -}}

{{/* Probes. The startup probe runs every second, so that a start is noticed within a second. Ready: the service can do
     its work. Live: the process works, regardless of the store; a restart would not help a process that waits for
     the store.
     Of: (dict "port" "http" "ready" "/health" "live" "/live" "startS" 60 "answerS" 5)
       live: "" for a program without such a path: it is alive while it accepts connections
       answerS: timeout in seconds; longer if requests can queue */}}
{{- define "cerebro.probes" -}}
{{- $live := dict "tcpSocket" (dict "port" .port) -}}
{{- if .live }}{{ $live = dict "httpGet" (dict "path" .live "port" .port) }}{{ end -}}
startupProbe:
  {{- toYaml $live | nindent 2 }}
  periodSeconds: 1
  timeoutSeconds: 5
  failureThreshold: {{ .startS }}
readinessProbe:
  httpGet:
    path: {{ .ready }}
    port: {{ .port }}
  periodSeconds: 2
  timeoutSeconds: 5
  failureThreshold: 3
livenessProbe:
  {{- toYaml $live | nindent 2 }}
  periodSeconds: {{ max 10 .answerS }}
  timeoutSeconds: {{ .answerS }}
  failureThreshold: {{ ternary 3 6 (gt .answerS 10) }}
{{- end -}}

{{/* Command that listens on a port, answers probes, and starts the server in `args` at the first other request: an
     idle pod takes a quarter of the memory. */}}
{{- define "cerebro.onDemand" -}}
{{ list "python" "-P" "-m" "cerebro.runtime.web.on_demand" (printf "--bind=[::]:%d" (int .)) "--" | toJson }}
{{- end -}}

{{/* A service account without permissions. Of: (dict "root" $ "component" "redis" "annotations" ...). */}}
{{- define "cerebro.serviceAccount" -}}
apiVersion: v1
kind: ServiceAccount
metadata:
  {{- include "cerebro.metadata" . | nindent 2 }}
  {{- with .annotations }}
  annotations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
automountServiceAccountToken: false
{{- end -}}

{{/* Not empty from Kubernetes 1.27: older API servers reject newer fields. */}}
{{- define "cerebro.refined" -}}
{{- if semverCompare ">=1.27.0-0" .Capabilities.KubeVersion.Version }}yes{{ end -}}
{{- end -}}

{{/* New owner of volumes: "USER:GROUP" of the pods; empty if the cluster chooses the user. */}}
{{- define "cerebro.podUser" -}}
{{- $ids := .Values.podSecurityContext -}}
{{- if not (kindIs "invalid" $ids.runAsUser) -}}
{{- $group := ternary $ids.runAsUser $ids.runAsGroup (kindIs "invalid" $ids.runAsGroup) -}}
{{ int64 $ids.runAsUser }}:{{ int64 $group }}
{{- end -}}
{{- end -}}
