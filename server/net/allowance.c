// SPDX-License-Identifier: Apache-2.0
#include "server/net/allowance.h"

#include "base/hash.h"
#include "base/settings.h"
#include "server/net/accept_guard.h"
#include "server/net/account.h"

#include <inttypes.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

// The part of the connections that is for peers which have few, and what few are of all.
#define ALLOWANCE_LAST 4
#define ALLOWANCE_FEW  64
// Of the long requests, those of one peer: 1 / ALLOWANCE_LONG.
#define ALLOWANCE_LONG 2
// Of the watches, those of one peer: 1 / ALLOWANCE_WATCH.
#define ALLOWANCE_WATCH 4
// Bytes of a call that are counted, but never refused: there are few calls at a time.
#define ALLOWANCE_FREE (64u << 10)

struct hth_allowances {
    pthread_mutex_t lock;
    hth_allowance *by_key;
    int n[2]; // connections: of the network, local
};

struct hth_allowance {
    hth_allowances *t;
    hth_allowance_key key;
    int refs; // under the lock, as is the next line
    int connections;
    atomic_int requests[HTH_ALLOWANCE_KINDS]; // in progress
    _Atomic uint64_t bytes;
    uint64_t shake_second; // the last one with handshakes
    int n_shakes;          // .. in it
    UT_hash_handle hh;
};

hth_allowance_key hth_allowance_key_user(uint64_t uid)
{
    return (hth_allowance_key){.local = 1, .id = {uid, 0}};
}

hth_allowance_key hth_allowance_key_address(const struct sockaddr *address)
{
    hth_allowance_key k = {.local = 0, .id = {0, 0}};
    if (address->sa_family == AF_INET) {
        k.id[1] = ((const struct sockaddr_in *)address)->sin_addr.s_addr;
    } else if (address->sa_family == AF_INET6) {
        const struct in6_addr *six = &((const struct sockaddr_in6 *)address)->sin6_addr;
        uint32_t four;
        if (IN6_IS_ADDR_V4MAPPED(six)) { // the same peer as over IPv4
            memcpy(&four, &six->s6_addr[12], sizeof four);
            k.id[1] = four;
        } else {
            memcpy(&k.id[0], six, 8); // the rest is the peer's own choice
        }
    }
    return k;
}

// ---- connections

hth_err hth_allowances_open(hth_allowances **out)
{
    hth_allowances *t = hth_calloc(1, sizeof *t);
    *out = t;
    if (t == NULL) {
        return hth_no_memory("the table of peers");
    }
    pthread_mutex_init(&t->lock, NULL);
    return HTH_OK;
}

void hth_allowances_close(hth_allowances *allowances)
{
    if (allowances != NULL) {
        pthread_mutex_destroy(&allowances->lock);
        hth_free(allowances);
    }
}

// allowance_find returns the allowance of a peer, made if there is none; NULL: out of memory. Under
// the lock.
static hth_allowance *allowance_find(hth_allowances *allowances, const hth_allowance_key *key)
{
    hth_allowance *q;
    HASH_FIND(hh, allowances->by_key, key, sizeof *key, q);
    if (q == NULL && (q = hth_calloc(1, sizeof *q)) != NULL) {
        q->t = allowances;
        q->key = *key;
        HASH_ADD(hh, allowances->by_key, key, sizeof *key, q);
        if (!HTH_HASH_ADDED(q)) {
            hth_free(q);
            q = NULL;
        }
    }
    return q;
}

static void allowance_drop(hth_allowance *allowance)
{
    if (allowance->refs == 0) {
        HASH_DEL(allowance->t->by_key, allowance);
        hth_free(allowance);
    }
}

// allowance_most is how many connections there may be: what the setting says, and open files allow.
static int64_t allowance_most(bool local)
{
    int64_t set = hth_setting_int(HTH_SET_LIMIT_CONNECTIONS);
    int64_t can = hth_accept_limit(local ? HTH_ACCEPT_LOCAL : HTH_ACCEPT_NETWORK);
    return set < can ? set : can;
}

// allowance_last says whether what is left of `most` is for peers that have few, and this one has
// not: where limits.connections_per_address does not already see to that.
static bool allowance_last(int64_t n, int64_t most, int64_t mine)
{
    return hth_setting_int(HTH_SET_LIMIT_ADDRESS) < hth_setting_int(HTH_SET_LIMIT_CONNECTIONS) &&
           n >= most - most / ALLOWANCE_LAST && mine > most / ALLOWANCE_FEW;
}

// allowance_check says whether a peer may have another connection. Under the lock.
static hth_err allowance_check(const hth_allowance *allowance, bool trusted)
{
    const hth_allowances *t = allowance->t;
    int64_t most = allowance_most(allowance->key.local != 0), n = t->n[allowance->key.local];
    int64_t each = hth_setting_int(HTH_SET_LIMIT_ADDRESS);
    const char *who = allowance->key.local != 0 ? "user" : "address";
    if (trusted) {
        return HTH_OK;
    }
    if (n >= most) {
        return hth_fail(HTH_EBUSY, "too many connections: %" PRId64 " (limits.connections)", n);
    }
    if (allowance->connections >= each) {
        return hth_fail(HTH_EBUSY,
                        "too many connections from one %s: %d (limits.connections_per_address)",
                        who, allowance->connections);
    }
    if (allowance_last(n, most, allowance->connections)) {
        return hth_fail(HTH_EBUSY,
                        "%" PRId64 " of at most %" PRId64
                        " connections (limits.connections, open files), and %d from this %s",
                        n, most, allowance->connections, who);
    }
    return HTH_OK;
}

