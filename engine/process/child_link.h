// SPDX-License-Identifier: Apache-2.0
// engine/process/child_link.h - what hearthd and its engine's process share: the control block, two
// slabs, a socket.
//
// Design notes
// A request and its answer are records (base/ipc/ipc_record.h). A request's lies in the slab `in`,
// where hearthd wrote it, or took it out of a client's ring: the child checks it and uses it there.
// An answer's is part of its message, or a large one in the slab `out`, and is copied out of there
// before anybody looks at it.
//
// The control block is one memfd: the heartbeats of the child, its requests, and a ring of messages
// each way. The requests are the child's own hth_request: there hearthd sets `canceled`, and sees
// when the child is dead which of them had begun. hearthd reads nothing else of them. Inputs lie in
// the slab `in`, which hearthd writes and which outlives a child; outputs in `out`, which the child
// writes. The socket passes the descriptors of messages, and its end tells the child that it is
// alone.
//
// Descriptors go in one packet, in front of their message, and only once the ring has room for
// that: none is in the socket whose message does not follow. Each packet has a number of its own,
// which its message names: what a message left in the socket, because it was refused before, is
// passed over, and never another's.
#ifndef HTH_ENGINE_PROCESS_CHILD_LINK_H
#define HTH_ENGINE_PROCESS_CHILD_LINK_H

#include "base/ipc/ipc_record.h"
#include "base/ipc/ring.h"
#include "base/ipc/slab.h"
#include "engine/engine.h"
#include "runtime/tenants/tenant_rules.h"

#include <pthread.h>
#include <sys/types.h>

typedef enum hth_child_kind {
    // to the child
    HTH_CHILD_HELLO = 1, // what it is to open: JSON
    HTH_CHILD_SETTINGS,  // the settings and what is logged: JSON
    HTH_CHILD_CALL,      // a request: hth_child_ask; its record is in the slab
    HTH_CHILD_REGION, // a client's memory, `done` bytes at `total` of the file that comes with it
    HTH_CHILD_FORGET, // it is no more
    HTH_CHILD_DRAIN,  // hth_engine_drain
    HTH_CHILD_STOP,   // hth_engine_stop, and the process ends
    // from the child
    HTH_CHILD_STARTED,  // device and store are open; `done`: HTH_CHILD_UNCONFINED or 0
    HTH_CHILD_FAILED,   // they cannot be; `done`: the code; text
    HTH_CHILD_PROGRESS, // of a request: text
    HTH_CHILD_EVENT,    // of a training job: its name, a zero, text
    HTH_CHILD_DONE,     // the answer to a request: record, or where it is in the slab
} hth_child_kind;

// The kernel cannot confine the child to the store.
#define HTH_CHILD_UNCONFINED 1u

typedef struct hth_child_head { // of every message
    uint32_t kind;
    uint32_t entry; // of the request; of a region its number
    uint64_t done, total;
    uint64_t far_at, far_bytes; // a record that is not in the message: where it is in the sender's
                                // slab; far_bytes 0: it follows
    uint64_t passed;            // of its descriptors' packet the number; 0: none comes with it
} hth_child_head;

// What hearthd knows of a request, and its client does not say: not in the record, which a client
// may have written.
typedef struct hth_child_ask {
    uint64_t waited_ns;
    uint32_t crashes;
    int32_t member;
    uint32_t n_files;                // whose descriptors come with it
    bool own, admin, at_once, known; // known: there is a tenant
    char tenant[HTH_TENANT];
} hth_child_ask;

// An answer's record up to here is part of its message.
#define HTH_CHILD_NEAR_BYTES (32u << 10)
// Of one direction's messages together: what does not fit waits.
#define HTH_CHILD_RING_BYTES ((size_t)4 << 20)

// While large tensors come nobody spins, for so long after the last one.
#define HTH_CHILD_NO_SPIN_NS 10000000u

