// SPDX-License-Identifier: Apache-2.0
// Layout changes by plain loops, for every element size. A tensor is seen as [N, C, S] (S: all
// spatial dimensions together); each (n, c) row is one unit of work, so the rows of a blocked
// tensor's padding are written too.
#include "kernels/cpu/cpu.h"

#include "device/cpu/team.h"

#include <string.h>

typedef struct relayout_job {
    size_t elem;
    size_t n, c, s, rows_c; // rows_c: channels including the destination's padding
    hth_layout from, to;
    const char *src;
    char *dst;
} relayout_job;

static void relayout_row4(uint32_t *restrict d, size_t ds, const uint32_t *restrict s, size_t ss,
                          size_t count)
{
    for (size_t i = 0; i < count; i++) {
        d[i * ds] = s[i * ss];
    }
}

static void relayout_rows(void *arg, int i, int n)
{
    const relayout_job *j = arg;
    size_t begin, end;
    hth_team_range(j->n * j->rows_c, i, n, &begin, &end);
    for (size_t r = begin; r < end; r++) {
        size_t in = r / j->rows_c, c = r % j->rows_c, ds, ss;
        char *d = j->dst + hth_layout_at(j->to, j->c, j->s, in, c, &ds) * j->elem;
        if (c >= j->c) {
            for (size_t k = 0; k < j->s; k++) {
                memset(d + k * ds * j->elem, 0, j->elem);
            }
            continue;
        }
        const char *s = j->src + hth_layout_at(j->from, j->c, j->s, in, c, &ss) * j->elem;
        if (j->elem == 4) {
            relayout_row4((uint32_t *)(void *)d, ds, (const uint32_t *)(const void *)s, ss, j->s);
            continue;
        }
        for (size_t k = 0; k < j->s; k++) {
            memcpy(d + k * ds * j->elem, s + k * ss * j->elem, j->elem);
        }
    }
}

void hth_cpu_relayout(size_t elem, const hth_shape *shape, hth_layout from, const void *src,
                      hth_layout to, void *dst)
{
    relayout_job j = {
        .elem = elem, .n = 1, .c = 1, .s = 1, .from = from, .to = to, .src = src, .dst = dst};
    size_t *const extent[] = {&j.n, &j.c, &j.s};
    for (int k = 0; k < shape->rank; k++) {
        *extent[k < 2 ? k : 2] *= (size_t)shape->dim[k];
    }
    size_t b = (size_t)hth_layout_block(to);
    j.rows_c = b == 0 ? j.c : (j.c + b - 1) / b * b;
    hth_team_run(relayout_rows, &j);
}
