{{/* What containers are told. Settings stand in the pods themselves and not in ConfigMaps: a changed value changes the
     pods that it concerns, and Kubernetes restarts these and no others. */}}

{{- define "cerebro.server" -}}
http://{{ include "cerebro.fullname" . }}-kvs-api:7070
{{- end -}}

{{- define "cerebro.env.token" -}}
- name: CEREBRO_TOKEN
  valueFrom:
    secretKeyRef:
      name: {{ include "cerebro.auth.name" . }}
      key: token
{{- end -}}

{{/* Of everyone who talks to kvs-api. */}}
{{- define "cerebro.env.client" -}}
- name: CEREBRO_SERVER
  value: {{ include "cerebro.server" . }}
{{ include "cerebro.env.token" . }}
{{- end -}}

{{/* Threads that mostly wait: more arenas or computing threads would cost memory and bring nothing. */}}
{{- define "cerebro.env.controlPlane" -}}
- name: MALLOC_ARENA_MAX
  value: "2"
- name: OMP_NUM_THREADS
  value: "1"
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
{{- with .Values.objectStore.existingSecret }}
envFrom:
  - secretRef:
      name: {{ . }}
{{- end }}
{{- end -}}