// Descriptors of the child, from its beginning.
enum {
    HTH_CHILD_FD_SOCKET = 3,
    HTH_CHILD_FD_CONTROL,
    HTH_CHILD_FD_IN,
    HTH_CHILD_FD_OUT,
    HTH_CHILD_FD_FILES // child_files.h
};

typedef struct hth_child_entry {
    hth_request r;        // the child's; hearthd writes `canceled` and clears `started_ns`
    atomic_bool released; // hearthd needs nothing of its answer any more
} hth_child_entry;

typedef struct hth_child_control {
    uint64_t n_entries, in_bytes, out_bytes, spin_ns, heartbeat_ns;
    pid_t parent;
    _Atomic uint64_t heartbeats;        // counted by a thread of the child that does nothing else
    _Atomic uint64_t polled_ns;         // when the engine's thread looked for requests last
    _Atomic uint64_t spin_suspended_ns; // until when hearthd's threads do not spin (base/spin.h)
    hth_child_entry entry[];
} hth_child_control;

typedef struct hth_child_link {
    hth_child_control *control;
    size_t control_bytes;
    hth_ring *to, *from; // this side sends, receives
    hth_slab *in, *out;
    int socket, control_fd;
    pthread_mutex_t lock; // of sending
    uint64_t passed;      // packets of descriptors; guarded by it
    char *message;        // the last one that was received
    size_t cap;
} hth_child_link;

// hth_child_control_bytes is what a control block with its rings takes.
size_t hth_child_control_bytes(uint64_t n_entries);
// hth_child_link_open opens this side of a link whose control block is mapped: rings and lock.
// parent: this is hearthd. On an error the caller closes it.
hth_err hth_child_link_open(hth_child_link *link, bool parent);
void hth_child_link_close(hth_child_link *link); // only what hth_child_link_open opened
// hth_child_link_send sends head and body, waiting at most `timeout_ns` for room. Any thread.
hth_err hth_child_link_send(hth_child_link *link, const hth_child_head *head, const void *body,
                            size_t bytes, uint64_t timeout_ns);
// hth_child_link_pass sends them with n descriptors, 1 to HTH_FD_MOST, which stay the caller's. It
// never waits: HTH_EBUSY, no room now for both. On an error nothing was sent.
hth_err hth_child_link_pass(hth_child_link *link, const hth_child_head *head, const void *body,
                            size_t bytes, const int *fd, int n);
// hth_child_link_passed takes the n descriptors of the message that was received last, which the
// caller closes. HTH_EIO: they did not arrive, and none is open.
hth_err hth_child_link_passed(hth_child_link *link, const hth_child_head *head, int *fd, int n);
// hth_child_link_text is the same for a text, with its zero.
hth_err hth_child_link_text(hth_child_link *link, const hth_child_head *head, const char *text,
                            uint64_t timeout_ns);
// hth_child_link_receive waits for a message (0: does not, nor polls anything else). *body, of
// *bytes and a zero after, is valid until the next call. One thread. HTH_ETIMEDOUT; HTH_ECANCELED:
// the other side has stopped; HTH_ECORRUPT.
hth_err hth_child_link_receive(hth_child_link *link, uint64_t timeout_ns, hth_child_head *head,
                               const char **body, size_t *bytes);
// hth_child_link_answer is the record of a DONE, checked, in private memory: a copy in *copy, which
// the caller frees, or `body`, where *copy is NULL. HTH_ECORRUPT; HTH_ENOMEM.
hth_err hth_child_link_answer(const hth_child_head *head, const char *body, size_t bytes,
                              const hth_slab *slab, hth_ipc_record **copy,
                              const hth_ipc_record **out);

// hth_child_record_tensor is what a tensor of a record is, without its bytes; the name lies in the
// record.
hth_request_tensor hth_child_record_tensor(const hth_ipc_record *record,
                                           const hth_ipc_record_tensor *tensor);

#endif
