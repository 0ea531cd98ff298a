# SPDX-License-Identifier: Apache-2.0
"""A headless Chromium, told what to do by its DevTools protocol over a pair of pipes: nothing but Python's library is needed."""
import base64
import fcntl
import json
import os
import shutil
import signal
import tempfile
import threading
import time


def find():
    """The browser's path, or None."""
    for name in ('chromium', 'chromium-headless-shell', 'chromium-browser', 'google-chrome'):
        if shutil.which(name):
            return shutil.which(name)
    return None


class Browser:
    def __init__(self, path):
        self.folder = tempfile.mkdtemp(prefix='hearth-browser-')
        down, up = os.pipe(), os.pipe()  # to the browser, from it
        command = [path, '--headless', '--remote-debugging-pipe', '--user-data-dir=' + self.folder, '--no-first-run', '--disable-gpu',
                   '--disable-dev-shm-usage', '--hide-scrollbars', '--disable-background-networking', '--disable-component-update',
                   '--disable-sync', '--disable-extensions', '--force-color-profile=srgb',
                   '--disable-features=Translate,OptimizationHints,MediaRouter', 'about:blank']
        if os.geteuid() == 0:
            command.insert(1, '--no-sandbox')  # the sandbox refuses to run as root
        null = os.open(os.devnull, os.O_RDWR)
        theirs = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 10) for fd in (null, null, null, down[0], up[1])]
        # descriptors 3 and 4 are where the browser looks
        self.pid = os.posix_spawn(path, command, os.environ, setpgroup=0,
                                  file_actions=[(os.POSIX_SPAWN_DUP2, fd, i) for i, fd in enumerate(theirs)])
        for fd in (null, down[0], up[1], *theirs):
            os.close(fd)
        self.into, self.out = os.fdopen(down[1], 'wb', 0), os.fdopen(up[0], 'rb')
        self.lock = threading.Lock()
        self.changed = threading.Condition(self.lock)
        self.number, self.answers, self.events, self.ended = 0, {}, [], False
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self):
        rest = b''
        while True:
            more = os.read(self.out.fileno(), 1 << 20)
            if not more:
                break
            *whole, rest = (rest + more).split(b'\0')
            with self.lock:
                for text in whole:
                    message = json.loads(text)
                    if 'id' in message:
                        self.answers[message['id']] = message
                    else:
                        self.events.append(message)
                self.changed.notify_all()
        with self.lock:
            self.ended = True
            self.changed.notify_all()

    def call(self, method, session=None, seconds=200, **params):
        with self.lock:
            self.number += 1
            number = self.number
        message = {'id': number, 'method': method, 'params': params}
        if session:
            message['sessionId'] = session
        self.into.write(json.dumps(message).encode() + b'\0')
        with self.lock:
            if not self.changed.wait_for(lambda: number in self.answers or self.ended, seconds) or number not in self.answers:
                raise TimeoutError(f'the browser did not answer {method}')
            answer = self.answers.pop(number)
        if 'error' in answer:
            raise RuntimeError(f'{method}: {answer["error"]}')
        return answer['result']

    def close(self):
        try:
            self.call('Browser.close', seconds=20)
            end = time.monotonic() + 20
            while os.waitpid(self.pid, os.WNOHANG)[0] == 0:
                if time.monotonic() > end:
                    raise TimeoutError('the browser does not end')
                time.sleep(0.05)
        except (OSError, TimeoutError, RuntimeError):
            os.killpg(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        self.into.close()
        shutil.rmtree(self.folder, ignore_errors=True)


class Tab:
    """One page, what it logged, and where it connected to."""

    def __init__(self, browser, width=1200, height=900, dark=False):
        self.browser = browser
        target = browser.call('Target.createTarget', url='about:blank')['targetId']
        self.session = browser.call('Target.attachToTarget', targetId=target, flatten=True)['sessionId']
        for domain in ('Page', 'Runtime', 'Log', 'Network'):
            self.call(domain + '.enable')
        self.look(width, height, dark)

    def call(self, method, **params):
        return self.browser.call(method, self.session, **params)

    def look(self, width, height=900, dark=False, motion='no-preference'):
        self.call('Emulation.setDeviceMetricsOverride', width=width, height=height, deviceScaleFactor=1, mobile=width < 600)
        self.call('Emulation.setEmulatedMedia', features=[{'name': 'prefers-color-scheme', 'value': 'dark' if dark else 'light'},
                                                          {'name': 'prefers-reduced-motion', 'value': motion}])
        self.wait(f"matchMedia('(width: {width}px)').matches && matchMedia('(prefers-color-scheme: dark)').matches === {json.dumps(dark)}")

    def drawn(self):
        """Until what is asked of the page (its size, its scheme, its data) is laid out and painted: in the frame after the next one what
        watches sizes has drawn."""
        self.run('new Promise(r => requestAnimationFrame(() => requestAnimationFrame(() => r(true))))')

    def go(self, url):
        self.call('Page.navigate', url=url)
        self.wait(f"location.href === {json.dumps(url)} && document.readyState === 'complete'")

    def run(self, script):
        result = self.call('Runtime.evaluate', expression=script, returnByValue=True, awaitPromise=True)
        if 'exceptionDetails' in result:
            raise RuntimeError(json.dumps(result['exceptionDetails'])[:600])
        return result['result'].get('value')

    def wait(self, script, seconds=200):
        """Until the expression is true; returns its value."""
        end = time.monotonic() + seconds
        while True:
            try:
                value = self.run(script)
            except RuntimeError as e:  # between two documents, perhaps
                value, said = None, e
            else:
                said = None
            if value:
                return value
            if said is not None and time.monotonic() > end:
                raise said
            if time.monotonic() > end:
                raise AssertionError(f'still not true: {script}\n{self.run("document.body.innerText")[:3000]}')
            time.sleep(0.1)

    def _events(self, *methods):
        with self.browser.lock:
            return [e for e in self.browser.events if e.get('sessionId') == self.session and e['method'] in methods]

    def complaints(self):
        """What the browser has to say: exceptions, errors, warnings, refusals by the policy."""
        out = [e['params']['exceptionDetails'] for e in self._events('Runtime.exceptionThrown')]
        out += [e['params'] for e in self._events('Runtime.consoleAPICalled') if e['params']['type'] in ('error', 'warning', 'assert')]
        out += [e['params']['entry'] for e in self._events('Log.entryAdded') if e['params']['entry']['level'] in ('error', 'warning')]
        return out

    def requested(self):
        return [e['params']['request']['url'] for e in self._events('Network.requestWillBeSent')]

    def dialogs(self):
        return self._events('Page.javascriptDialogOpening')

    def picture(self, path):
        """Of the whole page."""
        data = self.call('Page.captureScreenshot', format='png', captureBeyondViewport=True)['data']
        with open(path, 'wb') as f:
            f.write(base64.b64decode(data))

    def close(self):
        self.call('Page.close')
