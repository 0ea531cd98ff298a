#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Builds Debian packages of the last commit in a copy of the tree, BUILD_DIR/deb, has lintian read them, and puts them into
# BUILD_DIR/dist. usage: build-aux/packages/deb.sh BUILD_DIR [PROFILE], from the root.
set -eu
build=$1 profile=${2:-}
fail() { echo "hearth: make deb: $*" >&2; exit 1; }
version=$(sed -n 's/^.define HEARTH_VERSION *"\(.*\)"/\1/p' client/hearth.h)
packed=$(dpkg-parsechangelog -S Version)
[ "$packed" = "$version" ] || fail "client/hearth.h has version $version, debian/changelog $packed: give it an entry for $version"
git rev-parse -q --verify HEAD >/dev/null || fail 'it packs the last commit, and here is no git checkout'
git diff --quiet HEAD || echo 'hearth: changes that are not committed are not in the packages' >&2
unset MAKEFLAGS MFLAGS MAKELEVEL # the make in there is nobody's child
rm -rf "$build/deb" "$build/dist"/*.deb
mkdir -p "$build/deb" "$build/dist"
git archive --prefix="hearth-$version/" HEAD | tar xf - -C "$build/deb"
log=$(cd "$build/deb" && pwd)/build.log
# shellcheck disable=SC2086
(cd "$build/deb/hearth-$version" && dpkg-buildpackage -us -uc ${profile:+-P$profile}) >"$log" 2>&1 || {
    tail -n 40 "$log" >&2
    fail "dpkg-buildpackage failed; all that it said is in $log"
}
# Root may run it, for it reads packages of our own.
lintian --allow-root --fail-on error,warning --tag-display-limit 0 "$build/deb"/*.changes || fail 'lintian found faults'
mv "$build/deb"/*.deb "$build/dist/"
ls "$build/dist"
