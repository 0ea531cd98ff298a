// SPDX-License-Identifier: Apache-2.0
// What comes: greetings, lengths, messages. Small messages are read many at a time into the loop's
// scratch and copied out of it; the larger part of a large one is read where it stays. Memory for a
// message grows fourfold, by what has come; beyond IN_FREE bytes it is charged before it is read,
// and what is refused then is answered and skipped: its connection goes on.
#include "server/rpc/rpc_impl.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "base/settings.h"
#include "runtime/content/content.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define IN_PROTO_REQ 0x30
#define IN_PROTO_REP 0x31

#define IN_UNPROVEN ((uint64_t)32 << 10)             // of a message, before there is a token
#define IN_READ     ((size_t)4 << 10)                // .. read at once
#define IN_CAPACITY ((uint64_t)1 << 20)              // memory for a message at first
#define IN_LOOK     (HTH_CONTENT_PIECE_BYTES + 4096) // above that it is no piece of an upload
#define IN_FREE     ((uint64_t)64 << 10) // of a message that is counted, but always let in
#define IN_CHARGE   ((uint64_t)256 << 10)
#define IN_DIRECT   ((size_t)8 << 10) // what is missing of a message from here on is read in place
#define IN_ROUND    ((size_t)1 << 20) // read in one go, so that others are read, too
#define IN_CALL     ((size_t)4 << 10) // .. each call of the system counts as so many bytes more
#define IN_REQUESTS 64                // taken in one go

#define SECOND_NS 1000000000u

void hth_rpc_moved(uint64_t *late_ns, uint64_t bytes, uint64_t now_ns)
{
    uint64_t most = now_ns + (uint64_t)hth_setting_int(HTH_SET_HTTP_REQUEST_SECONDS) * SECOND_NS;
    uint64_t rate = (uint64_t)hth_setting_int(HTH_SET_HTTP_MIN_REQUEST_RATE);
    uint64_t more = bytes / rate < SECOND_NS ? bytes * SECOND_NS / rate : most;
    uint64_t late = *late_ns == 0 || *late_ns > UINT64_MAX - more ? most : *late_ns + more;
    *late_ns = late < most ? late : most;
}

// ---- memory

void hth_rpc_in_forget(hth_rpc_conn *conn)
{
    hth_free(conn->message);
    conn->message = NULL;
    if (conn->charged > 0) {
        hth_allowance_give(conn->allowance, conn->charged);
    }
    conn->charged = 0;
    conn->have = conn->capacity = 0;
}

// in_skip drops what has come of the message, and what is to come.
static void in_skip(hth_rpc_conn *conn)
{
    conn->skip = conn->want - conn->have;
    hth_rpc_in_forget(conn);
    conn->state = conn->skip > 0 ? HTH_RPC_SKIP : HTH_RPC_LENGTH;
}

// in_counted counts a message of this round.
static void in_counted(hth_rpc_conn *conn)
{
    conn->round_over = conn->round_over || ++conn->n_round >= IN_REQUESTS;
}

static void in_refuse(hth_rpc_conn *conn, hth_err err, const char *sentence)
{
    hth_rpc_request_refuse(conn, err, sentence);
    in_skip(conn);
    in_counted(conn);
}

// in_first is how many of n bytes of a message may come at once: at first no more than is always
// let in, because who is to be answered, should the rest be refused, must have come.
static size_t in_first(const hth_rpc_conn *conn, uint64_t n)
{
    uint64_t most = conn->have < HTH_RPC_ROUTE ? IN_FREE - conn->have : n;
    return (size_t)(n < most ? n : most);
}

