// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/conv_last.h"

#include "kernels/cpu/post.h"

#include <math.h>

// The post ops from list[done] on, as a kernel of their own.
static hth_err last_tail(hth_device *device, const hth_value *value, const hth_cpu_post *list,
                         int done, int count, hth_kernel **out)
{
    hth_seq *s;
    hth_dn_md md = hth_dn_md_of(HTH_DT_F32, &value->shape, value->layout);
    HTH_TRY(hth_seq_open(device, &s));
    hth_err err = hth_cpu_tail(s, list, done, count, &md);
    if (err != HTH_OK) {
        hth_seq_abort(s);
        return err;
    }
    return hth_seq_finish(s, NULL, out);
}

// Takes one sum, then one clamp that keeps zero, which padding channels are.
hth_err hth_conv_last_open(hth_device *device, const hth_graph *graph, const hth_node *node,
                           hth_conv_last *out)
{
    const hth_value *y = &graph->values[node->outputs[0]];
    hth_cpu_post list[HTH_DN_MAX_POST];
    int count, sum, done = 0;
    *out = (hth_conv_last){.bias = -1, .add = -1, .low = -INFINITY, .high = INFINITY};
    if (node->op != HTH_OP_CONV) {
        return HTH_OK;
    }
    out->bias = node->n_inputs > 2 && node->inputs[2] >= 0 ? 2 : -1;
    for (int i = 0; i < node->n_post; i++) {
        out->bias = node->post[i].input == 2 ? -1 : out->bias;
    }
    HTH_TRY(hth_cpu_posts(graph, node, y->layout, true, list, &count, &sum));
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
    return done == count ? HTH_OK : last_tail(device, y, list, done, count, &out->tail);
}

void hth_conv_last_close(hth_conv_last *last)
{
    hth_kernel_close(last->tail);
    last->tail = NULL;
}

void hth_conv_last_finish(const hth_conv_last *last, hth_kernel *kernel)
{
    kernel->inplace_input = last->add; // read and written by the same tile only
    if (last->tail != NULL && last->tail->workspace_bytes > kernel->workspace_bytes) {
        kernel->workspace_bytes = last->tail->workspace_bytes;
    }
}
