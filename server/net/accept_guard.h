// SPDX-License-Identifier: Apache-2.0
// server/net/accept_guard.h - what the listeners of all front ends share: the descriptors that
// peers may use together, and what a listener does when the process has none left.
//
// Design notes
// A process without a free descriptor can neither restart its engine nor open a model, and a
// listener that cannot accept is ready again at once: its loop would spin and log for ever.
// Therefore every accepted connection is counted (hth_accept_take) against RLIMIT_NOFILE, less what
// the process has open itself and a reserve; so is what clients pass while it is open, and shared
// memory, of which the engine keeps a descriptor. Each kind of peers has an eighth of that for
// itself, so that none can keep the others out; the last descriptors of the reserve are for local
// administrators. Should descriptors run out all the same, the guard of a listener closes one that
// it keeps for that, refuses those who wait by closing their connections, rests for a moment, and
// logs at most one line in ten seconds.
#ifndef HTH_SERVER_NET_ACCEPT_GUARD_H
#define HTH_SERVER_NET_ACCEPT_GUARD_H

#include "base/err.h"

#include <event2/event.h>
#include <event2/listener.h>

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

// hth_accept_measure counts what the process has open now besides counted connections: that, and a
// reserve, connections leave alone from here on. After a server has opened everything; any thread.
void hth_accept_measure(void);
// Whose connection it is.
typedef enum hth_accept_kind {
    HTH_ACCEPT_HTTP,
    HTH_ACCEPT_NETWORK, // hearth's own clients
    HTH_ACCEPT_LOCAL,
    HTH_ACCEPT_ADMIN, // local ones who may use some of the reserve
    HTH_ACCEPT_KINDS
} hth_accept_kind;

// hth_accept_limit is how many connections of a kind there may be, if there are no others.
int hth_accept_limit(hth_accept_kind kind);
// hth_accept_take counts a connection, or another descriptor of a client's; false: there are too
// many, it is not counted. Any thread.
bool hth_accept_take(hth_accept_kind kind);
void hth_accept_give(hth_accept_kind kind); // what was counted is closed
int hth_accept_count(void);                 // of all kinds

typedef struct hth_accept_guard hth_accept_guard;

// hth_accept_guard_open has `listener` rest when no descriptor is left; `name` is its url, for the
// log. `base` is the loop of `listener`, and its thread the caller's, or not running yet.
// HTH_ENOMEM, and the listener stays as it was.
hth_err hth_accept_guard_open(struct event_base *base, struct evconnlistener *listener,
                              const char *name, hth_accept_guard **out);
// hth_accept_guard_let_wait: those who wait are not refused, but accepted later. Before it runs.
void hth_accept_guard_let_wait(hth_accept_guard *guard);
// hth_accept_guard_close: before its listener and its loop are freed. NULL is allowed.
void hth_accept_guard_close(hth_accept_guard *guard);

// What is worth a line of the log, but not a thousand: peers can bring it about.
typedef struct hth_seldom {
    _Atomic uint64_t next_ns;
    _Atomic uint64_t unsaid;
} hth_seldom;

// hth_seldom_now tells whether a line is due: the first, and then one in ten seconds. *unsaid gets
// how many were not logged since the last one. Any thread.
bool hth_seldom_now(hth_seldom *seldom, uint64_t *unsaid);

#endif
