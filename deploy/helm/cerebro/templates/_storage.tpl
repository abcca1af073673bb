{{/* StorageClass and access mode of claims. Reading the cluster (`lookup`) is separate from the decision, so that
     tests need no cluster. */}}

{{/* Facts about the cluster: {"classes": [...], "nodes": N}; empty without a cluster, or if storage.inspect is false. */}}
{{- define "cerebro.storage.cluster" -}}
{{- if .Values.storage.inspect -}}
{{- $classes := list -}}
{{- range (lookup "storage.k8s.io/v1" "StorageClass" "" "").items -}}
{{- $classes = append $classes (dict
      "name" .metadata.name
      "provisioner" .provisioner
      "created" (dig "metadata" "creationTimestamp" "" .)
      "default" (eq "true" (dig "metadata" "annotations" "storageclass.kubernetes.io/is-default-class" "" .))) -}}
{{- end -}}
{{- $nodes := 0 -}}
{{- range (lookup "v1" "Node" "" "").items -}}
{{- $isClosed := false -}}
{{- range dig "spec" "taints" list . -}}
{{- if and (regexMatch "^node-role.kubernetes.io/(control-plane|master)$" .key) (ne .effect "PreferNoSchedule") -}}
{{- $isClosed = true -}}
{{- end -}}
{{- end -}}
{{- if not $isClosed }}{{ $nodes = add1 $nodes }}{{ end -}}
{{- end -}}
{{- if gt $nodes 0 }}{{ dict "classes" $classes "nodes" $nodes | toJson }}{{ else }}{}{{ end -}}
{{- else -}}
{}
{{- end -}}
{{- end -}}

{{/* Provisioners that offer only ReadWriteOnce. */}}
{{- define "cerebro.storage.oneNode" -}}
cinder.csi.openstack.org
csi.vsphere.vmware.com
disk.csi.azure.com
ebs.csi.aws.com
ebs.csi.eks.amazonaws.com
kubernetes.io/aws-ebs
kubernetes.io/azure-disk
kubernetes.io/cinder
kubernetes.io/gce-pd
kubernetes.io/vsphere-volume
local.csi.openebs.io
openebs.io/local
pd.csi.storage.gke.io
rancher.io/local-path
topolvm.io
{{- end -}}

{{/* Provisioners that accept any mode and create a folder on the pod's node: with several nodes, each node has a
     different folder. */}}
{{- define "cerebro.storage.folders" -}}
docker.io/hostpath
hostpath.csi.k8s.io
k8s.io/minikube-hostpath
kubernetes.io/host-path
microk8s.io/hostpath
{{- end -}}

{{/* Decision for a claim: {"class": C, "mode": M, "problem": P, "provisioner": V}. Class "": the cluster's default;
     "-": no class.
     Of: (dict "cluster" CLUSTER "field" F "commonField" G "class" C "mode" M "found" CLAIM)
       field, commonField: values fields that override the decision, for the problem text
       class, mode: from the values; mode auto chooses
       found: the existing claim, or the template in the StatefulSet. Class and mode of a claim cannot
              change, so the first decision stays; the API server rejects a different value.
     The first revision writes the chosen class, and later revisions never change it, also if the cluster chose it
     (`cerebro.storage.chosen`): otherwise a rollback from a revision with a class to a revision without would
     fail. */}}
{{- define "cerebro.storage.decision" -}}
{{- $classes := dig "classes" list .cluster -}}
{{- $nodes := dig "nodes" 0 .cluster | int -}}
{{- $class := .class -}}
{{- $actual := .class -}}
{{- $names := list -}}
{{- $defaults := list -}}
{{- range $classes -}}
{{- $names = append $names .name -}}
{{- if .default }}{{ $defaults = append $defaults (printf "%s %s" (dig "created" "" .) .name) }}{{ end -}}
{{- end -}}
{{/* Kubernetes uses the newest of several default classes. */}}
{{- $default := "" -}}
{{- if $defaults }}{{ $default = $defaults | sortAlpha | last | splitList " " | last }}{{ end -}}
{{- $problem := "" -}}
{{- if and (not $class) .found -}}
{{- $actual = dig "spec" "storageClassName" "" .found -}}
{{- $class = dig "metadata" "annotations" "cerebro/class" $actual .found -}}
{{- else if and (not $class) $nodes -}}
{{- if $default -}}
{{- $class = $default }}{{ $actual = $default -}}
{{- else if has "standard" $names -}}
{{- $class = "standard" }}{{ $actual = "standard" -}}
{{- else if $names -}}
{{- $problem = printf "%s.className is empty and no StorageClass of the cluster is marked as default: set %s to one of %s" .field .commonField (join ", " $names) -}}
{{- else -}}
{{- $problem = printf "%s.className is empty and the cluster has no StorageClass: install one, or make volumes by hand and set %s to \"-\"" .field .commonField -}}
{{- end -}}
{{- else if and $nodes (ne $class "-") (not (has $class $names)) -}}
{{- $problem = printf "%s.className (or %s) is %q, which the cluster does not have: set it to one of %s" .field .commonField $class (join ", " $names) -}}
{{- end -}}
{{- if not $actual }}{{ $actual = $default }}{{ end -}}
{{- $provisioner := "" -}}
{{- range $classes }}{{ if eq .name $actual }}{{ $provisioner = .provisioner }}{{ end }}{{ end -}}
{{- $isOneNode := has $provisioner (include "cerebro.storage.oneNode" . | splitList "\n") -}}
{{- $isFolder := and (gt $nodes 1) (has $provisioner (include "cerebro.storage.folders" . | splitList "\n")) -}}
{{- $isShared := regexMatch "efs|nfs|fsx|cephfs|file|longhorn|gluster|lustre|juicefs" $provisioner -}}
{{- $mode := .mode -}}
{{- if and (eq $mode "auto") .found -}}
{{- $mode = first .found.spec.accessModes -}}
{{- else if eq $mode "auto" -}}
{{- $mode = ternary "ReadWriteOnce" "ReadWriteMany" (and (eq $nodes 1) (not $isShared)) -}}
{{- end -}}
{{- if and (not $problem) (not .found) (or $isOneNode $isFolder) (eq $mode "ReadWriteMany") -}}
{{- $fault := ternary "makes folders on one node" "offers only ReadWriteOnce" $isFolder -}}
{{- $advice := ternary "ReadWriteOnce, which does the same on this cluster's one node" "auto on a cluster of one node" (eq $nodes 1) -}}
{{- $problem = printf "%s.accessMode (or storage.accessMode) comes to ReadWriteMany, and StorageClass %q (%s) %s: set %s to a class that many nodes can mount (EFS, NFS, CephFS), or accessMode to %s" .field $actual $provisioner $fault .commonField $advice -}}
{{- end -}}
{{- dict "class" $class "mode" $mode "problem" $problem "provisioner" $provisioner | toJson -}}
{{- end -}}

