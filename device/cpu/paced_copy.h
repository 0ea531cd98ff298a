// SPDX-License-Identifier: Apache-2.0
// device/cpu/paced_copy.h - copies that take the time that a link of a set rate would take.
//
// Design notes
// A copy begins when it may (it was issued, what it waits for is there) and the link is free, and
// has crossed after the link's latency and its bytes at the rate. Each piece of it is copied, then
// the thread sleeps until that piece has crossed: what is copied early is nobody's yet, for events
// come after the copy. All times count from the beginning, not from when the thread woke up: a
// thread that wakes late delays one piece, and neither the next one nor the next copy. So the rate
// holds on a busy machine, too. Where memory is slower than the rate, no sleep is left, and copies
// take what memory gives.
#ifndef HTH_DEVICE_CPU_PACED_COPY_H
#define HTH_DEVICE_CPU_PACED_COPY_H

#include <stddef.h>
#include <stdint.h>

// Of every copy: about what starting a copy engine takes, and waking a thread.
#define HTH_LINK_LATENCY_NS 10000u

typedef struct hth_paced_link { // one direction, used by one thread
    double bytes_per_s;         // 0: not paced
    uint64_t free_ns;           // when the last copy has crossed, on hth_now_ns's clock
} hth_paced_link;

// hth_paced_copy copies like memcpy, and returns when the link is through with it. ready_ns: when
// the copy could have begun at the earliest.
void hth_paced_copy(hth_paced_link *link, uint64_t ready_ns, void *dst, const void *src,
                    size_t bytes);

#endif
