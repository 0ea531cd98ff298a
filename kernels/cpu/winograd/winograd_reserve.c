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
static void reserve_rolling(hth_wino_kernel *kernel, size_t budget)
{
    const hth_wino_plan *p = &kernel->p;
    size_t threads = (size_t)kernel->n_threads, width = HTH_WINO_PANEL * p->isa->lanes;
    size_t cached = hth_wino_min(budget / 7 / threads, WINO_ROLL / sizeof(float));
    size_t fits = cached / (p->points * hth_wino_point(p->isa->block, width));
    kernel->depth = reserve_even(p->grid.ib, fits > 0 ? fits : 1);
    kernel->block_floats = p->points * hth_wino_point(kernel->depth * p->isa->block, width);
    kernel->filter_floats = threads * kernel->block_floats;
    size_t fixed = kernel->filter_floats, row = p->points * p->grid.ib * p->isa->block;
    bool several = kernel->depth < p->grid.ib;
    if (several) {
        row += threads * p->points * width;
    } else {
        fixed += threads * hth_wino_scratch(p->isa, p->points, WINO_PART);
    }
    size_t most = budget > fixed ? (budget - fixed) / row : 0;
    kernel->chunk = reserve_even(p->grid.tiles, most < WINO_MIN / 2 ? WINO_MIN / 2 : most);
    kernel->part = reserve_even(kernel->chunk, WINO_PART);
    kernel->m_parts = several ? (kernel->chunk + kernel->part - 1) / kernel->part : 1;
    kernel->m_floats = hth_wino_scratch(p->isa, p->points, kernel->part);
}

// Constant filters, or those that the workspace holds: M's, what is left for V.
static void reserve_whole(hth_wino_kernel *kernel, size_t budget)
{
    const hth_wino_plan *p = &kernel->p;
    size_t threads = (size_t)kernel->n_threads, rows = p->isa->rows;
    size_t row = p->points * p->grid.ib * p->isa->block;
    kernel->filter_floats = kernel->packed ? 0 : kernel->u_floats;
    size_t fixed = kernel->filter_floats;
    kernel->depth = p->grid.ib;
    kernel->m_parts = 1;
    kernel->part = (WINO_PART + rows - 1) / rows * rows;
    while (kernel->part > rows &&
           (threads + 1) * hth_wino_scratch(p->isa, p->points, kernel->part) + WINO_MIN * row +
                   fixed >
               budget) {
        kernel->part -= rows;
    }
    size_t share = (p->grid.tiles + threads - 1) / threads;
    kernel->part = hth_wino_min(kernel->part, p->grid.tiles);
    kernel->m_floats = hth_wino_scratch(p->isa, p->points, kernel->part);
    fixed += threads * kernel->m_floats;
    size_t most = budget > fixed ? (budget - fixed) / row : 0;
    most = most < WINO_MIN / 2 ? WINO_MIN / 2 : most;
    kernel->apart = kernel->u_floats * sizeof(float) <= WINO_APART && share >= WINO_MIN &&
                    most / threads >= WINO_MIN / 2;
    if (kernel->apart) {
        size_t cached = WINO_CACHED / sizeof(float) / row;
        most = hth_wino_min(most / threads, cached < WINO_MIN ? WINO_MIN : cached);
    }
    kernel->chunk = reserve_even(kernel->apart ? share : p->grid.tiles, most);
}

void hth_wino_reserve(hth_wino_kernel *kernel)
{
    const hth_wino_plan *p = &kernel->p;
    size_t threads = (size_t)kernel->n_threads, budget = p->bytes / sizeof(float);
    kernel->rolling = !kernel->packed &&
                      kernel->u_floats > hth_wino_min(budget * 5 / 8, WINO_WHOLE / sizeof(float));
    if (kernel->rolling) {
        reserve_rolling(kernel, budget);
    } else {
        reserve_whole(kernel, budget);
    }
    kernel->v_step = p->grid.ib * kernel->chunk * p->isa->block + HTH_WINO_LINE;
    kernel->v_floats = p->points * kernel->v_step;
    kernel->base.workspace_bytes =
        (kernel->filter_floats + (kernel->apart ? threads : 1) * kernel->v_floats +
         threads * kernel->m_parts * kernel->m_floats) *
        sizeof(float);
}
