#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Installs what tests run of others into a virtual environment outside the tree: $HEARTH_CLIENTS, else ~/.cache/hearth-clients. Each
# list once: it is kept until it changes. usage: clients.sh [LIST ..]: clients.txt (clients, gunicorn, validators of OpenAPI and
# Kubernetes) if none is said; spark.txt (Spark, Dask and Ray).
set -eu
home=${HEARTH_CLIENTS:-${XDG_CACHE_HOME:-$HOME/.cache}/hearth-clients}
for list in "${@:-clients.txt}"; do
    ! cmp -s "build-aux/$list" "$home/$list" || continue
    mkdir -p "$home"
    exec 9>"$home/.lock"
    flock 9 # two goals of one make: what one pip writes another one would mix with its own
    echo "hearth: installing the packages of build-aux/$list from PyPI into $home"
    [ -x "$home/bin/python" ] || python3 -m venv "$home"
    "$home/bin/python" -m pip install -q --disable-pip-version-check -r "build-aux/$list"
    cp "build-aux/$list" "$home/$list"
done
