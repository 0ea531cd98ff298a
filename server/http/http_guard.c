// SPDX-License-Identifier: Apache-2.0
// Connections: who is at the other end, how many there are, how slow they may be, and what all of
// them hold.
//
// evhttp says nothing when it accepts and asks for a bufferevent before that has a socket.
// Therefore a connection is looked at just behind, in the same turn of the loop (guard_admit): then
// its bufferevent has the socket, and evhttp's connection as the argument of its callbacks. One
// that is over a limit is told so and shut down, which evhttp finds as it finds any other end: it
// is only freed there, and guard_closed is told.
//
// What a connection holds is counted from a request's first byte until its answer has left: what
// came of it, and the answer. A request that takes longer than http.request_seconds, and one second
// more for each http.request_rate bytes, is not waited for; nor is who takes its answer more
// slowly.
#include "server/http/http_call.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/settings.h"
#include "base/stats.h"
#include "server/net/account.h"

#include <event2/bufferevent.h>

#include <inttypes.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

#define GUARD_SECOND_NS 1000000000u
// How often it is looked for what is too slow.
#define GUARD_LOOK_NS 200000000u
// Connections that are accepted before they are looked at.
#define GUARD_ACCEPTS 16
// The most of one address's text, and of a small request: not worth closing a connection for.
#define GUARD_SMALL_BYTES (64 << 10)

struct hth_http_address {
    uint8_t key[16];
    int n; // connections
    UT_hash_handle hh;
};

// ---- ends that the server makes

// conn_end sends an error as far as that is possible at once, and ends the connection.
static void conn_end(hth_http_conn *c, int status, const char *sentence)
{
    char text[500], json[300];
    int fd = c->fd;
    if (c->told) {
        return;
    }
    c->told = true;
    snprintf(json, sizeof json, "{\"error\":\"%s\"}", sentence);
    size_t n = hth_http_error_text(c->h, status, "", json, text, sizeof text);
    bool between = evbuffer_get_length(bufferevent_get_output(c->b)) == 0; // in no answer's midst
    if (!c->tls && between && n > 0) {
        ssize_t sent = send(fd, text, n, MSG_DONTWAIT | MSG_NOSIGNAL);
        (void)sent; // who does not read does not get it
    }
    shutdown(fd, SHUT_RDWR);
}

static void conn_tell(hth_http_conn *c, int status, const char *sentence)
{
    if (!c->told) {
        hth_log(INFO, SERVER, "http-refused", "status=%d %s", status, sentence);
    }
    conn_end(c, status, sentence);
}

// ---- coming and going

// address_of stores what counts as one address: of IPv6 a network of 64 bits, which is the least
// that anybody has.
static void address_of(int fd, uint8_t key[16], bool *loopback)
{
    struct sockaddr_storage a = {.ss_family = AF_UNSPEC};
    socklen_t n = sizeof a;
    memset(key, 0, 16);
    *loopback = false;
    if (getpeername(fd, (struct sockaddr *)&a, &n) != 0) {
        return;
    }
    if (a.ss_family == AF_INET) {
        key[10] = key[11] = 0xff;
        memcpy(key + 12, &((struct sockaddr_in *)&a)->sin_addr, 4);
    } else if (a.ss_family == AF_INET6) {
        memcpy(key, &((struct sockaddr_in6 *)&a)->sin6_addr, 16);
    }
    static const uint8_t mapped[12] = {[10] = 0xff, [11] = 0xff}, six[16] = {[15] = 1};
    bool four = memcmp(key, mapped, 12) == 0;
    *loopback = (four && key[12] == 127) || memcmp(key, six, sizeof six) == 0;
    if (!four && !*loopback) {
        memset(key + 8, 0, 8);
    }
}

static bool address_add(hth_http *h, hth_http_conn *c, const uint8_t key[16])
{
    hth_http_address *a;
    HASH_FIND(hh, h->addresses, key, sizeof a->key, a);
    if (a == NULL) {
        a = hth_calloc(1, sizeof *a);
        if (a == NULL) {
            return false;
        }
        memcpy(a->key, key, sizeof a->key);
        HASH_ADD(hh, h->addresses, key, sizeof a->key, a);
        if (!HTH_HASH_ADDED(a)) {
            hth_free(a);
            return false;
        }
    }
    a->n++;
    c->address = a;
    return true;
}

static void address_leave(hth_http_conn *c)
{
    if (c->address != NULL && --c->address->n == 0) {
        HASH_DEL(c->h->addresses, c->address);
        hth_free(c->address);
    }
    c->address = NULL;
}

