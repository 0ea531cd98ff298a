// SPDX-License-Identifier: Apache-2.0
// Counts are plain integers under the table's lock; munmap happens outside of it. Regions' numbers
// start at a value taken from the clock, so that a number from before a restart is unlikely to name
// anything.
#include "server/conn.h"

#include "base/alloc.h"
#include "base/clock.h"

#include <uthash.h>

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/magic.h>
#include <pthread.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#define CONN_MAX_REGIONS                                                                           \
    1024 // of one connection: bounds what a client can make the server list and map

struct hth_region {
    hth_conns *table;
    uint32_t id;
    int refs; // 1 of the connection, 1 of each request that uses it
    void *base;
    size_t bytes;
    hth_region *next;
};

struct hth_conn {
    hth_conns *table;
    uint32_t pipe;
    int refs; // 1 of the table, 1 of each holder
    bool same_machine;
    uint64_t pid; // 0: not known
    int n_regions;
    hth_region *regions;
    UT_hash_handle hh;
};

struct hth_conns {
    pthread_mutex_t lock;
    hth_conn *by_pipe;
    uint32_t next_region;
};

hth_err hth_conns_open(hth_conns **out)
{
    hth_conns *c = hth_calloc(1, sizeof *c);
    *out = c;
    if (c == NULL) {
        return hth_fail(HTH_ENOMEM, "out of memory for the table of connections");
    }
    pthread_mutex_init(&c->lock, NULL);
    c->next_region = (uint32_t)(hth_now_ns() >> 10);
    return HTH_OK;
}

void hth_conns_close(hth_conns *c)
{
    if (c == NULL) {
        return;
    }
    pthread_mutex_destroy(&c->lock);
    hth_free(c);
}

int hth_conns_count(hth_conns *c)
{
    pthread_mutex_lock(&c->lock);
    int n = (int)HASH_COUNT(c->by_pipe);
    pthread_mutex_unlock(&c->lock);
    return n;
}

static bool conn_is_local(nng_pipe p)
{
    nng_sockaddr a;
    return nng_pipe_get_addr(p, NNG_OPT_REMADDR, &a) == 0 &&
           (a.s_family == NNG_AF_IPC || a.s_family == NNG_AF_INPROC ||
            a.s_family == NNG_AF_ABSTRACT);
}

hth_err hth_conns_add(hth_conns *t, nng_pipe p)
{
    hth_conn *c = hth_calloc(1, sizeof *c);
    if (c == NULL) {
        return hth_fail(HTH_ENOMEM, "out of memory for a connection");
    }
    c->table = t;
    c->pipe = (uint32_t)nng_pipe_id(p);
    c->refs = 1;
    c->same_machine = conn_is_local(p);
    if (nng_pipe_get_uint64(p, NNG_OPT_IPC_PEER_PID, &c->pid) != 0) {
        c->pid = 0;
    }
    pthread_mutex_lock(&t->lock);
    HASH_ADD(hh, t->by_pipe, pipe, sizeof c->pipe, c);
    pthread_mutex_unlock(&t->lock);
    return HTH_OK;
}

static hth_conn *conn_lookup(hth_conns *t, nng_pipe p)
{
    uint32_t id = (uint32_t)nng_pipe_id(p);
    hth_conn *c;
    HASH_FIND(hh, t->by_pipe, &id, sizeof id, c);
    return c;
}

hth_conn *hth_conns_remove(hth_conns *t, nng_pipe p)
{
    pthread_mutex_lock(&t->lock);
    hth_conn *c = conn_lookup(t, p);
    if (c != NULL) {
        HASH_DELETE(hh, t->by_pipe, c);
    }
    pthread_mutex_unlock(&t->lock);
    return c; // with the table's reference
}

hth_conn *hth_conn_find(hth_conns *t, nng_pipe p)
{
    pthread_mutex_lock(&t->lock);
    hth_conn *c = conn_lookup(t, p);
    if (c != NULL) {
        c->refs++;
    }
    pthread_mutex_unlock(&t->lock);
    return c;
}

void hth_region_rele(hth_region *r)
{
    if (r == NULL) {
        return;
    }
    pthread_mutex_lock(&r->table->lock);
    bool last = --r->refs == 0;
    pthread_mutex_unlock(&r->table->lock);
    if (last) {
        munmap(r->base, r->bytes);
        hth_free(r);
    }
}

void hth_conn_rele(hth_conn *c)
{
    if (c == NULL) {
        return;
    }
    pthread_mutex_lock(&c->table->lock);
    bool last = --c->refs == 0;
    pthread_mutex_unlock(&c->table->lock);
    if (!last) {
        return;
    }
    while (c->regions != NULL) {
        hth_region *r = c->regions;
        c->regions = r->next;
        hth_region_rele(r);
    }
    hth_free(c);
}

bool hth_conn_same_machine(const hth_conn *c)
{
    return c->same_machine;
}

