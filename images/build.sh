#!/usr/bin/env bash
# Builds Holdfast's images with buildah or docker, whichever is there.
#
#   images/build.sh [--base IMAGE] [--tag TAG] [--prefix holdfast/] [--builder buildah|docker] [TARGET...] [-- OPTION...]
#
# TARGET: operator watchdog agent console launcher example-trainer; all of them when none is named; or example-script. What follows -- goes to
# the builder as it is (--build-arg, --volume, ...). Give --base as NAME@sha256:... to pin it by its digest.
set -euo pipefail

cd "$(dirname "$0")/.."
base=
version=$(sed -n 's/^version = "\(.*\)"$/\1/p' pyproject.toml | head -1)
tag=$version
prefix=holdfast/
builder=
targets=()
while [ $# -gt 0 ]; do
  case $1 in
    --base) base=$2; shift 2 ;;
    --tag) tag=$2; shift 2 ;;
    --prefix) prefix=$2; shift 2 ;;
    --builder) builder=$2; shift 2 ;;
    --) shift; break ;;
    -*) echo "images/build.sh: there is no option $1; see the top of this file" >&2; exit 2 ;;
    *) targets+=("$1"); shift ;;
  esac
done
[ ${#targets[@]} -gt 0 ] || targets=(operator watchdog agent console launcher example-trainer)
[ -n "$builder" ] || builder=$(basename "$(command -v buildah || command -v docker || echo none)")

label=--label=org.opencontainers.image
options=(--file images/Dockerfile "$label.version=$version" "$label.licenses=Apache-2.0")
if revision=$(git rev-parse HEAD 2>/dev/null); then options+=("$label.revision=$revision"); fi
case $builder in
  buildah) build=(buildah build --layers --ignorefile images/Dockerfile.dockerignore --format docker) ;;
  docker) build=(docker build) ;;
  *) echo "images/build.sh: neither buildah nor docker is on the path; install one (apt-get install buildah)" >&2; exit 2 ;;
esac
[ -z "$base" ] || options+=(--build-arg "PYTHON_IMAGE=$base")

for target in "${targets[@]}"; do
  begun=$SECONDS
  "${build[@]}" "${options[@]}" "$label.title=holdfast-$target" "$@" --target "$target" --tag "$prefix$target:$tag" . >&2
  echo "$prefix$target:$tag $((SECONDS - begun))s"
done
