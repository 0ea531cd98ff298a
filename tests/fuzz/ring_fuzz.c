// SPDX-License-Identifier: Apache-2.0
// What a server reads of a local client's ring: arbitrary words in the ring's head, arbitrary bytes
// in its data. Every message that the ring gives out is read as the server reads it, and every byte
// of a tensor that was accepted is touched. The first eight bytes of the input are the producer's
// position, the rest is the ring's data, over and over.
#include "client/layout.h"
#include "client/wire.h"
#include "server/rpc/rings_impl.h"

#include "base/alloc.h"

#include <stdlib.h>
#include <string.h>

#define MOST_MESSAGES 1000

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n);

static volatile uint8_t fuzz_sink;

static void fuzz_message(const hth_ring_layout *l, const uint8_t *message, size_t n)
{
    const uint8_t *frame, *data;
    size_t frame_bytes;
    uint32_t lane;
    uint64_t data_bytes;
    Hearth__Request *q;
    if (hth_ring_message(l, message, n, &lane, &frame, &frame_bytes) != HTH_OK ||
        hth_wire_read_request(frame, frame_bytes, &hth_wire_default_limits, NULL, &q, &data,
                              &data_bytes) != HTH_OK) {
        return;
    }
    if (lane >= l->lanes) {
        abort();
    }
    for (size_t i = 0; q->body_case == HEARTH__REQUEST__BODY_INFER && i < q->infer->n_inputs; i++) {
        const Hearth__Tensor *t = q->infer->inputs[i];
        for (uint64_t b = 0; t->region == 0 && b < t->bytes; b++) {
            fuzz_sink ^= data[t->offset + b];
        }
    }
    hth_wire_free_request(q);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n)
{
    const hth_ring_layout layout = {HTH_RING_LEAST, HTH_RING_LEAST, 4};
    size_t all = hth_ring_bytes(HTH_RING_LEAST), head = all - HTH_RING_LEAST, m;
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
    if (hth_ring_open(memory, HTH_RING_LEAST, HTH_RING_CONSUMER, 0, &r) == HTH_OK) {
        int messages = 0;
        while (hth_ring_next(r, &m) == HTH_OK) {
            uint8_t *message = hth_alloc_aligned(m > 0 ? m : 1, 64);
            hth_ring_take(r, message);
            fuzz_message(&layout, message, m);
            hth_free(message);
            if (++messages > MOST_MESSAGES) {
                abort(); // a ring has room for half of that
            }
        }
        hth_ring_close(r);
    }
    hth_free(memory);
    return 0;
}
