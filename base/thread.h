// SPDX-License-Identifier: Apache-2.0
// base/thread.h - named threads that leave the program's signals alone.
#ifndef HTH_BASE_THREAD_H
#define HTH_BASE_THREAD_H

#include "base/err.h"

#include <pthread.h>
#include <stddef.h>
#include <stdint.h>

#define HTH_THREAD_STACK ((size_t)512 << 10) // what the programs give their threads

// hth_thread_start runs fn(ctx) on a new thread named `name` (cut at 15 bytes) with all signals
// blocked, but for its own faults: signals belong to the program's own threads. The caller joins it
// by hth_thread_join. HTH_ENOMEM, HTH_EIO: no thread runs.
hth_err hth_thread_start(const char *name, void (*fn)(void *ctx), void *ctx, pthread_t *out);
// hth_thread_stacks sets the stack size of threads that ask for none, libraries' threads among
// them, from now on: the default of 8 MiB each counts where a process's memory is limited, touched
// or not. For programs, not for libraries.
void hth_thread_stacks(size_t bytes);
// hth_thread_join waits until the thread's fn has returned.
void hth_thread_join(pthread_t t);
// hth_thread_low has the calling thread, and those that it starts from now on, run only while no
// other wants the processor. There is no way back without privileges. Where the system does not
// allow even that, nothing changes.
void hth_thread_low(void);
// hth_thread_low_inject has hth_thread_low call fn instead, for the whole process, in tests that
// wait for what such threads do: where others keep all processors busy, that may take for ever.
// NULL restores the real one.
void hth_thread_low_inject(void (*fn)(void));
// hth_thread_nice has the calling thread, and those that it starts from now on, wait for others
// where a processor is busy, as nice(1) would by `n`: 5 leaves it a quarter against one other.
void hth_thread_nice(int n);
// hth_thread_delay_ns is how long the threads of this process, all that there are now together,
// have been ready to run while others did. 0: the system does not say.
uint64_t hth_thread_delay_ns(void);
// hth_thread_delay_since is how much it grew since it was `before`; 0 where threads that waited
// have ended.
uint64_t hth_thread_delay_since(uint64_t before);
// hth_thread_delay_inject makes hth_thread_delay_ns return fn(ctx) for the whole process, in tests;
// NULL restores the real one.
void hth_thread_delay_inject(uint64_t (*fn)(void *ctx), void *ctx);

#endif
