{{- define "holdfast.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{- /* The prefix of every object's name: short enough that no name made from it is too long. */ -}}
{{- define "holdfast.fullname" -}}
{{- $name := include "holdfast.name" . -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else if contains $name .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "holdfast.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | quote }}
app.kubernetes.io/name: {{ include "holdfast.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/part-of: holdfast
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- /* Labels of one part; call with (list . "watchdog"). The selector never changes over upgrades. */ -}}
{{- define "holdfast.selector" -}}
{{- $root := index . 0 -}}
app.kubernetes.io/name: {{ include "holdfast.name" $root }}
app.kubernetes.io/instance: {{ $root.Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end -}}

{{- define "holdfast.partLabels" -}}
{{ include "holdfast.labels" (index . 0) }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end -}}

{{- define "holdfast.partName" -}}
{{ include "holdfast.fullname" (index . 0) }}-{{ index . 1 }}
{{- end -}}

{{- /* An image's full name; call with (list . .Values.operator.image). */ -}}
{{- define "holdfast.image" -}}
{{- $root := index . 0 -}}
{{- $image := index . 1 -}}
{{- $named := $image.repository -}}
{{- if $root.Values.imageRegistry -}}
{{- $named = printf "%s/%s" $root.Values.imageRegistry ($image.repository | trimPrefix "docker.io/") -}}
{{- end -}}
{{- if $image.digest -}}
{{- printf "%s@%s" $named $image.digest -}}
{{- else -}}
{{- printf "%s:%s" $named ($image.tag | default $root.Chart.AppVersion) -}}
{{- end -}}
{{- end -}}

{{- /* The service account of a part; call with (list . "operator"). */ -}}
{{- define "holdfast.account" -}}
{{- $root := index . 0 -}}
{{- $account := (index $root.Values (index . 1)).serviceAccount -}}
{{- if $account.create -}}
{{- default (include "holdfast.partName" .) $account.name -}}
{{- else -}}
{{- default "default" $account.name -}}
{{- end -}}
{{- end -}}

{{- define "holdfast.priorityClassName" -}}
{{- $root := index . 0 -}}
{{- $named := (index $root.Values (index . 1)).priorityClassName -}}
{{- if $named -}}
{{ $named }}
{{- else if $root.Values.priorityClass.create -}}
{{ include "holdfast.fullname" $root }}
{{- end -}}
{{- end -}}

{{- /* HOST:PORT of the watchdog, as pods of every namespace reach it. */ -}}
{{- define "holdfast.watchdogAddress" -}}
{{ include "holdfast.partName" (list . "watchdog") }}.{{ .Release.Namespace }}.svc:{{ .Values.watchdog.service.port }}
{{- end -}}

{{- /* The console's service as the API server's proxy takes it. */ -}}
{{- define "holdfast.consoleService" -}}
{{- $scheme := ternary "https:" "" (ne .Values.console.tls.existingSecret "") -}}
{{ $scheme }}{{ include "holdfast.partName" (list . "console") }}:http
{{- end -}}

{{- /* What whoever speaks to an encrypted watchdog needs: the authority alone, never the key. */ -}}
{{- define "holdfast.caMount" -}}
{{- if .Values.watchdog.tls.existingSecret -}}
- name: watchdog-ca
  mountPath: /etc/holdfast/ca
  readOnly: true
{{- end -}}
{{- end -}}

{{- define "holdfast.caVolume" -}}
{{- if .Values.watchdog.tls.existingSecret -}}
- name: watchdog-ca
  secret:
    secretName: {{ .Values.watchdog.tls.existingSecret }}
    items: [{key: ca.crt, path: ca.crt}]
{{- end -}}
{{- end -}}

{{- define "holdfast.watchdogScheme" -}}
{{- ternary "https" "http" (ne .Values.watchdog.tls.existingSecret "") -}}
{{- end -}}

{{- define "holdfast.redisSecret" -}}
{{- if .Values.redis.bundled -}}
{{ include "holdfast.partName" (list . "redis") }}
{{- else -}}
{{ .Values.redis.external.existingSecret }}
{{- end -}}
{{- end -}}

{{- define "holdfast.redisSecretKey" -}}
{{- ternary "password" .Values.redis.external.existingSecretKey .Values.redis.bundled -}}
{{- end -}}

{{- /* "yes" where the bundled Redis has replicas. */ -}}
{{- define "holdfast.redisReplicated" -}}
{{- if and .Values.redis.bundled (gt (int .Values.redis.replicas) 1) -}}yes{{- end -}}
{{- end -}}

{{- /* What the names of Redis' pods end in. */ -}}
{{- define "holdfast.redisDomain" -}}
{{ include "holdfast.partName" (list . "redis") }}.{{ .Release.Namespace }}.svc
{{- end -}}

{{- /* The names of Redis' pods; call with (list . ":26379" ","): what follows each, and what stands between two. */ -}}
{{- define "holdfast.redisHosts" -}}
{{- $root := index . 0 -}}
{{- $behind := index . 1 -}}
{{- $hosts := list -}}
{{- range $number := until (int $root.Values.redis.replicas) -}}
{{- $pod := printf "%s-%d" (include "holdfast.partName" (list $root "redis")) $number -}}
{{- $hosts = append $hosts (printf "%s.%s%s" $pod (include "holdfast.redisDomain" $root) $behind) -}}
{{- end -}}
{{- join (index . 2) $hosts -}}
{{- end -}}

{{- define "holdfast.redisEnvironment" -}}
- name: REDISCLI_AUTH
  valueFrom:
    secretKeyRef: {name: {{ include "holdfast.partName" (list . "redis") }}, key: password}
{{- if include "holdfast.redisReplicated" . }}
- name: DOMAIN
  value: {{ include "holdfast.redisDomain" . }}
- name: HOSTS
  value: {{ include "holdfast.redisHosts" (list . "" " ") }}
{{- end }}
{{- end -}}

{{- define "holdfast.redisUrl" -}}
{{- if include "holdfast.redisReplicated" . -}}
redis+sentinel://{{ include "holdfast.redisHosts" (list . ":26379" ",") }}/holdfast/0
{{- else if .Values.redis.bundled -}}
redis://{{ include "holdfast.redisDomain" . }}:6379/0
{{- else -}}
{{ required "redis.external.url: give the address of your Redis, or set redis.bundled to true" .Values.redis.external.url }}
{{- end -}}
{{- end -}}

{{- define "holdfast.metricsSecret" -}}
{{ .Values.metrics.existingSecret | default (include "holdfast.partName" (list . "metrics")) }}
{{- end -}}

{{- define "holdfast.metricsSecretKey" -}}
{{- ternary .Values.metrics.existingSecretKey "token" (ne .Values.metrics.existingSecret "") -}}
{{- end -}}

{{- /* What the restricted pod security level asks of a pod. The user is that of our images. */ -}}
{{- define "holdfast.podSecurity" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
fsGroup: 65532
seccompProfile:
  type: RuntimeDefault
{{- end -}}

{{- /* What the restricted pod security level asks of a container. */ -}}
{{- define "holdfast.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end -}}

{{- /* Where a part's pods go; call with (list . "operator"). Replicas keep apart where they can. */ -}}
{{- define "holdfast.scheduling" -}}
{{- $root := index . 0 -}}
{{- $part := index $root.Values (index . 1) -}}
{{- /* A name server that went with its node is asked for one second: by itself the resolver waits for five. */ -}}
dnsConfig:
  options:
    - {name: timeout, value: "1"}
    - {name: attempts, value: "4"}
{{- with include "holdfast.priorityClassName" . }}
priorityClassName: {{ . }}
{{- end }}
{{- with $part.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- /* What a Deployment ran on a node that is gone is started elsewhere soon: the default is five minutes. */ -}}
{{- $away := list }}
{{- if has (index . 1) (list "operator" "watchdog") }}
{{- range $taint := list "not-ready" "unreachable" }}
{{- $away = append $away (dict "key" (printf "node.kubernetes.io/%s" $taint) "operator" "Exists" "effect" "NoExecute" "tolerationSeconds" 15) }}
{{- end }}
{{- end }}
{{- with concat $part.tolerations $away }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $part.topologySpreadConstraints }}
topologySpreadConstraints:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- if $part.affinity }}
affinity:
  {{- toYaml $part.affinity | nindent 2 }}
{{- else if eq ($part.spread | default "") "required" }}
affinity:
  podAntiAffinity:
    requiredDuringSchedulingIgnoredDuringExecution:
      - topologyKey: kubernetes.io/hostname
        labelSelector:
          matchLabels:
            {{- include "holdfast.selector" . | nindent 12 }}
{{- else if hasKey $part "replicas" }}
affinity:
  podAntiAffinity:
    preferredDuringSchedulingIgnoredDuringExecution:
      - weight: 100
        podAffinityTerm:
          topologyKey: kubernetes.io/hostname
          labelSelector:
            matchLabels:
              {{- include "holdfast.selector" . | nindent 14 }}
{{- end }}
{{- end -}}

{{- /* The projected token that shows the watchdog who asks: an hour, for this audience only. */ -}}
{{- define "holdfast.tokenVolume" -}}
- name: watchdog-token
  projected:
    sources:
      - serviceAccountToken:
          audience: holdfast
          expirationSeconds: 3600
          path: token
{{- end -}}

