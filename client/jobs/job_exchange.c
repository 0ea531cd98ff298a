// SPDX-License-Identifier: Apache-2.0
// The client's end of a rank's exchange: what the engine asks by the socket (base/ipc/sum_link.h),
// in the memory that came with its first message.
#include "client/jobs/job_exchange.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "base/ipc/memfd.h"
#include "base/ipc/sum_link.h"

#include <poll.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

#define EXCHANGE_RANKS   16
#define EXCHANGE_WAIT_MS 1000
#define EXCHANGE_WAIT_NS 1000000000u // at most, between two looks

struct hearth_exchange {
    int rank, ranks;
    int link, engine; // engine: the end that goes with the job; -1: it has gone
    char argument[80];
    char *memory;
    uint64_t bytes;
    bool bye, all; // the job has ended; on all ranks
};

hearth_status hearth_exchange_open(int rank, int ranks, hearth_exchange **out)
{
    *out = NULL;
    if (ranks < 1 || ranks > EXCHANGE_RANKS || rank < 0 || rank >= ranks) {
        return (hearth_status)hth_fail(HTH_EINVAL, "there is no rank %d of %d; at most %d", rank,
                                       ranks, EXCHANGE_RANKS);
    }
    hearth_exchange *x = hth_calloc(1, sizeof *x);
    if (x == NULL) {
        return (hearth_status)hth_no_memory("an exchange");
    }
    hth_err err = hth_sum_link_make(&x->engine, &x->link);
    if (err != HTH_OK) {
        hth_free(x);
        return (hearth_status)err;
    }
    x->rank = rank;
    x->ranks = ranks;
    snprintf(x->argument, sizeof x->argument, "{\"rank\":%d,\"ranks\":%d,\"fd\":%d}", rank, ranks,
             x->engine);
    *out = x;
    return HEARTH_OK;
}

bool hth_exchange_follows(const hearth_exchange *exchange)
{
    return exchange != NULL && exchange->rank > 0;
}

const char *hearth_exchange_argument(const hearth_exchange *exchange)
{
    return exchange->argument;
}

int hearth_exchange_fd(const hearth_exchange *exchange)
{
    return exchange->link;
}

// The job has it: while the end is open here, too, its end would not be noticed.
static void exchange_passed(hearth_exchange *exchange)
{
    if (exchange->engine >= 0) {
        close(exchange->engine);
        exchange->engine = -1;
    }
}

