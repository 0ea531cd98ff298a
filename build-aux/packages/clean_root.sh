#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Makes a root of this machine's Debian that knows nothing of hearth, from $MIRROR or Debian's, by mmdebstrap.
# usage: build-aux/packages/clean_root.sh VARIANT TARGET SOURCE [OPTION]..: SOURCE, which may be empty, is one more line of
# sources.list, and options are mmdebstrap's.
set -eu
variant=$1 target=$2 source=$3
shift 3
# shellcheck disable=SC1091
suite=${SUITE:-$(. /etc/os-release && echo "$VERSION_CODENAME")}
mirror=${MIRROR:-http://deb.debian.org/debian}
security=${SECURITY_MIRROR:-http://deb.debian.org/debian-security}
# How this machine reaches mirrors: proxies, and whether it trusts its clock.
apt=$(mktemp)
trap 'rm -f "$apt"' EXIT
apt-config dump | grep -E '^Acquire::(http|https)::[Pp]roxy|^Acquire::Check-(Date|Valid-Until)|^Acquire::Languages' >"$apt" || true
mmdebstrap --quiet --variant="$variant" --aptopt="$apt" "$@" "$suite" "$target" "deb $mirror $suite main" \
    "deb $mirror $suite-updates main" "deb $security $suite-security main" ${source:+"$source"}
