// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/conv_last.h"

#include "kernels/cpu/post.h"

#include <math.h>

// The post ops from list[done] on, as a kernel of their own.
static hth_err last_tail(hth_device *d, const hth_value *y, const hth_cpu_post *list, int done,
                         int count, hth_kernel **out)
{
    hth_seq *s;
    hth_dn_md md = hth_dn_md_of(HTH_DT_F32, &y->shape, y->layout);
    HTH_TRY(hth_seq_open(d, &s));
    hth_err err = hth_cpu_tail(s, list, done, count, &md);
    if (err != HTH_OK) {
        hth_seq_abort(s);
        return err;
    }
    return hth_seq_finish(s, NULL, out);
}

// Takes one sum, then one clamp that keeps zero, which padding channels are.
hth_err hth_conv_last_open(hth_device *d, const hth_graph *g, const hth_node *n, hth_conv_last *out)
{
    const hth_value *y = &g->values[n->outputs[0]];
    hth_cpu_post list[HTH_DN_MAX_POST];
    int count, sum, done = 0;
    *out = (hth_conv_last){.bias = -1, .add = -1, .low = -INFINITY, .high = INFINITY};
    if (n->op != HTH_OP_CONV) {
        return HTH_OK;
    }
    out->bias = n->n_inputs > 2 && n->inputs[2] >= 0 ? 2 : -1;
    for (int i = 0; i < n->n_post; i++) {
        out->bias = n->post[i].input == 2 ? -1 : out->bias;
    }
    HTH_TRY(hth_cpu_posts(g, n, y->layout, true, list, &count, &sum));
    if (done < count && list[done].dn.kind == dnnl_sum) {
        out->add = list[done].input;
        out->add_scale = list[done].dn.alpha;
        done++;
    }
    if (done < count && list[done].dn.kind == dnnl_eltwise) {
        const hth_dn_post *p = &list[done].dn;
        bool relu = p->alg == dnnl_eltwise_relu && p->alpha == 0;
        if (relu || (p->alg == dnnl_eltwise_clip && p->alpha <= 0 && p->beta >= 0)) {
            out->low = relu ? 0 : p->alpha;
            out->high = relu ? INFINITY : p->beta;
            done++;
        }
    }
    return done == count ? HTH_OK : last_tail(d, y, list, done, count, &out->tail);
}

void hth_conv_last_close(hth_conv_last *l)
{
    hth_kernel_close(l->tail);
    l->tail = NULL;
}

void hth_conv_last_finish(const hth_conv_last *l, hth_kernel *k)
{
    k->inplace_input = l->add; // read and written by the same tile only
    if (l->tail != NULL && l->tail->workspace_bytes > k->workspace_bytes) {
        k->workspace_bytes = l->tail->workspace_bytes;
    }
}
