// SPDX-License-Identifier: Apache-2.0
// Plans of cuDNN that outlive the process. A plan's text, from which cuDNN makes it again without a
// graph, an engine or a search, is kept under what it was made for: the device with its library
// versions, the convolution, the engine. The text stands after its checksum, because what cuDNN
// reads there decides where a kernel writes. What is damaged, or what cuDNN refuses, is made anew
// and replaced.
#include "kernels/cuda/dnn_call.h"

#include "base/alloc.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define KEEP_TEXT ((size_t)64 << 10) // longer plans are not kept
#define KEEP_SUM  17                 // 16 digits and a space

static uint64_t keep_sum(const char *s)
{
    uint64_t h = 1469598103934665603u; // FNV-1a
    for (; *s != '\0'; s++) {
        h = (h ^ (unsigned char)*s) * 1099511628211u;
    }
    return h;
}

typedef struct keep_text {
    char *at;
    size_t n, cap;
} keep_text;

static void keep_list(keep_text *text, const char *name, const int64_t *v, int n)
{
    for (int i = 0; i < n && text->n < text->cap; i++) {
        text->n += (size_t)snprintf(text->at + text->n, text->cap - text->n, "%s%" PRId64,
                                    i == 0 ? name : ",", v[i]);
    }
}

bool hth_dnn_key(const char *fingerprint, const hth_dnn_conv *conv, const char *name, char *out,
                 size_t cap)
{
    static const char *const kinds[] = {"fwd", "bwd_data", "bwd_filter"};
    int rank = conv->n_spatial + 2;
    keep_text t = {out, 0, cap};
    const char *bias = conv->bias ? "+bias" : "";
    const char *sum = conv->sum ? "+sum" : "";
    const char *relu = conv->relu ? "+relu" : "";
    const char *nhwc = conv->nhwc ? " nhwc" : "";
    t.n = (size_t)snprintf(out, cap, "plan1 %s%s%s%s%s %s", kinds[conv->kind], bias, sum, relu,
                           nhwc, hth_precision_name(conv->precision));
    keep_list(&t, " x", conv->x, rank);
    keep_list(&t, " w", conv->w, rank);
    keep_list(&t, " y", conv->y, rank);
    keep_list(&t, " p", conv->pre, conv->n_spatial);
    keep_list(&t, " q", conv->post, conv->n_spatial);
    keep_list(&t, " s", conv->stride, conv->n_spatial);
    keep_list(&t, " d", conv->dilation, conv->n_spatial);
    if (t.n < cap) {
        t.n += (size_t)snprintf(out + t.n, cap - t.n, " %s | %s", name, fingerprint);
    }
    return t.n < cap;
}

// The new plan `p` becomes what the text says.
static hth_err keep_read(const hth_dnn_device *device, const char *json, cudnnBackendDescriptor_t p,
                         int64_t *workspace_bytes)
{
    const hth_cuda_api *api = device->api;
    int64_t one = 0;
    hth_err err = HTH_OK;
    if (device->handle != NULL) {
        err = DNN(api, cudnnBackendSetAttribute, p, CUDNN_ATTR_EXECUTION_PLAN_HANDLE,
                  CUDNN_TYPE_HANDLE, 1, &device->handle);
    } else if (device->description != NULL) {
        err = DNN(api, cudnnBackendSetAttribute, p, CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP,
                  CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &device->description);
    }
    HTH_TRY(err);
    HTH_TRY(DNN(api, cudnnBackendSetAttribute, p, CUDNN_ATTR_EXECUTION_PLAN_JSON_REPRESENTATION,
                CUDNN_TYPE_CHAR, (int64_t)strlen(json), json));
    HTH_TRY(DNN(api, cudnnBackendFinalize, p));
    return DNN(api, cudnnBackendGetAttribute, p, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE,
               CUDNN_TYPE_INT64, 1, &one, workspace_bytes);
}

