{{- define "tributary.name" -}}
{{- .Chart.Name | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{- define "tributary.fullname" -}}
{{- if contains .Chart.Name .Release.Name -}}
{{- .Release.Name | trunc 52 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name .Chart.Name | trunc 52 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "tributary.serviceAccount" -}}
{{- default (ternary (include "tributary.fullname" .) "default" .Values.serviceAccount.create) .Values.serviceAccount.name -}}
{{- end -}}

{{- define "tributary.federationService" -}}
{{- include "tributary.fullname" . }}-federation
{{- end -}}

{{- define "tributary.webhookService" -}}
{{- include "tributary.fullname" . }}-webhook
{{- end -}}

{{- /* One definition of MiniClusters is the whole cluster's: an agent of some namespaces leaves it alone, unless it is told to. */}}
{{- define "tributary.webhook" -}}
{{- if and .Values.webhook.enabled (or .Values.webhook.clusterWide (not .Values.watchNamespaces)) }}true{{ end -}}
{{- end -}}

{{- /* What selects the pods: it never changes in a release's life. `agentctl` looks for the first. */}}
{{- define "tributary.selector" -}}
app.kubernetes.io/name: {{ include "tributary.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "tributary.labels" -}}
{{ include "tributary.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/part-of: tributary
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "tributary.annotations" -}}
{{- with .Values.commonAnnotations -}}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{- define "tributary.image" -}}
{{- if .Values.image.digest -}}
{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ .Values.image.repository }}:{{ default .Chart.AppVersion .Values.image.tag }}
{{- end -}}
{{- end -}}

{{- /* What no schema can say. */}}
{{- define "tributary.check" -}}
{{- $_ := required "cluster.name is required: the name of this cluster in the federation, e.g. --set cluster.name=east" .Values.cluster.name -}}
{{- if and .Values.volumes.classes .Values.watchNamespaces -}}
{{- fail "volumes.classes does not go with watchNamespaces: PersistentVolumes are of the whole cluster" -}}
{{- end -}}
{{- if eq (int .Values.federation.port) (int .Values.federation.join.port) -}}
{{- fail "federation.join.port is federation.port already: clusters that join come in by a port of its own" -}}
{{- end -}}
{{- if and (include "tributary.webhook" .) .Values.webhook.certManager.enabled (not .Values.webhook.certManager.issuerRef) -}}
{{- fail "webhook.certManager.issuerRef is required: the issuer that cert-manager shall use, e.g. {kind: ClusterIssuer, name: internal}" -}}
{{- end -}}
{{- end -}}
