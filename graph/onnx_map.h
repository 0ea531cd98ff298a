// SPDX-License-Identifier: Apache-2.0
// graph/onnx_map.h - the mapped files of one model. Private to graph/onnx*.c.
#ifndef HTH_GRAPH_ONNX_MAP_H
#define HTH_GRAPH_ONNX_MAP_H

#include "graph/onnx_tensor.h"

typedef struct hth_onnx_map {
    char *location; // as the model writes it; "" for the model itself
    void *data;
    size_t bytes;
} hth_onnx_map;

typedef struct hth_onnx_maps { // zeroed: no files, external data refused
    int folder;                // descriptor of the model's folder
    uint64_t bytes, max_bytes;
    hth_onnx_map *map; // map[0] is the model
    int n, cap;
} hth_onnx_maps;

// hth_onnx_maps_open maps the model file. On error too, hth_onnx_maps_close frees what is held.
hth_err hth_onnx_maps_open(hth_onnx_maps *m, const char *path, uint64_t max_bytes, hth_span *out);
// hth_onnx_maps_external finds the bytes of an external tensor, valid until hth_onnx_maps_close.
// HTH_EDENIED: the file is not below the model's folder.
hth_err hth_onnx_maps_external(hth_onnx_maps *m, const hth_onnx_head *t, hth_span *out);
void hth_onnx_maps_close(hth_onnx_maps *m);

#endif
