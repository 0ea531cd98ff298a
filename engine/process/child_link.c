// SPDX-License-Identifier: Apache-2.0
// The rings follow the entries of the control block, each at a multiple of 64.
#include "engine/process/child_link.h"

#include "base/alloc.h"
#include "base/ipc/fd.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static size_t control_head_bytes(uint64_t n_entries)
{
    size_t bytes = sizeof(hth_child_control) + n_entries * sizeof(hth_child_entry);
    return (bytes + 4095) / 4096 * 4096;
}

size_t hth_child_control_bytes(uint64_t n_entries)
{
    return control_head_bytes(n_entries) + 2 * hth_ring_bytes(HTH_CHILD_RING_BYTES);
}

hth_err hth_child_link_open(hth_child_link *link, bool parent)
{
    char *at = (char *)link->control + control_head_bytes(link->control->n_entries);
    char *second = at + hth_ring_bytes(HTH_CHILD_RING_BYTES);
    uint64_t spin_ns = parent ? link->control->spin_ns : 0; // there the engine polls
    pthread_mutex_init(&link->lock, NULL);
    HTH_TRY(hth_ring_open(parent ? at : second, HTH_CHILD_RING_BYTES, HTH_RING_PRODUCER, spin_ns,
                          &link->to));
    return hth_ring_open(parent ? second : at, HTH_CHILD_RING_BYTES, HTH_RING_CONSUMER, spin_ns,
                         &link->from);
}

void hth_child_link_close(hth_child_link *link)
{
    hth_ring_close(link->to);
    hth_ring_close(link->from);
    hth_free(link->message);
    link->to = link->from = NULL;
    link->message = NULL;
    link->cap = 0;
    pthread_mutex_destroy(&link->lock);
}

hth_err hth_child_link_send(hth_child_link *link, const hth_child_head *head, const void *body,
                            size_t bytes, uint64_t timeout_ns)
{
    const hth_ring_part parts[] = {{head, sizeof *head}, {body, bytes}};
    pthread_mutex_lock(&link->lock);
    hth_err err = hth_ring_send(link->to, parts, bytes > 0 ? 2 : 1, timeout_ns);
    pthread_mutex_unlock(&link->lock);
    return err;
}

hth_err hth_child_link_text(hth_child_link *link, const hth_child_head *head, const char *text,
                            uint64_t timeout_ns)
{
    return hth_child_link_send(link, head, text, strlen(text) + 1, timeout_ns);
}

hth_err hth_child_link_receive(hth_child_link *link, uint64_t timeout_ns, hth_child_head *head,
                               const char **body, size_t *bytes)
{
    size_t n;
    if (timeout_ns > 0) {
        HTH_TRY(hth_ring_wait(link->from, timeout_ns));
    }
    HTH_TRY(hth_ring_next(link->from, &n));
    if (n + 1 > link->cap) {
        char *more = hth_realloc(link->message, n + 1, 1);
        if (more == NULL) {
            return hth_no_memory("a message of %zu bytes", n);
        }
        link->message = more;
        link->cap = n + 1;
    }
    hth_ring_take(link->from, link->message);
    if (n < sizeof *head) {
        return hth_fail(HTH_ECORRUPT, "a message has no head");
    }
    link->message[n] = 0;
    memcpy(head, link->message, sizeof *head);
    *body = link->message + sizeof *head;
    *bytes = n - sizeof *head;
    return HTH_OK;
}

hth_err hth_child_link_answer(const hth_child_head *head, const char *body, size_t bytes,
                              const hth_slab *slab, hth_ipc_record **copy,
                              const hth_ipc_record **out)
{
    *copy = NULL;
    *out = (const hth_ipc_record *)(const void *)body;
    if (head->far_bytes > 0) {
        const void *far = hth_slab_at(slab, head->far_at, head->far_bytes);
        bytes = head->far_bytes;
        if (far == NULL) {
            return hth_fail(HTH_ECORRUPT, "a message lies outside of what is shared");
        }
        *copy = hth_memdup(far, bytes);
        *out = *copy;
        if (*copy == NULL) {
            return hth_no_memory("a message of %zu bytes", bytes);
        }
    }
    hth_err err = hth_ipc_record_check(*out, bytes);
    if (err != HTH_OK) {
        hth_free(*copy);
        *copy = NULL;
    }
    return err;
}

hth_request_tensor hth_child_record_tensor(const hth_ipc_record *record,
                                           const hth_ipc_record_tensor *tensor)
{
    _Static_assert(HTH_IPC_RECORD_RANK == HTH_MAX_RANK, "a record's tensors are the engine's");
    hth_request_tensor t = {.name = hth_ipc_record_name(record, tensor),
                            .t = {.dtype = (hth_dtype)tensor->dtype,
                                  .layout = HTH_LAYOUT_PLAIN,
                                  .shape = {.rank = (int)tensor->rank},
                                  .bytes = tensor->bytes}};
    memcpy(t.t.shape.dim, tensor->dim, sizeof tensor->dim);
    return t;
}

// ---- descriptors

// link_send_fds puts a packet of descriptors into the socket.
static hth_err link_send_fds(int socket, uint64_t number, const int *fd, int n)
{
    if (hth_fd_send_all(socket, &number, sizeof number, fd, n, MSG_DONTWAIT)) {
        return HTH_OK;
    }
    switch (errno) {
    case EAGAIN:
    case ETOOMANYREFS:
    case ENOBUFS:
    case ENOMEM:
        return hth_fail(HTH_EBUSY, "the engine process takes no more descriptors now");
    case EPIPE:
    case ECONNRESET:
        return hth_fail(HTH_ECANCELED, "the receiver is gone");
    default:
        return hth_fail_errno(errno, "cannot pass descriptors to the engine process");
    }
}

hth_err hth_child_link_pass(hth_child_link *link, const hth_child_head *head, const void *body,
                            size_t bytes, const int *fd, int n)
{
    hth_child_head with = *head;
    const hth_ring_part parts[] = {{&with, sizeof with}, {body, bytes}};
    pthread_mutex_lock(&link->lock);
    hth_err err = hth_ring_reserve(link->to, sizeof with + bytes, 0);
    if (err == HTH_OK) {
        with.passed = link->passed + 1;
        err = link_send_fds(link->socket, with.passed, fd, n);
    }
    if (err == HTH_OK) {
        link->passed = with.passed;
        err = hth_ring_send(link->to, parts, bytes > 0 ? 2 : 1, 0);
    }
    pthread_mutex_unlock(&link->lock);
    return err;
}

hth_err hth_child_link_passed(hth_child_link *link, const hth_child_head *head, int *fd, int n)
{
    uint64_t number = 0;
    while (number != head->passed) {
        for (int i = 0; number > 0 && fd[0] >= 0 && i < n; i++) {
            close(fd[i]); // of a message that nobody took them for
        }
        if (!hth_fd_receive_all(link->socket, &number, sizeof number, fd, n, MSG_DONTWAIT)) {
            return hth_fail(HTH_EIO, "descriptors of a message did not arrive");
        }
    }
    return number > 0 && fd[0] >= 0 ? HTH_OK
                                    : hth_fail(HTH_EIO, "descriptors of a message did not arrive");
}
