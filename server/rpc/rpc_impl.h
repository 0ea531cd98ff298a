// SPDX-License-Identifier: Apache-2.0
// server/rpc/rpc_impl.h - the inside of rpc.h: the loop (rpc.c), a connection's life (rpc_conn.c),
// what comes (rpc_in.c), requests (rpc_request.c), what goes, TLS and its handshakes (rpc_io.c),
// passed descriptors (descriptors.c).
//
// A connection belongs to its loop's thread. Other threads only bring replies: they take its lock,
// under which are what goes out and whether it is closed, and have the loop look at it where it has
// something to do (hth_rpc_touch). References: 1 of the loop while it is open, 1 of each request,
// 1 while it is touched.
#ifndef HTH_SERVER_RPC_RPC_IMPL_H
#define HTH_SERVER_RPC_RPC_IMPL_H

#include "server/net/accept_guard.h"
#include "server/rpc/rpc.h"

#include <event2/event.h>
#include <openssl/ssl.h>

#include <pthread.h>
#include <stdatomic.h>
#include <sys/uio.h>

#define HTH_RPC_HELLO 8  // bytes of a greeting
#define HTH_RPC_HEAD  9  // .. of a message's length on ipc
#define HTH_RPC_ROUTE 32 // .. of the words in front of a request: eight hops, as nng has it

typedef struct hth_rpc_conn hth_rpc_conn;

typedef enum hth_rpc_state {
    HTH_RPC_TLS,      // its handshake
    HTH_RPC_GREETING, // the peer's eight bytes
    HTH_RPC_LENGTH,   // between messages, or in a message's length
    HTH_RPC_BODY,
    HTH_RPC_SKIP,    // the rest of a message that was refused
    HTH_RPC_PASSING, // descriptors
} hth_rpc_state;

// Something that goes out: up to HTH_RPC_HEAD + HTH_RPC_ROUTE bytes and, if msg is set, its body.
typedef struct hth_rpc_out {
    struct hth_rpc_out *next;
    nng_msg *msg;
    size_t n_head, sent;
    uint64_t charged;
    uint8_t head[HTH_RPC_HEAD + HTH_RPC_ROUTE];
} hth_rpc_out;

// A request that is in progress: what its slot calls back with.
typedef struct hth_rpc_request {
    hth_rpc_conn *c;    // held
    hth_rpc_slot *slot; // while it waits
    struct hth_rpc_request *next;
    hth_allowance_kind kind;
    bool counted, watches;        // by its allowance; among n_watches
    uint64_t message_bytes;       // charged
    _Atomic uint64_t reply_bytes; // charged before the reply is made
    size_t n_route;
    uint8_t route[HTH_RPC_ROUTE];
} hth_rpc_request;

struct hth_rpc_conn {
    hth_rpc *r;
    atomic_int refs;
    int fd;
    SSL *ssl; // NULL: plain
    bool local, trusted;
    hth_accept_kind kind;
    bool proven; // it has shown a token, or needs none
    bool dead;   // to be closed as soon as nobody is inside
    uint64_t uid;
    hth_conn *conn;
    hth_allowance *allowance;
    hth_rpc_state state;
    struct event *read, *write, *closed;
    uint64_t since_ns; // the last whole request, greeting, or connection
    uint64_t opened_ns;
    uint64_t late_ns;           // when what comes is too late; 0: nothing is awaited
    hth_rpc_conn *next, **prev; // of its loop
    // what comes
    uint8_t head[HTH_RPC_HEAD];
    size_t n_head;
    uint8_t *message;
    size_t have, capacity; // bytes of it that are there, and that there is memory for
    uint64_t want, may;    // .. that it has, and that may be there before it is looked into again
    uint64_t charged;
    uint64_t skip;
    uint8_t *rest; // read and not looked at, while `paused`
    size_t rest_at, rest_bytes;
    int n_round;     // requests of this round
    int n_reads;     // of TLS, that this round has left
    bool round_over; // others come first
    bool shaking;    // its handshake has something to read, and waits for its turn
    int n_shakes;    // steps of it that were taken
    // requests
    atomic_bool paused; // nothing is read: there are too many requests, or too much goes out
    uint64_t paused_ns;
    atomic_int n_pending; // requests in progress, those that wait for a place among them
    atomic_int n_long;    // of them; of watches apart
    atomic_int n_watches;
    hth_rpc_request *waiting, **last_waiting;
    hth_rpc_conn *next_waiter, **prev_waiter; // prev NULL: it is not in the list
    // what goes, under the lock
    pthread_mutex_t lock;
    bool gone, broken; // closed; its socket takes nothing any more
    hth_rpc_out *out, **last_out;
    uint64_t out_late_ns;
    int out_held; // by the kernel, at the last look
    atomic_size_t out_bytes;
    // of hth_rpc's lock
    bool touched;
    hth_rpc_conn *next_touched;
};

