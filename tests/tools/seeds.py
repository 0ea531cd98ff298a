#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The seeds of a fuzzer, tests/data/fuzz/TARGET.tar: one archive each, sorted by name, the same bytes from the same seeds.

usage: tests/tools/seeds.py add TARGET FILE..      adds files under their base names; a name that is there is replaced
       tests/tools/seeds.py list TARGET            SHA-256 and name of each
From the repository's root. `tar xf` unpacks an archive.
"""
import hashlib
import io
import os
import sys
import tarfile

FOLDER = 'tests/data/fuzz'


def read(target):
    """{name: bytes}; none where there is no archive yet."""
    path = f'{FOLDER}/{target}.tar'
    if not os.path.exists(path):
        return {}
    with tarfile.open(path) as archive:
        return {member.name: archive.extractfile(member).read() for member in archive}


def write(target, seeds):
    """Writes {name: bytes}. What is not of the seeds (owner, time) is 0."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode='w', format=tarfile.USTAR_FORMAT) as archive:
        for name in sorted(seeds):
            member = tarfile.TarInfo(name)
            member.size = len(seeds[name])
            archive.addfile(member, io.BytesIO(seeds[name]))
        end = archive.offset + 2 * tarfile.BLOCKSIZE  # tarfile fills up to 10 KiB
    with open(f'{FOLDER}/{target}.tar', 'wb') as f:
        f.write(out.getvalue()[:end])


def main():
    if len(sys.argv) > 3 and sys.argv[1] == 'add':
        seeds = read(sys.argv[2])
        for path in sys.argv[3:]:
            with open(path, 'rb') as f:
                seeds[os.path.basename(path)] = f.read()
        write(sys.argv[2], seeds)
    elif len(sys.argv) == 3 and sys.argv[1] == 'list':
        for name, seed in read(sys.argv[2]).items():
            print(hashlib.sha256(seed).hexdigest(), name)
    else:
        sys.exit(__doc__)


if __name__ == '__main__':
    main()
