// SPDX-License-Identifier: Apache-2.0
// The JSON of an inference request: parsed, and each input's data read as several types and shapes.
// What is read is written again and must read back as the same bytes.
#include "base/alloc.h"
#include "server/http/tensors/http_json.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n);

#define FUZZ_INPUTS 4

static void read_as(const hth_json_span *span, hth_dtype dtype, hth_shape shape)
{
    hth_tensor t = {.dtype = dtype, .shape = shape};
    if (!hth_json_fits(span, hth_shape_elements(&shape)) ||
        hth_tensor_bytes(dtype, &shape, HTH_LAYOUT_PLAIN, &t.bytes) != HTH_OK) {
        return;
    }
    hth_tensor again = t;
    t.data = hth_alloc(t.bytes + 1);
    again.data = hth_alloc(t.bytes + 1);
    if (hth_json_read(span, &t, NULL) == HTH_OK) {
        hth_text text = {.p = NULL};
        hth_json_write(&text, &t);
        const hth_json_span written = {text.p, text.n};
        bool infinite = text.n > 0 && memmem(text.p, text.n, "Infinity", 8) != NULL;
        if (!infinite && (hth_json_read(&written, &again, NULL) != HTH_OK ||
                          memcmp(t.data, again.data, t.bytes) != 0)) {
            abort();
        }
        hth_text_fini(&text);
    }
    hth_free(t.data);
    hth_free(again.data);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n)
{
    static const hth_dtype types[] = {HTH_DT_F32, HTH_DT_F64, HTH_DT_U64, HTH_DT_I8, HTH_DT_BOOL};
    hth_json_span data[FUZZ_INPUTS] = {{NULL, 0}};
    json_t *doc;
    char *text = malloc(n + 1); // of its own size: a byte too far is seen
    memcpy(text, bytes, n);
    if (hth_json_request(text, n, data, FUZZ_INPUTS, NULL, &doc) == HTH_OK) {
        for (int i = 0; i < FUZZ_INPUTS; i++) {
            for (size_t k = 0; k < sizeof types / sizeof types[0] && data[i].p != NULL; k++) {
                read_as(&data[i], types[k], (hth_shape){1, {3}});
                read_as(&data[i], types[k], (hth_shape){2, {2, 2}});
                read_as(&data[i], types[k], (hth_shape){2, {2, 0}});
                read_as(&data[i], types[k], (hth_shape){0, {0}});
            }
        }
        json_decref(doc);
    }
    free(text);
    return 0;
}
