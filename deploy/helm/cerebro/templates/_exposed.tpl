{{/* Service and Ingress of the components with outside access: dispatcher and notebook. */}}

{{/* Of: (dict "root" $ "component" "notebook" "service" .Values.notebook.service). */}}
{{- define "cerebro.exposed.service" -}}
apiVersion: v1
kind: Service
metadata:
  {{- include "cerebro.metadata" . | nindent 2 }}
  {{- with .service.annotations }}
  annotations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
spec:
  type: {{ .service.type }}
  selector:
    {{- include "cerebro.selector" . | nindent 4 }}
  ports:
    - name: http
      port: {{ .service.port }}
      targetPort: http
      {{- if and (eq .service.type "NodePort") .service.nodePort }}
      nodePort: {{ .service.nodePort }}
      {{- end }}
{{- end -}}

{{/* Of: (dict "root" $ "component" "notebook" "ingress" .Values.notebook.ingress). */}}
{{- define "cerebro.exposed.ingress" -}}
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata:
  {{- include "cerebro.metadata" . | nindent 2 }}
  {{- with .ingress.annotations }}
  annotations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
spec:
  {{- with .ingress.className }}
  ingressClassName: {{ . }}
  {{- end }}
  {{- with .ingress.tlsSecret }}
  tls:
    - hosts: [{{ $.ingress.host }}]
      secretName: {{ . }}
  {{- end }}
  rules:
    - host: {{ .ingress.host }}
      http:
        paths:
          - path: /
            pathType: Prefix
            backend:
              service:
                name: {{ include "cerebro.component" . }}
                port:
                  name: http
{{- end -}}

{{/* Address of the Ingress or, without an Ingress, of the port forwarding from NOTES. Of: (dict "ingress" I "port"
     8888). */}}
{{- define "cerebro.exposed.address" -}}
{{- if .ingress.enabled -}}
{{- printf "%s://%s" (ternary "https" "http" (or .ingress.isTls (ne .ingress.tlsSecret ""))) .ingress.host -}}
{{- else -}}
{{- printf "http://127.0.0.1:%v" .port -}}
{{- end -}}
{{- end -}}
