#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Installs the Debian packages that are missing; says what it does. usage: deps.sh build|test|clients|spark|lint|package|demo|browser|system
#   build    what compiles and runs hearth
#   test     + the test runner, CBC, Open MPI, MPICH
#   clients  what clients of others need (build-aux/clients.sh), and zsh, which reads its completion
#   spark    Java, for Spark: Debian's default (12: 17, 13: 21), both of which Spark 4 runs on
#   lint     + formatters, checkers, clang
#   package  what makes a wheel, and a root to try it in
#   demo     what asks over HTTP at its end
#   browser  what the test of the page needs in addition (122 MB to download): without it that test is skipped
#   system   what makes Debian packages and an image, and tries them (mk/packages.mk)
# With DEPS=0 in the environment it installs nothing, and fails where something is missing.
#
# deps.sh --needs build|test OPTION..  installs nothing: it names (exit 1) the packages of those commands and headers that the
# compiler, $CC OPTION.., does not find; where they come from makes no difference.
set -eu

needed() { # the packages of what is not found
    command -v "${CC%% *}" >/dev/null || { echo "${CC%% *}" | sed 's/^cc$/gcc/'; return; }
    command -v protoc-c >/dev/null || echo protobuf-c-compiler
    { [ "$want" = build ] || command -v prove >/dev/null; } || echo perl
    while read -r header package; do
        [ -z "$header" ] || printf '#if !__has_include(<%s>)\n@"%s"\n#endif\n' "$header" "$package"
    done <<END | $CC "$@" -E -P -x c - | sed -n 's/^@"\(.*\)".*/\1/p'
stdio.h libc6-dev
protobuf-c/protobuf-c.h libprotobuf-c-dev
oneapi/dnnl/dnnl.h libdnnl-dev
nng/nng.h libnng-dev
lmdb.h liblmdb-dev
jansson.h libjansson-dev
openssl/ssl.h libssl-dev
event2/event.h libevent-dev
zlib.h zlib1g-dev
seccomp.h libseccomp-dev
png.h libpng-dev
jpeglib.h libjpeg62-turbo-dev
uthash.h uthash-dev
$([ "$want" = build ] || echo cmocka.h libcmocka-dev)
END
}
if [ "${1:-}" = --needs ]; then
    want=$2 CC=${CC:-cc}
    shift 2
    missing=$(needed "$@" | paste -sd' ')
    [ -n "$missing" ] || exit 0
    goal=deps$([ "$want" = build ] || echo "-$want")
    echo "hearth: cannot build without these Debian packages, which 'make $goal' installs: $missing" >&2
    exit 1
fi

build="gcc libc6-dev make protobuf-c-compiler libprotobuf-c-dev libdnnl-dev libnng-dev libmbedtls-dev liblmdb-dev libjansson-dev
 libssl-dev libevent-dev zlib1g-dev libseccomp-dev libpng-dev
 libjpeg62-turbo-dev uthash-dev"
case ${1:-build} in
build) want=$build ;;
test) want="$build libcmocka-dev g++ perl coinor-cbc pkg-config openmpi-bin libopenmpi-dev mpich libmpich-dev python3-mpi4py python3-numpy python3-venv openssl curl" ;;
clients) want="$build python3-venv libb64-0d zsh" ;;
spark) want="$build python3-venv default-jre-headless" ;;
lint) want="$build libcmocka-dev perl coinor-cbc clang libclang-rt-dev lld clang-format cppcheck mandoc mypy" ;;
package) want="$build binutils python3-venv debootstrap" ;;
demo) want=curl ;;
browser) want="chromium fonts-dejavu-core" ;;
system) want="$build debhelper dh-python lintian libopenmpi-dev mmdebstrap umoci crun" ;;
*) echo "usage: deps.sh build|test|clients|spark|lint|package|demo|browser|system" >&2; exit 2 ;;
esac
command -v dpkg-query >/dev/null || { echo "hearth: not a Debian system: install the equivalents of: $want" >&2; exit 0; }
missing=
for p in $want; do
    [ "$(dpkg-query -W -f '${db:Status-Status}' "$p" 2>/dev/null)" = installed ] || missing="$missing $p"
done
[ -n "$missing" ] || exit 0
[ "${DEPS:-1}" != 0 ] || { echo "hearth: DEPS=0 forbids installing Debian packages; missing:$missing" >&2; exit 1; }
echo "hearth: installing Debian packages:$missing"
root=
if [ "$(id -u)" != 0 ]; then
    command -v sudo >/dev/null || { echo "hearth: not root and no sudo: run as root: apt-get install$missing" >&2; exit 1; }
    root=sudo
fi
install() {
    # shellcheck disable=SC2086
    $root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends -o DPkg::Lock::Timeout=300 $missing >/dev/null
}
install 2>/dev/null || { $root apt-get update -qq && install; }