static void conn_free(hth_http_conn *c)
{
    hth_http *h = c->h;
    hth_account_give(c->bytes + c->sending);
    address_leave(c);
    if (c->held != NULL) {
        evbuffer_free(c->held);
    }
    hth_http_block_rele(c->block);
    hth_http_io_close(c);
    if (c->admitted) {
        h->n_conns--;
        hth_accept_give(HTH_ACCEPT_HTTP);
    }
    h->last_conn = h->last_conn == c ? NULL : h->last_conn;
    hth_free(c);
}

static void guard_closed(struct evhttp_connection *evcon, void *conn)
{
    hth_http_conn *c = conn;
    if (c->listed) {
        HASH_DEL(c->h->conns, c);
    }
    conn_free(c);
}

// conn_crowded looks at the limits: a sentence about the one that is reached, or NULL, and the
// connection has one of the process's descriptors (accept_guard.h). Where no address may have all
// connections, a few of them have not all together either: the last quarter is for addresses that
// have few. Programs of this machine have the last sixteenth.
static const char *conn_crowded(const hth_http *h, const hth_http_conn *c)
{
    static const char full[] = "the server has too many connections: try again";
    int64_t set = hth_setting_int(HTH_SET_LIMIT_CONNECTIONS),
            can = hth_accept_limit(HTH_ACCEPT_HTTP);
    int64_t most = set < can ? set : can, n = h->n_conns + 1;
    int64_t each = hth_setting_int(HTH_SET_LIMIT_ADDRESS), same = c->address->n;
    bool near = c->peer == HTH_PEER_LOOPBACK, late = each < set && n > most - most / 4;
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

// conn_refuse ends a connection that is one too many. It counts for nothing while it goes.
static void conn_refuse(hth_http_conn *c, const char *why)
{
    uint64_t unsaid;
    bool say = hth_seldom_now(&c->h->crowded, &unsaid);
    if (say) {
        hth_log(WARN, SERVER, "connections", "http=%" PRIi64 " not_logged=%" PRIu64 " %s",
                c->h->n_conns, unsaid, why);
    }
    address_leave(c);
    conn_end(c, 503, why);
}

static void conn_admit(hth_http *h, hth_http_conn *c)
{
    void *evcon = NULL;
    uint8_t key[16];
    bool loopback;
    bufferevent_getcb(c->b, NULL, NULL, NULL, &evcon);
    c->evcon = evcon;
    if (evcon == NULL) { // evhttp had no memory for it
        bufferevent_free(c->b);
        conn_free(c);
        return;
    }
    bool open = hth_http_io_open(c);
    evhttp_connection_set_closecb(evcon, guard_closed, c);
    HASH_ADD_PTR(h->conns, evcon, c);
    c->listed = HTH_HASH_ADDED(c);
    address_of(c->fd, key, &loopback);
    c->peer = loopback ? HTH_PEER_LOOPBACK : HTH_PEER_NETWORK;
    const char *why = open && c->listed && address_add(h, c, key)
                          ? conn_crowded(h, c)
                          : "the server has no memory for a connection: try again";
    if (why != NULL) {
        conn_refuse(c, why);
    } else {
        c->admitted = true;
        h->n_conns++;
    }
}

// door_rest has a listener pause when it has accepted much: what is refused has a descriptor until
// it was looked at, and there are not many for that.
static void door_rest(hth_http_door *door)
{
    if (++door->accepted == GUARD_ACCEPTS && door->bound != NULL) {
        door->resting = evconnlistener_disable(evhttp_bound_socket_get_listener(door->bound)) == 0;
    }
}

static void door_go_on(hth_http_door *door)
{
    if (door->resting && door->bound != NULL) {
        evconnlistener_enable(evhttp_bound_socket_get_listener(door->bound));
    }
    door->resting = false;
    door->accepted = 0;
}

void hth_http_admit(evutil_socket_t fd, short what, void *arg)
{
    hth_http *h = arg;
    door_go_on(&h->api);
    door_go_on(&h->metrics);
    hth_http_conn *c = h->fresh;
    h->fresh = NULL;
    while (c != NULL) {
        hth_http_conn *next = c->next_fresh;
        conn_admit(h, c);
        c = next;
    }
}

hth_http_conn *hth_http_conn_new(hth_http_door *door)
{
    hth_http *h = door->h;
    hth_http_conn *c = hth_calloc(1, sizeof *c);
    if (c != NULL) {
        c->h = h;
        c->door = door;
        c->tls = door->tls;
        c->since_ns = c->tls ? hth_now_ns() : 0; // the handshake counts
        c->next_fresh = h->fresh;
        h->fresh = c;
        event_active(h->admit, EV_TIMEOUT, 0);
        door_rest(door);
    }
    return c;
}

// ---- what comes

void hth_http_conn_came(hth_http_conn *c, size_t added, size_t deleted)
{
    hth_http *h = c->h;
    if (added > 0) {
        c->bytes += added;
        hth_account_add(added);
        hth_stat_add(HTH_STAT_HTTP_BYTES_IN, added);
        c->since_ns = c->since_ns == 0 ? hth_now_ns() : c->since_ns;
    }
    // evhttp takes the end of a line off by itself: one of each header, and two of each chunk.
    c->lines += deleted == 1 || deleted == 2;
    if (c->lines > h->header_bytes / 2 + 2 * (uint64_t)hth_setting_int(HTH_SET_HTTP_CHUNKS)) {
        conn_tell(c, 413, "the request comes in too many chunks");
    } else if (added > 0 && c->bytes > GUARD_SMALL_BYTES && hth_account_full()) {
        conn_tell(c, 503, "the server holds too much for its clients");
    }
}

hth_err hth_http_hold(uint64_t bytes)
{
    return hth_account_take(bytes)
               ? HTH_OK
               : hth_fail(HTH_EBUSY, "the server holds too much for its clients: try again");
}

hth_http_conn *hth_http_conn_of(hth_http *h, struct evhttp_request *req)
{
    const struct evhttp_connection *evcon = evhttp_request_get_connection(req);
    hth_http_conn *c = h->last_conn; // a request asks several times
    if (c == NULL || c->evcon != evcon) {
        HASH_FIND_PTR(h->conns, &evcon, c);
        h->last_conn = c;
    }
    return c;
}

void hth_http_conn_whole(hth_http_conn *c)
{
    c->since_ns = 0;
    c->lines = 0;
}

void hth_http_conn_grew(hth_http_conn *c, size_t bytes)
{
    c->bytes += bytes;
    hth_account_add(bytes);
}

void hth_http_conn_answers(hth_http_conn *c, size_t bytes)
{
    c->answer_ns = hth_now_ns();
    c->sending += bytes;
    hth_account_add(bytes);
}

void hth_http_conn_answered(hth_http_conn *c)
{
    size_t rest = evbuffer_get_length(bufferevent_get_input(c->b)); // of the next request
    hth_account_give(c->bytes + c->sending);
    hth_account_add(rest);
    c->bytes = rest;
    c->sending = 0;
    c->answer_ns = 0;
    c->headed = c->inflated = false;
    hth_http_block_rele(c->block);
    c->block = NULL;
    hth_http_io_resume(c);
    hth_http_head_came(c);
}

// conn_is_over tells whether `bytes` since `since_ns` are too few.
static bool conn_is_over(uint64_t since_ns, uint64_t bytes, uint64_t now)
{
    uint64_t seconds = (uint64_t)hth_setting_int(HTH_SET_HTTP_REQUEST_SECONDS) +
                       bytes / (uint64_t)hth_setting_int(HTH_SET_HTTP_REQUEST_RATE);
    return now > since_ns && now - since_ns > seconds * GUARD_SECOND_NS;
}

static bool conn_is_late(hth_http_conn *c, uint64_t now)
{
    if (c->since_ns == 0 || c->told) {
        return false;
    }
    if (c->tls && c->bytes == 0 && hth_http_tls_is_up(c->b)) {
        c->since_ns = 0; // nothing is asked yet: http.idle_seconds count
        return false;
    }
    return conn_is_over(c->since_ns, c->bytes, now);
}

// conn_is_slow tells whether an answer goes too slowly because nobody takes it.
static bool conn_is_slow(const hth_http_conn *c, uint64_t now)
{
    if (c->answer_ns == 0 || c->told) {
        return false;
    }
    size_t rest = evbuffer_get_length(bufferevent_get_output(c->b));
    return conn_is_over(c->answer_ns, c->sending > rest ? c->sending - rest : 0, now);
}

void hth_http_conn_look(hth_http *h, uint64_t now)
{
    if (now - h->looked_ns < GUARD_LOOK_NS) {
        return;
    }
    h->looked_ns = now;
    for (hth_http_conn *c = h->conns; c != NULL; c = c->hh.next) {
        if (conn_is_late(c, now)) {
            conn_tell(c, 408, "the request takes too long to come");
        } else if (c->refused_ns != 0 && conn_is_over(c->refused_ns, 0, now)) {
            hth_http_head_end(c); // it was told, and goes on
        } else if (conn_is_slow(c, now)) {
            conn_tell(c, 408, "the answer takes too long to go");
        }
    }
}