typedef struct hth_rpc_listener {
    hth_rpc *r;
    bool local, tls;
    struct evconnlistener *listener;
    hth_accept_guard *guard;
    struct event *again; // accepts again
    int n_round;         // accepted without a pause
} hth_rpc_listener;

#define HTH_RPC_LISTENERS 16
#define HTH_RPC_SCRATCH   (64u << 10)
#define HTH_RPC_LEAVING   8

struct hth_rpc {
    hth_rpc_config config;
    bool tokens; // are asked for
    struct event_base *base;
    struct event *wake, *tick, *shake;
    int n_shaking; // connections that are `shaking`
    int wake_fd;
    pthread_t thread;
    bool running;
    int n_listeners;
    hth_rpc_listener listener[HTH_RPC_LISTENERS];
    hth_rpc_conn *conns;
    hth_rpc_conn *waiters, **last_waiter; // connections with requests that wait for a place
    atomic_int n_waiters;
    hth_seldom refusals, endings; // lines of the log
    int leaving[HTH_RPC_LEAVING]; // connections that were not taken; -1: none
    uint64_t leaving_uid[HTH_RPC_LEAVING];
    bool left[HTH_RPC_LEAVING];
    int next_leaving;
    uint64_t stop_ns; // when to disconnect at the latest; 0: not stopping
    bool ended;
    uint8_t scratch[HTH_RPC_SCRATCH];
    pthread_mutex_t lock; // guards what follows
    hth_rpc_conn *touched;
    bool woken;
    uint64_t stop_asked_ns;
};

// rpc.c
void hth_rpc_touch(hth_rpc_conn *conn); // has the loop look at it; any thread
void hth_rpc_wake(hth_rpc *rpc);
bool hth_rpc_on_loop(const hth_rpc *rpc);

// rpc_conn.c
// hth_rpc_conn_accept takes over an accepted socket.
void hth_rpc_conn_accept(hth_rpc_listener *listener, int fd, const struct sockaddr *address);
// hth_rpc_conn_shut_out closes connections that were not taken, some time ago or all.
void hth_rpc_conn_shut_out(hth_rpc *rpc, bool all);
void hth_rpc_conn_schedule(hth_rpc_conn *conn); // it is next to be read
void hth_rpc_conn_settle(
    hth_rpc_conn *conn); // after anything was done to it: closes, pauses, goes on
void hth_rpc_conn_close(hth_rpc_conn *conn);
void hth_rpc_conn_look(hth_rpc_conn *conn, uint64_t now_ns); // for what takes too long
void hth_rpc_conn_hold(hth_rpc_conn *conn);
void hth_rpc_conn_rele(hth_rpc_conn *conn);
// hth_rpc_conn_full: between two messages, and no more are to be read now.
bool hth_rpc_conn_full(const hth_rpc_conn *conn);

