#!/usr/bin/env bash
# Makes the image that images/Dockerfile begins from, for a machine without a registry.
#
#   base_image.sh make          debootstrap this machine's Debian with its Python, keep it in buildah's store
#   base_image.sh name          the name that it has there
#   base_image.sh options       options for images/build.sh that let a build reach packages as this machine does
#
# It is the release of this machine, for the pods of tests mount packages that are installed here, and so need its Python.
# The image has python3 and pip where Debian has them, not where python's own image has them; the Dockerfile does not
# care. Nothing of this machine's configuration is copied in: `options` mounts it while a build runs. Needs root.
# One minute the first time; the packed tree is kept in the cache, outside the checkout.
set -euo pipefail

release=$(sed -n 's/^VERSION_CODENAME=//p' /etc/os-release)
name=localhost/holdfast-test-python:$release
cache=${XDG_CACHE_HOME:-$HOME/.cache}/holdfast
packages=python3,python3-pip,ca-certificates
archive=$cache/base-$release-$(echo "$packages" | sha256sum | head -c 12).tar

install_tools() {
  local missing=()
  command -v buildah >/dev/null || missing+=(buildah)
  command -v debootstrap >/dev/null || missing+=(debootstrap)
  [ ${#missing[@]} -eq 0 ] && return
  # One at a time with whoever else installs packages.
  DEBIAN_FRONTEND=noninteractive flock "${XDG_CACHE_HOME:-$HOME/.cache}/holdfast/apt.lock" \
    sh -c "apt-get update -qq && apt-get install -y -qq --no-install-recommends ${missing[*]} >/dev/null"
}

# The mirror this machine installs from.
mirror() {
  sed -n 's/^URIs: *//p' /etc/apt/sources.list.d/debian.sources 2>/dev/null | head -1 | grep . \
    || sed -n "s/^deb \(\[[^]]*\] \)\?\([^ ]*\) $release .*/\2/p" /etc/apt/sources.list | head -1
}

pack() {
  local root
  root=$(mktemp -d)
  debootstrap --variant=minbase "--include=$packages" "$release" "$root" "$(mirror)" >&2
  rm -rf "$root"/var/cache/apt/* "$root"/var/lib/apt/lists/* "$root"/var/log/* "$root"/etc/resolv.conf "$root"/etc/hostname
  find "$root/usr/share/doc" "$root/usr/share/man" "$root/usr/share/locale" "$root/usr/share/info" -mindepth 1 -delete
  find "$root" -name __pycache__ -type d -prune -exec rm -rf {} +
  mkdir -p "$cache"
  tar -C "$root" --one-file-system --exclude=./dev/* --exclude=./proc/* --exclude=./sys/* -cf "$archive.new" .
  mv "$archive.new" "$archive"
  rm -rf "$root"
}

make_image() {
  install_tools
  buildah inspect --type image "$name" >/dev/null 2>&1 && return
  [ -f "$archive" ] || pack
  local container
  container=$(buildah from scratch)
  buildah add --quiet "$container" "$archive" / >/dev/null
  buildah config --env PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin --cmd python3 "$container"
  buildah commit --quiet --rm "$container" "$name" >/dev/null
}

# What pip is told on this machine, by files and by the environment, as one file; the folders it names; and the
# certificates that are trusted. All of it is there while a build runs, read-only, and in no image. A constraint of this
# machine's is left out: the images have their own, and its file is not there.
options() {
  local conf=$cache/build-pip.conf path
  mkdir -p "$cache"
  { echo "[global]"; pip_config | sed -n "s/^\(global\|install\|:env:\)\.\([a-z-]*\)='\(.*\)'$/\2 = \3/p" | grep -v '^constraint = ' | sort -u -t= -k1,1; } > "$conf"
  echo "--pull-never"
  echo "--isolation=chroot" # no cgroups are asked for: a builder inside a container has none to give
  echo "--volume=$conf:/etc/pip.conf:ro"
  for path in /etc/ssl/certs $(folders_in "$conf"); do
    echo "--volume=$path:$path:ro"
  done
  env | sed -n 's/^\([a-z]*_proxy\|[A-Z]*_PROXY\)=\(.*\)/--build-arg=\1=\2/p'
}

pip_config() {
  python3 -m pip config list
}

# A folder that is an index is asked for as FOLDER/simple, and leads out of itself to the files beside it.
folders_in() {
  grep -oE "(file://)?/[^ ]+" "$1" | sed 's,^file://,,; s,/simple/*$,,' | sort -u | while read -r path; do
    if [ -d "$path" ] && [ "$path" != /etc/ssl/certs ]; then echo "$path"; fi
  done
}

case ${1:-} in
  make) make_image ;;
  name) echo "$name" ;;
  options) options ;;
  *) sed -n '4,7p' "$0" >&2; exit 2 ;;
esac
