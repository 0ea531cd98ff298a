# SPDX-License-Identifier: Apache-2.0
"""Notes in the installed package where the tree lies that it came from: its build folder has a library that fits."""
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py


class BuildPy(build_py):
    def run(self):
        super().run()
        build = Path(__file__).resolve().parents[2] / 'build'
        target = Path(self.build_lib) / 'hearthd' / '_build_folder.py'
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(f'BUILD_FOLDER = {str(build)!r}\n')


setup(cmdclass={'build_py': BuildPy})