// rpc_in.c
void hth_rpc_in(hth_rpc_conn *conn); // reads what is there
void hth_rpc_in_fini(hth_rpc_conn *conn);
void hth_rpc_in_forget(hth_rpc_conn *conn); // the message that has come so far
// hth_rpc_moved: bytes bytes have come or gone; *late_ns, of what is too slow, moves on.
void hth_rpc_moved(uint64_t *late_ns, uint64_t bytes, uint64_t now_ns);

// rpc_request.c
// hth_rpc_request_take makes a request of the message that is whole.
void hth_rpc_request_take(hth_rpc_conn *conn);
// hth_rpc_request_prove looks for a valid token in what has come of the message: HTH_OK, and the
// connection is proven; HTH_EBUSY: more has to come; else it is refused, as it is answered.
hth_err hth_rpc_request_prove(hth_rpc_conn *conn);
// hth_rpc_request_is_put tells whether what has come of it is of a piece of an upload.
bool hth_rpc_request_is_put(const hth_rpc_conn *conn);
// hth_rpc_request_refuse answers a message of which its words have come, and drops it.
void hth_rpc_request_refuse(hth_rpc_conn *conn, hth_err err, const char *sentence);
void hth_rpc_request_drop_all(hth_rpc_conn *conn); // those that wait for a place
void hth_rpc_waiters_run(hth_rpc *rpc);
// hth_rpc_route is how many bytes of words are in front of a request; 0: they have not all come;
// SIZE_MAX: there are too many.
size_t hth_rpc_route(const uint8_t *message, size_t have);

// rpc_io.c
#define HTH_RPC_AGAIN  (-1)                    // nothing now
#define HTH_RPC_FAILED (-2)                    // and never again
#define HTH_RPC_FDS    253                     // the most descriptors that one message brings
hth_err hth_rpc_io_secure(hth_rpc_conn *conn); // makes its session
// hth_rpc_io_shake goes on with the handshake; 1: done, or HTH_RPC_AGAIN, HTH_RPC_FAILED.
int hth_rpc_io_shake(hth_rpc_conn *conn);
ssize_t hth_rpc_io_read(hth_rpc_conn *conn, void *memory, size_t bytes); // 0: the peer has ended
ssize_t hth_rpc_io_write(hth_rpc_conn *conn, const struct iovec *parts, int count);
// hth_rpc_io_receive reads from a local connection and hands over the descriptors that came along.
ssize_t hth_rpc_io_receive(hth_rpc_conn *conn, void *memory, size_t bytes, int fds[HTH_RPC_FDS],
                           int *n_fds);
// hth_rpc_io_fini ends the session and closes the socket; the connection's place among all goes
// with the latter.
void hth_rpc_io_fini(hth_rpc_conn *conn);

// .. what goes out
// hth_rpc_out_add queues something of `out`'s, which it takes over, and sends what the socket takes
// now. Any thread. `soon` false: only the loop sends.
void hth_rpc_out_add(hth_rpc_conn *conn, hth_rpc_out *out, bool soon);
hth_rpc_out *hth_rpc_out_new(hth_rpc_conn *conn, const void *head, size_t n_head, nng_msg *msg);
void hth_rpc_out_fail(hth_rpc_conn *conn); // has the loop close it; any thread
// hth_rpc_out_flush sends what the socket takes; the loop's thread.
void hth_rpc_out_flush(hth_rpc_conn *conn);
void hth_rpc_out_drop(hth_rpc_conn *conn); // all; under the lock
// hth_rpc_head writes a message's length as the transport has it, and returns its bytes.
size_t hth_rpc_head(const hth_rpc_conn *conn, uint64_t bytes, uint8_t *head);

// .. handshakes, each in its turn
void hth_rpc_shake_ready(hth_rpc_conn *conn);  // there is something to read for its handshake
void hth_rpc_shake_forget(hth_rpc_conn *conn); // it is closed
void hth_rpc_shake_run(hth_rpc *rpc);          // takes some steps; the event `shake`

// descriptors.c
bool hth_rpc_pass_hello(const uint8_t *hello);
void hth_rpc_pass(hth_rpc_conn *conn); // takes descriptors that are there

#endif
