// SPDX-License-Identifier: Apache-2.0
// The rings stand behind the slots of the board, each at a multiple of 64.
#include "engine/process/child_link.h"

#include "base/alloc.h"
#include "base/ipc/fd.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static size_t board_head_bytes(uint64_t n_slots)
{
    size_t bytes = sizeof(hth_child_board) + n_slots * sizeof(hth_child_slot);
    return (bytes + 4095) / 4096 * 4096;
}

size_t hth_child_board_bytes(uint64_t n_slots)
{
    return board_head_bytes(n_slots) + 2 * hth_ring_bytes(HTH_CHILD_RING_BYTES);
}

hth_err hth_child_link_open(hth_child_link *l, bool parent)
{
    char *at = (char *)l->board + board_head_bytes(l->board->n_slots);
    char *second = at + hth_ring_bytes(HTH_CHILD_RING_BYTES);
    uint64_t spin_ns = parent ? l->board->spin_ns : 0; // there the engine looks
    pthread_mutex_init(&l->lock, NULL);
    hth_err err = hth_ring_open(parent ? at : second, HTH_CHILD_RING_BYTES, HTH_RING_PRODUCER,
                                spin_ns, &l->to);
    return err == HTH_OK ? hth_ring_open(parent ? second : at, HTH_CHILD_RING_BYTES,
                                         HTH_RING_CONSUMER, spin_ns, &l->from)
                         : err;
}

void hth_child_link_close(hth_child_link *l)
{
    hth_ring_close(l->to);
    hth_ring_close(l->from);
    hth_free(l->message);
    l->to = l->from = NULL;
    l->message = NULL;
    l->cap = 0;
    pthread_mutex_destroy(&l->lock);
}

hth_err hth_child_link_send(hth_child_link *l, const hth_child_head *head, const void *body,
                            size_t bytes, uint64_t timeout_ns)
{
    const hth_ring_part parts[] = {{head, sizeof *head}, {body, bytes}};
    pthread_mutex_lock(&l->lock);
    hth_err err = hth_ring_send(l->to, parts, bytes > 0 ? 2 : 1, timeout_ns);
    pthread_mutex_unlock(&l->lock);
    return err;
}

hth_err hth_child_link_text(hth_child_link *l, const hth_child_head *head, const char *text,
                            uint64_t timeout_ns)
{
    return hth_child_link_send(l, head, text, strlen(text) + 1, timeout_ns);
}

hth_err hth_child_link_receive(hth_child_link *l, uint64_t timeout_ns, hth_child_head *head,
                               const char **body, size_t *bytes)
{
    size_t n;
    if (timeout_ns > 0) {
        HTH_TRY(hth_ring_wait(l->from, timeout_ns));
    }
    HTH_TRY(hth_ring_next(l->from, &n));
    if (n + 1 > l->cap) {
        char *more = hth_realloc(l->message, n + 1, 1);
        if (more == NULL) {
            return hth_fail(HTH_ENOMEM, "out of memory for a message of %zu bytes", n);
        }
        l->message = more;
        l->cap = n + 1;
    }
    hth_ring_take(l->from, l->message);
    if (n < sizeof *head) {
        return hth_fail(HTH_ECORRUPT, "a message has no head");
    }
    l->message[n] = 0;
    memcpy(head, l->message, sizeof *head);
    *body = l->message + sizeof *head;
    *bytes = n - sizeof *head;
    return HTH_OK;
}

hth_err hth_child_link_record(const hth_child_head *head, const char *body, size_t bytes,
                              const hth_slab *slab, hth_child_record **copy,
                              const hth_child_record **out)
{
    *copy = NULL;
    *out = (const hth_child_record *)(const void *)body;
    if (head->far_bytes > 0) {
        const void *far = hth_slab_at(slab, head->far_at, head->far_bytes);
        bytes = head->far_bytes;
        if (far == NULL) {
            return hth_fail(HTH_ECORRUPT, "a message lies outside of what is shared");
        }
        *copy = hth_memdup(far, bytes);
        *out = *copy;
        if (*copy == NULL) {
            return hth_fail(HTH_ENOMEM, "out of memory for a message of %zu bytes", bytes);
        }
    }
    hth_err err = hth_child_record_check(*out, bytes);
    if (err != HTH_OK) {
        hth_free(*copy);
        *copy = NULL;
    }
    return err;
}

// ---- descriptors

hth_err hth_child_fd_send(int socket, uint32_t number, int fd)
{
    return hth_fd_send(socket, &number, sizeof number, fd, MSG_DONTWAIT)
               ? HTH_OK
               : hth_fail_errno(errno, "cannot pass shared memory on");
}

// fd_next takes the next descriptor and its number; it never waits.
static hth_err fd_next(int socket, uint32_t *number, int *fd)
{
    return hth_fd_receive(socket, number, sizeof *number, fd, MSG_DONTWAIT) && *fd >= 0
               ? HTH_OK
               : hth_fail(HTH_EIO, "shared memory did not arrive");
}

uint32_t hth_child_file(uint32_t slot, int i)
{
    return UINT32_C(1) << 31 | (slot * HTH_REQUEST_FILES + (uint32_t)i);
}

hth_err hth_child_fd_receive(int socket, uint32_t number, int *fd)
{
    uint32_t got = 0;
    HTH_TRY(fd_next(socket, &got, fd));
    while (got != number) {
        close(*fd);
        HTH_TRY(fd_next(socket, &got, fd));
    }
    return HTH_OK;
}