// in_reserve has memory for n bytes more; false: the message was refused.
static bool in_reserve(hth_rpc_conn *conn, size_t n)
{
    uint64_t need = conn->have + n;
    if (need > conn->charged && conn->charged < conn->want) {
        uint64_t more = need - conn->charged > IN_CHARGE ? need - conn->charged : IN_CHARGE;
        more = more < conn->want - conn->charged ? more : conn->want - conn->charged;
        if (conn->charged == 0 && need <= IN_FREE) {
            more = conn->want < IN_FREE ? conn->want : IN_FREE;
            hth_allowance_add(conn->allowance, more);
        } else {
            hth_err err = hth_allowance_take(conn->allowance, more);
            if (err != HTH_OK) {
                in_refuse(conn, err, hth_err_detail());
                return false;
            }
        }
        conn->charged += more;
    }
    if (need > conn->capacity) {
        uint64_t capacity = 4 * (uint64_t)conn->capacity;
        if (conn->capacity == 0) {
            capacity = conn->proven ? IN_CAPACITY : IN_UNPROVEN;
        }
        capacity = capacity > need ? capacity : need;
        capacity = capacity < conn->want ? capacity : conn->want;
        uint8_t *fresh = hth_alloc_aligned(capacity, 64);
        if (fresh == NULL) {
            in_refuse(conn, HTH_ENOMEM, "out of memory for a request");
            return false;
        }
        if (conn->have > 0) {
            memcpy(fresh, conn->message, conn->have);
        }
        hth_free(conn->message);
        conn->message = fresh;
        conn->capacity = capacity;
    }
    return true;
}

// ---- greetings

static void in_greeted(hth_rpc_conn *conn)
{
    static const uint8_t sp[4] = {0, 'S', 'P', 0};
    static const uint8_t mine[HTH_RPC_HELLO] = {0, 'S', 'P', 0, 0, IN_PROTO_REP, 0, 0};
    const uint8_t *hello = conn->head;
    conn->since_ns = hth_now_ns();
    conn->n_head = 0;
    if (conn->local && hth_rpc_pass_hello(hello)) {
        conn->state = HTH_RPC_PASSING;
        return;
    }
    int proto = hello[4] << 8 | hello[5];
    if (memcmp(hello, sp, sizeof sp) != 0 || proto != IN_PROTO_REQ || hello[6] != 0 ||
        hello[7] != 0) {
        conn->dead = true;
        return;
    }
    hth_rpc_out *o = hth_rpc_out_new(conn, mine, sizeof mine, NULL);
    if (o == NULL) {
        conn->dead = true;
        return;
    }
    hth_rpc_out_add(conn, o, true);
    conn->state = HTH_RPC_LENGTH;
}

// ---- messages

static void in_begin(hth_rpc_conn *conn)
{
    const uint8_t *p = conn->head;
    bool good = !conn->local || *p++ == 1;
    conn->want = 0;
    for (int i = 0; i < 8; i++) {
        conn->want = conn->want << 8 | p[i];
    }
    conn->n_head = 0;
    if (!good || conn->want < 4) { // it does not speak this
        conn->dead = true;
        return;
    }
    conn->state = HTH_RPC_BODY;
    conn->may = conn->want;
    if (conn->want > conn->r->config.message_bytes + HTH_RPC_ROUTE) {
        conn->may = HTH_RPC_ROUTE; // who it is from, to answer
    } else if (conn->want > (conn->proven ? IN_LOOK : IN_UNPROVEN)) {
        conn->may = IN_UNPROVEN; // the token and the request's kind, to answer it or to go on
    }
}

