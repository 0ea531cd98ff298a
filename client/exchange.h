// SPDX-License-Identifier: Apache-2.0
// client/exchange.h - a connection, and one request with its reply over it.
//
// Design notes
// Each call runs on an nng context of its own, taken from a free list, on the calling thread: it
// sends, waits, and decodes there, so that a reply wakes the thread that wants it and no other.
// nng's automatic resending is off: a request is sent once, and fails when the connection does. A
// call that times out, or whose progress function says stop, sends a `cancel` after it. Long calls
// are watched by `progress` requests every 100 ms on a second context.
#ifndef HTH_CLIENT_EXCHANGE_H
#define HTH_CLIENT_EXCHANGE_H

#include "client/embed.h"
#include "client/hearth.h"
#include "client/wire.h"

#include <nng/nng.h>

#include <pthread.h>
#include <stdatomic.h>

typedef struct hth_call hth_call;               // a context and its aio, reused
typedef struct hth_buffer hth_buffer;           // what hearth_buffer_alloc gave out (buffer.h)
typedef struct hth_channels hth_channels;       // a ring in shared memory (ring_exchange.h)
typedef struct hth_socket_call hth_socket_call; // a stream
typedef struct hth_submits hth_submits;         // calls of hearth_submit (infer/submit.h)

struct hearth {
    nng_socket socket;
    bool socket_open;
    bool shared_memory; // worth trying: a local socket, and not switched off
    bool rings;         // worth trying with it
    bool same_machine;  // paths mean the same to both sides
    char *url;
    char *token; // NULL: none
    char *ca_file;
    unsigned forks; // hth_forks where it was opened
    bool by_socket; // over streams of our own, without nng (socket_exchange.h)
    hth_embedded *embedded;
    hth_wire_limits limits;
    uint64_t timeout_ms;
    atomic_uint_fast64_t next_call;
    atomic_int pipes;                // connections that are up: 0 or 1
    atomic_uint_fast64_t generation; // counts connections: regions belong to one of them
    pthread_mutex_t lock;            // guards what follows
    pthread_cond_t idle;
    int in_flight;
    hth_call *free_calls;
    hth_socket_call *socket_free;
    hth_buffer *buffers;
    hth_channels *channels;  // of the present connection; NULL: none
    uint64_t channels_tried; // the last connection that was asked for some
    atomic_uint redials;     // since the last connection
    pthread_mutex_t dialing; // guards the two that follow
    nng_dialer dialer;
    uint64_t redial_ns;      // when a dialer that has not connected may be replaced
    pthread_mutex_t mapping; // held while a buffer is mapped again
    pthread_mutex_t passing; // guards `passing_fd`
    int passing_fd;          // passes descriptors (descriptor.h); -1: not connected
    hth_submits *submits;    // NULL: none yet
    int *spooled;            // files without names that an embedded engine reads, until the end
    int n_spooled, cap_spooled;
};

// A reply: a decoded frame, whose `data` lies in `msg`, or a record, in `msg` or `copy`.
// hth_reply_fini frees all.
typedef struct hth_reply {
    nng_msg *msg;
    void *copy;
    Hearth__Reply *head;          // NULL: the record came through a channel
    const hth_ipc_record *record; // NULL: there is none
    uint64_t call;                // that it answers
    const uint8_t *data;
    uint64_t data_bytes;
} hth_reply;

typedef struct hth_watch { // how a long call is followed; fn NULL: it is not
    hearth_progress fn;
    void *ctx;
    const atomic_bool *stop; // over a stream of its own: it is canceled once this is set; NULL: not
} hth_watch;

// hth_exchange_hold keeps the connection as a call in flight does, until hth_exchange_rele:
// hearth_close waits for that.
void hth_exchange_hold(hearth *handle);
void hth_exchange_rele(hearth *handle);
// Whether this process was forked from one that used hearth. Threads and what they hold stay behind
// in a fork: a connection of the parent is dead in the child, and so is nng.
// hth_forked_begin has forks counted from now on; hth_forks is how many there were between that
// and this process, in its own line of parents. Any thread; neither makes a system call twice.
void hth_forked_begin(void);
unsigned hth_forks(void);
// hth_exchange_number is a number that no other request over the connection has.
uint64_t hth_exchange_number(hearth *handle);
// hth_exchange_check fails with HTH_EINVAL where the connection is that of a parent process.
hth_err hth_exchange_check(const hearth *handle);
// hth_exchange sends `request` (its call id is filled in where it has none) with the n inputs'
// bytes, inputs[i] belonging to the i-th tensor of the infer body, and stores the reply. Of a body
// about content the data section are the bytes of *inputs; NULL: there are none. An error reply
// becomes this call's error. On error *out is empty.
hth_err hth_exchange(hearth *handle, Hearth__Request *request, const hearth_tensor *inputs,
                     const hth_watch *watch, hth_reply *out);
// hth_exchange_call is the same for a body without tensors; HTH_ECORRUPT where its reply is not
// `want`.
hth_err hth_exchange_call(hearth *handle, Hearth__Request *request, Hearth__Reply__BodyCase want,
                          const hth_watch *watch, hth_reply *reply);
void hth_reply_fini(hth_reply *reply);
// The halves of it: hth_exchange_frame makes the message, a header, then the bytes of every tensor
// that travels in it; hth_exchange_decode makes a reply of the message that came for `call`, taking
// `msg`.
hth_err hth_exchange_frame(hearth *handle, Hearth__Request *request, const hearth_tensor *inputs,
                           nng_msg **out);
hth_err hth_exchange_decode(hearth *handle, nng_msg *msg, uint64_t call, hth_reply *out);
// hth_reply_read has *out be the reply in the record of `bytes` at `at`, which *out owns already;
// on error, too.
hth_err hth_reply_read(const hearth *handle, const uint8_t *at, size_t bytes, hth_reply *out);
// hth_reply_check makes an error reply, or one to another call, this call's error, and *reply
// empty.
hth_err hth_reply_check(hearth *handle, uint64_t call, hth_reply *reply);
// What a call says that was not answered in time, after canceling it, or lost its connection.
hth_err hth_exchange_timed_out(hearth *handle, uint64_t call);
hth_err hth_exchange_lost(hearth *handle);
void hth_exchange_fini(hearth *handle); // closes the free contexts

#endif
