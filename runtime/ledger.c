// SPDX-License-Identifier: Apache-2.0
// Every use of a weight is an item {copy, row}; sorted, the items of one copy stand together, and
// those of one row in it: a copy with items of one row is private, with items of several shared.
// The copy is known by the entry in residency, or by where the store maps it.
#include "runtime/ledger.h"

#include "base/alloc.h"
#include "runtime/job_memory.h"

#include <stdlib.h>
#include <string.h>

typedef struct ledger_item {
    const void *copy;
    int row;
    bool resident, held, pinned;
    uint64_t bytes;
} ledger_item;

static int ledger_tenant(hth_ledger *l, const hth_account *a)
{
    int i = 0;
    while (a != NULL && i < l->n_tenants && strcmp(l->tenants[i].name, a->tenant) != 0) {
        i++;
    }
    if (a != NULL && i == l->n_tenants) {
        strcpy(l->tenants[l->n_tenants++].name, a->tenant);
    }
    return a != NULL ? i : -1;
}

// ledger_row is the row of an account; -1: out of memory.
static int ledger_row(hth_ledger *l, const hth_account *a)
{
    hth_ledger_row *r;
    HASH_FIND_PTR(l->by_account, &a, r);
    if (r == NULL) {
        r = &l->rows[l->n];
        *r = (hth_ledger_row){.account = a, .tenant = ledger_tenant(l, a)};
        HASH_ADD_PTR(l->by_account, account, r);
        if (!HTH_HASH_ADDED(r)) {
            return -1;
        }
        l->n++;
    }
    return (int)(r - l->rows);
}

static int by_copy(const void *a, const void *b)
{
    const ledger_item *x = a, *y = b;
    if (x->copy != y->copy) {
        return (uintptr_t)x->copy < (uintptr_t)y->copy ? -1 : 1;
    }
    return x->row - y->row;
}

// Items of one program.
static int ledger_program(const hth_site *site, const hth_program *p, hth_ledger *l, int row,
                          ledger_item *to)
{
    hth_ledger_row *r = &l->rows[row];
    int n = 0;
    r->programs++;
    r->host_bytes += p->plan != NULL ? p->plan->host_bytes : 0;
    if (p->train == NULL && p->arena == NULL && p->plan != NULL &&
        p->plan->arena_bytes > r->arena_bytes) {
        r->arena_bytes = p->plan->arena_bytes;
    }
    if (p->train == NULL && p->arena == NULL && p->active && r->tenant >= 0 &&
        p->plan->arena_bytes > l->tenants[r->tenant].arena_bytes) {
        l->tenants[r->tenant].arena_bytes = p->plan->arena_bytes;
    }
    for (int i = 0; i < p->n_weights; i++) {
        const hth_weight *w = &p->weights[i];
        if (w->in_place) {
            to[n++] = (ledger_item){w->content->data, row, false, p->active, p->pinned, w->bytes};
        } else if (w->streamed) {
            r->streamed_bytes += w->bytes;
            r->host_bytes += w->far.memory != NULL ? w->bytes : 0;
        } else {
            const hth_resident *e = hth_residency_find(site->residency, &w->content->id, w->form);
            if (e != NULL) {
                to[n++] =
                    (ledger_item){e, row, true, w->entry != NULL, p->pinned, hth_resident_bytes(e)};
            }
        }
    }
    return n;
}

// Items of one copy: [0, n).
static void ledger_copy(hth_ledger *l, const ledger_item *x, int n)
{
    bool shared = x[n - 1].row != x[0].row;
    for (int i = 0, next; i < n; i = next) {
        hth_ledger_row *r = &l->rows[x[i].row];
        bool held = false, pinned = false;
        for (next = i; next < n && x[next].row == x[i].row; next++) {
            held = held || x[next].held;
            pinned = pinned || x[next].pinned;
        }
        if (!x->resident) {
            r->mapped_bytes += x->bytes;
            continue;
        }
        *(shared ? &r->shared_bytes : &r->private_bytes) += x->bytes;
        r->held_bytes += held ? x->bytes : 0;
        r->pinned_bytes += pinned ? x->bytes : 0;
    }
    *(!x->resident ? &l->mapped_bytes : shared ? &l->shared_bytes : &l->private_bytes) += x->bytes;
}

// Whether an item before x[i] is of the same tenant.
static bool ledger_seen(const hth_ledger *l, const ledger_item *x, int i)
{
    bool seen = false;
    for (int k = 0; k < i && !seen; k++) {
        seen = l->rows[x[k].row].tenant == l->rows[x[i].row].tenant;
    }
    return seen;
}