hth_err hth_dnn_plan_load(const hth_dnn_device *device, const char *json,
                          cudnnBackendDescriptor_t *out, int64_t *workspace_bytes)
{
    cudnnBackendDescriptor_t p;
    *out = NULL;
    HTH_TRY(DNN(device->api, cudnnBackendCreateDescriptor, CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR,
                &p));
    hth_err err = keep_read(device, json, p, workspace_bytes);
    if (err != HTH_OK) {
        (void)device->api->cudnnBackendDestroyDescriptor(p);
        return err;
    }
    *out = p;
    return HTH_OK;
}

// HTH_ENOENT: there is none that can be used.
static hth_err keep_find(const hth_dnn_device *device, const hth_device_kept *kept, const char *key,
                         cudnnBackendDescriptor_t *out, int64_t *workspace_bytes)
{
    char *text = hth_calloc(1, KEEP_TEXT);
    char sum[KEEP_SUM + 1];
    bool found = text != NULL && kept->get(kept->ctx, key, text, KEEP_TEXT) == HTH_OK &&
                 strlen(text) > KEEP_SUM;
    if (found) {
        snprintf(sum, sizeof sum, "%016" PRIx64 " ", keep_sum(text + KEEP_SUM));
        found = memcmp(text, sum, KEEP_SUM) == 0 &&
                hth_dnn_plan_load(device, text + KEEP_SUM, out, workspace_bytes) == HTH_OK;
    }
    hth_free(text);
    return found ? HTH_OK : HTH_ENOENT;
}

// That a plan is not kept is no error.
static void keep_store(const hth_dnn_device *device, const hth_device_kept *kept, const char *key,
                       cudnnBackendDescriptor_t plan)
{
    char *json;
    if (hth_dnn_plan_json(device, plan, &json) != HTH_OK) {
        return;
    }
    size_t cap = strlen(json) + KEEP_SUM + 1;
    char *text = cap <= KEEP_TEXT ? hth_calloc(1, cap) : NULL;
    if (text != NULL) {
        snprintf(text, cap, "%016" PRIx64 " %s", keep_sum(json), json);
        (void)kept->put(kept->ctx, key, text);
    }
    hth_free(text);
    hth_free(json);
}

hth_err hth_dnn_plan_kept(const hth_dnn_device *device, const hth_dnn_conv *conv, const char *name,
                          const hth_device_kept *kept, const char *fingerprint,
                          cudnnBackendDescriptor_t *out, int64_t *workspace_bytes)
{
    char key[HTH_DNN_KEY];
    hth_dnn_graph graph;
    bool keeps = kept != NULL && hth_dnn_key(fingerprint, conv, name, key, sizeof key);
    if (keeps && keep_find(device, kept, key, out, workspace_bytes) == HTH_OK) {
        return HTH_OK;
    }
    HTH_TRY(hth_dnn_graph_open(device, conv, &graph));
    hth_err err = hth_dnn_plan(&graph, name, out, workspace_bytes);
    hth_dnn_graph_close(&graph);
    if (err == HTH_OK && keeps) {
        keep_store(device, kept, key, *out);
    }
    return err;
}

// That there is none may be a failure of the moment, and is asked again.
bool hth_dnn_has_kept(const hth_dnn_device *device, const hth_dnn_conv *conv,
                      const hth_device_kept *kept, const char *fingerprint)
{
    char key[HTH_DNN_KEY], answer[8];
    hth_dnn_engine engine[HTH_DNN_ENGINES];
    hth_dnn_graph graph;
    int count = 0;
    bool keeps = kept != NULL && hth_dnn_key(fingerprint, conv, "any", key, sizeof key);
    if (keeps && kept->get(kept->ctx, key, answer, sizeof answer) == HTH_OK &&
        strcmp(answer, "yes") == 0) {
        return true;
    }
    if (hth_dnn_graph_open(device, conv, &graph) != HTH_OK) {
        return false;
    }
    hth_err err = hth_dnn_first(&graph, engine, HTH_DNN_ENGINES, &count);
    hth_dnn_graph_close(&graph);
    if (err == HTH_OK && keeps) {
        (void)kept->put(kept->ctx, key, "yes");
    }
    return err == HTH_OK;
}
