#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Runs one test for prove, HEARTH_TEST_SECONDS at most, else 10 minutes: a program, or a script, which is told the build folder
# ($HEARTH_BUILD). cmocka 1.1.5 (Debian 12) says "not ok" of a skipped test; TAP wants "ok".
case $1 in
*.sh) set -- sh "$1" "$HEARTH_BUILD" ;;
*.py) set -- python3 "$1" "$HEARTH_BUILD" ;;
esac
out=$(timeout "${HEARTH_TEST_SECONDS:-600}" "$@")
rc=$?
printf '%s\n' "$out" | sed 's/^not ok \(.*# SKIP\)/ok \1/'
exit $rc