{{/* Decision for one of the four shared claims. Of: (dict "root" $ "name" "shared"). */}}
{{- define "cerebro.storage.shared" -}}
{{- $storage := .root.Values.storage -}}
{{- $claim := index $storage .name -}}
{{- include "cerebro.storage.decision" (dict
      "cluster" (include "cerebro.storage.cluster" .root | fromJson)
      "field" (printf "storage.%s" .name)
      "commonField" "storage.className"
      "class" (coalesce $claim.className $storage.className)
      "mode" (coalesce $claim.accessMode $storage.accessMode)
      "found" (lookup "v1" "PersistentVolumeClaim" .root.Release.Namespace (include "cerebro.storage.claim" .))) -}}
{{- end -}}

{{/* Decision for a volume of one pod. Of: (dict "root" $ "field" "worker.shards" "volume" .Values.worker.shards
     "found" CLAIM). */}}
{{- define "cerebro.storage.own" -}}
{{- include "cerebro.storage.decision" (dict
      "cluster" (include "cerebro.storage.cluster" .root | fromJson)
      "field" .field
      "commonField" "storage.podClassName"
      "class" (coalesce .volume.className .root.Values.storage.podClassName)
      "mode" "ReadWriteOnce"
      "found" .found) -}}
{{- end -}}

{{/* Decision for the volumes of a StatefulSet's pods. Of: (dict "root" $ "component" "worker" "field" "worker.shards"
     "volume" .Values.worker.shards). */}}
{{- define "cerebro.storage.template" -}}
{{- $set := lookup "apps/v1" "StatefulSet" .root.Release.Namespace (include "cerebro.component" .) | default dict -}}
{{- $found := dig "spec" "volumeClaimTemplates" list $set | first -}}
{{- include "cerebro.storage.own" (merge (dict "found" $found) .) -}}
{{- end -}}

{{/* Annotations of a claim: `helm uninstall` keeps it; and the chosen class, for later revisions. Of a decision. */}}
{{- define "cerebro.storage.chosen" -}}
helm.sh/resource-policy: keep
cerebro/class: {{ .class | quote }}
{{- end -}}

{{/* The class line of a claim's spec. Of a decision. */}}
{{- define "cerebro.storage.classLine" -}}
{{- with .class -}}
storageClassName: {{ ternary "" . (eq . "-") | quote }}
{{- end -}}
{{- end -}}

{{/* Name of a shared claim. Of: (dict "root" $ "name" "shared"). */}}
{{- define "cerebro.storage.claim" -}}
{{- $own := printf "%s-%s" (include "cerebro.fullname" .root) .name -}}
{{- index .root.Values.storage .name | dig "existingClaim" "" | default $own -}}
{{- end -}}

{{/* --- In pods ------------------------------------------------------------------------------------------------- */}}

{{/* Pod volumes of claims. Of: (dict "root" $ "claims" (list "shared" "metrics")). */}}
{{- define "cerebro.storage.volumes" -}}
{{- range .claims }}
- name: {{ . }}
  persistentVolumeClaim:
    claimName: {{ include "cerebro.storage.claim" (dict "root" $.root "name" .) }}
{{- end }}
{{- end -}}

