// SPDX-License-Identifier: Apache-2.0
#include "runtime/overhead.h"

#include "runtime/program.h"

#define OVERHEAD_NODE  4096 // measured: 1.3 to 5 KiB ..
#define OVERHEAD_CONV  4    // .. and so many times as much where a library prepares a primitive
#define OVERHEAD_SHARE 4    // of the device's memory
#define OVERHEAD_LEAST ((uint64_t)512 << 20)

static bool overhead_conv(hth_op op)
{
    return op == HTH_OP_CONV || op == HTH_OP_CONV_TRANSPOSE || op == HTH_OP_CONV_GRAD_DATA ||
           op == HTH_OP_CONV_GRAD_FILTER;
}

uint64_t hth_overhead_bytes(const hth_graph *graph)
{
    uint64_t units = 0;
    for (int i = 0; i < graph->n_nodes; i++) {
        units += overhead_conv(graph->nodes[i].op) ? OVERHEAD_CONV : 1;
    }
    return units * OVERHEAD_NODE;
}

// The program that was not used for the longest time and that nobody needs now; *sum: of all.
static hth_program *overhead_oldest(const hth_site *site, uint64_t *sum)
{
    hth_program *oldest = NULL;
    *sum = 0;
    for (hth_program *p = site->programs; p != NULL; p = p->site_next) {
        bool idle = p->source != NULL && p->held == 0 && !p->running && !p->pinned &&
                    p->n_instances == 0 && p->rest.programs == NULL;
        *sum += p->overhead_bytes;
        oldest = idle && (oldest == NULL || p->used_at < oldest->used_at) ? p : oldest;
    }
    return oldest;
}

hth_err hth_overhead_room(hth_site *site, hth_program *program)
{
    uint64_t most = site->device->props.budget_bytes / OVERHEAD_SHARE, sum;
    most = most > OVERHEAD_LEAST ? most : OVERHEAD_LEAST;
    program->overhead_bytes = hth_overhead_bytes(program->graph);
    if (program->overhead_bytes > most) {
        return hth_fail(
            HTH_ETOOBIG,
            "the model's %d operators take about %llu bytes of host memory; the limit is %llu",
            program->graph->n_nodes, (unsigned long long)program->overhead_bytes,
            (unsigned long long)most);
    }
    hth_program *oldest = overhead_oldest(site, &sum);
    while (oldest != NULL && sum + program->overhead_bytes > most) {
        hth_program_free(site, oldest);
        oldest = overhead_oldest(site, &sum);
    }
    return HTH_OK;
}