// conn_open_memfd opens the peer's descriptor and proves that it is a memfd of `bytes` which cannot
// shrink. A descriptor that is no memfd has no seals: F_GET_SEALS fails on it. Huge pages are
// refused: holes in them fault.
static hth_err conn_open_memfd(const hth_conn *c, int fd, uint64_t bytes, int *out)
{
    char path[64];
    struct stat st;
    struct statfs fs;
    if (c->pid == 0 || fd < 0) {
        return hth_fail(HTH_EDENIED, "memory can only be shared over a local socket");
    }
    snprintf(path, sizeof path, "/proc/%" PRIu64 "/fd/%d", c->pid, fd);
    int f = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (f < 0) {
        return hth_fail(HTH_EDENIED, "cannot open the shared memory of process %" PRIu64, c->pid);
    }
    int seals = fcntl(f, F_GET_SEALS);
    hth_err err = HTH_OK;
    if (seals < 0 || (seals & F_SEAL_SHRINK) == 0 || fstatfs(f, &fs) != 0 ||
        fs.f_type != TMPFS_MAGIC) {
        err =
            hth_fail(HTH_EDENIED, "shared memory must be a memfd that is sealed against shrinking");
    } else if (fstat(f, &st) != 0 || bytes == 0 || (uint64_t)st.st_size < bytes) {
        err = hth_fail(HTH_EINVAL, "the shared memory is smaller than %" PRIu64 " bytes", bytes);
    }
    if (err != HTH_OK) {
        close(f);
        return err;
    }
    *out = f;
    return HTH_OK;
}

// conn_add_region stores the number under the lock: afterwards the region may already be gone
// again.
static hth_err conn_add_region(hth_conn *c, hth_region *r, uint32_t *id)
{
    hth_err err = HTH_OK;
    pthread_mutex_lock(&c->table->lock);
    if (c->n_regions >= CONN_MAX_REGIONS) {
        err = hth_fail(HTH_ETOOBIG, "a connection can share %d buffers", CONN_MAX_REGIONS);
    } else {
        r->id = ++c->table->next_region != 0 ? c->table->next_region : ++c->table->next_region;
        r->next = c->regions;
        c->regions = r;
        c->n_regions++;
        *id = r->id;
    }
    pthread_mutex_unlock(&c->table->lock);
    return err;
}

hth_err hth_conn_map(hth_conn *c, int fd, uint64_t bytes, uint32_t *region)
{
    int f = -1;
    HTH_TRY(conn_open_memfd(c, fd, bytes, &f));
    void *p = mmap(NULL, bytes, PROT_READ, MAP_SHARED, f, 0);
    int e = errno;
    close(f);
    if (p == MAP_FAILED) {
        return hth_fail_errno(e, "cannot map %" PRIu64 " bytes of shared memory", bytes);
    }
    hth_region *r = hth_calloc(1, sizeof *r);
    hth_err err = HTH_ENOMEM;
    if (r != NULL) {
        *r = (hth_region){.table = c->table, .refs = 1, .base = p, .bytes = bytes};
        err = conn_add_region(c, r, region);
    }
    if (err != HTH_OK) {
        munmap(p, bytes);
        hth_free(r);
        return err == HTH_ENOMEM ? hth_fail(err, "out of memory for a shared buffer") : err;
    }
    return HTH_OK;
}

hth_err hth_conn_unmap(hth_conn *c, uint32_t region)
{
    pthread_mutex_lock(&c->table->lock);
    hth_region **at = &c->regions;
    while (*at != NULL && (*at)->id != region) {
        at = &(*at)->next;
    }
    hth_region *r = *at;
    if (r != NULL) {
        *at = r->next;
        c->n_regions--;
    }
    pthread_mutex_unlock(&c->table->lock);
    if (r == NULL) {
        return hth_fail(HTH_ENOENT, "shared buffer %" PRIu32 " is not of this connection", region);
    }
    hth_region_rele(r);
    return HTH_OK;
}

hth_err hth_conn_range(hth_conn *c, uint32_t region, uint64_t offset, uint64_t bytes,
                       const void **out, hth_region **held)
{
    pthread_mutex_lock(&c->table->lock);
    hth_region *r = c->regions;
    while (r != NULL && r->id != region) {
        r = r->next;
    }
    bool fits = r != NULL && offset <= r->bytes && bytes <= r->bytes - offset;
    if (fits) {
        r->refs++;
    }
    pthread_mutex_unlock(&c->table->lock);
    if (!fits) {
        return r == NULL
                   ? hth_fail(HTH_EIO, "shared buffer %" PRIu32 " is not of this connection",
                              region)
                   : hth_fail(HTH_EINVAL, "a tensor reaches out of shared buffer %" PRIu32, region);
    }
    *out = (const uint8_t *)r->base + offset;
    *held = r;
    return HTH_OK;
}
