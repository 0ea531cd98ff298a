// SPDX-License-Identifier: Apache-2.0
// Reporting what a run has written, while it goes on. The steps that write the tensors for the last
// time are found once; walking them then costs a comparison for each kernel.
#include "memmgr/run_impl.h"

#include "base/alloc.h"

#include <stdlib.h>
#include <string.h>

// The last step that writes a tensor, and where; -1: none does. What a repeated kernel writes that
// nobody needs lies elsewhere.
static int watch_last(const hth_run *run, int tensor, void *const **at)
{
    for (int i = run->n_steps - 1; i >= 0; i--) {
        const run_step *step = &run->steps[i];
        if (step->instr->kind != HTH_INSTR_COMPUTE) {
            continue;
        }
        const run_slot *slot = &run->slots[step->args.out - (void *const *)run->pointers];
        for (int j = 0; j < run->spec.n_out[step->instr->node]; j++) {
            if (slot[j].tensor == tensor) {
                *at = &step->args.out[j];
                return i;
            }
        }
    }
    return -1;
}

static int watch_order(const void *a, const void *b)
{
    const run_watched *x = a, *y = b;
    int by_step = (x->step > y->step) - (x->step < y->step);
    return by_step != 0 ? by_step : (x->which > y->which) - (x->which < y->which);
}

static hth_err watch_find(hth_run *run, const int *tensors, int n)
{
    hth_free(run->wanted);
    hth_free(run->watched);
    run->n_wanted = run->n_watched = 0;
    run->wanted = hth_memdup(tensors, (size_t)n * sizeof *tensors);
    run->watched = hth_calloc((size_t)n, sizeof *run->watched);
    if (run->wanted == NULL || run->watched == NULL) {
        return hth_no_memory("running a plan");
    }
    run->n_wanted = n;
    for (int i = 0; i < n; i++) {
        run_watched *watched = &run->watched[run->n_watched];
        watched->which = i;
        watched->step = tensors[i] >= 0 ? watch_last(run, tensors[i], &watched->at) : -1;
        run->n_watched += watched->step >= 0;
    }
    qsort(run->watched, (size_t)run->n_watched, sizeof *run->watched, watch_order);
    return HTH_OK;
}

hth_err hth_run_watch(hth_run *run, const int *tensors, int n, hth_run_written_fn fn, void *ctx)
{
    run->written = n > 0 ? fn : NULL;
    run->written_ctx = ctx;
    if (n > 0 && !run->inline_compute) {
        run->written = NULL;
        return hth_fail(HTH_ENOTSUP, "device %s reports nothing in the middle of a run",
                        run->spec.device->props.name);
    }
    bool same = n == run->n_wanted && n > 0 &&
                memcmp(tensors, run->wanted, (size_t)n * sizeof *tensors) == 0;
    return same || n == 0 ? HTH_OK : watch_find(run, tensors, n);
}

void run_written(hth_run *run, const run_step *step)
{
    while (run->written != NULL && run->reported < run->n_watched &&
           &run->steps[run->watched[run->reported].step] == step) {
        const run_watched *watched = &run->watched[run->reported++];
        run->written(run->written_ctx, watched->which, *watched->at);
    }
}
