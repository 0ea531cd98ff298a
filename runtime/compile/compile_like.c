// SPDX-License-Identifier: Apache-2.0
// One set of forms of weights for all programs of a model. The form of a weight belongs to the
// algorithm that reads it, so a program takes, of the algorithms that read the copies that its
// fellows have, each node's fastest.
//
// A program with measured algorithms may change the set: where other forms make the mix of batches
// faster by LIKE_GAIN, it takes those, and its fellows are made again for them (`stale`). So there
// are never two sets for long, whatever was measured when.
//
// Forms are told by prepared kernels, which is exact. What fellows would take for another form is
// estimated from the names of their measured algorithms. Engine's thread only.
#include "runtime/compile/compile_impl.h"

#include "base/alloc.h"
#include "runtime/tenants/quota.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define LIKE_GAIN 0.04

// ---- fellows

// Whose forms count: those of pinned programs, which stay, else of measured ones, else of any. A
// program that is measured follows no other that is not. One with p's own inputs is replaced by it.
typedef enum like_rank { LIKE_NONE, LIKE_ANY, LIKE_TUNED, LIKE_PINNED } like_rank;

static like_rank like_rank_of(const hth_program *p, const hth_program *q)
{
    if (q->pinned) {
        return LIKE_PINNED;
    }
    if (q->stale) {
        return LIKE_NONE;
    }
    if (q->tuned) {
        return LIKE_TUNED;
    }
    return p->tuned ? LIKE_NONE : LIKE_ANY;
}

void hth_compile_hold(hth_program *program, hth_source *source)
{
    int n = source->graph->n_inputs;
    like_rank most = LIKE_NONE;
    for (hth_program *q = source->programs; q != NULL; q = q->next) {
        like_rank rank =
            hth_program_takes(q, program->key, n) ? LIKE_NONE : like_rank_of(program, q);
        most = rank > most ? rank : most;
    }
    for (hth_program *q = source->programs; q != NULL && program->n_like < HTH_PROGRAMS;
         q = q->next) {
        if (most != LIKE_NONE && like_rank_of(program, q) == most &&
            !hth_program_takes(q, program->key, n)) {
            q->held++;
            program->like[program->n_like++] = q;
        }
    }
    program->leads = program->tuned && most == LIKE_NONE;
}

void hth_compile_release(hth_program *program)
{
    while (program->n_like > 0) {
        program->like[--program->n_like]->held--;
    }
}

hth_like hth_compile_has(const hth_program *program, const hth_id *content, const char *form)
{
    hth_like has = HTH_LIKE_UNKNOWN;
    for (int i = 0; i < program->n_weights; i++) {
        const hth_weight *w = &program->weights[i];
        if (!w->in_place && hth_id_equal(&w->content->id, content)) {
            has = strcmp(w->form, form) == 0 ? HTH_LIKE_SAME : has;
            has = has == HTH_LIKE_UNKNOWN ? HTH_LIKE_OTHER : has;
        }
    }
    return has;
}

// like_extra is what p's forms add to those that q has of the same weights.
static uint64_t like_extra(const hth_program *p, const hth_program *q)
{
    uint64_t bytes = 0;
    for (int i = 0; i < p->n_weights; i++) {
        const hth_weight *w = &p->weights[i];
        bool other = !w->in_place && !w->streamed &&
                     hth_compile_has(q, &w->content->id, w->form) == HTH_LIKE_OTHER;
        bytes += other ? w->bytes : 0;
    }
    return bytes;
}

uint64_t hth_program_extra(const hth_program *program)
{
    uint64_t most = 0;
    for (const hth_program *q = program->source->programs; q != NULL; q = q->next) {
        uint64_t bytes = q == program || q->stale ? 0 : like_extra(program, q);
        most = bytes > most ? bytes : most;
    }
    return most;
}

// Weights of p that are not on the device.
static uint64_t room_missing(const hth_site *site, const hth_program *p)
{
    uint64_t bytes = 0;
    for (int i = 0; i < p->n_weights; i++) {
        const hth_weight *w = &p->weights[i];
        bool there = w->in_place || w->streamed ||
                     hth_residency_find(site->residency, &w->content->id, w->form) != NULL;
        bytes += there ? 0 : w->bytes;
    }
    return bytes;
}

bool hth_program_room(const hth_site *site, const hth_program *program)
{
    hth_pool_ledger l;
    hth_pool_ledger_get(site->pool, &l);
    uint64_t arena = program->plan->arena_bytes,
             more = arena > site->arena_bytes ? arena - site->arena_bytes : 0;
    uint64_t extra = hth_program_extra(program), missing = room_missing(site, program);
    return more + (missing > extra ? missing : extra) <= l.free_bytes;
}