hth_err hth_allowance_join(hth_allowances *allowances, const hth_allowance_key *key, bool trusted,
                           hth_allowance **out)
{
    *out = NULL;
    pthread_mutex_lock(&allowances->lock);
    hth_allowance *q = allowance_find(allowances, key);
    hth_err err = q != NULL ? allowance_check(q, trusted) : hth_no_memory("a connection");
    if (err == HTH_OK) {
        q->refs++;
        q->connections++;
        allowances->n[key->local] += !trusted;
        *out = q;
    } else if (q != NULL) {
        allowance_drop(q);
    }
    pthread_mutex_unlock(&allowances->lock);
    return err;
}

void hth_allowance_leave(hth_allowance *allowance, bool trusted)
{
    pthread_mutex_lock(&allowance->t->lock);
    allowance->connections--;
    allowance->t->n[allowance->key.local] -= !trusted;
    pthread_mutex_unlock(&allowance->t->lock);
}

void hth_allowance_hold(hth_allowance *allowance)
{
    pthread_mutex_lock(&allowance->t->lock);
    allowance->refs++;
    pthread_mutex_unlock(&allowance->t->lock);
}

void hth_allowance_rele(hth_allowance *allowance)
{
    hth_allowances *t = allowance->t;
    pthread_mutex_lock(&t->lock);
    allowance->refs--;
    allowance_drop(allowance);
    pthread_mutex_unlock(&t->lock);
}

bool hth_allowance_full(hth_allowances *allowances, bool local)
{
    pthread_mutex_lock(&allowances->lock);
    bool full = allowances->n[local] >= allowance_most(local);
    pthread_mutex_unlock(&allowances->lock);
    return full;
}

// ---- requests

// allowance_part is a part of a setting, rounded up.
static int64_t allowance_part(hth_setting setting, int64_t parts)
{
    return (hth_setting_int(setting) + parts - 1) / parts;
}

static int64_t allowance_requests_limit(hth_allowance_kind kind)
{
    switch (kind) {
    case HTH_ALLOWANCE_SHORT:
        return hth_setting_int(HTH_SET_LIMIT_PEER_REQUESTS);
    case HTH_ALLOWANCE_LONG:
        return allowance_part(HTH_SET_LIMIT_LONG_REQUESTS, ALLOWANCE_LONG);
    default:
        return allowance_part(HTH_SET_LIMIT_WATCHES, ALLOWANCE_WATCH);
    }
}

hth_err hth_allowance_request(hth_allowance *allowance, hth_allowance_kind kind)
{
    static const char *const why[HTH_ALLOWANCE_KINDS] = {
        "limits.requests_per_peer", "half of limits.long_requests", "a quarter of limits.watches"};
    int64_t most = allowance_requests_limit(kind);
    int n = atomic_fetch_add(&allowance->requests[kind], 1);
    if (n < most) {
        return HTH_OK;
    }
    atomic_fetch_sub(&allowance->requests[kind], 1);
    return hth_fail(HTH_EBUSY, "%d of your requests are in progress (%s)", n, why[kind]);
}

void hth_allowance_answered(hth_allowance *allowance, hth_allowance_kind kind)
{
    atomic_fetch_sub(&allowance->requests[kind], 1);
}

// ---- handshakes

void hth_allowance_shook(hth_allowance *allowance, uint64_t second)
{
    allowance->n_shakes = hth_allowance_shakes(allowance, second) + 1;
    allowance->shake_second = second;
}

int hth_allowance_shakes(const hth_allowance *allowance, uint64_t second)
{
    return allowance->shake_second == second ? allowance->n_shakes : 0;
}

// ---- bytes

hth_err hth_allowance_take(hth_allowance *allowance, uint64_t bytes)
{
    uint64_t most = (uint64_t)hth_setting_int(HTH_SET_LIMIT_PEER_BYTES);
    uint64_t before = atomic_fetch_add(&allowance->bytes, bytes);
    bool mine = bytes <= most && before <= most - bytes;
    if (mine && hth_account_take(bytes)) {
        return HTH_OK;
    }
    atomic_fetch_sub(&allowance->bytes, bytes);
    if (mine) {
        return hth_fail(HTH_EBUSY,
                        "the server holds too much for its clients: %" PRIu64
                        " bytes more are above http.buffered_bytes; try again",
                        bytes);
    }
    return hth_fail(HTH_EBUSY,
                    "%" PRIu64 " bytes of your requests and answers are held, and %" PRIu64
                    " more are above limits.bytes_per_peer; try again",
                    before, bytes);
}

void hth_allowance_add(hth_allowance *allowance, uint64_t bytes)
{
    atomic_fetch_add(&allowance->bytes, bytes);
    hth_account_add(bytes);
}

hth_err hth_allowance_charge(hth_allowance *allowance, uint64_t bytes)
{
    if (bytes > ALLOWANCE_FREE) {
        return hth_allowance_take(allowance, bytes);
    }
    hth_allowance_add(allowance, bytes);
    return HTH_OK;
}

void hth_allowance_give(hth_allowance *allowance, uint64_t bytes)
{
    atomic_fetch_sub(&allowance->bytes, bytes);
    hth_account_give(bytes);
}