// .. and the tenants that use it.
static void ledger_copy_tenants(hth_ledger *l, const ledger_item *x, int n)
{
    int users = 0;
    for (int i = 0; i < n; i++) {
        users += !ledger_seen(l, x, i);
    }
    for (int i = 0; i < n; i++) {
        int t = l->rows[x[i].row].tenant;
        if (t >= 0 && !ledger_seen(l, x, i)) {
            *(users > 1 ? &l->tenants[t].shared_bytes : &l->tenants[t].private_bytes) += x->bytes;
        }
    }
}

static void ledger_sum(const hth_site *site, hth_ledger *l)
{
    hth_residency_stats weights;
    hth_residency_stats_get(site->residency, &weights);
    hth_pool_ledger_get(site->pool, &l->pool);
    l->arena_bytes = site->arena_bytes;
    for (int i = 0; i < l->n; i++) {
        l->job_bytes += l->rows[i].job_bytes;
        l->host_bytes += l->rows[i].host_bytes;
    }
    uint64_t used = 0;
    for (int i = 0; i < HTH_POOL_N_USES; i++) {
        used += l->pool.used_bytes[i];
    }
    l->unclaimed_bytes = weights.resident_bytes - l->private_bytes - l->shared_bytes;
    l->difference = (int64_t)(used - l->private_bytes - l->shared_bytes - l->arena_bytes -
                              l->job_bytes - l->pool.used_bytes[HTH_POOL_WORKSPACE]);
}

// ledger_gather makes the rows and tenants, and the items in `x`, *n of them. HTH_ENOMEM.
static hth_err ledger_gather(const hth_site *site, hth_ledger *out, ledger_item *x, int *n)
{
    for (const hth_program *p = site->programs; p != NULL; p = p->site_next) {
        int row = ledger_row(out, p->account);
        if (row < 0) {
            return hth_fail(HTH_ENOMEM, "no memory for the ledger");
        }
        *n += ledger_program(site, p, out, row, x + *n);
    }
    for (const hth_job_memory *s = site->shares; s != NULL; s = s->next) {
        int row = ledger_row(out, s->account);
        if (row < 0) {
            return hth_fail(HTH_ENOMEM, "no memory for the ledger");
        }
        hth_ledger_row *r = &out->rows[row];
        r->job_bytes += s->point.device_bytes;
        if (r->tenant >= 0) {
            out->tenants[r->tenant].job_bytes += s->point.device_bytes;
        }
    }
    return HTH_OK;
}

hth_err hth_ledger_read(const hth_site *site, hth_ledger *out)
{
    size_t n_items = 1, n_rows = 1;
    int n = 0;
    for (const hth_program *p = site->programs; p != NULL; p = p->site_next) {
        n_rows++;
        n_items += (size_t)p->n_weights;
    }
    for (const hth_job_memory *s = site->shares; s != NULL; s = s->next) {
        n_rows++;
    }
    *out = (hth_ledger){.rows = hth_calloc(n_rows, sizeof *out->rows),
                        .tenants = hth_calloc(n_rows, sizeof *out->tenants)};
    ledger_item *x = hth_calloc(n_items, sizeof *x);
    hth_err err = x != NULL && out->rows != NULL && out->tenants != NULL
                      ? ledger_gather(site, out, x, &n)
                      : hth_fail(HTH_ENOMEM, "no memory for the ledger");
    if (err != HTH_OK) {
        hth_free(x);
        hth_ledger_fini(out);
        return err;
    }
    qsort(x, (size_t)n, sizeof *x, by_copy);
    for (int i = 0, next; i < n; i = next) {
        for (next = i; next < n && x[next].copy == x[i].copy; next++) {
        }
        ledger_copy(out, x + i, next - i);
        if (x[i].resident) {
            ledger_copy_tenants(out, x + i, next - i);
        }
    }
    hth_free(x);
    ledger_sum(site, out);
    return HTH_OK;
}

void hth_ledger_fini(hth_ledger *l)
{
    HASH_CLEAR(hh, l->by_account);
    hth_free(l->rows);
    hth_free(l->tenants);
    *l = (hth_ledger){.n = 0};
}

const hth_ledger_row *hth_ledger_row_of(const hth_ledger *l, const hth_account *a)
{
    hth_ledger_row *r;
    HASH_FIND_PTR(l->by_account, &a, r);
    return r;
}