// Those that are made again serve until then, where both sets have room for so long.
void hth_compile_lead(hth_site *site, const hth_program *program)
{
    bool room = program->leads && site->shares == NULL && hth_program_room(site, program) &&
                hth_quota_limit(site, program->account) == UINT64_MAX;
    for (hth_program *q = program->source->programs; program->leads && q != NULL; q = q->next) {
        if (q == program || q->pinned || q->budget > program->budget ||
            like_extra(q, program) == 0) {
            continue;
        }
        q->stale = true;
        if (!room && !q->running && q->held == 0) {
            hth_program_evict(site, q);
        }
    }
}

// ---- the fastest of the algorithms that read what is there

static bool like_tolerated(const hth_site *site, const hth_graph *graph, const hth_choice *choice)
{
    return !isnan(choice->error) &&
           !(choice->error > hth_convsel_tolerance(graph, site->tolerance));
}

// like_known lists all measured algorithms of a node that may be taken, fastest first; 0: not
// measured. A menu has less: what another form undercuts is not on the front.
static int like_known(const hth_site *site, const hth_graph *graph, int i, hth_choice *list)
{
    char key[HTH_CONVSEL_KEY];
    int kept = 0;
    hth_convsel_key(site->device, graph, &graph->nodes[i], NULL, key, sizeof key);
    int n = hth_convsel_alone(site->timings, key, list, HTH_MAX_CHOICES);
    for (int k = 0; k < n; k++) {
        if (like_tolerated(site, graph, &list[k])) {
            list[kept++] = list[k];
        }
    }
    return kept;
}

// like_menu lists what node i may take, fastest first; runs alongside each other the same as the
// whole one's before all.
static int like_menu(const hth_site *site, const hth_program *program, int i, const hth_menu *menu,
                     hth_choice *list)
{
    int n = like_known(site, program->graph, i, list);
    if (n == 0) {
        n = menu->n;
        memcpy(list, menu->list, (size_t)n * sizeof *list);
    }
    for (int k = 1; k < n && program->threads > 0; k++) {
        if (strcmp(list[k].name, program->like[0]->problem.nodes[i].alternatives[0].name) == 0) {
            hth_choice c = list[0];
            list[0] = list[k];
            list[k] = c;
        }
    }
    return n;
}

// like_there says that fellows have the forms of constants that node i's prepared kernel reads.
static bool like_there(const hth_site *site, const hth_program *program, int i)
{
    const hth_node *n = &program->graph->nodes[i];
    for (int s = 0; s < n->n_inputs; s++) {
        const hth_const *c =
            n->inputs[s] < 0 ? NULL : program->graph->values[n->inputs[s]].constant;
        const char *form = hth_compile_form(program->kernels[i], s);
        bool has = c == NULL || hth_compile_in_place(site, c, form), other = false;
        for (int k = 0; k < program->n_like && !has; k++) {
            hth_like like = hth_compile_has(program->like[k], &c->id, form);
            has = like == HTH_LIKE_SAME;
            other = other || like == HTH_LIKE_OTHER;
        }
        if (!has && other) {
            return false;
        }
    }
    return true;
}

static bool like_asks(const hth_program *program, int i, const hth_menu *menu)
{
    const hth_node *n = &program->graph->nodes[i];
    bool constant = false;
    for (int s = 0; s < n->n_inputs; s++) {
        constant = constant ||
                   (n->inputs[s] >= 0 && program->graph->values[n->inputs[s]].constant != NULL);
    }
    return constant && strcmp(menu->list[0].name, "default") != 0;
}

// like_find prepares the fastest choice of node i that reads what is there; *found: there is one.
static hth_err like_find(hth_site *site, hth_program *program, int i, const hth_menu *menu,
                         hth_choice *out, bool *found)
{
    hth_choice list[HTH_MAX_CHOICES];
    int n = like_menu(site, program, i, menu, list);
    *found = false;
    for (int k = 0; k < n && !*found; k++) {
        hth_err err = hth_compile_kernel(site, program, i, list[k].name);
        HTH_TRY(err == HTH_ENOTSUP ? HTH_OK : err);
        *found = err == HTH_OK && like_there(site, program, i);
        *out = list[k];
    }
    return HTH_OK;
}

// ---- another set

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

// The time of the fastest in the form of `form`.
static double like_time(const hth_choice *list, int n, const hth_choice *form)
{
    int k = 0;
    while (k < n && !like_form(form, &list[k])) {
        k++;
    }
    return k < n ? list[k].time_us : INFINITY;
}

typedef struct like_node {
    bool found;
    hth_choice shared, other; // other: the best of another form, where gain > 0
    double gain;
} like_node;

typedef struct like_list { // of a node of one program
    double runs;           // what it counts for
    int n;
    hth_choice list[HTH_MAX_CHOICES];
} like_list;

static double like_samples(const hth_program *program)
{
    return program->graph->n_inputs > 0 && program->key[0].shape.rank > 0 &&
                   program->key[0].shape.dim[0] > 0
               ? (double)program->key[0].shape.dim[0]
               : 1;
}

