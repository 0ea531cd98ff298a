// SPDX-License-Identifier: Apache-2.0
// Feeds arbitrary bytes to both decoders and reads every byte that an accepted tensor claims to
// have.
#include "client/wire.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n);

static volatile uint8_t fuzz_sink;

static void fuzz_read(Hearth__Tensor *const *t, size_t n, const uint8_t *data)
{
    for (size_t i = 0; i < n; i++) {
        for (uint64_t b = 0; t[i]->region == 0 && b < t[i]->bytes; b++) {
            fuzz_sink ^= data[t[i]->offset + b];
        }
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n)
{
    const uint8_t *data;
    uint64_t data_bytes;
    Hearth__Request *q;
    if (hth_wire_read_request(bytes, n, &hth_wire_default_limits, &q, &data, &data_bytes) ==
        HTH_OK) {
        if (q->body_case == HEARTH__REQUEST__BODY_INFER) {
            fuzz_read(q->infer->inputs, q->infer->n_inputs, data);
        }
        hth_wire_free_request(q);
    }
    Hearth__Reply *r;
    if (hth_wire_read_reply(bytes, n, &hth_wire_default_limits, &r, &data, &data_bytes) == HTH_OK) {
        if (r->body_case == HEARTH__REPLY__BODY_OUTPUTS) {
            fuzz_read(r->outputs->outputs, r->outputs->n_outputs, data);
        } else if (r->body_case == HEARTH__REPLY__BODY_DOCUMENT) {
            for (uint64_t b = 0; b < r->document->bytes; b++) {
                fuzz_sink ^= data[b];
            }
        }
        hth_wire_free_reply(r);
    }
    return 0;
}
