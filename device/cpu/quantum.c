// SPDX-License-Identifier: Apache-2.0
// Needs nothing but the C library, as team.c.
#include "device/cpu/quantum.h"

#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <unistd.h>

#define TURN_NS            100000000u // the longest that Linux knows
#define TURN_NICE          (-20)
#define TURN_RESET_ON_FORK 1u // SCHED_FLAG_RESET_ON_FORK: threads started have a nice value of 0

// What sched_setattr takes; C libraries older than it do not have it.
typedef struct turn_attr {
    uint32_t size, policy;
    uint64_t flags;
    int32_t nice;
    uint32_t priority;
    uint64_t runtime_ns, deadline_ns, period_ns;
} turn_attr;

static atomic_bool turn_rises;
static _Thread_local bool risen; // by hth_quantum_keep, from 0

void hth_quantum_raise(bool allowed)
{
    turn_rises = allowed;
}

static bool turn_set(const turn_attr *attr)
{
    return syscall(SYS_sched_setattr, 0, attr, 0) == 0;
}

// Older systems, and policies without turns, know of none: nothing changes.
void hth_quantum_keep(bool on)
{
    turn_attr a = {.size = 0};
    if (syscall(SYS_sched_getattr, 0, &a, sizeof a, 0) != 0 ||
        (a.policy != SCHED_OTHER && a.policy != SCHED_BATCH)) {
        return;
    }
    a.size = sizeof a;
    a.runtime_ns = on ? TURN_NS : 0;
    a.nice = risen && !on ? 0 : a.nice;
    turn_attr high = a;
    high.nice = TURN_NICE;
    high.flags |= TURN_RESET_ON_FORK; // stays: taking it back needs a privilege
    bool rise = on && turn_rises && a.nice == 0;
    if (rise && turn_set(&high)) {
        risen = true;
    } else if (turn_set(&a) && !on) {
        risen = false;
    }
}
