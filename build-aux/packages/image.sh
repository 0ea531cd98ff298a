#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Makes an OCI image of the Debian packages in BUILD_DIR/dist, without a daemon: Debian's essential packages and ours, in one layer.
# The result is BUILD_DIR/dist/hearth-VERSION.oci.tar. usage: build-aux/packages/image.sh BUILD_DIR, from the root.
set -eu
build=$(cd "$1" && pwd)
work=$build/image
user=10001 # a number: Kubernetes' runAsNonRoot does not look into /etc/passwd
version=$(sed -n 's/^.define HEARTH_VERSION *"\(.*\)"/\1/p' client/hearth.h)
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
export SOURCE_DATE_EPOCH
created=$(date -u -d "@$SOURCE_DATE_EPOCH" +%Y-%m-%dT%H:%M:%SZ)
ours="hearth hearth-server hearth-onednn"
[ -z "$(ls "$build"/dist/hearth-cuda_"$version"_*.deb 2>/dev/null)" ] || ours="$ours hearth-cuda"
rm -rf "$work" "$build/dist/hearth-$version.oci.tar"
mkdir -p "$work/debs"
for p in $ours; do cp "$build/dist/$p"_"$version"_*.deb "$work/debs/"; done
(cd "$work/debs" && dpkg-scanpackages -m . 2>/dev/null >Packages)

# Without apt: a container is made anew, not upgraded. The user is there before the package makes one with another number.
# shellcheck disable=SC2046
sh build-aux/packages/clean_root.sh essential "$work/root.tar" "deb [trusted=yes] copy:$work/debs ./" \
    --include="$(echo "$ours" | tr ' ' ',')",systemd-standalone-sysusers \
    --dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/locale/*' \
    --dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-include=/usr/share/doc/*/copyright' \
    --essential-hook="echo hearth:x:$user:$user::/var/lib/hearth:/usr/sbin/nologin >>\"\$1/etc/passwd\"" \
    --essential-hook="echo hearth:x:$user: >>\"\$1/etc/group\"" \
    --customize-hook='rm -rf "$1"/etc/apt/sources.list "$1"/etc/resolv.conf "$1"/etc/hostname "$1"/var/log/*' \
    --customize-hook="install -d -o $user -g $user -m 750 \"\$1/var/lib/hearth\" \"\$1/run/hearth\""

image=$work/oci:$version
umoci init --layout "$work/oci"
umoci new --image "$image"
umoci raw add-layer --image "$image" --history.created="$created" "$work/root.tar"
# HTTP at all addresses of the container, and no further: who publishes the port chooses where. Without tokens such clients may
# only run inference; what else there is to do goes through the socket (hearth, in the container).
umoci config --image "$image" --created="$created" --history.created="$created" --config.user="$user:$user" \
    --config.workingdir=/var/lib/hearth --config.volume=/var/lib/hearth --config.volume=/run/hearth \
    --config.exposedports=8000/tcp --config.env=HEARTH_SERVER=ipc:///run/hearth/hearth.sock \
    --config.env=PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    --config.entrypoint=/usr/sbin/hearthd --config.cmd=--config --config.cmd=/etc/hearth/hearthd.conf \
    --config.cmd=--http --config.cmd=0.0.0.0:8000 \
    --config.label=org.opencontainers.image.title=hearth --config.label=org.opencontainers.image.version="$version" \
    --config.label=org.opencontainers.image.licenses=Apache-2.0
umoci gc --layout "$work/oci"
tar -C "$work/oci" --sort=name --mtime="@$SOURCE_DATE_EPOCH" --owner=0 --group=0 --numeric-owner -cf "$work/image.tar" .
mv "$work/image.tar" "$build/dist/hearth-$version.oci.tar"
rm -rf "$work"
ls -sh "$build/dist/hearth-$version.oci.tar"
