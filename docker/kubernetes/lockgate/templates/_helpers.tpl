{{- define "lockgate.name" -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- end }}

{{- define "lockgate.selector" -}}
app.kubernetes.io/name: lockgate
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "lockgate.labels" -}}
{{ include "lockgate.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{- define "lockgate.serviceAccount" -}}
{{- .Values.serviceAccount.name | default (include "lockgate.name" .) -}}
{{- end }}

{{- define "lockgate.pod" -}}
{{- with .Values.imagePullSecrets }}
imagePullSecrets: {{ toYaml . | nindent 2 }}
{{- end }}
serviceAccountName: {{ include "lockgate.serviceAccount" . }}
automountServiceAccountToken: false
securityContext: {runAsNonRoot: true, runAsUser: 50000, runAsGroup: 50000, fsGroup: 50000, seccompProfile: {type: RuntimeDefault}}
{{- with .Values.nodeSelector }}
nodeSelector: {{ toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations: {{ toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.affinity }}
affinity: {{ toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- define "lockgate.container" -}}
image: "{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}"
imagePullPolicy: {{ .Values.image.pullPolicy }}
securityContext: {allowPrivilegeEscalation: false, readOnlyRootFilesystem: true, capabilities: {drop: [ALL]}}
{{- end }}

{{- define "lockgate.env" -}}
- {name: HOME, value: /home/lockgate}
- {name: LOCKGATE_HOME, value: /home/lockgate}
- name: LOCKGATE_JOURNAL_URL
  valueFrom: {secretKeyRef: {name: {{ .Values.existingSecret }}, key: journal-url}}
- name: LOCKGATE_BROKER_URL
  valueFrom: {secretKeyRef: {name: {{ .Values.existingSecret }}, key: broker-url}}
{{- range $name, $value := .Values.settings }}
- {name: {{ $name }}, value: {{ $value | toString | quote }}}
{{- end }}
{{- with .Values.extraEnv }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "lockgate.blobClientEnv" -}}
{{- if .Values.blobServer.enabled }}
- {name: LOCKGATE_BLOB_SERVER_URL, value: "{{ ternary "https" "http" (ne .Values.blobServer.tlsSecret "") }}://{{ include "lockgate.name" . }}-blobs:8410"}
- {name: LOCKGATE_BLOB_TOKEN_FILE, value: /etc/lockgate/blob-client/token}
{{- if .Values.blobServer.tlsSecret }}
- {name: LOCKGATE_BLOB_CA_FILE, value: /etc/lockgate/blob-client/ca.crt}
{{- end }}
{{- end }}
{{- end }}

{{- define "lockgate.mounts" -}}
- {name: home, mountPath: /home/lockgate}
- {name: tmp, mountPath: /tmp}
{{- if .Values.staging.existingClaim }}
- {name: staging, mountPath: /home/lockgate/staging}
{{- end }}
{{- with .Values.extraVolumeMounts }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "lockgate.volumes" -}}
- {name: home, emptyDir: {}}
- {name: tmp, emptyDir: {}}
{{- if .Values.staging.existingClaim }}
- name: staging
  persistentVolumeClaim: {claimName: {{ .Values.staging.existingClaim }}}
{{- end }}
{{- with .Values.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- /* What a client of the blob server needs: its own token and the certificate's authority, no more. */}}
{{- define "lockgate.blobClientMounts" -}}
{{- if .Values.blobServer.enabled }}
- {name: blob-client, mountPath: /etc/lockgate/blob-client, readOnly: true}
{{- end }}
{{- end }}

{{- define "lockgate.blobClientVolumes" -}}
{{- if .Values.blobServer.enabled }}
- name: blob-client
  projected:
    defaultMode: 0440
    sources:
      - secret: {name: {{ .Values.existingSecret }}, items: [{key: blob-token, path: token}]}
      {{- if .Values.blobServer.tlsSecret }}
      - secret: {name: {{ .Values.blobServer.tlsSecret }}, items: [{key: ca.crt, path: ca.crt}]}
      {{- end }}
{{- end }}
{{- end }}
