// SPDX-License-Identifier: Apache-2.0
// base/ipc/sum_link.h - the socket between a job that is one rank of a group and the client that
// sums for it (MPI, torch.distributed): docs/design/groups.md.
//
// Design notes
// A socket pair of datagrams in order (SOCK_SEQPACKET): the client makes it and passes one end with
// its job. The engine begins with HELLO and the descriptor of the memory in which all that is to be
// summed lies; it then asks for one sum after the other, in the same order on all ranks, and the
// client answers each when it is done, in any order. Either side's end is the end of the other: so
// nobody waits for a process that has died. The engine never trusts what it reads here: a message
// has a number that is looked up, and the memory is the engine's own.
#ifndef HTH_BASE_IPC_SUM_LINK_H
#define HTH_BASE_IPC_SUM_LINK_H

#include "base/err.h"

#include <stddef.h>
#include <stdint.h>

typedef enum hth_sum_what {
    HTH_SUM_HELLO = 1, // engine: `count` bytes of memory, whose descriptor comes with it
    HTH_SUM_F32,       // engine: sum `count` floats at byte `offset` over all ranks, in place
    HTH_SUM_F64,       // .. doubles
    HTH_SUM_BROADCAST, // engine: `count` bytes at `offset` become what they are on rank `root`
    HTH_SUM_BYE,       // engine: the job needs nothing more; `count` 1: on all ranks
    HTH_SUM_DONE,      // client: `id` is done
    HTH_SUM_FAILED,    // client: it will never be, for the reason `text`
} hth_sum_what;

#define HTH_SUM_TEXT 224

typedef struct hth_sum_message {
    uint32_t what;
    int32_t root;
    uint64_t id, offset, count;
    char text[HTH_SUM_TEXT];
} hth_sum_message;

// hth_sum_link_make makes both ends, closed on exec: the engine's and the client's.
hth_err hth_sum_link_make(int *engine, int *client);
// hth_sum_link_check tells whether a descriptor that somebody passed is such a socket. HTH_EINVAL.
hth_err hth_sum_link_check(int fd);
// hth_sum_link_send does not wait; passed: a descriptor that goes with it, or -1. HTH_EBUSY: the
// other side has not read what came before; HTH_ECANCELED: it has gone.
hth_err hth_sum_link_send(int fd, const hth_sum_message *message, int passed);
// hth_sum_link_wait waits for at most `ns` until there is something to receive. HTH_ETIMEDOUT, also
// when a signal was handled before.
hth_err hth_sum_link_wait(int fd, uint64_t ns);
// hth_sum_link_receive waits for at most `ns` for a message. *passed, if not NULL, gets the
// descriptor that came with it, the caller's, or -1. HTH_ETIMEDOUT, as above; HTH_ECANCELED: the
// other side has gone; HTH_ECORRUPT: it sent something else.
hth_err hth_sum_link_receive(int fd, uint64_t ns, hth_sum_message *message, int *passed);

#endif
