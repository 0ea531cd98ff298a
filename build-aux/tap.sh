#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Runs one test for prove, HEARTH_TEST_SECONDS at most, else 10 minutes: a program, or a script, which is told the build folder
# ($HEARTH_BUILD). What the test started and left running is named and killed: it must not keep the runner waiting for more
# output. What it writes comes at its end, errors too: prove, shown one line of a test, waits for the next line of TAP of that
# test, and starts no other meanwhile. Its processor seconds are a line in $HEARTH_BUILD/test-times.
# cmocka 1.1.5 (Debian 12) says "not ok" of a skipped test; TAP wants "ok".
case $1 in
*.sh) set -- sh "$1" "$HEARTH_BUILD" ;;
*.py) set -- python3 "$1" "$HEARTH_BUILD" ;;
esac
unset MAKEFLAGS MFLAGS MAKELEVEL # a make that a test runs is nobody's child
out=$(mktemp) || exit 1
trap 'rm -f "$out" "$out.group" "$out.errors" "$out.times"' EXIT
# timeout is the leader of a process group, in which is what the test starts.
sh -c 'echo $$ >"$0.group" && exec timeout "$@"' "$out" "${HEARTH_TEST_SECONDS:-600}" "$@" >"$out" 2>"$out.errors"
rc=$?
times >"$out.times"
[ ! -d "$HEARTH_BUILD" ] || awk -v of="$*" 'NR == 2 { split($1 $2, t, /[ms]/); printf "%.1f %s\n", 60 * (t[1] + t[3]) + t[2] + t[4], of }' \
    "$out.times" >>"$HEARTH_BUILD/test-times"
cat "$out.errors" >&2
group=$(cat "$out.group")
left=$(cat /proc/[0-9]*/stat 2>/dev/null | sed -n "s/^\([0-9]* (.*)\) [^Z] [0-9]* $group .*/\1/p" | tr '\n' ' ')
if [ -n "$left" ]; then
    echo "$*: still running after the test, killed: $left" >&2
    kill -s KILL -- "-$group"
fi
sed -i 's/^not ok \(.*# SKIP\)/ok \1/' "$out"
if [ $rc -ne 0 ] || grep -q '^not ok' "$out"; then # prove counts failures; what they said stands here
    { echo "$*: failed, exit status $rc:"; grep -A 12 '^not ok' "$out" || tail -n 12 "$out"; } >&2
fi
cat "$out"
exit $rc
