// SPDX-License-Identifier: Apache-2.0
// hearth_infer_into: outputs in memory of the caller. An engine in this process writes them there;
// from a server they are copied.
#include "client/infer/infer.h"

#include "base/alloc.h"

#include <inttypes.h>
#include <string.h>

typedef struct into {
    hearth_tensor *outputs; // the caller's
    int n;
    void *rest; // for those that nobody wants
} into;

// into_name says which of the model's outputs the caller's is.
static hth_err into_find(const into *x, int at, const hearth_tensor *out, int n, const char *model,
                         int *found)
{
    const char *name = x->outputs[at].name;
    *found = at;
    if (name == NULL) {
        return x->n == n
                   ? HTH_OK
                   : hth_fail(HTH_EINVAL, "model '%s' has %d outputs, and %d are given: name each",
                              model, n, x->n);
    }
    for (*found = 0; *found < n && strcmp(out[*found].name, name) != 0; ++*found) {
    }
    if (*found == n) {
        return hth_fail(HTH_EINVAL, "model '%s' has no output '%s'; its first is '%s'", model, name,
                        n > 0 ? out[0].name : "");
    }
    return HTH_OK;
}

// into_match has the model's outputs be where the caller wants them, NULL: nowhere, and describes
// them to the caller. Where one is too small, all sizes are said.
static hth_err into_match(into *x, const char *model, hearth_tensor *out, int n)
{
    hth_err err = HTH_OK;
    for (int i = 0; i < n; i++) {
        out[i].data = NULL;
    }
    for (int k = 0; k < x->n; k++) {
        hearth_tensor *to = &x->outputs[k];
        int i;
        HTH_TRY(into_find(x, k, out, n, model, &i));
        hearth_tensor is = out[i];
        if (is.data != NULL) {
            return hth_fail(HTH_EINVAL, "output '%s' is given twice", is.name);
        }
        if (err == HTH_OK && (to->bytes < is.bytes || (to->data == NULL && is.bytes > 0))) {
            err = hth_fail(HTH_EINVAL, "output '%s' takes %zu bytes: there are %zu at %s", is.name,
                           is.bytes, to->bytes, to->data == NULL ? "NULL" : "data");
        }
        out[i].data = to->data;
        is.name = to->name;
        is.data = to->data;
        *to = is;
    }
    return err;
}

// into_place is for an engine, which writes all outputs.
static hth_err into_place(void *ctx, const char *model, int version, hearth_tensor *out, int n)
{
    into *x = ctx;
    size_t rest = 0;
    HTH_TRY(into_match(x, model, out, n));
    for (int i = 0; i < n; i++) { // of tensors that fit in an answer; one of no bytes is somewhere
        rest += out[i].data == NULL ? hth_infer_aligned(out[i].bytes + 1) : 0;
    }
    if (rest == 0) {
        return HTH_OK;
    }
    uint8_t *at = x->rest = hth_alloc_aligned(rest, HTH_INFER_ALIGN);
    if (at == NULL) {
        return hth_no_memory("%zu bytes of outputs", rest);
    }
    for (int i = 0; i < n; i++) { // each its own: other operators read it there
        if (out[i].data == NULL) {
            out[i].data = at;
            at += hth_infer_aligned(out[i].bytes + 1);
        }
    }
    return HTH_OK;
}

static hth_err into_copied(hearth *h, const char *model, const hearth_tensor *inputs, int n_inputs,
                           into *x)
{
    hearth_tensor *out;
    int n;
    HTH_TRY((hth_err)hearth_infer(h, model, inputs, n_inputs, &out, &n));
    hearth_tensor *to = hth_memdup(out, (size_t)n * sizeof *out);
    hth_err err = to == NULL ? hth_no_memory("%d outputs", n) : into_match(x, model, to, n);
    for (int i = 0; i < n && err == HTH_OK; i++) {
        if (to[i].data != NULL) {
            memcpy(to[i].data, out[i].data, out[i].bytes);
        }
    }
    hth_free(to);
    hearth_tensors_free(out, n);
    return err;
}

static hth_err into_infer(hearth *h, const char *model, const hearth_tensor *inputs, int n_inputs,
                          into *x)
{
    HTH_TRY(hth_infer_begin(h, model, n_inputs));
    if (x->n < 0) {
        return hth_fail(HTH_EINVAL, "%d outputs of one request", x->n);
    }
    if (h->embedded == NULL) {
        return into_copied(h, model, inputs, n_inputs, x);
    }
    hth_embed_infer here = {.model = model,
                            .token = h->token,
                            .inputs = inputs,
                            .n_inputs = n_inputs,
                            .place = into_place,
                            .ctx = x};
    return hth_infer_embedded(h, &here);
}

hearth_status hearth_infer_into(hearth *h, const char *model, const hearth_tensor *inputs,
                                int n_inputs, hearth_tensor *outputs, int n_outputs)
{
    into x = {.outputs = outputs, .n = n_outputs};
    hth_err err = into_infer(h, model, inputs, n_inputs, &x);
    hth_free(x.rest);
    return (hearth_status)err;
}
