// SPDX-License-Identifier: Apache-2.0
// Every use of a weight is an item {copy, row}; sorted, the items of one copy stand together, and
// those of one row in it: a copy with items of one row is private, with items of several shared.
// The copy is known by the entry in residency, or by where the store maps it.
#include "runtime/ledger.h"

#include "base/alloc.h"
#include "runtime/job_memory.h"
#include "runtime/program.h"

#include <stdlib.h>
#include <string.h>

typedef struct ledger_item {
    const void *copy;
    int row;
    bool resident, held, pinned;
    uint64_t bytes;
} ledger_item;

static int ledger_tenant(hth_ledger *ledger, const hth_account *account)
{
    int i = 0;
    while (account != NULL && i < ledger->n_tenants &&
           strcmp(ledger->tenants[i].name, account->tenant) != 0) {
        i++;
    }
    if (account != NULL && i == ledger->n_tenants) {
        strcpy(ledger->tenants[ledger->n_tenants++].name, account->tenant);
    }
    return account != NULL ? i : -1;
}

// ledger_row is the row of an account; -1: out of memory.
static int ledger_row(hth_ledger *ledger, const hth_account *a)
{
    hth_ledger_row *r;
    HASH_FIND_PTR(ledger->by_account, &a, r);
    if (r == NULL) {
        r = &ledger->rows[ledger->n];
        *r = (hth_ledger_row){.account = a, .tenant = ledger_tenant(ledger, a)};
        HASH_ADD_PTR(ledger->by_account, account, r);
        if (!HTH_HASH_ADDED(r)) {
            return -1;
        }
        ledger->n++;
    }
    return (int)(r - ledger->rows);
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
static int ledger_program(const hth_site *site, const hth_program *program, hth_ledger *ledger,
                          int row, ledger_item *to)
{
    hth_ledger_row *r = &ledger->rows[row];
    int n = 0;
    r->programs++;
    r->host_bytes += program->plan != NULL ? program->plan->host_bytes : 0;
    if (program->train == NULL && program->arena == NULL && program->plan != NULL &&
        program->plan->arena_bytes > r->arena_bytes) {
        r->arena_bytes = program->plan->arena_bytes;
    }
    if (program->train == NULL && program->arena == NULL && program->active && r->tenant >= 0 &&
        program->plan->arena_bytes > ledger->tenants[r->tenant].arena_bytes) {
        ledger->tenants[r->tenant].arena_bytes = program->plan->arena_bytes;
    }
    for (int i = 0; i < program->n_weights; i++) {
        const hth_weight *w = &program->weights[i];
        if (w->in_place) {
            to[n++] = (ledger_item){w->content->data, row,     false, program->active,
                                    program->pinned,  w->bytes};
        } else if (w->streamed) {
            r->streamed_bytes += w->bytes;
            r->host_bytes += w->far.memory != NULL ? w->bytes : 0;
        } else {
            const hth_resident *e = hth_residency_find(site->residency, &w->content->id, w->form);
            if (e != NULL) {
                to[n++] = (ledger_item){
                    e, row, true, w->entry != NULL, program->pinned, hth_resident_bytes(e)};
            }
        }
    }
    return n;
}

// Items of one copy: [0, n).
static void ledger_copy(hth_ledger *ledger, const ledger_item *item, int n)
{
    bool shared = item[n - 1].row != item[0].row;
    for (int i = 0, next; i < n; i = next) {
        hth_ledger_row *r = &ledger->rows[item[i].row];
        bool held = false, pinned = false;
        for (next = i; next < n && item[next].row == item[i].row; next++) {
            held = held || item[next].held;
            pinned = pinned || item[next].pinned;
        }
        if (!item->resident) {
            r->mapped_bytes += item->bytes;
            continue;
        }
        *(shared ? &r->shared_bytes : &r->private_bytes) += item->bytes;
        r->held_bytes += held ? item->bytes : 0;
        r->pinned_bytes += pinned ? item->bytes : 0;
    }
    uint64_t *sum = shared ? &ledger->shared_bytes : &ledger->private_bytes;
    *(item->resident ? sum : &ledger->mapped_bytes) += item->bytes;
}

// Whether an item before x[i] is of the same tenant.
static bool ledger_seen(const hth_ledger *ledger, const ledger_item *item, int i)
{
    bool seen = false;
    for (int k = 0; k < i && !seen; k++) {
        seen = ledger->rows[item[k].row].tenant == ledger->rows[item[i].row].tenant;
    }
    return seen;
}

// .. and the tenants that use it.
static void ledger_copy_tenants(hth_ledger *ledger, const ledger_item *item, int n)
{
    int users = 0;
    for (int i = 0; i < n; i++) {
        users += !ledger_seen(ledger, item, i);
    }
    for (int i = 0; i < n; i++) {
        int t = ledger->rows[item[i].row].tenant;
        if (t >= 0 && !ledger_seen(ledger, item, i)) {
            *(users > 1 ? &ledger->tenants[t].shared_bytes : &ledger->tenants[t].private_bytes) +=
                item->bytes;
        }
    }
}

static void ledger_sum(const hth_site *site, hth_ledger *ledger)
{
    hth_residency_stats weights;
    hth_residency_stats_get(site->residency, &weights);
    hth_pool_ledger_get(site->pool, &ledger->pool);
    ledger->arena_bytes = site->arena_bytes;
    for (int i = 0; i < ledger->n; i++) {
        ledger->job_bytes += ledger->rows[i].job_bytes;
        ledger->host_bytes += ledger->rows[i].host_bytes;
    }
    uint64_t used = 0;
    for (int i = 0; i < HTH_POOL_N_USES; i++) {
        used += ledger->pool.used_bytes[i];
    }
    ledger->unclaimed_bytes = weights.resident_bytes - ledger->private_bytes - ledger->shared_bytes;
    ledger->difference =
        (int64_t)(used - ledger->private_bytes - ledger->shared_bytes - ledger->arena_bytes -
                  ledger->job_bytes - ledger->pool.used_bytes[HTH_POOL_WORKSPACE]);
}

// ledger_gather makes the rows and tenants, and the items in `item`, *n of them. HTH_ENOMEM.
static hth_err ledger_gather(const hth_site *site, hth_ledger *out, ledger_item *item, int *n)
{
    for (const hth_program *p = site->programs; p != NULL; p = p->site_next) {
        int row = ledger_row(out, p->account);
        if (row < 0) {
            return hth_no_memory("the ledger");
        }
        *n += ledger_program(site, p, out, row, item + *n);
    }
    for (const hth_job_memory *s = site->shares; s != NULL; s = s->next) {
        int row = ledger_row(out, s->account);
        if (row < 0) {
            return hth_no_memory("the ledger");
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
                      : hth_no_memory("the ledger");
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

void hth_ledger_fini(hth_ledger *ledger)
{
    HASH_CLEAR(hh, ledger->by_account);
    hth_free(ledger->rows);
    hth_free(ledger->tenants);
    *ledger = (hth_ledger){.n = 0};
}

const hth_ledger_row *hth_ledger_row_of(const hth_ledger *ledger, const hth_account *account)
{
    hth_ledger_row *r;
    HASH_FIND_PTR(ledger->by_account, &account, r);
    return r;
}
