// SPDX-License-Identifier: Apache-2.0
// Connections: who is at the other end, how many there are, and how slow they may be. A request
// that takes longer than http.request_seconds, and one second more for each http.min_request_rate
// bytes, is not waited for; nor is who takes its answer more slowly, and on whose connection
// nothing happens for http.idle_seconds.
#include "server/http/http_call.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/settings.h"
#include "server/net/account.h"

#include <assert.h>
#include <inttypes.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define GUARD_SECOND_NS 1000000000u
// How often it is looked for what is too slow.
#define GUARD_LOOK_NS 200000000u

struct hth_http_address {
    uint8_t key[16];
    int n; // connections
    UT_hash_handle hh;
};

// ---- coming and going

// address_of stores what counts as one address: of IPv6 a network of 64 bits, which is the least
// that anybody has.
static void address_of(const struct sockaddr *a, uint8_t key[16], bool *loopback)
{
    static const uint8_t mapped[12] = {[10] = 0xff, [11] = 0xff}, six[16] = {[15] = 1};
    memset(key, 0, 16);
    if (a->sa_family == AF_INET) {
        key[10] = key[11] = 0xff;
        memcpy(key + 12, &((const struct sockaddr_in *)a)->sin_addr, 4);
    } else if (a->sa_family == AF_INET6) {
        memcpy(key, &((const struct sockaddr_in6 *)a)->sin6_addr, 16);
    }
    bool four = memcmp(key, mapped, 12) == 0;
    *loopback = (four && key[12] == 127) || memcmp(key, six, sizeof six) == 0;
    if (!four && !*loopback) {
        memset(key + 8, 0, 8);
    }
}

static hth_http_address *address_add(hth_http *http, const uint8_t key[16])
{
    hth_http_address *a;
    HASH_FIND(hh, http->addresses, key, sizeof a->key, a);
    if (a == NULL) {
        a = hth_calloc(1, sizeof *a);
        if (a == NULL) {
            return NULL;
        }
        memcpy(a->key, key, sizeof a->key);
        HASH_ADD(hh, http->addresses, key, sizeof a->key, a);
        if (!HTH_HASH_ADDED(a)) {
            hth_free(a);
            return NULL;
        }
    }
    a->n++;
    return a;
}

static void address_leave(hth_http *http, hth_http_address *address)
{
    assert(address->n > 0);
    if (--address->n == 0) {
        HASH_DEL(http->addresses, address);
        hth_free(address);
    }
}

// guard_crowded looks at the limits: a sentence about the one that is reached, or NULL, and the
// connection has one of the process's descriptors (accept_guard.h). Where no address may have all
// connections, a few of them have not all together either: the last quarter is for addresses that
// have few. Programs of this machine have the last sixteenth.
static const char *guard_crowded(const hth_http *http, const hth_http_address *address,
                                 hth_peer peer)
{
    static const char full[] = "the server has too many connections: try again";
    int64_t set = hth_setting_int(HTH_SET_LIMIT_CONNECTIONS),
            can = hth_accept_limit(HTH_ACCEPT_HTTP);
    int64_t most = set < can ? set : can, n = http->n_conns + 1;
    int64_t each = hth_setting_int(HTH_SET_LIMIT_ADDRESS), same = address->n;
    bool near = peer == HTH_PEER_LOOPBACK, late = each < set && n > most - most / 4;
    if (n > most || (!near && n > most - most / 16)) {
        return full;
    }
    if (same > each) {
        return "too many connections from one address";
    }
    if (late && same > most / 64 + 1) {
        return "the server has too many connections, and many of them from this address: try again";
    }
    return hth_accept_take(HTH_ACCEPT_HTTP) ? NULL : full;
}

// guard_refuse tells who is one too many, as far as that is possible at once, and closes the
// socket.
static void guard_refuse(const hth_http_listener *listener, int fd, const char *why)
{
    char text[500];
    uint64_t unsaid;
    if (hth_seldom_now(&listener->h->crowded, &unsaid)) {
        hth_log(WARN, SERVER, "connections", "http=%" PRIi64 " not_logged=%" PRIu64 " %s",
                listener->h->n_conns, unsaid, why);
    }
    if (!listener->tls) {
        size_t n = hth_http_error_text(listener->h, 503, why, text, sizeof text);
        ssize_t sent = send(fd, text, n, MSG_DONTWAIT | MSG_NOSIGNAL);
        (void)sent; // who does not read does not get it
        shutdown(fd, SHUT_WR);
    }
    close(fd);
}