// Fellows count for the samples that they ran, all of them together for at least one; program for
// as many as its fellows: the more it gains, the more will be joined in it.
static void like_mix(const hth_program *program, like_list *list)
{
    double all = 0;
    for (int k = 0; k < program->n_like; k++) {
        all += (double)program->like[k]->runs * like_samples(program->like[k]);
    }
    for (int k = 0; k < program->n_like; k++) {
        list[k + 1].runs =
            all > 0 ? (double)program->like[k]->runs : 1 / like_samples(program->like[k]);
    }
    list[0].runs = (all > 0 ? all : program->n_like) / like_samples(program);
}

// like_gain is what the mix gains in node i when it is read in the form of `other`.
static double like_gain(const like_list *list, int n, const hth_choice *shared,
                        const hth_choice *other)
{
    double gain = list[0].runs * (shared->time_us - other->time_us);
    for (int k = 1; k <= n; k++) {
        double then = like_time(list[k].list, list[k].n, other);
        double now = like_time(list[k].list, list[k].n, shared);
        if (list[k].n > 0 && isinf(then)) {
            return -INFINITY;
        }
        gain += list[k].n > 0 && !isinf(now) ? list[k].runs * (now - then) : 0;
    }
    return gain;
}

// like_weigh finds the form that is best for node i of the whole mix; *total: the mix's time in it
// as it is.
static void like_weigh(const hth_site *site, const hth_program *program, int i, like_list *list,
                       like_node *node, double *total)
{
    list[0].n = like_known(site, program->graph, i, list[0].list);
    for (int k = 1; k <= program->n_like; k++) {
        const hth_program *q = program->like[k - 1];
        bool alike = q->graph->n_nodes == program->graph->n_nodes &&
                     q->graph->nodes[i].op == program->graph->nodes[i].op;
        list[k].n = alike ? like_known(site, q->graph, i, list[k].list) : 0;
        double now = like_time(list[k].list, list[k].n, &node->shared);
        *total += list[k].n > 0 && !isinf(now) ? list[k].runs * now : 0;
    }
    *total += list[0].runs * node->shared.time_us;
    for (int k = 0; k < list[0].n; k++) {
        double gain = like_form(&list[0].list[k], &node->shared)
                          ? 0
                          : like_gain(list, program->n_like, &node->shared, &list[0].list[k]);
        if (gain > node->gain) {
            node->gain = gain;
            node->other = list[0].list[k];
        }
    }
}

// like_reconsider has program take other forms where that makes the mix faster by LIKE_GAIN as a
// whole.
static hth_err like_reconsider(hth_site *site, hth_program *program, like_node *node)
{
    double total = 0, gain = 0;
    like_list *x = hth_calloc((size_t)program->n_like + 1, sizeof *x);
    if (x == NULL) {
        return hth_no_memory("a program");
    }
    like_mix(program, x);
    for (int i = 0; i < program->graph->n_nodes; i++) {
        if (node[i].found && node[i].shared.time_us > 0) {
            like_weigh(site, program, i, x, &node[i], &total);
            gain += node[i].gain;
        }
    }
    hth_free(x);
    program->leads = gain > 0 && gain >= LIKE_GAIN * total;
    for (int i = 0; i < program->graph->n_nodes && program->leads; i++) {
        if (node[i].gain > 0) {
            HTH_TRY(hth_compile_kernel(site, program, i, node[i].other.name));
            node[i].shared = node[i].other;
        }
    }
    return HTH_OK;
}

// like_free says that program may change the set: none of its fellows stays, or has more memory.
static bool like_free(const hth_program *program)
{
    bool may = program->tuned && program->threads == 0 && program->n_like > 0;
    for (int k = 0; k < program->n_like; k++) {
        may = may && !program->like[k]->pinned && program->like[k]->budget <= program->budget;
    }
    return may;
}

hth_err hth_compile_like(hth_site *site, hth_program *program, hth_menu *menus)
{
    int n = program->graph->n_nodes;
    if (program->n_like == 0) {
        return HTH_OK;
    }
    like_node *node = hth_calloc((size_t)n + 1, sizeof *node);
    hth_err err = node == NULL ? hth_no_memory("a program") : HTH_OK;
    for (int i = 0; i < n && err == HTH_OK; i++) {
        (void)hth_work_point(site->queue);
        if (like_asks(program, i, &menus[i])) {
            err = like_find(site, program, i, &menus[i], &node[i].shared, &node[i].found);
        }
    }
    if (err == HTH_OK && like_free(program)) {
        err = like_reconsider(site, program, node);
    }
    for (int i = 0; i < n && err == HTH_OK; i++) {
        if (node[i].found) {
            menus[i].list[0] = node[i].shared;
            menus[i].n = 1;
            menus[i].prepared = true;
        }
    }
    hth_free(node);
    return err;
}