static hth_err exchange_map(hearth_exchange *exchange, const hth_sum_message *hello, int fd)
{
    if (exchange->memory != NULL || fd < 0 || hello->count == 0 || hello->count > SIZE_MAX) {
        return hth_fail(HTH_ECANCELED,
                        "the job of rank %d began again: what the ranks shared is "
                        "lost",
                        exchange->rank);
    }
    HTH_TRY(hth_memfd_check(fd, hello->count));
    void *p = mmap(NULL, (size_t)hello->count, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (p == MAP_FAILED) {
        return hth_fail(HTH_ENOMEM, "cannot map %llu bytes of a job's memory",
                        (unsigned long long)hello->count);
    }
    exchange->memory = p;
    exchange->bytes = hello->count;
    return HTH_OK;
}

static hth_err exchange_part(const hearth_exchange *exchange, const hth_sum_message *message,
                             hearth_exchange_part *part)
{
    static const uint8_t size[] = {
        [HTH_SUM_F32] = sizeof(float), [HTH_SUM_F64] = sizeof(double), [HTH_SUM_BROADCAST] = 1};
    bool known = message->what >= HTH_SUM_F32 && message->what <= HTH_SUM_BROADCAST;
    uint64_t of = known ? size[message->what] : 1;
    bool fits = known && message->offset <= exchange->bytes && message->offset % of == 0 &&
                message->count <= (exchange->bytes - message->offset) / of;
    if (!fits) {
        return hth_fail(HTH_ECORRUPT, "the job of rank %d asks for a sum outside its memory",
                        exchange->rank);
    }
    *part = (hearth_exchange_part){.kind = (hearth_exchange_kind)message->what,
                                   .root = message->root,
                                   .data = exchange->memory + message->offset,
                                   .count = message->count,
                                   .id = message->id};
    return HTH_OK;
}

static hth_err exchange_ended(const hearth_exchange *exchange)
{
    return exchange->all ? hth_fail(HTH_ENOENT, "the job has ended")
                         : hth_fail(HTH_ECANCELED, "the job of rank %d has ended before the others",
                                    exchange->rank);
}

// exchange_took does what a message says; *got: it is a part.
static hth_err exchange_took(hearth_exchange *exchange, const hth_sum_message *message, int fd,
                             hearth_exchange_part *part, bool *got)
{
    switch (message->what) {
    case HTH_SUM_HELLO:
        return exchange_map(exchange, message, fd);
    case HTH_SUM_BYE:
        exchange->bye = true;
        exchange->all = message->count == 1;
        return HTH_OK;
    default:
        HTH_TRY(exchange_part(exchange, message, part));
        *got = true;
        return HTH_OK;
    }
}

// exchange_hear waits for a message.
static hth_err exchange_hear(hearth_exchange *exchange, uint64_t ns, hearth_exchange_part *part,
                             bool *got)
{
    hth_sum_message m;
    int fd;
    hth_err err = hth_sum_link_receive(exchange->link, ns, &m, &fd);
    if (err == HTH_ECANCELED) {
        return exchange->memory != NULL
                   ? exchange_ended(exchange)
                   : hth_fail(err, "the job of rank %d has ended before its first step",
                              exchange->rank);
    }
    HTH_TRY(err);
    err = exchange_took(exchange, &m, fd, part, got);
    if (fd >= 0) {
        close(fd);
    }
    return err;
}

// exchange_until is the time at which a wait of so many ms from now ends; UINT64_MAX: never.
static uint64_t exchange_until(uint64_t timeout_ms)
{
    uint64_t now_ns = hth_now_ns();
    bool ends = timeout_ms > 0 && timeout_ms <= (UINT64_MAX - now_ns) / 1000000u;
    return ends ? now_ns + timeout_ms * 1000000u : UINT64_MAX;
}

// exchange_left is how long the next look may wait: a signal that is handled ends it, too, and then
// what is left is waited for.
static uint64_t exchange_left(uint64_t until_ns)
{
    uint64_t now_ns = hth_now_ns(), left_ns = until_ns > now_ns ? until_ns - now_ns : 0;
    return left_ns < EXCHANGE_WAIT_NS ? left_ns : EXCHANGE_WAIT_NS;
}

hearth_status hearth_exchange_next(hearth_exchange *exchange, uint64_t timeout_ms,
                                   hearth_exchange_part *part)
{
    uint64_t until_ns = exchange_until(timeout_ms), left_ns;
    exchange_passed(exchange);
    while (!exchange->bye) {
        bool got = false;
        left_ns = exchange_left(until_ns);
        hth_err err = exchange_hear(exchange, left_ns, part, &got);
        if (got || (err != HTH_OK && err != HTH_ETIMEDOUT)) {
            return (hearth_status)err;
        }
        if (err == HTH_ETIMEDOUT && left_ns == 0) {
            return (hearth_status)hth_fail(err, "nothing to sum for %llu ms",
                                           (unsigned long long)timeout_ms);
        }
    }
    return (hearth_status)exchange_ended(exchange);
}

hearth_status hearth_exchange_done(hearth_exchange *exchange, const hearth_exchange_part *part)
{
    hth_sum_message m = {.what = HTH_SUM_DONE, .id = part->id};
    struct pollfd room = {.fd = exchange->link, .events = POLLOUT};
    hth_err err;
    while ((err = hth_sum_link_send(exchange->link, &m, -1)) == HTH_EBUSY) {
        (void)poll(&room, 1, EXCHANGE_WAIT_MS); // the job computes: it reads between operators
    }
    // If the job has ended, perhaps as it should, the next part tells.
    return (hearth_status)(err == HTH_ECANCELED ? HTH_OK : err);
}

void hearth_exchange_fail(hearth_exchange *exchange, const char *why)
{
    hth_sum_message m = {.what = HTH_SUM_FAILED};
    snprintf(m.text, sizeof m.text, "%s", why);
    (void)hth_sum_link_send(exchange->link, &m, -1);
}

void hearth_exchange_close(hearth_exchange *exchange)
{
    if (exchange == NULL) {
        return;
    }
    exchange_passed(exchange);
    close(exchange->link);
    if (exchange->memory != NULL) {
        munmap(exchange->memory, exchange->bytes);
    }
    hth_free(exchange);
}