{{/* Mounts below /volumes, in the layout of cerebro/runtime/volumes.py. The metrics claim also stores task logs, in a
     separate folder because an experiment may be called "logs". Of: (dict "write" (list "shared") "read" (list
     "logs")). */}}
{{- define "cerebro.storage.mounts" -}}
{{- range $access, $names := dict "write" .write "read" .read }}
{{- range $names }}
- name: {{ ternary "metrics" . (eq . "logs") }}
  mountPath: /volumes/{{ . }}
  {{- if has . (list "metrics" "logs") }}
  subPath: {{ . }}
  {{- end }}
  {{- if eq $access "read" }}
  readOnly: true
  {{- end }}
{{- end }}
{{- end }}
{{- end -}}

{{/* Init containers of a pod, or nothing if no volume needs them.
     Of: (dict "root" $ "image" "control" "hasLogs" true "handOver" (dict "decision" D "folders" F "mounts" M)).
       hasLogs: true if the pod mounts `metrics` or `logs`
       handOver: for a pod that writes to volumes: see `cerebro.storage.handOver`; absent otherwise */}}
{{- define "cerebro.storage.initContainers" -}}
{{- $metrics := include "cerebro.storage.shared" (dict "root" .root "name" "metrics") | fromJson -}}
{{- $all := "" -}}
{{- if and .hasLogs (not (include "cerebro.storage.isRoots" (dict "root" .root "decision" $metrics))) -}}
{{- $all = include "cerebro.storage.makeFolders" . | trim | printf "%s\n%s" $all -}}
{{- end -}}
{{- with .handOver -}}
{{- if include "cerebro.storage.isRoots" (dict "root" $.root "decision" .decision) -}}
{{- $all = include "cerebro.storage.handOver" (merge (dict "root" $.root "image" $.image) .) | trim | printf "%s\n%s" $all -}}
{{- end -}}
{{- end -}}
{{- with $all | trim -}}
initContainers:
  {{- . | nindent 2 }}
{{- end -}}
{{- end -}}

{{/* Not empty if root owns the volume and no driver gives it to the pods' user (fsGroup). Kubernetes' built-in
     host-path provisioner creates such folders. Of: (dict "root" $ "decision" DECISION). */}}
{{- define "cerebro.storage.isRoots" -}}
{{- $handOver := .root.Values.storage.handOver -}}
{{- if or (eq $handOver "always") (and (eq $handOver "auto") (eq "kubernetes.io/host-path" .decision.provisioner)) }}yes{{ end -}}
{{- end -}}

{{/* Creates the two folders of the metrics claim as the pods' user, without privileges. Otherwise the kubelet creates
     a subPath folder as root, and on volumes where no driver changes the owner (created by hand for user 1000)
     pods cannot write logs. All pods that mount the claim have this init container, because any of these pods may
     start first. Of: (dict "root" $ "image" "control"). */}}
{{- define "cerebro.storage.makeFolders" -}}
- name: folders
  {{- include "cerebro.container" . | nindent 2 }}
  command: [sh, -c]
  args:
    - |
      for folder in /claim/metrics /claim/logs; do
        mkdir -p "$folder" && [ -w "$folder" ] && continue
        echo "User {{ with include "cerebro.podUser" .root }}{{ splitList ":" . | first }}{{ else }}$(id -u){{ end }} cannot write to the folder ${folder##*/} of the claim {{ include "cerebro.storage.claim" (dict "root" .root "name" "metrics") }}." >&2
        echo "Give the volume to that user (chown -R {{ include "cerebro.podUser" .root | default "$(id -u):$(id -g)" }}), or set storage.handOver=always." >&2
        exit 1
      done
  terminationMessagePolicy: FallbackToLogsOnError
  resources:
    requests: {cpu: 10m, memory: 16Mi}
    limits: {memory: 64Mi}
  volumeMounts:
    - name: metrics
      mountPath: /claim
{{- end -}}

{{/* Changes the owner of volumes to the containers' user, as root with only the CHOWN capability.
     Of: (dict "root" $ "image" "control" "folders" (list "/data") "mounts" MOUNTS). */}}
{{- define "cerebro.storage.handOver" -}}
- name: hand-over
  image: {{ include "cerebro.image" . }}
  imagePullPolicy: {{ .root.Values.images.pullPolicy }}
  securityContext:
    runAsNonRoot: false
    runAsUser: 0
    allowPrivilegeEscalation: false
    readOnlyRootFilesystem: true
    capabilities:
      drop: [ALL]
      add: [CHOWN]
  command: [chown, {{ include "cerebro.podUser" .root | quote }}]
  args: {{ .folders | toJson }}
  resources:
    requests: {cpu: 10m, memory: 16Mi}
    limits: {memory: 64Mi}
  volumeMounts:
    {{- .mounts | trim | nindent 4 }}
{{- end -}}
