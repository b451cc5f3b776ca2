#!/usr/bin/env bash
# Makes the image that the tests of a real container engine run in: Debian 12 with Python, g++ and the cross compiler for
# aarch64, from Debian's mirror. Needs root, podman and debootstrap; takes three minutes and 1.5 GB. On Debian, with the
# argument `--install`, it installs those first. An image without the cross compiler, of before, is replaced.
set -euo pipefail
image=localhost/kci-debian:12
if [ "${1:-}" = --install ]; then
  apt-get update -qq
  DEBIAN_FRONTEND=noninteractive apt-get install -qq --no-install-recommends podman runc debootstrap >/dev/null
fi
if podman image exists "$image" && podman image inspect --format '{{.Annotations}}{{.Labels}}' "$image" | grep -q kci-cross; then
  exit 0
fi
root="$(mktemp -d)"
trap 'rm -rf "$root"' EXIT
debootstrap --variant=minbase --include=python3,python3-dev,python3-venv,g++,g++-aarch64-linux-gnu,git bookworm "$root/system" \
  "${DEBIAN_MIRROR:-http://deb.debian.org/debian}" >"$root/log" || { tail "$root/log"; exit 1; }
tar -C "$root/system" -c . | podman import --quiet --change "LABEL kci-cross=aarch64-linux" - "$image"
