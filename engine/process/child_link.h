// SPDX-License-Identifier: Apache-2.0
// engine/process/child_link.h - what hearthd and its engine's process share: the board, two slabs,
// a socket.
//
// Design notes
// The board is one memfd: the beat of the child, its requests, and a ring of messages each way. The
// requests are the child's own hth_request: there hearthd sets `canceled`, and sees when the child
// is dead which of them had begun. hearthd reads nothing else of them. Inputs lie in the slab `in`,
// which hearthd writes and which outlives a child; outputs in `out`, which the child writes. The
// socket passes the files of clients' memory, and its end tells the child that it is alone.
#ifndef HTH_ENGINE_PROCESS_CHILD_LINK_H
#define HTH_ENGINE_PROCESS_CHILD_LINK_H

#include "base/ipc/ring.h"
#include "base/ipc/slab.h"
#include "engine/process/child_wire.h"

#include <pthread.h>
#include <sys/types.h>

// A record up to here is part of its message.
#define HTH_CHILD_NEAR_BYTES (32u << 10)
// Of one direction's messages together: what does not fit waits.
#define HTH_CHILD_RING_BYTES ((size_t)4 << 20)

// Descriptors of the child, from its beginning.
enum {
    HTH_CHILD_FD_SOCKET = 3,
    HTH_CHILD_FD_BOARD,
    HTH_CHILD_FD_IN,
    HTH_CHILD_FD_OUT,
    HTH_CHILD_FD_FILES // child_files.h
};

typedef struct hth_child_slot {
    hth_request r;        // the child's; hearthd writes `canceled` and clears `started_ns`
    atomic_bool released; // hearthd needs nothing of its answer any more
} hth_child_slot;

typedef struct hth_child_board {
    uint64_t n_slots, in_bytes, out_bytes, spin_ns, beat_ns;
    pid_t parent;
    _Atomic uint64_t beat;      // counted by a thread of the child that does nothing else
    _Atomic uint64_t turned_ns; // when the engine's thread looked for requests last
    _Atomic uint64_t rest_ns;   // until when it has hearthd's threads sleep, not look (base/spin.h)
    hth_child_slot slot[];
} hth_child_board;

typedef struct hth_child_link {
    hth_child_board *board;
    size_t board_bytes;
    hth_ring *to, *from; // this side sends, receives
    hth_slab *in, *out;
    int socket, board_fd;
    pthread_mutex_t lock; // of sending
    char *message;        // the last one that was received
    size_t cap;
} hth_child_link;

// hth_child_board_bytes is what a board with its rings takes.
size_t hth_child_board_bytes(uint64_t n_slots);
// hth_child_link_open opens this side of a link whose board is mapped: rings and lock. parent: this
// is hearthd. On an error the caller closes it.
hth_err hth_child_link_open(hth_child_link *l, bool parent);
void hth_child_link_close(hth_child_link *l); // only what hth_child_link_open opened
// hth_child_link_send sends head and body, waiting at most `timeout_ns` for room. Any thread.
hth_err hth_child_link_send(hth_child_link *l, const hth_child_head *head, const void *body,
                            size_t bytes, uint64_t timeout_ns);
// hth_child_link_text is the same for a text, with its zero.
hth_err hth_child_link_text(hth_child_link *l, const hth_child_head *head, const char *text,
                            uint64_t timeout_ns);
// hth_child_link_receive waits for a message (0: does not, nor looks anywhere else). *body, of
// *bytes and a zero behind, is valid until the next call. One thread. HTH_ETIMEDOUT; HTH_ECANCELED:
// the other side has stopped; HTH_ECORRUPT.
hth_err hth_child_link_receive(hth_child_link *l, uint64_t timeout_ns, hth_child_head *head,
                               const char **body, size_t *bytes);
// hth_child_link_record is the record of a CALL or DONE, checked, in private memory: `body`, or
// where it is far, what lies in `slab`, copied to *copy, which the caller frees.
hth_err hth_child_link_record(const hth_child_head *head, const char *body, size_t bytes,
                              const hth_slab *slab, hth_child_record **copy,
                              const hth_child_record **out);

// hth_child_fd_send passes a descriptor with a number; it never waits. hth_child_fd_receive takes
// the one of `number`, which was sent before; those in front of it are dropped.
hth_err hth_child_fd_send(int socket, uint32_t number, int fd);
hth_err hth_child_fd_receive(int socket, uint32_t number, int *fd);
// hth_child_file is the number of the i-th descriptor of the request in a slot; regions have
// others.
uint32_t hth_child_file(uint32_t slot, int i);

#endif
