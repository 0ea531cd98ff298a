#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Installs the Debian packages that are missing; says what it does. usage: deps.sh [--probe] build|test|clients|lint|demo|browser
#   build  what compiles and runs hearth      test  + the test runner, CBC      lint  + formatters, checkers, clang
#   clients  what clients of others need (build-aux/clients.sh), and zsh, which reads its completion      demo  what asks over HTTP at its end
#   browser  what the test of the page needs beside (122 MB to download): without it that test is skipped
# --probe only tells (exit 1) whether something is missing.
set -eu
probe=0
[ "${1:-}" = --probe ] && { probe=1; shift; }
build="gcc libc6-dev make protobuf-c-compiler libprotobuf-c-dev libdnnl-dev libnng-dev libmbedtls-dev liblmdb-dev libjansson-dev
 libssl-dev libevent-dev zlib1g-dev libseccomp-dev uthash-dev"
case ${1:-build} in
build) want=$build ;;
test) want="$build libcmocka-dev perl coinor-cbc pkg-config python3-numpy python3-venv openssl curl" ;;
clients) want="$build python3-venv libb64-0d zsh" ;;
lint) want="$build libcmocka-dev perl coinor-cbc clang libclang-rt-dev clang-format cppcheck mandoc mypy" ;;
demo) want=curl ;;
browser) want="chromium fonts-dejavu-core" ;;
*) echo "usage: deps.sh [--probe] build|test|clients|lint|demo|browser" >&2; exit 2 ;;
esac
command -v dpkg-query >/dev/null || { echo "hearth: not a Debian system: install the equivalents of: $want" >&2; exit $probe; }
missing=
for p in $want; do
    [ "$(dpkg-query -W -f '${db:Status-Status}' "$p" 2>/dev/null)" = installed ] || missing="$missing $p"
done
[ -n "$missing" ] || exit 0
[ $probe = 0 ] || exit 1
echo "hearth: installing Debian packages:$missing"
root=
if [ "$(id -u)" != 0 ]; then
    command -v sudo >/dev/null || { echo "hearth: not root and no sudo: run as root: apt-get install$missing" >&2; exit 1; }
    root=sudo
fi
# shellcheck disable=SC2086
$root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends -o DPkg::Lock::Timeout=300 $missing >/dev/null 2>&1 || {
    $root apt-get update -qq
    $root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends -o DPkg::Lock::Timeout=300 $missing >/dev/null
}
