# SPDX-License-Identifier: Apache-2.0
"""A Slurm of one node, this machine, on loopback and in a folder of its own: munged, slurmctld, slurmd, started and ended by process id. Needs root and
Debian's packages: apt-get install --no-install-recommends slurmctld slurmd slurm-client slurm-wlm-basic-plugins munge"""
import os
import shutil
import socket
import subprocess
import time

import tap

PROGRAMS = ('munged', 'slurmctld', 'slurmd', 'sbatch', 'squeue', 'sinfo', 'scancel')
PATIENCE = 60
# What needs systemd's cgroups is left out; all else is the default.
CONF = '''ClusterName=one
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
SlurmctldPort={ctld}
SlurmdPort={slurmd}
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MailProg=/bin/true
NodeName={host} NodeAddr=127.0.0.1 CPUs={cpus} State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES State=UP
'''


def path():
    return os.environ.get('PATH', '') + ':/usr/sbin:/sbin'


def missing():
    """Why there can be no Slurm here, or None."""
    if os.geteuid() != 0:
        return 'slurmd needs root'
    lacks = [p for p in PROGRAMS if shutil.which(p, path=path()) is None]
    return f'not installed: {", ".join(lacks)}' if lacks else None


class Slurm:
    def __init__(self, folder):
        """`folder` is made."""
        self.folder, self.daemons = folder, []
        for made in (folder, folder + '/state', folder + '/spool'):
            os.mkdir(made)
            os.chmod(made, 0o755)
        with open(folder + '/munge.key', 'wb', opener=lambda p, flags: os.open(p, flags, 0o600)) as f:
            f.write(os.urandom(1024))
        with open(folder + '/slurm.conf', 'w', encoding='ascii') as f:
            f.write(CONF.format(folder=folder, host=socket.gethostname().split('.')[0], ctld=tap.free_port(), slurmd=tap.free_port(), cpus=os.cpu_count()))
        self.env = {**os.environ, 'SLURM_CONF': folder + '/slurm.conf', 'PATH': path()}
        try:
            self.start()
        except BaseException:
            self.stop()
            raise

    def start(self):
        self.daemon('munged', '--foreground', '--force', *(f'--{name}={self.folder}/munge.{tail}' for name, tail in (
            ('socket', 'socket'), ('key-file', 'key'), ('pid-file', 'pid'), ('log-file', 'log'), ('seed-file', 'seed'))))
        self.wait(lambda: os.path.exists(self.folder + '/munge.socket'), 'munged')
        self.daemon('slurmctld', '-D')
        self.daemon('slurmd', '-D')
        self.wait(self.idle, 'an idle node')

    def daemon(self, *words):
        with open(f'{self.folder}/{words[0]}.out', 'w', encoding='utf-8') as f:
            self.daemons.append(subprocess.Popen(words, env=self.env, stdout=f, stderr=f, start_new_session=True))

    def wait(self, found, what, seconds=PATIENCE):
        end = time.monotonic() + seconds
        while not found():
            if time.monotonic() > end:
                raise RuntimeError(f'Slurm: {what} did not come in {seconds} s\n{self.logs()}')
            time.sleep(0.02)

    def logs(self):
        text = ''
        for name in ('munge.log', 'slurmctld.out', 'slurmctld.log', 'slurmd.out', 'slurmd.log'):
            if os.path.exists(f'{self.folder}/{name}'):
                with open(f'{self.folder}/{name}', encoding='utf-8', errors='replace') as f:
                    text += f'{name}:\n{f.read()[-1500:]}\n'
        return text

    def run(self, *words, check=True):
        done = subprocess.run(words, capture_output=True, text=True, env=self.env, check=False)
        assert not check or done.returncode == 0, (words, done.stdout, done.stderr)
        return done.stdout.strip()

    def idle(self):
        return self.run('sinfo', '-h', '-o', '%t', check=False) == 'idle'

    def submit(self, *words):
        """The job's number."""
        return self.run('sbatch', '--parsable', *words)

    def state(self, job):
        """COMPLETED, FAILED, ..; and the exit status."""
        fields = dict(f.split('=', 1) for f in self.run('scontrol', 'show', 'job', job, '-o').split() if '=' in f)
        return fields['JobState'], fields['ExitCode']

    def ended(self, job):
        return self.state(job)[0] not in ('PENDING', 'CONFIGURING', 'RUNNING', 'COMPLETING')

    def stop(self):
        """Ends what runs, then the daemons."""
        if len(self.daemons) == 3:
            self.run('scancel', '--user=root', check=False)
        for daemon in reversed(self.daemons):
            daemon.terminate()
            try:
                daemon.wait(20)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()
        self.daemons = []
