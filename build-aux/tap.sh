#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Runs one test for prove, 10 minutes at most. cmocka 1.1.5 (Debian 12) says "not ok" of a skipped test; TAP wants "ok".
out=$(timeout 600 "$@")
rc=$?
printf '%s\n' "$out" | sed 's/^not ok \(.*# SKIP\)/ok \1/'
exit $rc
