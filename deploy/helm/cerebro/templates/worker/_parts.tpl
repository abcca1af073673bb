{{/* Parts of the worker's pod. */}}

{{/* Number of workers in the manifest. Usually empty, because the controller scales the StatefulSet, and a rollback to
     a revision with a number would fail after a scale. StatefulSets of charts before 0.3 keep the number that
     Helm wrote while Helm owns the field: without the field, Kubernetes would set 1. Helm 4 uses server-side
     apply and cannot change fields of other managers; Helm 3 has neither restriction. Of: (dict "set" SET), the
     existing StatefulSet, or nothing. */}}
{{- define "cerebro.worker.replicas" -}}
{{- $set := default dict .set -}}
{{- if dig "metadata" "annotations" "cerebro/replicas" "" $set -}}
{{- $isApplied := false }}{{ $isOthers := false -}}
{{- range dig "metadata" "managedFields" list $set -}}
{{- if and (eq .manager "helm") (eq .operation "Apply") }}{{ $isApplied = true }}
{{- else if hasKey (dig "fieldsV1" "f:spec" dict .) "f:replicas" }}{{ $isOthers = true }}{{ end -}}
{{- end -}}
{{- if not (and $isApplied $isOthers) }}{{ $set.spec.replicas }}{{ end -}}
{{- end -}}
{{- end -}}

{{/* Threads of a container: worker.cores; otherwise its CPU limit or, without a limit, its CPU request, in full cores.
     All cores of the node only with "node": several workers on a node would compete for the cores and train
     several times slower. Of: (dict "worker" .Values.worker "container" "etl"). */}}
{{- define "cerebro.worker.cores" -}}
{{- $resources := index .worker.resources .container | default dict -}}
{{- $cpu := coalesce (dig "limits" "cpu" "" $resources) (dig "requests" "cpu" "" $resources) 1 | toString -}}
{{- $asked := ternary (divf (trimSuffix "m" $cpu | float64) 1000.0) (float64 $cpu) (hasSuffix "m" $cpu) -}}
{{- .worker.cores | default (ceil $asked | int | max 1) -}}
{{- end -}}

{{/* Environment of one container. Of: (dict "root" $ "container" "etl" "port" 7073). The pod's other container is a
     separate worker; both use the data on the pod's volume. */}}
{{- define "cerebro.worker.env" -}}
{{- $worker := .root.Values.worker -}}
{{ include "cerebro.env.client" (dict "root" .root "role" "worker") }}
{{- include "cerebro.env.objectStore" .root }}
- name: CEREBRO_POD
  valueFrom:
    fieldRef:
      fieldPath: metadata.name
- name: CEREBRO_POD_UID
  valueFrom:
    fieldRef:
      fieldPath: metadata.uid
- name: CEREBRO_CONTAINER
  value: {{ .container }}
- name: CEREBRO_WORKER
  value: {{ ternary "$(CEREBRO_POD)-etl" "$(CEREBRO_POD)" (eq .container "etl") }}
{{- $cores := include "cerebro.worker.cores" (dict "worker" $worker "container" .container) }}
{{- range list "CEREBRO_CORES" "OMP_NUM_THREADS" }}
- name: {{ . }}
  {{- if eq $cores "node" }}
  valueFrom:
    # Without a limit: all cores of the node.
    resourceFieldRef:
      containerName: {{ $.container }}
      resource: limits.cpu
      divisor: "1"
  {{- else }}
  value: {{ $cores | quote }}
  {{- end }}
{{- end }}
- name: CEREBRO_NODE
  valueFrom:
    fieldRef:
      fieldPath: spec.nodeName
{{- $devices := ternary 1 (int $worker.devices) (eq .container "etl") }}
{{- with $devices }}
- name: CEREBRO_DEVICES
  value: {{ . | quote }}
{{- end }}
{{- with $worker.weight }}
- name: CEREBRO_WEIGHT
  value: {{ . | quote }}
{{- end }}
- name: CEREBRO_LEASE_S
  value: {{ .root.Values.controller.leaseS | quote }}
- name: CEREBRO_GRACE_S
  value: {{ $worker.graceS | quote }}
{{- if not (kindIs "invalid" $worker.savepointS) }}
- name: CEREBRO_SAVEPOINT_S
  value: {{ $worker.savepointS | quote }}
{{- end }}
- name: CEREBRO_TASK_LOG_MIB
  value: {{ $worker.taskLogMiB | quote }}
- name: CEREBRO_FROZEN_CACHE_MIB
  value: {{ $worker.frozenCacheMiB | quote }}
{{- if has (toString $worker.sandbox) (list "on" "true") }}
- name: CEREBRO_SANDBOX
  value: "on"
{{- with $worker.sandboxWritable }}
- name: CEREBRO_SANDBOX_WRITABLE
  value: {{ join ":" . | quote }}
{{- end }}
{{- end }}
{{- if and $worker.gangs.enabled (ne .container "etl") }}
- name: CEREBRO_ADDRESS
  valueFrom:
    fieldRef:
      fieldPath: status.podIP
- name: CEREBRO_GANG_PORT
  value: {{ $worker.gangs.port | quote }}
{{- end }}
{{- with $worker.failureRules }}
- name: CEREBRO_FAILURE_RULES
  value: {{ . | toJson | quote }}
{{- end }}
{{- with $worker.deviceMemory }}
- name: CEREBRO_DEVICE_MEMORY
  value: {{ . | quote }}
{{- end }}
{{ include "cerebro.env.observed" . }}
{{- end -}}

{{/* Resources of the container that owns the GPUs. */}}
{{- define "cerebro.worker.resources" -}}
{{- $resources := deepCopy .resources.worker -}}
{{- if gt (int .gpus) 0 -}}
{{- $_ := set $resources "limits" (merge (dict .gpuResource (int .gpus)) (default dict $resources.limits)) -}}
{{- end -}}
{{ toYaml $resources }}
{{- end -}}
