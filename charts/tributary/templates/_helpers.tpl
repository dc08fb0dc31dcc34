{{- define "tributary.name" -}}
{{- .Chart.Name | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{- define "tributary.fullname" -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride -}}
{{- else if contains $name .Release.Name -}}
{{- .Release.Name | trunc 52 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 52 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "tributary.serviceAccount" -}}
{{- default (include "tributary.fullname" .) .Values.serviceAccount.name | quote -}}
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

{{- define "tributary.ownLabels" -}}
{{ include "tributary.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/part-of: tributary
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ include "tributary.chart" . }}
{{- end -}}

{{- /* A version may have a "+" and what it was built from, as Flux CD adds to it; the value of a label may not. */}}
{{- define "tributary.chart" -}}
{{- regexReplaceAll "[-_.]+$" (printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63) "" -}}
{{- end -}}

{{- define "tributary.labels" -}}
{{ include "tributary.labelsWith" (list . dict) }}
{{- end -}}

{{- /* Of (list $ MORE): the chart's own labels, those of all objects, and MORE of this one, each key once: the last one said counts. */}}
{{- define "tributary.labelsWith" -}}
{{- $labels := dict -}}
{{- range list (index . 0).Values.commonLabels (index . 1) -}}
{{- range $key, $value := . -}}
{{- $_ := set $labels $key $value -}}
{{- end -}}
{{- end -}}
{{ include "tributary.ownLabels" (index . 0) }}
{{- with $labels }}
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

{{- /* An agent that does not see a burst any more would tell its root that nothing is left, while its brokers run on. Only an
upgrade by helm itself can look. */}}
{{- define "tributary.checkNamespaces" -}}
{{- $before := lookup "v1" "ConfigMap" .Release.Namespace (include "tributary.fullname" .) -}}
{{- if and $before .Values.watchNamespaces -}}
{{- $watched := append .Values.watchNamespaces .Release.Namespace -}}
{{- $were := regexFind "watch_namespaces = \\[.*\\]" (index $before.data "tributary.toml" | default "") | trimPrefix "watch_namespaces = " -}}
{{- range $namespace := $were | default "[\"\"]" | fromJsonArray -}}
{{- if not (has $namespace $watched) -}}
{{- range (lookup "tributary.dev/v1alpha1" "HostedBurst" $namespace "").items -}}
{{- if not (has .metadata.namespace $watched) -}}
{{- fail (printf "watchNamespaces would leave out %s, where burst %s of peer %s is: drain the peer first (agentctl peer drain %s), and resume it afterwards" .metadata.namespace .metadata.name .spec.peer .spec.peer) -}}
{{- end -}}
{{- end -}}
{{- range (lookup "tributary.dev/v1alpha1" "Burst" $namespace "").items -}}
{{- $peer := dig "status" "peer" "" . -}}
{{- if and $peer (not (has .metadata.namespace $watched)) -}}
{{- fail (printf "watchNamespaces would leave out %s, where burst %s of MiniCluster %s is: peer %s would end its brokers, since nobody speaks of it any more; delete the MiniCluster, or its bursts, first" .metadata.namespace .metadata.name .spec.root $peer) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end }}

{{- /* What an upgrade, or another release, would break. */}}
{{- define "tributary.checkOthers" -}}
{{- range (lookup "apps/v1" "Deployment" .Release.Namespace "").items -}}
{{- $labels := .metadata.labels | default dict -}}
{{- $other := index $labels "app.kubernetes.io/instance" -}}
{{- if and (eq (index $labels "app.kubernetes.io/name" | default "") (include "tributary.name" $)) (ne $other $.Release.Name) -}}
{{- fail (printf "release %s has agents in namespace %s: both releases would have one Lease and one identity; choose another namespace" $other $.Release.Namespace) -}}
{{- end -}}
{{- end -}}
{{- /* Who makes no ClusterRole may not be allowed to look at all namespaces: there the agents themselves refuse. */ -}}
{{- if and .Values.rbac.create (not .Values.watchNamespaces) -}}
{{- range (lookup "coordination.k8s.io/v1" "Lease" "" "").items -}}
{{- if and (eq .metadata.name "tributary-agent") (ne .metadata.namespace $.Release.Namespace) .spec.holderIdentity .spec.renewTime -}}
{{- $age := sub (now | unixEpoch | int64) (toDate "2006-01-02T15:04:05Z07:00" .spec.renewTime | unixEpoch | int64) -}}
{{- if lt $age 60 -}}
{{- fail (printf "agents of a release in namespace %s run already, and each release would end the bursts of the other: use that release, or give each its own namespaces (watchNamespaces)" .metadata.namespace) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- $before := lookup "v1" "ConfigMap" .Release.Namespace (include "tributary.fullname" .) -}}
{{- if and $before .Values.watchNamespaces (not (include "tributary.webhook" .)) (contains "[webhook]" (index $before.data "tributary.toml" | default "")) -}}
{{- $kind := lookup "apiextensions.k8s.io/v1" "CustomResourceDefinition" "" "miniclusters.flux-framework.org" -}}
{{- if eq (dig "metadata" "annotations" "tributary.dev/converted-by" "" $kind) (printf "%s/%s" .Release.Namespace (include "tributary.webhookService" .)) -}}
{{- fail "agents of this release convert v1alpha1 for the whole cluster, and would leave every request for it without an answer: set webhook.enabled=true and webhook.clusterWide=true, or upgrade with webhook.enabled=false and without watchNamespaces first" -}}
{{- end -}}
{{- end -}}
{{- $was := regexFind "name = \".*\"" (dig "data" "tributary.toml" "" $before) | trimPrefix "name = " -}}
{{- if and $was (ne $was (toJson .Values.cluster.name)) (lookup "tributary.dev/v1alpha1" "ClusterPeer" .Release.Namespace "").items -}}
{{- fail (printf "cluster.name would be %q, and peers know this cluster as %s: all bursts from and to it would end; keep the name, or remove every peer first (agentctl peer drain, agentctl peer remove)" .Values.cluster.name $was) -}}
{{- end -}}
{{- /* helm deletes what the last manifest had and this one has not, and with a kind everything of that kind. */ -}}
{{- if and .Release.IsUpgrade .Values.rbac.create (not .Values.crds.enabled) -}}
{{- $metadata := get (lookup "apiextensions.k8s.io/v1" "CustomResourceDefinition" "" "miniclusters.flux-framework.org") "metadata" | default dict -}}
{{- $by := $metadata.annotations | default dict -}}
{{- if and (eq (get $by "meta.helm.sh/release-name") .Release.Name) (eq (get $by "meta.helm.sh/release-namespace") .Release.Namespace) (not (hasKey $by "helm.sh/resource-policy")) -}}
{{- fail "crds.enabled=false would delete the kinds of this release, and with them every MiniCluster: set tributary-crds.keep=true in an upgrade first" -}}
{{- end -}}
{{- end -}}
{{- end }}

{{- /* What no schema can say. The agent and the API server would refuse these, too, but after the release is installed. */}}
{{- define "tributary.check" -}}
{{- $_ := required "cluster.name is required: the name of this cluster in the federation, e.g. --set cluster.name=east" .Values.cluster.name -}}
{{- $name := include "tributary.fullname" . -}}
{{- if not (regexMatch "^[a-z]([-a-z0-9]*[a-z0-9])?$" $name) -}}
{{- fail (printf "%s is no name for a Service: lower-case letters, digits and dashes that begin with a letter; choose another release name, or set fullnameOverride" $name) -}}
{{- end -}}
{{- if eq $name "tributary-cluster" -}}
{{- fail "tributary-cluster is the name of the ConfigMap in which agents describe their cluster: choose another release name, or set fullnameOverride" -}}
{{- end -}}
{{- if not (or .Values.serviceAccount.create .Values.serviceAccount.name) -}}
{{- fail "serviceAccount.name is required with serviceAccount.create=false: without it the rights would be those of account default, which every other pod of the namespace has, too" -}}
{{- end -}}
{{- if and .Values.volumes.classes .Values.watchNamespaces -}}
{{- fail "volumes.classes does not go with watchNamespaces: PersistentVolumes are of the whole cluster" -}}
{{- end -}}
{{- range .Values.volumes.pathPrefixes -}}
{{- if regexMatch "/[.]{1,2}(/|$)|\\p{Cc}" . -}}
{{- fail (printf "volumes.pathPrefixes: %q has a part '.' or '..', or a control character: write the directory that is meant" .) -}}
{{- end -}}
{{- end -}}
{{- /* The agent judges directives with brackets, which name spans. */ -}}
{{- range splitList "," .Values.log.filter -}}
{{- if not (or (contains "[" .) (regexMatch "^([-:_\\pL\\pN][^=]*=)?((?i:off|error|warn|info|debug|trace)|[0-5])?$" (trim .))) -}}
{{- fail (printf "log.filter: %q is no level (off, error, warn, info, debug, trace); a target is written with its level, as tributary=debug" (trim .)) -}}
{{- end -}}
{{- end -}}
{{- include "tributary.checkNamespaces" . -}}
{{- include "tributary.checkOthers" . -}}
{{- if .Values.federation.enabled -}}
{{- include "tributary.checkFederation" .Values.federation -}}
{{- end -}}
{{- include "tributary.checkTimes" . -}}
{{- include "tributary.checkPorts" . -}}
{{- if gt (int .Values.bursting.graceSeconds) (int .Values.bursting.leaseSeconds) -}}
{{- fail (printf "bursting.graceSeconds=%d is longer than bursting.leaseSeconds=%d: a burst would be given up before its loss counts" (int .Values.bursting.graceSeconds) (int .Values.bursting.leaseSeconds)) -}}
{{- end -}}
{{- if include "tributary.webhook" . -}}
{{- if and .Values.webhook.certManager.enabled (not .Values.webhook.certManager.issuerRef) -}}
{{- fail "webhook.certManager.issuerRef is required: the issuer that cert-manager shall use, e.g. {kind: ClusterIssuer, name: internal}" -}}
{{- end -}}
{{- $identity := .Values.federation.identity.secret -}}
{{- if and .Values.federation.enabled (has .Values.webhook.secret (list $identity (print $identity "-ca"))) -}}
{{- fail (printf "webhook.secret=%s is a Secret of federation.identity already: name another one" .Values.webhook.secret) -}}
{{- end -}}
{{- end -}}
{{- if and .Values.metrics.serviceMonitor.enabled (not .Values.metrics.service.enabled) -}}
{{- fail "metrics.serviceMonitor.enabled needs metrics.service.enabled: a ServiceMonitor finds the pods by that Service" -}}
{{- end -}}
{{- range .Values.extraVolumes -}}
{{- if eq .name "config" -}}
{{- fail "extraVolumes must not hold config: that volume is the agent's configuration" -}}
{{- end -}}
{{- end -}}
{{- if and .Values.hostNetwork .Values.networkPolicy.enabled -}}
{{- fail "networkPolicy.enabled does not go with hostNetwork: a NetworkPolicy does not hold for pods in their node's network" -}}
{{- end -}}
{{- $own := include "tributary.ownLabels" . | fromYaml -}}
{{- $metrics := .Values.metrics -}}
{{- range $value, $labels := dict "commonLabels" .Values.commonLabels "podLabels" .Values.podLabels "metrics.serviceMonitor.labels" $metrics.serviceMonitor.labels "metrics.prometheusRule.labels" $metrics.prometheusRule.labels "metrics.dashboard.labels" $metrics.dashboard.labels -}}
{{- range $key, $_ := $labels -}}
{{- if hasKey $own $key -}}
{{- fail (printf "%s must not hold %s: the chart sets it, and the Deployment finds its pods by such labels" $value $key) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- range $value, $annotations := dict "commonAnnotations" .Values.commonAnnotations "podAnnotations" .Values.podAnnotations -}}
{{- if hasKey (default dict $annotations) "tributary.dev/config" -}}
{{- fail (printf "%s must not hold tributary.dev/config: the chart sets it, so that pods are replaced with their configuration" $value) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- /* Of .Values.federation. */}}
{{- define "tributary.checkFederation" -}}
{{- if eq (int .port) (int .join.port) -}}
{{- fail "federation.join.port is federation.port already: clusters that join come in by a port of its own" -}}
{{- end -}}
{{- $range := splitList "-" .tunnel.ports -}}
{{- if or (gt (int (first $range)) (int (last $range))) (gt (int (last $range)) 65535) -}}
{{- fail (printf "federation.tunnel.ports=%s is no range of ports: first-last, at most 65535, e.g. 20000-20999" .tunnel.ports) -}}
{{- end -}}
{{- if and .service.nodePort (eq (int .service.nodePort) (int .service.joinNodePort)) (ne .service.type "ClusterIP") -}}
{{- fail "federation.service.joinNodePort is federation.service.nodePort already: a node port is one Service port's" -}}
{{- end -}}
{{- $unit := get (dict "s" 1 "m" 60 "h" 3600 "d" 86400) (regexFind ".$" .identity.validity) -}}
{{- $seconds := mul (int64 (regexFind "^[0-9]+" .identity.validity)) $unit -}}
{{- if or (lt $seconds 15) (gt $seconds 31622400) -}}
{{- fail (printf "federation.identity.validity=%s is not between 15s and 366d" .identity.validity) -}}
{{- end -}}
{{- end -}}

{{- /* Each TCP port of the pod has one listener. */}}
{{- define "tributary.checkPorts" -}}
{{- $ports := dict "admin.port" .Values.admin.port "health.port" .Values.health.port -}}
{{- if include "tributary.webhook" . -}}
{{- $_ := set $ports "webhook.port" .Values.webhook.port -}}
{{- end -}}
{{- $range := splitList "-" .Values.federation.tunnel.ports -}}
{{- $known := dict -}}
{{- range $value, $port := $ports -}}
{{- $other := get $known (int $port | toString) -}}
{{- if $other -}}
{{- fail (printf "%s=%d is %s already: each needs a TCP port of its own" $value (int $port) $other) -}}
{{- end -}}
{{- if and $.Values.federation.enabled (ge (int $port) (int (first $range))) (le (int $port) (int (last $range))) -}}
{{- fail (printf "%s=%d is one of federation.tunnel.ports=%s: bursts of peers are reached there" $value (int $port) $.Values.federation.tunnel.ports) -}}
{{- end -}}
{{- $_ := set $known (int $port | toString) $value -}}
{{- end -}}
{{- end -}}

{{- define "tributary.checkTimes" -}}
{{- $heartbeat := int .Values.liveness.heartbeatMillis -}}
{{- $suspect := int .Values.liveness.suspectMillis -}}
{{- $grace := int .Values.bursting.graceSeconds -}}
{{- if le $suspect (mul 3 $heartbeat | int) -}}
{{- fail (printf "liveness.suspectMillis=%d is not more than three heartbeats of %d ms: two that are lost would mark a peer; raise it, or lower liveness.heartbeatMillis" $suspect $heartbeat) -}}
{{- end -}}
{{- if ge (mul 3 $suspect | int) (mul 2000 $grace | int) -}}
{{- fail (printf "liveness.suspectMillis=%d is not less than two thirds of bursting.graceSeconds=%d: a lost connection would not be replaced before something is concluded from its loss; lower it, or raise bursting.graceSeconds" $suspect $grace) -}}
{{- end -}}
{{- end -}}
