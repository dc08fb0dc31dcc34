{{- /* What the label of a chart says. A version may have a "+" and what it was built from, the value of a label may not. */}}
{{- define "tributary-crds.chart" -}}
{{- regexReplaceAll "[-_.]+$" (printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63) "" -}}
{{- end -}}

{{- /* Whether a live object is another release's of this chart, which cares for it: "true". Of (dict "root" $ "live" OBJECT "known" DICT).

       Kinds outlive their release. Those of a release that is gone are nobody's: they are left alone as long as they are of this
       version; else they are rendered, and helm says whose they are, or takes them with --take-ownership. */}}
{{- define "tributary-crds.left" -}}
{{- $metadata := get .live "metadata" | default dict -}}
{{- $by := get $metadata "annotations" | default dict -}}
{{- $chart := get (get $metadata "labels" | default dict) "helm.sh/chart" | default "" -}}
{{- $namespace := get $by "meta.helm.sh/release-namespace" | default "" -}}
{{- $name := get $by "meta.helm.sh/release-name" | default "" -}}
{{- $ours := and (eq $name .root.Release.Name) (eq $namespace .root.Release.Namespace) -}}
{{- if and (hasPrefix "tributary-crds-" $chart) (not $ours) -}}
{{- if or (eq $chart (include "tributary-crds.chart" .root)) (include "tributary-crds.release" (dict "namespace" $namespace "name" $name "known" .known)) -}}
true
{{- end -}}
{{- end -}}
{{- end -}}

{{- /* Whether a release is there: "true". helm keeps its records in Secrets, or ConfigMaps if it is told to. */}}
{{- define "tributary-crds.release" -}}
{{- $key := printf "%s/%s" .namespace .name -}}
{{- if not (hasKey .known $key) -}}
{{- $found := "" -}}
{{- range $kind := list "Secret" "ConfigMap" -}}
{{- range (get (lookup "v1" $kind $.namespace "" | default dict) "items") | default list -}}
{{- $labels := get .metadata "labels" | default dict -}}
{{- $status := get $labels "status" | default "" -}}
{{- if and (eq (lower (get $labels "owner" | default "")) "helm") (eq (get $labels "name" | default "") $.name) (not (has $status (list "superseded" "uninstalled" "uninstalling"))) -}}
{{- $found = "true" -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- $_ := set .known $key $found -}}
{{- end -}}
{{- get .known $key -}}
{{- end -}}

{{- /* What the notes say of kinds that are another release's. Of the root. */}}
{{- define "tributary-crds.notes" -}}
{{- $live := lookup "apiextensions.k8s.io/v1" "CustomResourceDefinition" "" "miniclusters.flux-framework.org" | default dict -}}
{{- $by := get (get $live "metadata" | default dict) "annotations" | default dict -}}
{{- $namespace := get $by "meta.helm.sh/release-namespace" | default "" -}}
{{- $name := get $by "meta.helm.sh/release-name" | default "" -}}
{{- if and $name (or (ne $name .Release.Name) (ne $namespace .Release.Namespace)) }}

{{ if include "tributary-crds.release" (dict "namespace" $namespace "name" $name "known" dict) -}}
The kinds are those of release {{ $name }} in namespace {{ $namespace }}, which upgrades them: upgrade it first.
{{- else -}}
The kinds were left by release {{ $name }} in namespace {{ $namespace }}, which is gone. Those of this version are used as they are; the upgrade
to another version takes them over with --take-ownership (helm 3.17 or newer). If agents do not get ready, since these kinds are of an
older build of this version: agentctl crds | kubectl apply --server-side --force-conflicts -f -
{{- end }}
{{- end }}
{{- end -}}
