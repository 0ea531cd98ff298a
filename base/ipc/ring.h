// SPDX-License-Identifier: Apache-2.0
// base/ipc/ring.h - a bounded queue of messages in memory that two processes share and do not
// trust.
//
// The folder base/ipc/ is what two processes of one machine share, and neither trusts: rings, the
// record of a request (ipc_record.h), slabs, and the descriptors of memory that travel between
// them.
//
// Design notes
// One producer, one consumer; two rings make a channel. A message is any number of bytes up to
// hth_ring_max. Sending and receiving are copies and a few atomic accesses: a system call (futex)
// is made only to sleep, and to wake a side that says that it sleeps.
//
// Trust: all that steers a side, its own position and what it knows of the other's, is private
// memory. What it reads from shared memory, the other's position and the length in front of a
// message, is read once and checked before use. So a hostile peer can spoil or withhold its own
// messages, which then say HTH_ECORRUPT, but never have this side read or write outside of the
// ring, or loop. What is received is copied to private memory before anybody looks at it: the peer
// could change it at any time. When a ring ends is up to its owners: the one that notices that the
// peer is gone (by a socket, waitpid or a pidfd) calls hth_ring_gone or hth_ring_stop, which wakes
// all waiting threads. A peer that was killed while it was sending has sent nothing. Sleeping is
// done in slices of HTH_RING_SLICE_NS, so that a hostile peer that changes the futex word delays a
// stop by that at most.
//
// Memory order: the producer writes the message, then stores its position (sequentially
// consistent, hence release), then looks whether the consumer sleeps; the consumer says that it
// sleeps, then looks at the position once more. One of them sees the other: no wake-up is lost. The
// same holds, with the sides exchanged, for room.
#ifndef HTH_BASE_IPC_RING_H
#define HTH_BASE_IPC_RING_H

#include "base/err.h"
#include "base/spin.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct hth_ring hth_ring; // one side's private half

#define HTH_RING_MIN      4096u      // capacities are powers of two from here
#define HTH_RING_LARGEST  (1u << 30) // to here
#define HTH_RING_SLICE_NS 1000000000u

typedef enum hth_ring_side { HTH_RING_PRODUCER, HTH_RING_CONSUMER } hth_ring_side;

typedef struct hth_ring_part { // messages are gathered from parts
    const void *data;
    size_t bytes;
} hth_ring_part;

// hth_ring_bytes is how much shared memory a ring takes whose messages have `capacity` bytes
// together, 8 and up to 7 of padding for each included; 0: no such capacity. A multiple of 64.
size_t hth_ring_bytes(size_t capacity);
// hth_ring_max is the largest message.
size_t hth_ring_max(size_t capacity);

// hth_ring_open makes one side's half of the ring in `memory`: hth_ring_bytes(capacity), aligned to
// 64, zero before the first of both sides opens, mapped for as long as the half is open. Each side
// opens once: positions start at 0. `spin_ns` is how long the side looks before it sleeps.
// HTH_EINVAL: capacity or alignment; HTH_ENOMEM. On error *out is NULL.
hth_err hth_ring_open(void *memory, size_t capacity, hth_ring_side side, uint64_t spin_ns,
                      hth_ring **out);
// hth_ring_close frees the half (NULL is allowed); no thread may be using it. It tells the peer
// nothing: hth_ring_stop does.
void hth_ring_close(hth_ring *ring);
// hth_ring_stop ends the ring for both sides: this one's calls say HTH_ECANCELED from now on, the
// peer's when it has received what was sent before. Sleepers wake. Any thread, either side,
// idempotent.
void hth_ring_stop(hth_ring *ring);
// hth_ring_gone ends it because the peer has ended: what the peer sent before is still received.
// Any thread of either side, idempotent.
void hth_ring_gone(hth_ring *ring);
// hth_ring_stopped tells whether either side has. Any thread.
bool hth_ring_stopped(const hth_ring *ring);

// hth_ring_spin changes how long the side looks before it sleeps; the thread that waits.
void hth_ring_spin(hth_ring *ring, uint64_t spin_ns);
// hth_ring_set_poll has hth_ring_wait look into `hook` while it looks for messages, anew for as
// long as things come there. The same thread.
void hth_ring_set_poll(hth_ring *ring, const hth_poll_hook *hook);

// ---- producer: one thread at a time

// hth_ring_send appends the message that the n parts make, waiting at most `timeout_ns` for room
// (0: does not wait). HTH_EBUSY: no room, until the peer has taken something; HTH_ETOOBIG: never;
// HTH_ECANCELED: stopped; HTH_ECORRUPT: the peer's position is impossible.
hth_err hth_ring_send(hth_ring *ring, const hth_ring_part *part, int n, uint64_t timeout_ns);

// hth_ring_reserve returns when a message of `bytes` has room, as hth_ring_send does: the next send
// of at most that many says HTH_OK, but for a peer that has stopped or spoilt its position since.
hth_err hth_ring_reserve(hth_ring *ring, size_t bytes, uint64_t timeout_ns);

// ---- consumer: next and take are for one thread at a time, the others for any

// hth_ring_wait returns when hth_ring_next has something to say, waiting at most `timeout_ns` (0:
// does not; HTH_FOREVER). HTH_ETIMEDOUT: nothing came; HTH_ECANCELED: stopped.
hth_err hth_ring_wait(hth_ring *ring, uint64_t timeout_ns);
// hth_ring_next stores how many bytes the oldest message has. HTH_ETIMEDOUT: there is none now;
// HTH_ECANCELED: stopped; HTH_ECORRUPT: the peer wrote nonsense, and the ring gives no more.
hth_err hth_ring_next(hth_ring *ring, size_t *bytes);
// hth_ring_read copies `bytes` of that message, from `offset` on, to `to`; both lie inside of it.
// Who reads a byte twice may see two values. hth_ring_drop removes the message, once after each
// successful next; hth_ring_take reads all of it and removes it.
void hth_ring_read(const hth_ring *ring, size_t offset, void *to, size_t bytes);
void hth_ring_drop(hth_ring *ring);
void hth_ring_take(hth_ring *ring, void *to);
// hth_ring_sent is the position up to which the peer says that it has sent, and hth_ring_taken the
// one up to which messages were removed: what was sent so far is removed when that has come there.
uint64_t hth_ring_sent(const hth_ring *ring);
uint64_t hth_ring_taken(const hth_ring *ring);
// hth_ring_poll_begin says that the consumer looks by itself: until hth_ring_poll_end the producer
// wakes nobody, though a thread sleeps in wait, which does not look before it sleeps. Leave returns
// true when a message came meanwhile. hth_ring_poll_wake leaves the ring to that thread, which it
// wakes for what is there.
void hth_ring_poll_begin(hth_ring *ring);
bool hth_ring_poll_end(hth_ring *ring);
void hth_ring_poll_wake(hth_ring *ring);

#endif
