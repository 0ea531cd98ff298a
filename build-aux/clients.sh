#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Installs what tests run of others: clients, gunicorn, and validators of OpenAPI and Kubernetes (build-aux/clients.txt), into a virtual environment outside the tree:
# $HEARTH_CLIENTS, else ~/.cache/hearth-clients. Once: it is kept until the list changes.
set -eu
list=build-aux/clients.txt
home=${HEARTH_CLIENTS:-${XDG_CACHE_HOME:-$HOME/.cache}/hearth-clients}
cmp -s "$list" "$home/clients.txt" && exit 0
echo "hearth: installing tritonclient, perf_analyzer, gunicorn and validators of OpenAPI and Kubernetes from PyPI into $home"
[ -x "$home/bin/python" ] || python3 -m venv "$home"
"$home/bin/python" -m pip install -q --disable-pip-version-check -r "$list"
cp "$list" "$home/clients.txt"