// in_judge looks at what may be there of a message that may not be received yet as a whole.
static void in_judge(hth_rpc_conn *conn)
{
    char text[160];
    if (conn->want > conn->r->config.message_bytes + HTH_RPC_ROUTE) {
        snprintf(text, sizeof text,
                 "a message of %" PRIu64 " bytes; limits.message_bytes is %" PRIu64, conn->want,
                 conn->r->config.message_bytes);
        in_refuse(conn, HTH_ETOOBIG, text);
        return;
    }
    hth_err err = conn->proven ? HTH_OK : hth_rpc_request_prove(conn);
    if (err == HTH_OK && conn->want > IN_LOOK && hth_rpc_request_is_put(conn)) {
        snprintf(text, sizeof text,
                 "a piece of an upload has 1 to %zu bytes, and the message of this one %" PRIu64,
                 HTH_CONTENT_PIECE_BYTES, conn->want);
        in_refuse(conn, HTH_ETOOBIG, text);
        return;
    }
    if (err == HTH_OK) {
        conn->may = conn->want;
        return;
    }
    if (err == HTH_EBUSY) {
        err = hth_fail(HTH_EDENIED,
                       "no token in the first %" PRIu64 " bytes of a connection's first request",
                       IN_UNPROVEN);
    }
    in_refuse(conn, err, hth_err_detail());
}

static void in_whole(hth_rpc_conn *conn)
{
    conn->state = HTH_RPC_LENGTH;
    conn->late_ns = 0;
    conn->since_ns = hth_now_ns();
    hth_rpc_request_take(conn);
    in_counted(conn);
}

// in_body takes bytes of a message; returns how many.
static size_t in_body(hth_rpc_conn *conn, const uint8_t *p, size_t n)
{
    size_t more = in_first(conn, conn->may - conn->have < n ? conn->may - conn->have : n);
    if (!in_reserve(conn, more)) {
        return 0;
    }
    memcpy(conn->message + conn->have, p, more);
    conn->have += more;
    return more;
}

static void in_body_came(hth_rpc_conn *conn)
{
    if (conn->have == conn->want) {
        in_whole(conn);
    } else if (conn->have == conn->may) {
        in_judge(conn);
    }
}

static size_t in_head(hth_rpc_conn *conn, const uint8_t *p, size_t n, size_t whole)
{
    size_t more = whole - conn->n_head < n ? whole - conn->n_head : n;
    memcpy(conn->head + conn->n_head, p, more);
    conn->n_head += more;
    return more;
}

// in_step takes some of n bytes; returns how many.
static size_t in_step(hth_rpc_conn *conn, const uint8_t *p, size_t n)
{
    size_t took = n, head = conn->local ? HTH_RPC_HEAD : HTH_RPC_HEAD - 1;
    switch (conn->state) {
    case HTH_RPC_GREETING:
        took = in_head(conn, p, n, HTH_RPC_HELLO);
        if (conn->n_head == HTH_RPC_HELLO) {
            in_greeted(conn);
        }
        break;
    case HTH_RPC_LENGTH:
        took = in_head(conn, p, n, head);
        if (conn->n_head == head) {
            in_begin(conn);
        }
        break;
    case HTH_RPC_BODY:
        took = in_body(conn, p, n);
        if (conn->state == HTH_RPC_BODY) {
            in_body_came(conn);
        }
        break;
    case HTH_RPC_SKIP:
        took = conn->skip < n ? (size_t)conn->skip : n;
        conn->skip -= took;
        conn->state = conn->skip > 0 ? HTH_RPC_SKIP : HTH_RPC_LENGTH;
        break;
    default: // nobody who only listens has anything to say
        conn->dead = true;
        break;
    }
    return took;
}

// in_stops: others are next, or between two messages, while there is too much already.
static bool in_stops(hth_rpc_conn *conn)
{
    return conn->dead || hth_rpc_conn_full(conn);
}

// in_take takes what it may of n bytes; returns how many.
static size_t in_take(hth_rpc_conn *conn, const uint8_t *p, size_t n)
{
    size_t at = 0;
    while (at < n && !in_stops(conn)) {
        at += in_step(conn, p + at, n - at);
    }
    return at;
}

// ---- reading

// in_keep keeps what was read and could not be taken.
static void in_keep(hth_rpc_conn *conn, const uint8_t *p, size_t n)
{
    conn->rest = hth_memdup(p, n);
    conn->rest_at = 0;
    conn->rest_bytes = n;
    if (conn->rest == NULL) {
        conn->dead = true;
        return;
    }
    hth_allowance_add(conn->allowance, n);
}

