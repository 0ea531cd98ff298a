// SPDX-License-Identifier: Apache-2.0
// A body that lists tensors, and has a graph in base64; the first byte says whether the tensors
// have names. A list that is accepted is one to the dispatcher's reader, too, and says the same; a
// graph is the same after it was written again.
#include "base/alloc.h"
#include "server/http/remote/objects.h"
#include "server/http/tensors/http_base64.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n);

static void must(bool right)
{
    if (!right) {
        abort();
    }
}

static void check_object(const hth_content_object *is, const hth_content_object *was)
{
    must(hth_id_equal(&is->id, &was->id) && is->dtype == was->dtype && is->bytes == was->bytes);
    must(is->here == was->here && is->shape.rank == was->shape.rank);
    must(strcmp(is->name, was->name) == 0);
    for (int i = 0; i < is->shape.rank; i++) {
        must(is->shape.dim[i] == was->shape.dim[i]);
    }
}

static void check_list(const hth_objects *objects)
{
    struct evbuffer *out = evbuffer_new();
    hth_content_object *again;
    uint64_t list_bytes;
    if (hth_objects_write(objects, out, &list_bytes) == HTH_OK) {
        must(list_bytes == evbuffer_get_length(out));
        const uint8_t *list = evbuffer_pullup(out, -1);
        must(hth_content_list_read(list != NULL ? list : (const uint8_t *)"", list_bytes,
                                   (uint32_t)objects->n, &again) == HTH_OK);
        for (int i = 0; i < objects->n; i++) {
            check_object(&again[i], &objects->list[i]);
        }
        hth_free(again);
    }
    evbuffer_free(out);
}

static void check_graph(const json_t *graph)
{
    size_t chars = json_string_length(graph), bytes, more;
    char *data = malloc(chars / 4 * 3 + 3); // of its own size: a byte too far is seen
    if (hth_base64_decode(json_string_value(graph), chars, data, &bytes)) {
        hth_text text = {.p = NULL};
        hth_base64_encode(&text, data, bytes);
        char *copy = malloc(text.n / 4 * 3 + 3);
        must(hth_base64_decode(text.n > 0 ? text.p : "", text.n, copy, &more));
        must(more == bytes && memcmp(copy, data, bytes) == 0);
        free(copy);
        hth_text_fini(&text);
    }
    free(data);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n)
{
    hth_objects objects;
    json_t *doc;
    if (n < 1) {
        return -1;
    }
    bool named = (bytes[0] & 1) != 0;
    char *text = malloc(n);
    memcpy(text, bytes + 1, n - 1);
    if (hth_json_parse(text, n - 1, &doc) == HTH_OK) {
        if (hth_objects_read(doc, named, &objects) == HTH_OK) {
            check_list(&objects);
            hth_objects_fini(&objects);
        }
        if (json_is_string(json_object_get(doc, "graph"))) {
            check_graph(json_object_get(doc, "graph"));
        }
        json_decref(doc);
    }
    free(text);
    return 0;
}
