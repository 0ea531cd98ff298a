#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Every 3x3 layer of VGG19, UNet and ResNet-50, batch 1 and 16, three directions: Winograd against oneDNN, then both limited to
# AVX2. Leaves what the benchmark says in BUILD/winograd.txt and BUILD/winograd-avx2.txt, and prints the tables as Markdown.
# usage: tests/bench/winograd.sh [BUILD]    about ten minutes on two cores; ROUNDS=N measures more often (2)
set -eu
build=${1:-build}
series() {
    for direction in fwd bwd_data bwd_filter; do
        for batch in 1 16; do
            for net in vgg19 unet resnet50; do
                "$build/tests/bench/wino_bench" --net $net --batch $batch --direction $direction --rounds "${ROUNDS:-2}"
                echo
            done
        done
    done
}
unset HEARTH_ISA
series >"$build/winograd.txt"
export HEARTH_ISA=avx2
series >"$build/winograd-avx2.txt"
python3 "$(dirname "$0")/winograd_table.py" "$build/winograd.txt" "$build/winograd-avx2.txt"
