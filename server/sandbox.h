// SPDX-License-Identifier: Apache-2.0
// server/sandbox.h - what the engine's process may still do once it runs models that others wrote.
//
// Two steps, because Linux binds a Landlock ruleset to a thread and its later children, and a
// seccomp filter can be given to all threads at once: hth_sandbox_files is called before the
// process has a second thread, hth_sandbox_calls once store and device are open. Neither can be
// taken back. A kernel without the mechanism gives less; the functions report what holds.
#ifndef HTH_SERVER_SANDBOX_H
#define HTH_SERVER_SANDBOX_H

#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>

typedef struct hth_sandbox {
    bool files; // Landlock holds: no file outside of the granted folders, no TCP
    bool calls; // the seccomp filter holds
} hth_sandbox;

// hth_sandbox_files gives up privileges (no_new_privs; of root's capabilities all but the one for
// priorities, and the one for locked memory) and, where the kernel has Landlock, confines the
// calling thread and all that it starts: it may read and write below each of the `n` folders of
// `writable`, read and execute the system's libraries and this program's folder, read /proc and
// /sys, use the devices below /dev/nvidia*, and open nothing else; it may neither bind nor connect
// TCP ports. A folder that does not exist is passed over. `writable` NULL: files stay as they are,
// only the network is closed. HTH_EIO: the kernel has Landlock and refused.
hth_err hth_sandbox_files(const char *const *writable, int n, hth_sandbox *s);
// hth_sandbox_calls allows all threads of the process the system calls of a program that computes,
// maps files and talks to descriptors it already has. Sockets, programs, other processes, mounts,
// namespaces, modules, clocks, identities and tracing are refused (EPERM); a call that the list
// does not know looks as on a kernel that lacks it (ENOSYS). HTH_EIO: the filter was refused.
hth_err hth_sandbox_calls(hth_sandbox *s);
// hth_sandbox_oom makes the kernel end this process before its parent when memory runs out.
void hth_sandbox_oom(void);

#endif
