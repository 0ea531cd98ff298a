// SPDX-License-Identifier: Apache-2.0
// How a Winograd kernel divides its workspace: the transformed filter or a block of it, M, and what
// is left for V, the chunk of tiles between two readings of the filter.
#include "kernels/cpu/winograd/winograd_kernel.h"

#define WINO_PART   56                   // tiles that M holds
#define WINO_MIN    28                   // tiles of a chunk worth reading U for; at worst half
#define WINO_APART  ((size_t)1536 << 10) // bytes of a group's filter up to which chunks go apart
#define WINO_CACHED ((size_t)768 << 10)  // bytes of a chunk of one thread
#define WINO_WHOLE  ((size_t)6 << 20)    // bytes of a computed filter that does not roll
#define WINO_ROLL   ((size_t)576 << 10)  // bytes of a thread's block of one that does

// `count` in equal pieces of at most `most`.
static size_t reserve_even(size_t count, size_t most)
{
    size_t chunks = (count + most - 1) / most;
    return (count + chunks - 1) / chunks;
}

// Rolling: a block of the filter per thread, small next to the workspace and the core's cache; M
// for all tiles of the chunk when there are several blocks; V.
static void reserve_rolling(hth_wino_kernel *k, size_t budget)
{
    const hth_wino_plan *p = &k->p;
    size_t threads = (size_t)k->n_threads, width = HTH_WINO_PANEL * p->isa->lanes;
    size_t cached = hth_wino_min(budget / 7 / threads, WINO_ROLL / sizeof(float));
    size_t fits = cached / (p->points * hth_wino_point(p->isa->block, width));
    k->depth = reserve_even(p->grid.ib, fits > 0 ? fits : 1);
    k->block_floats = p->points * hth_wino_point(k->depth * p->isa->block, width);
    k->filter_floats = threads * k->block_floats;
    size_t fixed = k->filter_floats, row = p->points * p->grid.ib * p->isa->block;
    bool several = k->depth < p->grid.ib;
    if (several) {
        row += threads * p->points * width;
    } else {
        fixed += threads * hth_wino_scratch(p->isa, p->points, WINO_PART);
    }
    size_t most = budget > fixed ? (budget - fixed) / row : 0;
    k->chunk = reserve_even(p->grid.tiles, most < WINO_MIN / 2 ? WINO_MIN / 2 : most);
    k->part = reserve_even(k->chunk, WINO_PART);
    k->m_parts = several ? (k->chunk + k->part - 1) / k->part : 1;
    k->m_floats = hth_wino_scratch(p->isa, p->points, k->part);
}

// Constant filters, or those that the workspace holds: M's, what is left for V.
static void reserve_whole(hth_wino_kernel *k, size_t budget)
{
    const hth_wino_plan *p = &k->p;
    size_t threads = (size_t)k->n_threads, rows = p->isa->rows;
    size_t row = p->points * p->grid.ib * p->isa->block;
    k->filter_floats = k->packed ? 0 : k->u_floats;
    size_t fixed = k->filter_floats;
    k->depth = p->grid.ib;
    k->m_parts = 1;
    k->part = (WINO_PART + rows - 1) / rows * rows;
    while (k->part > rows &&
           (threads + 1) * hth_wino_scratch(p->isa, p->points, k->part) + WINO_MIN * row + fixed >
               budget) {
        k->part -= rows;
    }
    size_t share = (p->grid.tiles + threads - 1) / threads;
    k->part = hth_wino_min(k->part, p->grid.tiles);
    k->m_floats = hth_wino_scratch(p->isa, p->points, k->part);
    fixed += threads * k->m_floats;
    size_t most = budget > fixed ? (budget - fixed) / row : 0;
    most = most < WINO_MIN / 2 ? WINO_MIN / 2 : most;
    k->apart = k->u_floats * sizeof(float) <= WINO_APART && share >= WINO_MIN &&
               most / threads >= WINO_MIN / 2;
    if (k->apart) {
        size_t cached = WINO_CACHED / sizeof(float) / row;
        most = hth_wino_min(most / threads, cached < WINO_MIN ? WINO_MIN : cached);
    }
    k->chunk = reserve_even(k->apart ? share : p->grid.tiles, most);
}

void hth_wino_reserve(hth_wino_kernel *k)
{
    const hth_wino_plan *p = &k->p;
    size_t threads = (size_t)k->n_threads, budget = p->bytes / sizeof(float);
    k->rolling =
        !k->packed && k->u_floats > hth_wino_min(budget * 5 / 8, WINO_WHOLE / sizeof(float));
    if (k->rolling) {
        reserve_rolling(k, budget);
    } else {
        reserve_whole(k, budget);
    }
    k->v_step = p->grid.ib * k->chunk * p->isa->block + HTH_WINO_LINE;
    k->v_floats = p->points * k->v_step;
    k->base.workspace_bytes = (k->filter_floats + (k->apart ? threads : 1) * k->v_floats +
                               threads * k->m_parts * k->m_floats) *
                              sizeof(float);
}
