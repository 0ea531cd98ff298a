// SPDX-License-Identifier: Apache-2.0
// The table of the CPU's kernels. An operator may have several rows; they are asked in order. The fall-back behind them
// takes whatever is left, but only by default: an algorithm asked for by name is made by that name or not at all.
#include "kernels/cpu/cpu.h"

#include "device/cpu/team.h"

#include <stdio.h>
#include <string.h>

typedef struct cpu_row {
    hth_op op;
    hth_cpu_prepare_fn prepare;
} cpu_row;

static const cpu_row cpu_table[] = {
    {HTH_OP_NONE, cpu_fallback_prepare},
};

int hth_cpu_block(const hth_device *d, hth_layout *layout)
{
    int block = d->props.vector_bytes >= 64 ? 16 : 8;
    *layout = block == 16 ? HTH_LAYOUT_C16 : HTH_LAYOUT_C8;
    return block;
}

hth_err hth_cpu_prepare(hth_device *d, const hth_graph *g, const hth_node *n, const char *algorithm, hth_kernel **out)
{
    hth_team_set(d->props.n_threads);
    if (algorithm != NULL && strcmp(algorithm, "default") == 0) {
        algorithm = NULL;
    }
    for (size_t i = 0; i < sizeof cpu_table / sizeof cpu_table[0]; i++) {
        if (cpu_table[i].op != n->op) {
            continue;
        }
        hth_err err = cpu_table[i].prepare(d, g, n, algorithm, out);
        if (err != HTH_ENOTSUP) {
            return err;
        }
    }
    if (algorithm != NULL && strcmp(algorithm, "ref") != 0) {
        return hth_fail(HTH_ENOTSUP, "node '%s' (%s) has no algorithm '%s' on %s", n->name, hth_op_name(n->op),
                        algorithm, d->props.name);
    }
    return cpu_fallback_prepare(d, g, n, NULL, out);
}

hth_err hth_cpu_algorithms(hth_device *d, const hth_graph *g, const hth_node *n, hth_choice *list, int cap, int *count)
{
    hth_kernel *k;
    HTH_TRY(hth_cpu_prepare(d, g, n, NULL, &k));
    if (cap > 0) {
        list[0] = (hth_choice){.workspace_bytes = k->workspace_bytes,
                               .time_us = -1,
                               .error = -1,
                               .split = 1,
                               .deterministic = true};
        snprintf(list[0].name, sizeof list[0].name, "default");
        *count = 1;
    }
    hth_kernel_close(k);
    return HTH_OK;
}

static bool cpu_can_fuse(void *ctx, const hth_graph *g, const hth_node *n, const hth_post_op *post, int operand)
{
    return false;
}

static hth_layout cpu_layout(void *ctx, const hth_graph *g, const hth_node *n, bool *any)
{
    *any = false;
    return HTH_LAYOUT_PLAIN;
}

const hth_fuse_oracle *hth_cpu_oracle(hth_device *d)
{
    static const hth_fuse_oracle plain = {.can_fuse = cpu_can_fuse, .layout = cpu_layout};
    return &plain;
}
