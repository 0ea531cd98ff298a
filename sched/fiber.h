// SPDX-License-Identifier: Apache-2.0
// sched/fiber.h - a stack of its own for work that others interrupt: it is begun, yields in the
// middle of a call, and goes on there later, on the same thread.
//
// Design notes
// A fiber is no thread: it computes only while its thread has called hth_fiber_go, and gives the
// thread back by hth_fiber_yield. So what it shares with the thread needs no locks, and the
// thread's compute team is its own, too. What the library keeps for each thread and changes in the
// middle of calls - the sentence of an error (base/err.h), the account of long work (base/pace.h) -
// is the fiber's while it computes.
//
// The switch is the C library's swapcontext: it knows of shadow stacks (-fcf-protection) and of all
// processors. It makes one system call, rt_sigprocmask, which is allowed in the engine's process. A
// switch happens where other work waits that takes a thousand times as long (docs/rationale.md has
// the figures).
#ifndef HTH_SCHED_FIBER_H
#define HTH_SCHED_FIBER_H

#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>

typedef struct hth_fiber hth_fiber;

// hth_fiber_open makes a fiber with a stack of at least `stack` bytes, of which those that are
// touched take memory; below it is a page that nobody may touch. HTH_ENOMEM.
hth_err hth_fiber_open(size_t stack, hth_fiber **out);
// hth_fiber_close: the fiber is not in the middle of a call. NULL is allowed.
void hth_fiber_close(hth_fiber *fiber);
// hth_fiber_begin has the next hth_fiber_go call fn(arg). Not in the middle of a call.
void hth_fiber_begin(hth_fiber *fiber, void (*fn)(void *arg), void *arg);
// hth_fiber_go computes on the fiber's stack until it yields (true), or fn has returned (false). By
// the thread that began it, not on a fiber's stack.
bool hth_fiber_go(hth_fiber *fiber);
// hth_fiber_yield gives the thread back to who called hth_fiber_go, and returns when that calls it
// again. On the fiber's stack.
void hth_fiber_yield(hth_fiber *fiber);

#endif
