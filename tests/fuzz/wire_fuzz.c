// SPDX-License-Identifier: Apache-2.0
// Feeds arbitrary bytes to both decoders and reads every byte that an accepted tensor claims to
// have, and every list of objects.
#include "base/alloc.h"
#include "client/content/objects.h"
#include "client/wire.h"

#include <string.h>

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

// fuzz_list reads a list as a request or reply has it, and writes it again: it is the same.
static void fuzz_list(const uint8_t *list, uint64_t bytes, uint32_t n)
{
    hth_content_object *o;
    uint64_t again;
    if (hth_content_list_read(list, bytes, n, &o) != HTH_OK) {
        return;
    }
    uint8_t *copy = hth_alloc(bytes + 1);
    if (hth_content_list_bytes(o, (int)n, &again) != HTH_OK || again != bytes) {
        __builtin_trap();
    }
    hth_content_list_write(o, (int)n, copy);
    for (uint64_t b = 0; b < bytes; b++) {
        fuzz_sink ^= copy[b];
    }
    hth_free(copy);
    hth_free(o);
}

static void fuzz_lists(const Hearth__Request *request, const uint8_t *data, uint64_t bytes)
{
    if (request->body_case == HEARTH__REQUEST__BODY_HAVE) {
        fuzz_list(data, bytes, request->have->objects);
    } else if (request->body_case == HEARTH__REQUEST__BODY_DISCARD) {
        fuzz_list(data, bytes, request->discard->objects);
    } else if (request->body_case == HEARTH__REQUEST__BODY_COMMIT &&
               request->commit->list_bytes <= bytes) {
        fuzz_list(data, request->commit->list_bytes, request->commit->objects);
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
        fuzz_lists(q, data, data_bytes);
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
        } else if (r->body_case == HEARTH__REPLY__BODY_VERSION &&
                   r->version->list_bytes <= data_bytes) {
            fuzz_list(data, r->version->list_bytes, r->version->objects);
        }
        hth_wire_free_reply(r);
    }
    return 0;
}
