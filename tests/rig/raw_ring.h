// SPDX-License-Identifier: Apache-2.0
// tests/rig/raw_ring.h - a client with a ring of two channels that says what a test wants it to, in
// the ring and over its socket. It reads the replies of channel 1.
#ifndef HTH_TESTS_RIG_RAW_RING_H
#define HTH_TESTS_RIG_RAW_RING_H

#include "base/ipc/memfd.h"
#include "base/ipc/ring.h"
#include "base/test.h"
#include "client/hearth.h"
#include "client/wire.h"
#include "tests/rig/pass_fd.h"

#include <stdio.h>
#include <string.h>

typedef struct raw {
    nng_socket socket;
    const char *url;
    hth_ring_layout layout;
    uint8_t *memory;
    size_t bytes;
    hth_ring *requests, *replies;
} raw;

// raw_ask_region sends a request over the socket; the error's code comes back, HTH_OK when it is
// none, and *region gets the number of what was mapped.
static inline hth_err raw_ask_region(nng_socket s, Hearth__Request *request, uint32_t *region)
{
    nng_msg *m;
    uint8_t *data;
    const uint8_t *section;
    uint64_t section_bytes;
    Hearth__Reply *r;
    request->call = 7;
    assert_ok(hth_wire_message(&request->base, NULL, 0, 0, &hth_wire_default_limits, &m, &data));
    assert_int_equal(nng_sendmsg(s, m, 0), 0);
    assert_int_equal(nng_recvmsg(s, &m, 0), 0);
    assert_ok(hth_wire_read_reply(nng_msg_body(m), nng_msg_len(m), &hth_wire_default_limits, &r,
                                  &section, &section_bytes));
    hth_err err = r->body_case == HEARTH__REPLY__BODY_ERROR ? (hth_err)r->error->code : HTH_OK;
    *region = r->body_case == HEARTH__REPLY__BODY_MAPPED ? r->mapped->region : 0;
    hth_wire_free_reply(r);
    nng_msg_free(m);
    return err;
}

static inline hth_err raw_ask(nng_socket s, Hearth__Request *request)
{
    uint32_t none;
    return raw_ask_region(s, request, &none);
}

static inline hth_err raw_fetch(const raw *r, uint64_t call)
{
    Hearth__Request q = HEARTH__REQUEST__INIT;
    Hearth__Fetch body = HEARTH__FETCH__INIT;
    body.call = call;
    q.body_case = HEARTH__REQUEST__BODY_FETCH;
    q.fetch = &body;
    return raw_ask(r->socket, &q);
}

static inline hth_err raw_cancel(const raw *r, uint64_t call)
{
    Hearth__Request q = HEARTH__REQUEST__INIT;
    Hearth__Cancel body = HEARTH__CANCEL__INIT;
    body.call = call;
    q.body_case = HEARTH__REQUEST__BODY_CANCEL;
    q.cancel = &body;
    return raw_ask(r->socket, &q);
}

static inline hth_err raw_attach(const raw *r, int fd, uint64_t bytes)
{
    Hearth__Request q = HEARTH__REQUEST__INIT;
    Hearth__Attach body = HEARTH__ATTACH__INIT;
    pass_fd pass;
    pass_begin(&pass, r->url);
    body.handle = pass_one(&pass, fd);
    body.bytes = bytes;
    body.request_bytes = r->layout.request_bytes;
    body.channel_bytes = r->layout.channel_bytes;
    body.channels = r->layout.channels;
    q.body_case = HEARTH__REQUEST__BODY_ATTACH;
    q.attach = &body;
    hth_err err = raw_ask(r->socket, &q);
    pass_end(&pass);
    return err;
}

// raw_share has the server map `bytes` of the client's; the region's number.
static inline uint32_t raw_share(const raw *r, size_t bytes)
{
    Hearth__Request q = HEARTH__REQUEST__INIT;
    Hearth__Map body = HEARTH__MAP__INIT;
    pass_fd pass;
    uint32_t region;
    void *p;
    int fd;
    assert_ok(hth_memfd_make("shared", bytes, &fd, &p));
    pass_begin(&pass, r->url);
    body.handle = pass_one(&pass, fd);
    body.bytes = bytes;
    q.body_case = HEARTH__REQUEST__BODY_MAP;
    q.map = &body;
    assert_ok(raw_ask_region(r->socket, &q, &region));
    pass_end(&pass);
    hth_memfd_drop(fd, p, bytes);
    return region;
}

static inline void raw_close(raw *r)
{
    hth_ring_close(r->requests);
    hth_ring_close(r->replies);
    hth_memfd_drop(-1, r->memory, r->bytes);
    nng_close(r->socket);
}

// raw_record is where a message without a token has its record.
static inline hth_ipc_record *raw_record(uint8_t *message)
{
    return (hth_ipc_record *)(void *)(message + sizeof(hth_channel_head));
}

// raw_message makes an inference of model `model` with 16 floats, in `channel`.
static inline size_t raw_message(uint32_t channel, const char *model, uint64_t call, uint8_t *out)
{
    const hth_channel_head head = {.call = call, .channel = channel};
    const char *const text[HTH_IPC_RECORD_TEXTS] = {[HTH_IPC_RECORD_MODEL] = model};
    hth_ipc_record *r = raw_record(out);
    memset(out, 0, 1024);
    memcpy(out, &head, sizeof head);
    hth_ipc_record_begin(r, text, 1);
    hth_ipc_record_add(r, "x", HEARTH_F32, 1, (const int64_t[]){16}, 64);
    assert_ok(hth_ipc_record_end(r));
    return sizeof head + r->bytes;
}

// raw_reply_said takes the next reply in the channel: its error's code and sentence, or HTH_OK.
static inline hth_err raw_reply_said(raw *r, uint64_t *call, char said[256])
{
    _Alignas(64) uint8_t copy[4096];
    size_t bytes;
    assert_ok(hth_ring_wait(r->replies, 20000000000u));
    assert_ok(hth_ring_next(r->replies, &bytes));
    hth_ring_take(r->replies, copy);
    *call = ((hth_channel_head *)(void *)copy)->call;
    said[0] = 0;
    if (bytes == sizeof(hth_channel_head)) { // it is to be fetched
        return HTH_OK;
    }
    const hth_ipc_record *reply = raw_record(copy);
    assert_ok(
        hth_wire_check_record(reply, bytes - sizeof(hth_channel_head), &hth_wire_default_limits));
    const char *detail = hth_ipc_record_text(reply, HTH_IPC_RECORD_DETAIL);
    snprintf(said, 256, "%s", detail != NULL ? detail : "");
    return (hth_err)reply->err;
}

static inline hth_err raw_reply(raw *r, uint64_t *call)
{
    char said[256];
    return raw_reply_said(r, call, said);
}

#endif
