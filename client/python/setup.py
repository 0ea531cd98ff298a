# SPDX-License-Identifier: Apache-2.0
"""What pyproject.toml cannot say. The version is client/hearth.h's. A package that has the library inside (build-aux/wheel.sh) is for one
kind of machine; any other notes where the tree lies that it came from, whose build folder has a library that fits."""
import re
from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py

HERE = Path(__file__).resolve().parent
HEADER = HERE.parent / 'hearth.h'
INSIDE = (HERE / 'hearthd' / 'lib').is_dir()


def version():
    if not HEADER.exists():
        raise SystemExit(f'hearthd is built in its tree: {HEADER}, which has the version, is not there')
    return re.search(r'^#define HEARTH_VERSION +"(.+)"', HEADER.read_text(encoding='utf-8'), re.M)[1]


class BuildPy(build_py):
    def run(self):
        super().run()
        build = '' if INSIDE else str(HERE.parents[1] / 'build')
        target = Path(self.build_lib) / 'hearthd' / '_built.py'
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(f'VERSION = {version()!r}\nBUILD_FOLDER = {build!r}\n')


class OneKind(Distribution):
    """Of one kind of machine, though it has no extension of Python's own."""

    def has_ext_modules(self):
        return INSIDE


class Wheel(bdist_wheel):
    def get_tag(self):
        tag = super().get_tag()
        return ('py3', 'none', tag[2]) if INSIDE else tag  # ctypes: any Python 3


setup(version=version(), distclass=OneKind, cmdclass={'build_py': BuildPy, 'bdist_wheel': Wheel})
