{{/* Class and access mode of claims. What is looked at (`lookup`) apart from what follows from it, so that the latter can be
     tested without a cluster. */}}

{{/* What there is: {"classes": [...], "nodes": N}; empty where there is no cluster, or nothing may be looked at. */}}
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

{{/* Provisioners that take any mode and make a folder on whatever node it is: with several nodes each would see another. */}}
{{- define "cerebro.storage.folders" -}}
docker.io/hostpath
hostpath.csi.k8s.io
k8s.io/minikube-hostpath
kubernetes.io/host-path
microk8s.io/hostpath
{{- end -}}

{{/* What a claim gets: {"class": C, "mode": M, "problem": P, "provisioner": V}. Empty class: leave it to the cluster; "-": none.
     Of: (dict "cluster" CLUSTER "field" F "commonField" G "class" C "mode" M "found" CLAIM)
       field, commonField: where the user can say otherwise, for the problem
       class, mode: what the values say; mode auto chooses
       found: the claim (or a StatefulSet's template of it) as it is in the cluster. Class and mode of a claim cannot
              change, so what was chosen once stays; what the user asks for is left to the API server to refuse.
     What is found out is written from the first revision on, and what was left to the cluster then is left to it for good
     (`cerebro.storage.chosen`): a revision without the class that a later one names could not be rolled back to. */}}
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
{{/* Of several defaults Kubernetes takes the newest. */}}
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

{{/* Annotations of a claim: kept by `helm uninstall`; and the class as it is written in it, for the revisions to come. Of
     a decision. */}}
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

{{/* Mounts below /volumes, in the layout of cerebro/runtime/volumes.py. The metrics claim holds the logs of tasks too, in a folder
     of their own: an experiment may be called "logs". Of: (dict "write" (list "shared") "read" (list "logs")). */}}
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

{{/* What runs before the containers of a pod; nothing where nothing has to.
     Of: (dict "root" $ "image" "control" "hasLogs" true "handOver" (dict "decision" D "folders" F "mounts" M)).
       hasLogs: whether the pod mounts `metrics` or `logs`
       handOver: of a pod that writes to volumes: see `cerebro.storage.handOver`; absent: it does not */}}
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

{{/* Not empty where a volume belongs to root and no driver gives it to the pods' user (fsGroup): the host-path provisioner of
     Kubernetes itself makes such folders. Of: (dict "root" $ "decision" DECISION). */}}
{{- define "cerebro.storage.isRoots" -}}
{{- $handOver := .root.Values.storage.handOver -}}
{{- if or (eq $handOver "always") (and (eq $handOver "auto") (eq "kubernetes.io/host-path" .decision.provisioner)) }}yes{{ end -}}
{{- end -}}

{{/* Makes the two folders of the metrics claim as the user who writes to them, without any right. Left to itself, the kubelet
     makes the folder of a subPath as root, and where no driver changes that (a volume made by hand for user 1000) nobody can
     write a log. All pods that mount one begin with it: any of them may be the first. Of: (dict "root" $ "image" "control"). */}}
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

{{/* Gives volumes to the user that the containers run as, as root with the right to do that and no other.
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
