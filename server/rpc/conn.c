// SPDX-License-Identifier: Apache-2.0
// Counts are plain integers under the table's lock; munmap happens outside of it. Regions' numbers
// start at a value taken from the clock, so that a number from before a restart is unlikely to name
// anything.
#include "server/rpc/conn.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "base/ipc/memfd.h"
#include "server/net/accept_guard.h"
#include "server/net/closer.h"
#include "server/net/mapped.h"
#include "server/rpc/descriptors.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define CONN_MAX_REGIONS                                                                           \
    1024 // of one connection: bounds what a client can make the server list and map

struct hth_region {
    hth_conns *table;
    uint32_t id;
    int refs; // 1 of the connection, 1 of each request that uses it
    void *base;
    size_t bytes;
    int fd;          // of the memory; the engine uses it until the region is gone
    uint64_t uid;    // the user whose thread closes fd
    char tenant[32]; // whose address space it counts as
    hth_region *next;
};

struct hth_conn {
    hth_conns *table;
    int refs;
    bool same_machine;
    bool names_files;
    bool gone; // guarded by the table's lock
    hth_peer peer;
    char tenant[32];
    bool uid_known;
    uint64_t uid;             // if it is known
    hth_allowance *allowance; // held; may be NULL
    int n_regions;
    hth_region *regions;
    struct hth_rpc_slot *slots; // the dispatcher's
};

struct hth_conns {
    const hth_auth *auth;
    pthread_mutex_t lock;
    uint32_t next_region;
    hth_engine *engine;
    hth_descriptors *descriptors;
};

hth_err hth_conns_open(const hth_auth *auth, hth_descriptors *descriptors, hth_conns **out)
{
    hth_conns *c = hth_calloc(1, sizeof *c);
    *out = c;
    if (c == NULL) {
        return hth_no_memory("the table of connections");
    }
    pthread_mutex_init(&c->lock, NULL);
    c->auth = auth;
    c->descriptors = descriptors;
    c->next_region = (uint32_t)(hth_now_ns() >> 10);
    return HTH_OK;
}

void hth_conns_close(hth_conns *conns)
{
    if (conns == NULL) {
        return;
    }
    pthread_mutex_destroy(&conns->lock);
    hth_free(conns);
}

void hth_conns_share(hth_conns *conns, hth_engine *engine)
{
    conns->engine = engine;
}

static void conn_know(hth_conn *conn, const hth_conn_who *who)
{
    conn->peer = HTH_PEER_NETWORK;
    strcpy(conn->tenant, "network");
    if (who->where == HTH_CONN_EMBEDDED) {
        conn->same_machine = conn->names_files = true;
        conn->peer = HTH_PEER_TRUSTED;
        strcpy(conn->tenant, "embedded");
    } else if (who->where == HTH_CONN_LOCAL) {
        conn->same_machine = true;
        conn->peer = HTH_PEER_LOCAL;
    }
    if (who->where == HTH_CONN_HTTP) {
        conn->same_machine = who->loopback;
        conn->peer = who->loopback ? HTH_PEER_LOOPBACK : HTH_PEER_NETWORK;
        strcpy(conn->tenant, "http");
    }
    if (who->where == HTH_CONN_LOCAL && who->known) {
        conn->peer = hth_auth_local(conn->table->auth, who->uid, who->gid);
        conn->uid_known = true;
        conn->uid = who->uid;
        snprintf(conn->tenant, sizeof conn->tenant, "uid:%" PRIu64, who->uid);
        conn->names_files = who->uid == 0 || who->uid == geteuid();
    }
}

hth_err hth_conn_open(hth_conns *conns, const hth_conn_who *who, hth_conn **out)
{
    hth_conn *c = hth_calloc(1, sizeof *c);
    *out = c;
    if (c == NULL) {
        return hth_no_memory("a connection");
    }
    c->table = conns;
    c->refs = 1;
    conn_know(c, who);
    c->allowance = who->allowance;
    if (c->allowance != NULL) {
        hth_allowance_hold(c->allowance);
    }
    return HTH_OK;
}

