// SPDX-License-Identifier: Apache-2.0
// engine/process/sandbox.h - what the engine's process may still do once it runs models that others
// wrote.
//
// Two steps, because Linux binds a Landlock ruleset to a thread and its later children, and a
// seccomp filter can be given to all threads at once: hth_sandbox_files is called before the
// process has a second thread, hth_sandbox_calls once store and device are open. Neither can be
// taken back. A kernel without the mechanism gives less; the functions report what holds.
#ifndef HTH_ENGINE_PROCESS_SANDBOX_H
#define HTH_ENGINE_PROCESS_SANDBOX_H

#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>

typedef struct hth_sandbox {
    bool files; // Landlock holds: no file outside of what is granted, no TCP
    bool calls; // the seccomp filter holds
} hth_sandbox;

// What may be done with a file, or with all that is below a folder.
typedef enum hth_sandbox_may {
    HTH_MAY_LIST, // see the names
    HTH_MAY_READ, // and read
    HTH_MAY_USE,  // a file that is there: read and write
    HTH_MAY_WRITE // all of it: read, write, make, move and remove files and folders
} hth_sandbox_may;

typedef struct hth_sandbox_place {
    const char *path;
    hth_sandbox_may may;
} hth_sandbox_place;

// hth_sandbox_files gives up privileges (no_new_privs; of root's capabilities all but the one for
// priorities, and the one for locked memory) and, where the kernel has Landlock (Linux 5.19),
// confines the calling thread and all that it starts to the `count` places, and of the system to
// what a program that computes reads: libraries, its own entry in /proc, processors and memory in
// /sys; with `gpu` NVIDIA's devices too, and what their driver reads. It may neither bind nor
// connect TCP ports. A place that there is not is passed over; descriptors that are open stay what
// they are. `place` NULL: files stay as they are, only privileges go. HTH_EIO: the kernel has
// Landlock and refused.
hth_err hth_sandbox_files(const hth_sandbox_place *place, int count, bool gpu,
                          hth_sandbox *sandbox);
// hth_sandbox_calls allows all threads of the process the system calls of a program that computes,
// maps files and talks to descriptors it already has. Sockets, programs, other processes (also
// signals to them, by whatever call; the process must be the one that goes on, as it may signal
// itself), mounts, namespaces, modules, clocks, identities, tracing, and what Landlock does not
// govern (modes, owners and times of files, cutting one that is open for reading) are refused
// (EPERM); a call that the list does not know looks as on a kernel that lacks it (ENOSYS). HTH_EIO:
// the filter was refused.
hth_err hth_sandbox_calls(hth_sandbox *sandbox);
// hth_sandbox_oom makes the kernel end this process before its parent when memory runs out.
void hth_sandbox_oom(void);

#endif
