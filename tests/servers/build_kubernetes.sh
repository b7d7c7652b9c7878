#!/usr/bin/env bash
# Builds Kubernetes 1.20.2's programs from Debian's source package into the folder named by the first argument.
#
#   build_kubernetes.sh FOLDER PROGRAM...      e.g. build_kubernetes.sh ~/.cache/holdfast/kubernetes-1.20.2 kube-apiserver
#
# PROGRAM is kube-apiserver, kube-controller-manager, kube-scheduler, kubelet, kube-proxy or kubectl.
# The package carries every dependency, so nothing but the Debian mirror this machine already uses is asked.
# A program that is there already is left alone. Needs root (apt-get) on Debian 12; about 4 minutes for kube-apiserver
# on two cores and 3 for the rest together.
set -euo pipefail

version=1.20.2
folder=$1
shift
wanted=()
for program in "$@"; do
  [ -x "$folder/$program" ] || wanted+=("$program")
done
[ ${#wanted[@]} -gt 0 ] || exit 0
mkdir -p "$folder"
work="$folder/source"
export DEBIAN_FRONTEND=noninteractive

unpack() {
  # The mirrors this machine has for packages, asked for their sources too.
  local sources=/etc/apt/sources.list.d/holdfast-deb-src.sources
  if [ -f /etc/apt/sources.list.d/debian.sources ]; then
    sed 's/^Types: deb$/Types: deb-src/' /etc/apt/sources.list.d/debian.sources > "$sources"
  else
    sed -n 's/^deb /deb-src /p' /etc/apt/sources.list > "${sources%.sources}.list"
  fi
  # One at a time with whoever else installs packages; what they print shows that it goes on.
  flock "$folder/../apt.lock" sh -c \
    'apt-get update && apt-get install -y --no-install-recommends golang-1.19-go dpkg-dev'
  rm -rf "$work"
  mkdir -p "$work"
  (cd "$work" && apt-get source --download-only kubernetes)
  mkdir "$work/tree"
  tar -xzf "$work"/kubernetes_*.orig.tar.gz -C "$work/tree" --strip-components=1
  mkdir -p "$work/tree/.go/src/k8s.io"
  ln -s "$work/tree" "$work/tree/.go/src/k8s.io/kubernetes"
}

# Two vendored packages look into Go's own data, which changed. Both do it in the way their later versions do.
#
# reflect2 1.0.1 walks maps the way Go did before 1.18. Built with a newer Go, the API server dies
# of it (SIGSEGV) whenever it writes a map in order of its keys, as in the labels of a custom object.
# Source: https://github.com/modern-go/reflect2 (its file go_above_118.go)
#
# kube-openapi's validation compares a value with its type's zero, and by where both lie, not by what they are. All zeros
# lie at one place since Go 1.17 or so: an empty text in a custom object is then refused as null.
fit_to_go() {
  sed -i 's/if data == nil || reflect.DeepEqual(reflect.Zero(reflect.TypeOf(data)), reflect.ValueOf(data)) {/if data == nil {/' \
    "$work/tree/vendor/k8s.io/kube-openapi/pkg/validation/validate/type.go"
  local package=$work/tree/vendor/github.com/modern-go/reflect2
  grep -q 'rest \[6\]' "$package/unsafe_link.go" && return
  sed -i -e 's/^func mapiterinit(.*/func mapiterinit(rtype unsafe.Pointer, m unsafe.Pointer, it *hiter)/' \
    -e 's|^\t// rest fields are ignored|\trest [6]unsafe.Pointer\n\tmore [4]uintptr|' "$package/unsafe_link.go"
  sed -i -e 's/^\treturn &UnsafeMapIterator{$/\tvar it hiter\n\tmapiterinit(type2.rtype, *(*unsafe.Pointer)(obj), \&it)\n&/' \
    -e 's/mapiterinit(type2.rtype, \*(\*unsafe.Pointer)(obj)),$/\&it,/' "$package/unsafe_map.go"
}

[ -d "$work/tree/.go/src/k8s.io" ] || unpack
fit_to_go

export PATH="/usr/lib/go-1.19/bin:$PATH" GO111MODULE=off GOPATH="$work/tree/.go" CGO_ENABLED=0 GOFLAGS=
export GOCACHE="$work/cache"
package=k8s.io/kubernetes/vendor/k8s.io/component-base/version
# The second one is what GET /version says: Helm reads it.
flags="-s -w"
for versioned in "$package" k8s.io/kubernetes/vendor/k8s.io/client-go/pkg/version; do
  flags+=" -X $versioned.gitVersion=v$version -X $versioned.gitMajor=1 -X $versioned.gitMinor=20"
done

# kube-apiserver serves an OpenAPI document that is generated from the types, not kept in the source.
generate_openapi() {
  local generated=pkg/generated/openapi
  # The server does not start without the model of its own extension type: a document without it is not whole.
  grep -qs CustomResourceDefinition $generated/zz_generated.openapi.go && return
  go build -v -o "$work/openapi-gen" ./vendor/k8s.io/kube-openapi/cmd/openapi-gen
  local inputs
  # -R, not -r: most folders of vendor/k8s.io are links.
  inputs=$(grep -Rl --include='*.go' '+k8s:openapi-gen' vendor/k8s.io pkg \
    | grep -v -e kube-openapi -e /code-generator -e _test.go \
    | xargs -n1 dirname | sort -u | sed 's,^,k8s.io/kubernetes/,' | paste -sd, -)
  "$work/openapi-gen" --go-header-file hack/boilerplate/boilerplate.generatego.txt --report-filename "$work/violations" \
    --output-base "$GOPATH/src" --output-package "k8s.io/kubernetes/$generated" \
    --output-file-base zz_generated.openapi --input-dirs "$inputs"
}

cd "$GOPATH/src/k8s.io/kubernetes"
for program in "${wanted[@]}"; do
  [ "$program" = kube-apiserver ] && generate_openapi
  # -v names every package as it is compiled: whoever reads this sees that it goes on.
  go build -v -ldflags "$flags" -o "$folder/$program.building" "./cmd/$program"
  mv "$folder/$program.building" "$folder/$program"
done