void hth_conn_close(hth_conn *conn)
{
    pthread_mutex_lock(&conn->table->lock);
    conn->gone = true;
    pthread_mutex_unlock(&conn->table->lock);
}

struct hth_rpc_slot **hth_conn_slots(hth_conn *conn)
{
    return &conn->slots;
}

void hth_conn_hold(hth_conn *conn)
{
    pthread_mutex_lock(&conn->table->lock);
    conn->refs++;
    pthread_mutex_unlock(&conn->table->lock);
}

bool hth_conn_is_gone(hth_conn *conn)
{
    pthread_mutex_lock(&conn->table->lock);
    bool gone = conn->gone;
    pthread_mutex_unlock(&conn->table->lock);
    return gone;
}

static void region_unmap(const hth_region *region)
{
    if (region->table->engine != NULL) {
        hth_engine_unshare(region->table->engine, region->base);
    }
    munmap(region->base, region->bytes);
    hth_closer_close(region->uid, region->fd, true);
}

void hth_region_rele(hth_region *region)
{
    if (region == NULL) {
        return;
    }
    pthread_mutex_lock(&region->table->lock);
    bool last = --region->refs == 0;
    pthread_mutex_unlock(&region->table->lock);
    if (last) {
        region_unmap(region);
        hth_mapped_give(region->tenant, region->bytes);
        hth_free(region);
    }
}

void hth_conn_rele(hth_conn *conn)
{
    if (conn == NULL) {
        return;
    }
    pthread_mutex_lock(&conn->table->lock);
    bool last = --conn->refs == 0;
    pthread_mutex_unlock(&conn->table->lock);
    if (!last) {
        return;
    }
    while (conn->regions != NULL) {
        hth_region *r = conn->regions;
        conn->regions = r->next;
        hth_region_rele(r);
    }
    if (conn->allowance != NULL) {
        hth_allowance_rele(conn->allowance);
    }
    hth_free(conn);
}

bool hth_conn_uid(const hth_conn *conn, uint64_t *uid)
{
    *uid = conn->uid;
    return conn->uid_known;
}

bool hth_conn_same_machine(const hth_conn *conn)
{
    return conn->same_machine;
}

const char *hth_conn_tenant(const hth_conn *conn)
{
    return conn->tenant;
}

bool hth_conn_embedded(const hth_conn *conn)
{
    return conn->peer == HTH_PEER_TRUSTED && strcmp(conn->tenant, "embedded") == 0;
}

bool hth_conn_names_files(const hth_conn *conn)
{
    return conn->names_files;
}

hth_peer hth_conn_peer(const hth_conn *conn)
{
    return conn->peer;
}

hth_err hth_conn_charge(const hth_conn *conn, uint64_t bytes)
{
    return conn->allowance != NULL ? hth_allowance_charge(conn->allowance, bytes) : HTH_OK;
}

void hth_conn_uncharge(const hth_conn *conn, uint64_t bytes)
{
    if (conn->allowance != NULL) {
        hth_allowance_give(conn->allowance, bytes);
    }
}

hth_err hth_conn_take(const hth_conn *conn, uint64_t handle, int *fd)
{
    *fd = -1;
    return conn->table->descriptors != NULL
               ? hth_descriptors_take(conn->table->descriptors, conn, handle, fd)
               : hth_fail(HTH_EDENIED, "descriptors are only passed over a Unix socket");
}

static uint64_t conn_closes_as(const hth_conn *conn)
{
    return conn->uid_known ? conn->uid : geteuid();
}

void hth_conn_close_taken(const hth_conn *conn, int fd)
{
    hth_closer_close(conn_closes_as(conn), fd, true);
}

