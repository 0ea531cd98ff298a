#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Every 3x3 layer of VGG19, UNet and ResNet-50, batch 1 and 16, three directions: Winograd against oneDNN, as Markdown.
# usage: tests/bench/winograd.sh [BUILD]    about ten minutes on two cores; HEARTH_ISA=avx2 limits both sides
set -eu
build=${1:-build}
for direction in fwd bwd_data bwd_filter; do
    for batch in 1 16; do
        for net in vgg19 unet resnet50; do
            "$build/tests/bench/wino_bench" --net $net --batch $batch --direction $direction --rounds ${ROUNDS:-4}
            echo
        done
    done
done
