// SPDX-License-Identifier: Apache-2.0
// What a server reads of a local client's ring: arbitrary words in the ring's head, arbitrary bytes
// in its data. Every message that the ring gives out is read as the server and its engine's process
// read it, and every byte of texts and tensors that were accepted is touched. The first eight bytes
// of the input are the producer's position, the rest is the ring's data, over and over.
#include "client/wire.h"
#include "server/rpc/rings_impl.h"

#include "base/alloc.h"

#include <stdlib.h>
#include <string.h>

#define MOST_MESSAGES 1000

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n);

static volatile uint8_t fuzz_sink;

// fuzz_read touches every byte of what a record that was accepted names.
static void fuzz_read(const hth_ipc_record *record)
{
    for (int i = 0; i < HTH_IPC_RECORD_TEXTS; i++) {
        const char *text = hth_ipc_record_text(record, i);
        fuzz_sink ^= text != NULL ? (uint8_t)strlen(text) : 0;
    }
    for (uint32_t i = 0; i < record->n_tensors; i++) {
        const hth_ipc_record_tensor *t = &record->tensor[i];
        const char *name = hth_ipc_record_name(record, t);
        fuzz_sink ^= name != NULL ? (uint8_t)strlen(name) : 0;
        for (uint64_t b = 0; t->region == HTH_IPC_RECORD_HERE && b < t->bytes; b++) {
            fuzz_sink ^= ((const uint8_t *)record)[t->at + b];
        }
    }
}

// fuzz_message reads the message of n bytes as ring_call.c does, and its record, too, as the
// engine's process reads one: without the server's limits.
static void fuzz_message(const hth_ring_layout *layout, hth_ring *ring, size_t n)
{
    hth_channel_head head = {.call = 0};
    hth_ring_read(ring, 0, &head, n < sizeof head ? n : sizeof head);
    if (hth_ring_message(layout, &head, n) == HTH_OK) {
        size_t at = hth_channel_record(&head), bytes = n - at;
        char *token = hth_alloc(head.token_bytes + 1u);
        hth_ipc_record *q = hth_alloc_aligned(bytes > 0 ? bytes : 1, HTH_IPC_RECORD_ALIGN);
        if (head.channel >= layout->channels) {
            abort();
        }
        hth_ring_read(ring, sizeof head, token, head.token_bytes);
        hth_ring_read(ring, at, q, bytes);
        bool good = hth_ipc_record_check(q, bytes) == HTH_OK;
        if (hth_wire_check_record(q, bytes, &hth_wire_default_limits) == HTH_OK && !good) {
            abort();
        }
        if (good) {
            fuzz_read(q);
        }
        hth_free(token);
        hth_free(q);
    }
    hth_ring_drop(ring);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n)
{
    const hth_ring_layout layout = {HTH_RING_MIN, HTH_RING_MIN, 4};
    size_t all = hth_ring_bytes(HTH_RING_MIN), head = all - HTH_RING_MIN, m;
    hth_ring *r;
    if (n < 9) {
        return 0;
    }
    uint8_t *memory = hth_alloc_aligned(all, 64);
    memset(memory, 0, all);
    memcpy(memory, bytes, 8);
    for (size_t at = head; at < all; at += n - 8) {
        memcpy(memory + at, bytes + 8, n - 8 < all - at ? n - 8 : all - at);
    }
    if (hth_ring_open(memory, HTH_RING_MIN, HTH_RING_CONSUMER, 0, &r) == HTH_OK) {
        int messages = 0;
        while (hth_ring_next(r, &m) == HTH_OK) {
            fuzz_message(&layout, r, m);
            if (++messages > MOST_MESSAGES) {
                abort(); // a ring has room for half of that
            }
        }
        hth_ring_close(r);
    }
    hth_free(memory);
    return 0;
}