static void in_drop_remainder(hth_rpc_conn *conn)
{
    if (conn->rest != NULL) {
        hth_allowance_give(conn->allowance, conn->rest_bytes);
        hth_free(conn->rest);
        conn->rest = NULL;
    }
}

// in_take_remainder takes what was kept; false: some is left.
static bool in_take_remainder(hth_rpc_conn *conn)
{
    if (conn->rest != NULL) {
        conn->rest_at +=
            in_take(conn, conn->rest + conn->rest_at, conn->rest_bytes - conn->rest_at);
        if (conn->rest_at < conn->rest_bytes) {
            return false;
        }
        in_drop_remainder(conn);
    }
    return true;
}

// in_read reads once; returns what hth_rpc_io_read does.
static ssize_t in_read(hth_rpc_conn *conn, size_t most)
{
    ssize_t got = hth_rpc_io_read(conn, conn->r->scratch, most);
    if (got > 0) {
        size_t took = in_take(conn, conn->r->scratch, (size_t)got);
        if (took < (size_t)got && !conn->dead) {
            in_keep(conn, conn->r->scratch + took, (size_t)got - took);
        }
    }
    return got;
}

// in_read_here reads n bytes of a message, for which there is room, where they stay.
static ssize_t in_read_here(hth_rpc_conn *conn, size_t n)
{
    ssize_t got = hth_rpc_io_read(conn, conn->message + conn->have, n);
    if (got > 0) {
        conn->have += (size_t)got;
        in_body_came(conn);
    }
    return got;
}

// in_most is how many bytes to read at once.
static size_t in_most(const hth_rpc_conn *conn, uint64_t missing)
{
    if (missing >= IN_DIRECT) {
        return in_first(conn, missing < IN_CHARGE ? missing : IN_CHARGE);
    }
    if (conn->state == HTH_RPC_GREETING) { // what comes after it may bring descriptors
        return HTH_RPC_HELLO - conn->n_head;
    }
    return conn->proven ? HTH_RPC_SCRATCH : IN_READ;
}

void hth_rpc_in(hth_rpc_conn *conn)
{
    size_t round = 0;
    uint64_t came = 0;
    while (!conn->dead && in_take_remainder(conn) && !in_stops(conn)) {
        if (conn->state == HTH_RPC_PASSING) {
            hth_rpc_pass(conn);
            break;
        }
        uint64_t missing = conn->state == HTH_RPC_BODY ? conn->may - conn->have : 0;
        size_t most = in_most(conn, missing);
        if (missing >= IN_DIRECT && !in_reserve(conn, most)) {
            continue; // it was refused
        }
        ssize_t n = missing >= IN_DIRECT ? in_read_here(conn, most) : in_read(conn, most);
        if (n == 0 || n == HTH_RPC_FAILED) {
            conn->dead = true;
        }
        if (n <= 0) {
            break;
        }
        round += (size_t)n + IN_CALL;
        came += (uint64_t)n;
        if (round >= IN_ROUND) {
            conn->round_over = true;
            break;
        }
        if ((size_t)n < most && conn->ssl == NULL && conn->state == HTH_RPC_LENGTH) {
            break; // that was all
        }
    }
    if (conn->round_over) {
        hth_rpc_touch(conn); // once others had theirs
    }
    bool inside = conn->state == HTH_RPC_BODY || conn->state == HTH_RPC_SKIP || conn->n_head > 0;
    if (!inside) {
        conn->late_ns = 0;
    } else if (came > 0 || conn->late_ns == 0) {
        hth_rpc_moved(&conn->late_ns, came, hth_now_ns());
    }
}

void hth_rpc_in_fini(hth_rpc_conn *conn)
{
    hth_rpc_in_forget(conn);
    in_drop_remainder(conn);
}