void hth_http_accepted(struct evconnlistener *accepting, evutil_socket_t fd, struct sockaddr *from,
                       int address_bytes, void *arg)
{
    hth_http_listener *listener = arg;
    hth_http *h = listener->h;
    uint8_t key[16];
    bool loopback;
    address_of(from, key, &loopback);
    hth_peer peer = loopback ? HTH_PEER_LOOPBACK : HTH_PEER_NETWORK;
    hth_http_address *a = address_add(h, key);
    const char *why = a != NULL ? guard_crowded(h, a, peer)
                                : "the server has no memory for a connection: try again";
    if (why != NULL) {
        if (a != NULL) {
            address_leave(h, a);
        }
        guard_refuse(listener, fd, why);
        return;
    }
    h->n_conns++;
    hth_http_conn_new(listener, fd, a, peer);
}

void hth_http_guard_leave(hth_http *http, hth_http_address *address)
{
    address_leave(http, address);
    assert(http->n_conns > 0);
    http->n_conns--;
    hth_accept_give(HTH_ACCEPT_HTTP);
}

// ---- what is held besides

hth_err hth_http_hold(uint64_t bytes)
{
    return hth_account_take(bytes)
               ? HTH_OK
               : hth_fail(HTH_EBUSY, "the server holds too much for its clients: try again");
}

// ---- what is too slow

// conn_is_over tells whether `bytes` since `since_ns` are too few.
static bool conn_is_over(uint64_t since_ns, uint64_t bytes, uint64_t now)
{
    uint64_t seconds = (uint64_t)hth_setting_int(HTH_SET_HTTP_REQUEST_SECONDS) +
                       bytes / (uint64_t)hth_setting_int(HTH_SET_HTTP_MIN_REQUEST_RATE);
    return now > since_ns && now - since_ns > seconds * GUARD_SECOND_NS;
}

static bool conn_is_late(hth_http_conn *conn, uint64_t now)
{
    bool comes = conn->at == HTH_HTTP_AT_HEAD || conn->at == HTH_HTTP_AT_BODY;
    if (conn->ssl != NULL && conn->bytes == 0 && comes && SSL_is_init_finished(conn->ssl)) {
        conn->since_ns = 0; // nothing is asked yet: http.idle_seconds count
    }
    return comes && conn->since_ns != 0 && conn_is_over(conn->since_ns, conn->bytes, now);
}

// conn_is_slow tells whether an answer goes too slowly because nobody takes it.
static bool conn_is_slow(const hth_http_conn *conn, uint64_t now)
{
    size_t rest = evbuffer_get_length(conn->out);
    return conn->at == HTH_HTTP_AT_ANSWER &&
           conn_is_over(conn->answer_ns, conn->sending > rest ? conn->sending - rest : 0, now);
}

static bool conn_is_idle(const hth_http_conn *conn, uint64_t now)
{
    uint64_t most = (uint64_t)hth_setting_int(HTH_SET_HTTP_IDLE_SECONDS) * GUARD_SECOND_NS;
    return conn->at != HTH_HTTP_AT_WORK && now > conn->active_ns && now - conn->active_ns > most;
}

// conn_check_slow ends a connection that is too slow.
static void conn_check_slow(hth_http_conn *conn, uint64_t now)
{
    if (conn_is_late(conn, now)) {
        if (conn->ssl == NULL || SSL_is_init_finished(conn->ssl)) {
            hth_http_conn_refuse(conn, 408, "the request takes too long to come");
        }
        hth_http_conn_free(conn);
    } else if (conn_is_slow(conn, now)) {
        hth_log(INFO, SERVER, "http-refused", "status=408 the client reads the reply too slowly");
        hth_http_conn_free(conn);
    } else if (conn->at == HTH_HTTP_AT_LINGER && conn_is_over(conn->refused_ns, 0, now)) {
        hth_http_conn_reset(conn); // it was told, and goes on
    } else if (conn_is_idle(conn, now)) {
        hth_http_conn_free(conn);
    }
}

void hth_http_conns_check_slow(hth_http *http, uint64_t now)
{
    if (now - http->looked_ns < GUARD_LOOK_NS) {
        return;
    }
    http->looked_ns = now;
    for (hth_http_conn *c = http->conns, *next; c != NULL; c = next) {
        next = c->next;
        conn_check_slow(c, now);
    }
}
