// SPDX-License-Identifier: Apache-2.0
// client/content/fetch.h - content from a server: what a version is made of, and its bytes.
//
// Design notes
// Whoever writes a file reads the tensors from front to back. So a few threads fetch pieces ahead
// of the reader into a ring of slots, each of one piece, and the reader sums up what it takes: an
// object that is not what its id says is an error at its last byte. A piece that gets lost with the
// connection is asked for again.
#ifndef HTH_CLIENT_CONTENT_FETCH_H
#define HTH_CLIENT_CONTENT_FETCH_H

#include "client/content/objects.h"
#include "client/exchange.h"

// What a version is made of.
typedef struct hth_content_made {
    hth_reply reply; // in which the rest lies
    char *model;     // "name:version"
    const char *name, *meta;
    int version;
    hth_content_object *objects;
    int n;
    const void *skeleton;
    size_t skeleton_bytes;
} hth_content_made;

// hth_content_made_get asks for it; ended by hth_content_made_fini, also after an error.
hth_err hth_content_made_get(hearth *handle, const char *model, hth_content_made *out);
void hth_content_made_fini(hth_content_made *made);

// hth_content_piece stores `n` bytes, from `at` on, of the i-th object. Any thread; blocks, and
// tries again for some seconds where the connection is lost.
hth_err hth_content_piece(hearth *handle, const hth_content_made *made, int i, uint64_t at,
                          void *dst, size_t n);

// hth_content_export writes a version to a file of this machine, in the format that its extension
// says; `path` is whole or as it was.
hth_err hth_content_export(hearth *handle, const char *model, const char *path,
                           const hth_watch *watch, hearth_export_report *out);

#endif