// conn_add_region stores the number under the lock: afterwards the region may already be gone
// again.
static hth_err conn_add_region(hth_conn *conn, hth_region *region, uint32_t *id)
{
    hth_err err = HTH_OK;
    pthread_mutex_lock(&conn->table->lock);
    if (conn->n_regions >= CONN_MAX_REGIONS) {
        err = hth_fail(HTH_ETOOBIG, "a connection can share %d buffers", CONN_MAX_REGIONS);
    } else {
        region->id =
            ++conn->table->next_region != 0 ? conn->table->next_region : ++conn->table->next_region;
        region->next = conn->regions;
        conn->regions = region;
        conn->n_regions++;
        *id = region->id;
    }
    pthread_mutex_unlock(&conn->table->lock);
    return err;
}

// conn_map maps what was passed; *fd is the caller's, with its place in the count.
static hth_err conn_map(const hth_conn *conn, uint64_t handle, uint64_t bytes, int may, void **out,
                        int *fd)
{
    HTH_TRY(hth_conn_take(conn, handle, fd));
    hth_err err = hth_memfd_check(*fd, bytes);
    if (err == HTH_OK) {
        void *p = mmap(NULL, bytes, may, MAP_SHARED, *fd, 0);
        if (p == MAP_FAILED) {
            err = hth_fail_errno(errno, "cannot map %" PRIu64 " bytes of shared memory", bytes);
        } else {
            *out = p;
        }
    }
    if (err != HTH_OK) {
        hth_conn_close_taken(conn, *fd);
    }
    return err;
}

hth_err hth_conn_map_ring(hth_conn *conn, uint64_t handle, uint64_t bytes, void **out)
{
    int fd;
    *out = NULL;
    HTH_TRY(conn_map(conn, handle, bytes, PROT_READ | PROT_WRITE, out, &fd));
    hth_conn_close_taken(conn, fd);
    return HTH_OK;
}

static hth_err conn_map_region(hth_conn *conn, uint64_t handle, uint64_t bytes, uint32_t *region)
{
    hth_region *r = hth_calloc(1, sizeof *r);
    if (r == NULL) {
        return hth_no_memory("a shared buffer");
    }
    *r = (hth_region){.table = conn->table, .refs = 1, .bytes = bytes, .uid = conn_closes_as(conn)};
    memcpy(r->tenant, conn->tenant, sizeof r->tenant);
    hth_err err = conn_map(conn, handle, bytes, PROT_READ, &r->base, &r->fd);
    if (err != HTH_OK) {
        hth_free(r);
        return err;
    }
    if (conn->table->engine != NULL) {
        hth_engine_share(conn->table->engine, r->fd, 0, r->base, bytes);
    }
    err = conn_add_region(conn, r, region);
    if (err != HTH_OK) {
        region_unmap(r);
        hth_free(r);
    }
    return err;
}

hth_err hth_conn_map(hth_conn *conn, uint64_t handle, uint64_t bytes, uint32_t *region)
{
    HTH_TRY(hth_mapped_take(conn->tenant, bytes));
    hth_err err = conn_map_region(conn, handle, bytes, region);
    if (err != HTH_OK) {
        hth_mapped_give(conn->tenant, bytes);
    }
    return err;
}

hth_err hth_conn_unmap(hth_conn *conn, uint32_t region)
{
    pthread_mutex_lock(&conn->table->lock);
    hth_region **at = &conn->regions;
    while (*at != NULL && (*at)->id != region) {
        at = &(*at)->next;
    }
    hth_region *r = *at;
    if (r != NULL) {
        *at = r->next;
        conn->n_regions--;
    }
    pthread_mutex_unlock(&conn->table->lock);
    if (r == NULL) {
        return hth_fail(HTH_ENOENT, "shared buffer %" PRIu32 " is not of this connection", region);
    }
    hth_region_rele(r);
    return HTH_OK;
}

hth_err hth_conn_range(hth_conn *conn, uint32_t region, uint64_t offset, uint64_t bytes,
                       const void **out, hth_region **held)
{
    pthread_mutex_lock(&conn->table->lock);
    hth_region *r = conn->regions;
    while (r != NULL && r->id != region) {
        r = r->next;
    }
    bool fits = r != NULL && offset <= r->bytes && bytes <= r->bytes - offset;
    if (fits) {
        r->refs++;
    }
    pthread_mutex_unlock(&conn->table->lock);
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
