// SPDX-License-Identifier: Apache-2.0
// device/cpu/quantum.h - how long a thread has a processor where others want it, too.
//
// Design notes
// Linux gives a thread of the lowest priority (SCHED_IDLE) a whole tick, milliseconds, once the
// accounts say that it is its turn. Longer turns of the others make that rarer; a nice value of -20
// makes it nearly never. Real-time priority would do it wholly, but a thread that looks again and
// again at such a priority can take a processor from the very thread that it waits for.
#ifndef HTH_DEVICE_CPU_QUANTUM_H
#define HTH_DEVICE_CPU_QUANTUM_H

#include <stdbool.h>

// hth_quantum_keep gives the calling thread the longest turns that the scheduler knows (Linux 6.12
// or later) and, where hth_quantum_raise allows it and its nice value is 0, one of -20; or what it
// had. Threads that it starts meanwhile begin with 0. Where the system does not permit the nice
// value (RLIMIT_NICE, CAP_SYS_NICE), it has the turns alone. Real-time threads and those of
// SCHED_IDLE stay as they are.
void hth_quantum_keep(bool on);
// hth_quantum_raise allows nice values below 0 to the threads of this process, or no longer, from
// the next hth_quantum_keep on. Without it none has one: a program that embeds hearth decides
// itself.
void hth_quantum_raise(bool allowed);

#endif
