// SPDX-License-Identifier: Apache-2.0
// graph/onnx/onnx_names.h - a table from names to indices, for the importer. Private to
// graph/onnx*.c. One thread.
#ifndef HTH_GRAPH_ONNX_ONNX_NAMES_H
#define HTH_GRAPH_ONNX_ONNX_NAMES_H

#include "base/err.h"

#include <stdbool.h>

// A zeroed table is empty.
typedef struct hth_names {
    struct hth_names_entry *head;
} hth_names;

// hth_names_put adds a copy of `name`. HTH_EEXIST (without a sentence) when the name is there
// already.
hth_err hth_names_put(hth_names *names, const char *name, int index);
// hth_names_find stores the index of `name` in *index and returns true, or returns false.
bool hth_names_find(const hth_names *names, const char *name, int *index);
// hth_names_at is where the index of `name` stands, for as long as the table is there; NULL: it is
// not in the table.
int *hth_names_at(const hth_names *names, const char *name);
void hth_names_fini(hth_names *names);

#endif
