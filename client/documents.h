// SPDX-License-Identifier: Apache-2.0
// client/documents.h - files that a question names: the client reads and writes them itself, with
// its own rights, and the server sees documents only.
#ifndef HTH_CLIENT_DOCUMENTS_H
#define HTH_CLIENT_DOCUMENTS_H

#include "base/err.h"

#include <stddef.h>

#define HTH_DOCUMENTS 3

typedef struct hth_documents { // what is to be written of an answer
    const char *key[HTH_DOCUMENTS];
    char *path[HTH_DOCUMENTS];
    int n;
} hth_documents;

// hth_documents_read puts the documents that are read for question `what` ("problem", "profile") in
// the place of their paths, and notes what is to be written ("out", "trace", "write-profile").
// *changed gets the arguments, hth_alloc'd; NULL: they stay as they are. HTH_EINVAL: no JSON,
// HTH_EDENIED and others: a file cannot be read, or cannot come to be where it shall be written. On
// an error, too, hth_documents_fini frees what `documents` holds.
hth_err hth_documents_read(const char *what, const char *arguments, hth_documents *documents,
                           char **changed);
// hth_documents_write takes the documents out of an answer and writes them; `json` is hth_alloc'd,
// and *out what is left of it, or `json` itself. On an error `json` is freed and *out NULL.
hth_err hth_documents_write(const hth_documents *documents, char *json, char **out);
void hth_documents_fini(hth_documents *documents);

#endif
