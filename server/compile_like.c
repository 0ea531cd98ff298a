// SPDX-License-Identifier: Apache-2.0
// Algorithms for another batch of a model that has programs. The form of a weight belongs to the
// algorithm that reads it, so a program that takes what the others take reads their copies. What
// that costs it is bounded as a whole: of the operators whose fastest algorithm wants a form that
// nobody has, those that gain most time for a byte take it, until what the others lose is within
// LIKE_LOSS of the time. Engine's thread only.
#include "server/compile.h"

#include "base/alloc.h"

#include <stdlib.h>
#include <string.h>

#define LIKE_LOSS 0.04

void hth_compile_hold(hth_program *p, hth_source *source)
{
    for (hth_program *q = source->programs; q != NULL && p->n_like < HTH_PROGRAMS; q = q->next) {
        if (q->tuned) {
            q->held++;
            p->like[p->n_like++] = q;
        }
    }
}

void hth_compile_rele(hth_program *p)
{
    while (p->n_like > 0) {
        p->like[--p->n_like]->held--;
    }
}

// Algorithms of one family and instruction set ("lowered:amx") whose weights have the same size
// have them in the same form: they differ in how much workspace they take.
static bool like_form(const hth_choice *a, const hth_choice *b)
{
    size_t n = strcspn(a->name, ":"), isa = a->name[n] == ':' ? n + 1 : n;
    n = isa + strcspn(a->name + isa, ":/");
    return strcmp(a->name, b->name) == 0 ||
           (a->resident_bytes == b->resident_bytes && a->resident_bytes > 0 &&
            strncmp(a->name, b->name, n) == 0 && strcspn(b->name + isa, ":/") == n - isa);
}

// The fastest choice of node i that reads a copy that there is; -1: none.
static int like_choice(const hth_program *p, int i, const hth_menu *m)
{
    for (int k = 0; k < m->n; k++) {
        for (int j = 0; j < p->n_like; j++) {
            const hth_program *q = p->like[j];
            if (q->graph->n_nodes == p->graph->n_nodes &&
                q->graph->nodes[i].op == p->graph->nodes[i].op &&
                like_form(&m->list[k], &q->problem.nodes[i].alternatives[0])) {
                return k;
            }
        }
    }
    return -1;
}

typedef struct like_loss {
    int node, k; // its choice that shares
    double us, us_per_byte;
} like_loss;

static int by_loss(const void *a, const void *b)
{
    double x = ((const like_loss *)a)->us_per_byte, y = ((const like_loss *)b)->us_per_byte;
    return (x < y) - (x > y);
}

static void like_take(hth_menu *m, int k)
{
    m->list[0] = m->list[k];
    m->n = 1;
}

hth_err hth_compile_like(const hth_program *p, hth_menu *menus)
{
    int n = 0, own = 0;
    double total = 0, lost = 0;
    like_loss *losses = hth_alloc((size_t)(p->graph->n_nodes + 1) * sizeof *losses);
    if (losses == NULL) {
        return hth_fail(HTH_ENOMEM, "no memory for a program");
    }
    for (int i = 0; i < p->graph->n_nodes; i++) {
        hth_menu *m = &menus[i];
        int k = like_choice(p, i, m);
        double fastest = m->list[0].time_us, us = k > 0 ? m->list[k].time_us - fastest : 0;
        total += fastest > 0 ? fastest : 0;
        if (k > 0 && fastest > 0 && us > 0) {
            losses[n++] = (like_loss){i, k, us, us / ((double)m->list[0].resident_bytes + 1)};
            lost += us;
        } else if (k >= 0) {
            like_take(m, k);
        }
    }
    qsort(losses, (size_t)n, sizeof *losses, by_loss);
    for (; own < n && lost > LIKE_LOSS * total; own++) {
        lost -= losses[own].us;
    }
    for (int j = own; j < n; j++) {
        like_take(&menus[losses[j].node], losses[j].k);
    }
    hth_free(losses);
    return HTH_OK;
}
