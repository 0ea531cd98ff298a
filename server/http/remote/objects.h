// SPDX-License-Identifier: Apache-2.0
// server/http/remote/objects.h - tensors as JSON and URLs name them: by id, datatype and shape.
// Any thread.
#ifndef HTH_SERVER_HTTP_REMOTE_OBJECTS_H
#define HTH_SERVER_HTTP_REMOTE_OBJECTS_H

#include "client/content/objects.h"

#include <event2/buffer.h>
#include <jansson.h>

// What a document names; names are in `doc`.
typedef struct hth_objects {
    hth_content_object *list;
    int n;
    json_t *doc;
} hth_objects;

// hth_objects_id reads 64 hexadecimal digits. false: they are none.
bool hth_objects_id(const char *text, hth_id *out);
// hth_objects_shaped sets datatype and shape ("2,3"; "": none) of an object, and its bytes.
// HTH_EINVAL, HTH_ETOOBIG say what is wrong.
hth_err hth_objects_shaped(const char *datatype, const char *shape, hth_content_object *out);

// hth_objects_read reads "tensors" of a document: [{"id", "datatype", "shape", "name"}], the name
// where `named`. It holds `doc`. A tensor without bytes counts as coming along. On error *out is
// empty; hth_objects_fini frees it.
hth_err hth_objects_read(json_t *doc, bool named, hth_objects *out);
void hth_objects_fini(hth_objects *objects);
// hth_objects_write appends the list as the dispatcher's requests have it
// (client/content/objects.h).
hth_err hth_objects_write(const hth_objects *objects, struct evbuffer *out, uint64_t *bytes);

#endif
