// SPDX-License-Identifier: Apache-2.0
#include "client/wire_head.h"

#include "base/alloc.h"
#include "base/sanitized.h"

#include <stdatomic.h>
#include <stddef.h>
#include <string.h>

#define WIRE_CALL_TAG   0x08u // field 1 of a request and a reply, a varint
#define WIRE_CALL_BYTES 10    // of which this many bytes are looked at, the tag included

// A decoded header has a dozen small parts that come and go together, so they lie in one piece of
// memory, or in a list of them; each in one of its own where a sanitizer is to see its end.
#if defined(HTH_DEBUG) || HTH_SANITIZED
#define WIRE_PIECE 0u
#else
#define WIRE_PIECE 1024u
#endif

typedef struct wire_piece {
    struct wire_piece *next;
    atomic_int refs; // of the first: who has the message
    size_t used, bytes;
    max_align_t at[];
} wire_piece;

// The first piece begins with the message: protobuf-c allocates that before its parts.
typedef struct wire_memory {
    wire_piece *first, *last;
} wire_memory;

static void *wire_alloc(void *ctx, size_t bytes)
{
    wire_memory *m = ctx;
    bytes = (bytes + sizeof(max_align_t) - 1) / sizeof(max_align_t) * sizeof(max_align_t);
    if (m->last == NULL || bytes > m->last->bytes - m->last->used) {
        size_t all = bytes > WIRE_PIECE ? bytes : WIRE_PIECE;
        wire_piece *p = hth_alloc(sizeof *p + all);
        if (p == NULL) {
            return NULL;
        }
        *p = (wire_piece){.refs = 1, .bytes = all};
        *(m->last != NULL ? &m->last->next : &m->first) = p;
        m->last = p;
    }
    void *at = (char *)m->last->at + m->last->used;
    m->last->used += bytes;
    return at;
}

static void wire_release(void *ctx, void *p)
{
}

static void wire_free(wire_piece *p)
{
    while (p != NULL) {
        wire_piece *next = p->next;
        hth_free(p);
        p = next;
    }
}

static wire_piece *wire_first(void *message)
{
    return (wire_piece *)((char *)message - offsetof(wire_piece, at));
}

static void wire_rele(void *message)
{
    if (message != NULL && atomic_fetch_sub(&wire_first(message)->refs, 1) == 1) {
        wire_free(wire_first(message));
    }
}

// wire_call reads the call's number, and returns how many bytes it has with its tag; 0: the header
// does not begin with it.
static size_t wire_call(const uint8_t *head, size_t bytes, uint64_t *call)
{
    *call = 0;
    for (size_t i = 1; i < bytes && i < WIRE_CALL_BYTES && head[0] == WIRE_CALL_TAG; i++) {
        *call |= (uint64_t)(head[i] & 0x7F) << (7 * (i - 1));
        if (head[i] < 0x80) {
            return i + 1;
        }
    }
    return 0;
}

static hth_err wire_unpack(const ProtobufCMessageDescriptor *what, const hth_wire_head *h,
                           ProtobufCMessage **out)
{
    wire_memory memory = {NULL, NULL};
    ProtobufCAllocator allocator = {wire_alloc, wire_release, &memory};
    *out = protobuf_c_message_unpack(what, &allocator, h->bytes, h->at);
    if (*out == NULL) {
        wire_free(memory.first);
        return hth_fail(HTH_ECORRUPT, "a message's header does not parse");
    }
    return HTH_OK;
}

hth_err hth_wire_head_read(const ProtobufCMessageDescriptor *what, hth_wire_head *h,
                           hth_wire_seen *seen, ProtobufCMessage **out)
{
    if (seen != NULL) {
        h->call_bytes = wire_call(h->at, h->bytes, &h->call);
        h->known = seen->message != NULL && h->call_bytes > 0 &&
                   h->bytes - h->call_bytes == seen->bytes && h->data_bytes == seen->data_bytes &&
                   memcmp(h->at + h->call_bytes, seen->head, seen->bytes) == 0;
    }
    if (!h->known) {
        return wire_unpack(what, h, out);
    }
    *out = seen->message;
    atomic_fetch_add(&wire_first(*out)->refs, 1);
    return HTH_OK;
}

// head_is_plain says that a header is as protobuf writes it: other ways to write the same could
// have the call's number once more further behind, where the last one counts.
static bool head_is_plain(const hth_wire_head *h, const ProtobufCMessage *m)
{
    uint8_t plain[HTH_WIRE_SEEN + WIRE_CALL_BYTES];
    return h->bytes <= sizeof plain && protobuf_c_message_get_packed_size(m) == h->bytes &&
           protobuf_c_message_pack(m, plain) == h->bytes && memcmp(plain, h->at, h->bytes) == 0;
}

void hth_wire_head_remember(const hth_wire_head *h, hth_wire_seen *seen, ProtobufCMessage *m)
{
    size_t bytes = h->bytes - h->call_bytes;
    if (seen == NULL || h->call_bytes == 0 || bytes > sizeof seen->head || !head_is_plain(h, m)) {
        return;
    }
    hth_wire_seen_fini(seen);
    atomic_fetch_add(&wire_first(m)->refs, 1);
    seen->message = m;
    seen->data_bytes = h->data_bytes;
    seen->bytes = bytes;
    memcpy(seen->head, h->at + h->call_bytes, bytes);
}

void hth_wire_seen_fini(hth_wire_seen *s)
{
    wire_rele(s->message);
    s->message = NULL;
}

void hth_wire_free_request(Hearth__Request *r)
{
    wire_rele(r);
}

void hth_wire_free_reply(Hearth__Reply *r)
{
    wire_rele(r);
}
