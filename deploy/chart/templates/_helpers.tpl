{{- define "weft.labels" -}}
app.kubernetes.io/name: weft
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
{{- end }}

{{- define "weft.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{- /* The annotations of a pod that reads the ConfigMap: it is replaced when that changes. */ -}}
{{- define "weft.podAnnotations" -}}
kubectl.kubernetes.io/default-container: {{ .container }}
checksum/config: {{ include (print .root.Template.BasePath "/configmap.yaml") .root | sha256sum }}
{{- end }}

{{- /* What both pods read: the configuration, and who they are to the API server. */ -}}
{{- define "weft.volumeMounts" -}}
- {name: config, mountPath: /etc/weft, readOnly: true}
- {name: token, mountPath: /var/run/secrets/kubernetes.io/serviceaccount, readOnly: true}
{{- end }}

{{- define "weft.tokenVolume" -}}
- name: token
  projected:
    sources:
    - serviceAccountToken: {path: token, expirationSeconds: 3607}
    - configMap:
        name: kube-root-ca.crt
        items: [{key: ca.crt, path: ca.crt}]
{{- end }}

{{- /* The UDP port of the overlay, as the cluster begins; empty where it has none. */ -}}
{{- define "weft.tunnelPort" -}}
{{- $backend := (.Values.flannel.netConf).Backend | default dict }}
{{- if hasPrefix "flannel" .Values.network.plugin }}
{{- if eq ($backend.Type | default "vxlan") "vxlan" }}{{ int ($backend.Port | default 8472) }}{{ end }}
{{- else }}{{ int (.Values.network.vxlanPort | default 4789) }}{{ end }}
{{- end }}

{{- define "weft.probe" -}}
httpGet: {host: 127.0.0.1, path: {{ .path }}, port: {{ .port }}, scheme: HTTP}
{{- end }}

{{- define "weft.pullSecrets" -}}
{{- with .Values.image.pullSecrets }}
imagePullSecrets:
{{- range . }}
- name: {{ . }}
{{- end }}
{{- end }}
{{- end }}
