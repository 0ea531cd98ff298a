# SPDX-License-Identifier: Apache-2.0
"""Clean rooms: roots of Debian in which packages are installed and used, each a copy of one that mmdebstrap makes. A room has a mount
namespace, in which its commands run as root; its mounts end with it."""
import atexit
import glob
import os
import re
import shutil
import signal
import subprocess
import tempfile

PACKAGES = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(PACKAGES))
DIGITS = os.path.join(ROOT, 'tests', 'data', 'digits')
PATIENCE = 600
MOUNTS = 'mount -t proc proc "$0/proc" && mount --rbind /dev "$0/dev" && echo mounted && exec cat'
ENVIRONMENT = ('PATH=/usr/sbin:/usr/bin:/sbin:/bin', 'LC_ALL=C.UTF-8', 'DEBIAN_FRONTEND=noninteractive', 'HOME=/root')


def version():
    """HEARTH_VERSION, the project's one version."""
    with open(os.path.join(ROOT, 'client', 'hearth.h'), encoding='utf-8') as f:
        return re.search(r'define HEARTH_VERSION\s+"(.*?)"', f.read())[1]


def debs(dist):
    """{package: its file} of the packages of this version, those with debugging symbols left out."""
    found = {os.path.basename(path).split('_')[0]: path for path in glob.glob(f'{dist}/*_{version()}_*.deb')}
    return {name: path for name, path in found.items() if not name.endswith('-dbgsym')}


def missing(*programs):
    """Why there can be no rooms here, or None."""
    if os.getuid() != 0:
        return 'only root can change its root'
    for program in ('unshare', 'nsenter', 'chroot', *programs):
        if shutil.which(program) is None:
            return f'no {program} here (make deps-system)'
    tried = subprocess.run(['unshare', '--mount', 'mount', '-t', 'tmpfs', 'none', '/mnt'], capture_output=True, text=True, check=False)
    return None if tried.returncode == 0 else 'nothing can be mounted here: ' + tried.stderr.strip()


class Base:
    """The root that rooms are copies of: made anew, or that of HEARTH_CLEAN_ROOT (build-aux/packages/clean_root.sh minbase FOLDER)."""

    def __init__(self):
        self.folder = tempfile.mkdtemp(prefix='hearth-room-', dir='/var/tmp')
        atexit.register(shutil.rmtree, self.folder, True)
        self.root = os.environ.get('HEARTH_CLEAN_ROOT') or self.folder + '/base'
        self.count, self.why = 0, None  # why: there is none
        if os.path.exists(self.root):
            return
        made = subprocess.run(['sh', PACKAGES + '/clean_root.sh', 'minbase', self.root, '', '--skip=cleanup/apt/lists'], capture_output=True, text=True,
                              check=False, timeout=PATIENCE)
        if made.returncode != 0:
            self.why = 'mmdebstrap makes no Debian here: ' + ' '.join(made.stderr.split())[-200:]

    def room(self):
        self.count += 1
        root = f'{self.folder}/{self.count}'
        subprocess.run(['cp', '-a', '--reflink=auto', self.root, root], check=True)
        return Room(root)


class Room:
    def __init__(self, root):
        self.root, self.started = root, []
        # As long as its input is open, the namespace is.
        self.holder = subprocess.Popen(['unshare', '--mount', '--propagation', 'private', 'sh', '-c', MOUNTS, root], stdin=subprocess.PIPE,
                                       stdout=subprocess.PIPE, text=True)
        assert self.holder.stdout.readline() == 'mounted\n'
        shutil.copytree(DIGITS, root + '/digits')

    def command(self, *words):
        return ['nsenter', f'--mount=/proc/{self.holder.pid}/ns/mnt', 'chroot', self.root, '/usr/bin/env', '-i', *ENVIRONMENT, *words]

    def run(self, *words, code=0):
        """What a command says, on both outputs, when it ends with this code."""
        done = subprocess.run(self.command(*words), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, text=True, check=False,
                              timeout=PATIENCE)
        if done.returncode != code:
            raise AssertionError(f'{words}: exit code {done.returncode}: {done.stdout[-3000:]}')
        return done.stdout

    def sh(self, script, code=0):
        return self.run('sh', '-ec', script, code=code)

    def path(self, name):
        return self.root + name

    def exists(self, name):
        return os.path.lexists(self.path(name))

    def start(self, *words):
        """A server, when it says that it is ready; its log is in /log of the room."""
        with open(self.path('/log'), 'a', encoding='utf-8') as log:
            process = subprocess.Popen(self.command(*words), stdout=subprocess.PIPE, stderr=log, text=True)
        self.started.append(process)
        ready = process.stdout.readline()
        if ' ready: ' not in ready:
            raise AssertionError(f'{words}: {ready}{self.log()}')
        return process

    def log(self):
        with open(self.path('/log'), encoding='utf-8') as f:
            return f.read()

    @staticmethod
    def stop(process):
        """Its exit code after SIGTERM."""
        process.send_signal(signal.SIGTERM)
        process.stdout.close()
        return process.wait(PATIENCE)

    def leave(self):
        for process in self.started:
            if process.poll() is None:
                process.kill()
                process.wait()
        self.holder.stdin.close()
        self.holder.stdout.close()
        self.holder.wait()
        shutil.rmtree(self.root)
