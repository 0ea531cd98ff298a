#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes the tables of docs/benchmarks.md from what tests/bench/winograd.sh printed.

usage: winograd_table.py FILE [AVX2_FILE]
The first table has a row per layer; the others are geometric means over layers, of ratios between numbers of one run."""
import math
import re
import sys

DIRECTIONS = [("fwd", "forward"), ("bwd_data", "data gradient"), ("bwd_filter", "filter gradient")]
BATCHES = ["1", "16"]
NETS = {"vgg19": "VGG19", "unet": "UNet", "resnet50": "ResNet-50"}


def number(cell):
    found = re.match(r"\s*(\d+)", cell)
    return int(found.group(1)) if found else None


def read(path):
    """(net, layer) -> {(direction, batch): (ours, onednn's better, direct, ours in 4 MiB)}, and the fronts' lines."""
    layers, fronts, at = {}, [], None
    for line in open(path, encoding="utf-8"):
        head = re.match(r"(\w+), batch (\d+), .*, (\w+) vectors of", line)
        row = re.match(r"\| (\w+) (\d+x\d+ @\d+) \|(.*)", line)
        front = re.match(r"on the front: (\d+) of ours; against direct the slowest is ([\d.]+) \((.*)\), (\d+) slower", line)
        if head:
            at = (head.group(1), head.group(2))
        elif row:
            direct, theirs, ours, four = [number(c) for c in row.group(3).split("|")[:4]]
            best = max(direct, theirs or 0)
            layers.setdefault((row.group(1), row.group(2)), {})[at] = (ours, best, direct, four)
        elif front:
            fronts.append((int(front.group(1)), float(front.group(2)), front.group(3), int(front.group(4)), at))
    return layers, fronts


def mean(layers, direction, batch, of, net=None):
    values = [of(l[(direction, batch)]) for k, l in layers.items() if (net is None or k[0] == net) and (direction, batch) in l]
    values = [math.log(v) for v in values if v]
    return f"{math.exp(sum(values) / len(values)):.2f}" if values else "-"


def least(layers, direction, of):
    values = [(of(l[(direction, b)]), k, b) for k, l in layers.items() for b in BATCHES if (direction, b) in l]
    if not values:
        return "-"
    value, (net, layer), batch = min(values)
    return f"{value:.2f} ({NETS[net]} {layer}, batch {batch})"


def say_front(fronts):
    if fronts:
        worst = min(fronts, key=lambda f: f[1])
        print(f"\nThe fronts of these runs offer {sum(f[0] for f in fronts)} points of winograd, {sum(f[3] for f in fronts)} of them slower than "
              f"oneDNN's direct by more than 3 %; the slowest has {worst[1]:.2f} of direct's speed ({worst[2]}, {worst[4][0]}, batch {worst[4][1]}).")


def table(layers):
    print("| layer | " + " | ".join(f"{name.split()[0]}, {b}" for _, name in DIRECTIONS for b in BATCHES) + " |")
    print("|---|" + "---:|" * 6)
    for (net, layer), cells in layers.items():
        text = [" / ".join(str(v) for v in cells[(d, b)][:3]) if (d, b) in cells else "-" for d, _ in DIRECTIONS for b in BATCHES]
        print(f"| {NETS[net]} {layer} | " + " | ".join(text) + " |")
    print("\n| geometric mean, batch 1, 16 | of oneDNN's better | of direct | least of direct | 4 MiB against 16 |\n|---|---:|---:|---:|---:|")
    for d, name in DIRECTIONS:
        pairs = [", ".join(mean(layers, d, b, of) for b in BATCHES)
                 for of in (lambda c: c[0] / c[1], lambda c: c[0] / c[2], lambda c: c[3] and c[3] / c[0])]
        low = least(layers, d, lambda c: c[0] / c[2])
        print(f"| {name} | {pairs[0]} | {pairs[1]} | {low} | {pairs[2]} |")


def table_avx2(layers):
    print("\n| times oneDNN's direct, both limited to AVX2; batch 1, 16 | " + " | ".join(name for _, name in DIRECTIONS) + " |\n|---|" + "---:|" * 3)
    for net in [*NETS, None]:
        cells = [", ".join(mean(layers, d, b, lambda c: c[0] / c[2], net) for b in BATCHES) for d, _ in DIRECTIONS]
        print(f"| {NETS.get(net, 'all')} | " + " | ".join(cells) + " |")
    cells = [least(layers, d, lambda c: c[0] / c[2]) for d, _ in DIRECTIONS]
    print("| least of a layer | " + " | ".join(cells) + " |")


def main():
    layers, fronts = read(sys.argv[1])
    table(layers)
    say_front(fronts)
    if len(sys.argv) > 2:
        layers, fronts = read(sys.argv[2])
        table_avx2(layers)
        say_front(fronts)


main()
