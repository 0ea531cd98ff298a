// SPDX-License-Identifier: Apache-2.0
// The walk: tracks of inputs and constants, then each node by its rule, then what the outputs have
// become. A node whose inputs are MIXED passes the first one's reason on, so that the sentence
// names the node at which the samples met.
#include "graph/independence.h"

#include "graph/follow_impl.h"

#include "base/alloc.h"

#include <stdio.h>
#include <string.h>

// How many bytes the UTF-8 character that begins with `first` has; 0: none does.
static int character_bytes(unsigned char first)
{
    if (first < 0x80) {
        return 1;
    }
    if (first < 0xC2 || first >= 0xF5) {
        return 0;
    }
    if (first < 0xE0) {
        return 2;
    }
    return first < 0xF0 ? 3 : 4;
}

// How many bytes the UTF-8 character at `p` has; 0: it is none, or no text.
static int character(const unsigned char *p)
{
    int n = character_bytes(p[0]);
    for (int i = 1; i < n; i++) {
        if ((p[i] & 0xC0) != 0x80) { // also where the text ends
            return 0;
        }
    }
    bool wide = (p[0] == 0xE0 && p[1] < 0xA0) || (p[0] == 0xF0 && p[1] < 0x90);
    bool none = (p[0] == 0xED && p[1] >= 0xA0) || (p[0] == 0xF4 && p[1] >= 0x90);
    return p[0] < 0x20 || p[0] == 0x7F || wide || none ? 0 : n;
}

// Names are whatever a file has, and were cut: the sentence goes into JSON and to terminals.
static void clean(char *text)
{
    for (char *p = text; *p != 0;) {
        int n = character((const unsigned char *)p);
        *p = n > 0 ? *p : '?';
        p += n > 0 ? n : 1;
    }
}

static void say(hth_independence *out, const hth_graph *graph, const hth_reason *reason)
{
    const hth_node *n = &graph->nodes[reason->node];
    out->node = reason->node;
    if (reason->axis >= 0) {
        snprintf(out->why, sizeof out->why,
                 "node '%.120s' (%s) %s axis %d, which holds the samples", n->name,
                 hth_op_name(n->op), reason->does, reason->axis);
    } else {
        snprintf(out->why, sizeof out->why, "node '%.120s' (%s) %s", n->name, hth_op_name(n->op),
                 reason->does);
    }
}

// ---- inputs

// Why a shape whose first dimension is no symbol has none.
static const char *input_fault(const hth_shape *shape)
{
    if (shape->rank < 0) {
        return "is not known";
    }
    if (shape->rank == 0) {
        return "does not exist";
    }
    return shape->dim[0] < 0 ? "has no name" : "is fixed";
}

// input_symbol finds the symbol of all inputs' first dimensions; -1, with the reason: there is
// none.
static int input_symbol(const hth_graph *graph, hth_independence *out)
{
    int symbol = -1;
    for (int i = 0; i < graph->n_inputs; i++) {
        const hth_value *v = &graph->values[graph->inputs[i]];
        bool has = v->shape.rank > 0 && v->shape.dim[0] <= HTH_DIM_SYMBOL(0);
        if (!has) {
            snprintf(out->why, sizeof out->why, "the first dimension of input '%.120s' %s", v->name,
                     input_fault(&v->shape));
            return -1;
        }
        int s = HTH_DIM_TO_SYMBOL(v->shape.dim[0]);
        if (i > 0 && s != symbol) {
            snprintf(out->why, sizeof out->why,
                     "the first dimensions of inputs '%.80s' ('%.40s') and '%.80s' ('%.40s') "
                     "are not the same",
                     graph->values[graph->inputs[0]].name, graph->symbols[symbol], v->name,
                     graph->symbols[s]);
            return -1;
        }
        symbol = s;
        for (int d = 1; d < v->shape.rank; d++) {
            if (v->shape.dim[d] == v->shape.dim[0]) {
                snprintf(out->why, sizeof out->why,
                         "dimension %d of input '%.120s' is the number of samples ('%.40s'), too",
                         d, v->name, graph->symbols[s]);
                return -1;
            }
        }
    }
    if (graph->n_inputs == 0) {
        snprintf(out->why, sizeof out->why, "the model has no inputs");
    }
    return symbol;
}

static void track_value(hth_follow *follow, int value, bool input)
{
    const hth_value *v = &follow->g->values[value];
    const hth_shape *s = input ? &v->shape : &v->constant->shape;
    hth_track *t = &follow->track[value];
    *t = (hth_track){.kind = input ? HTH_TRACK_SAMPLES : HTH_TRACK_FIXED,
                     .rank = (int8_t)s->rank,
                     .dtype = v->dtype};
    t->outer = t->inner = hth_size_number(follow->sizes, 1);
    for (int d = 0; d < s->rank; d++) {
        if (input && d == 0) {
            t->dim[d] = hth_size_samples(follow->sizes);
        } else if (s->dim[d] >= 0) {
            t->dim[d] = hth_size_number(follow->sizes, s->dim[d]);
        } else if (s->dim[d] <= HTH_DIM_SYMBOL(0)) {
            t->dim[d] = hth_size_open(follow->sizes, HTH_DIM_TO_SYMBOL(s->dim[d]));
        } else {
            t->dim[d] = hth_size_fresh(follow->sizes, true);
        }
    }
}

// ---- nodes

// Is the rule to run? If not, the outputs have their tracks.
static bool may_run(hth_follow *follow, const hth_follow_row *row, bool samples, bool count)
{
    const hth_op_info *info = hth_op_info_of(follow->n->op);
    bool unknown = false;
    if (follow->n_in < info->min_inputs || follow->n_in > info->max_inputs) {
        hth_follow_mixed(follow, "has a wrong number of operands", -1);
        return false;
    }
    for (int i = 0; i < follow->n_in; i++) {
        if (!hth_follow_has(follow, i)) {
            if (i < info->min_inputs) {
                hth_follow_mixed(follow, "lacks an operand", -1);
                return false;
            }
            continue;
        }
        const hth_track *t = hth_follow_in(follow, i);
        bool read = (row->contents >> (i < 32 ? i : 31) & 1) != 0;
        unknown = unknown || t->rank < 0;
        if (samples && t->kind == HTH_TRACK_COUNT && !read) {
            hth_follow_mixed(follow, "computes with the number of samples", -1);
            return false;
        }
    }
    if (!unknown) {
        return true;
    }
    if (samples || count) {
        hth_follow_mixed(follow, "has an operand of unknown rank", -1);
        return false;
    }
    hth_track t = {.kind = HTH_TRACK_FIXED, .rank = -1};
    for (int i = 0; i < follow->n->n_outputs; i++) {
        hth_follow_out(follow, i, &t);
    }
    return false;
}

// What must hold of a track whatever a rule did.
static bool sound(const hth_follow *follow, const hth_track *track)
{
    bool yes = track->kind != HTH_TRACK_NONE;
    for (int d = 0; d < track->rank; d++) {
        bool along = track->kind == HTH_TRACK_SAMPLES && d == track->axis;
        yes = yes && (along || hth_size_steady(follow->sizes, track->dim[d]));
    }
    if (track->kind == HTH_TRACK_SAMPLES) {
        hth_size n = hth_size_mul(follow->sizes, hth_size_samples(follow->sizes), track->outer);
        yes = yes && track->axis >= 0 && track->axis < track->rank &&
              track->dim[track->axis] != HTH_SIZE_OTHER &&
              hth_size_mul(follow->sizes, n, track->inner) == track->dim[track->axis];
    }
    return yes;
}

// Behind the rule: contents, and what is true of every operator.
static void finish(hth_follow *follow, const hth_follow_row *row, bool samples, bool count)
{
    if (!samples) {
        hth_follow_content(follow);
    }
    for (int i = 0; i < follow->n->n_outputs; i++) {
        hth_track *t = follow->n->outputs[i] >= 0 ? &follow->track[follow->n->outputs[i]] : NULL;
        if (t == NULL || t->kind == HTH_TRACK_MIXED) {
            continue;
        }
        bool data = false; // reads the number of samples as data
        for (int k = 0; k < follow->n_in; k++) {
            bool read = (row->contents >> (k < 32 ? k : 31) & 1) != 0;
            data = data || (hth_follow_has(follow, k) && !read &&
                            hth_follow_in(follow, k)->kind == HTH_TRACK_COUNT);
        }
        if (count && t->kind == HTH_TRACK_FIXED && t->n == 0) {
            t->kind = HTH_TRACK_COUNT;
        }
        if (!sound(follow, t) || (t->rank < 0 && t->kind != HTH_TRACK_FIXED) ||
            (t->kind == HTH_TRACK_SAMPLES && data)) {
            hth_follow_mix(follow, i, "makes a shape that depends on the number of samples", -1);
        }
    }
}

// What is computed with samples' numbers, or with what is lost, is lost; but for its shape. Bounds
// are known only after operators that move elements, and those whose rules say so.
static void follow_lost(hth_follow *follow, const hth_follow_row *row)
{
    bool shape = follow->n->op == HTH_OP_SHAPE || follow->n->op == HTH_OP_SIZE, lost = false;
    for (int i = 0; i < follow->n_in && !lost && !shape; i++) {
        if (!hth_follow_has(follow, i) || (follow->n->op == HTH_OP_CAST_LIKE && i == 1)) {
            continue;
        }
        const hth_track *t = hth_follow_in(follow, i);
        bool moved = (row->flags & HTH_FOLLOW_TAKES) != 0 ||
                     ((row->flags & HTH_FOLLOW_MOVES) != 0 && !t->coords);
        lost = t->lost || ((t->index || t->coords) && !moved);
        for (int k = 0; k < follow->n->n_outputs && lost; k++) {
            hth_track *to =
                follow->n->outputs[k] >= 0 ? &follow->track[follow->n->outputs[k]] : NULL;
            if (to != NULL && to->kind != HTH_TRACK_MIXED) {
                hth_follow_lose(follow, to, i);
            }
        }
    }
    for (int k = 0; k < follow->n->n_outputs && row->flags == 0; k++) {
        if (follow->n->outputs[k] >= 0) {
            follow->track[follow->n->outputs[k]].below = HTH_SIZE_OTHER;
        }
    }
}

// Operands of post operations meet the result as element-wise operators' do.
static void follow_post(hth_follow *follow)
{
    for (int i = 0; i < follow->n->n_post; i++) {
        int at = follow->n->post[i].input;
        hth_track *t = &follow->track[follow->n->outputs[0]];
        hth_track joined;
        if (at < 0 || t->kind == HTH_TRACK_MIXED) {
            continue;
        }
        const hth_track *in[2] = {t, &follow->track[follow->n->inputs[at]]};
        if (t->lost || t->index || t->coords || in[1]->kind == HTH_TRACK_MIXED ||
            in[1]->kind == HTH_TRACK_COUNT || in[1]->rank < 0 || in[1]->index || in[1]->coords ||
            in[1]->lost) {
            hth_follow_mixed(follow, "is fused with an operand that depends on other samples", -1);
        } else if (hth_follow_join(follow, in, 2, &joined)) {
            hth_follow_out(follow, 0, &joined);
        }
    }
}

static void visit(hth_follow *follow)
{
    const hth_follow_row *row = hth_follow_row_of(follow->n->op);
    bool samples = false, count = false;
    follow->n_in = follow->n->n_inputs;
    for (int i = 0; i < follow->n->n_post; i++) {
        if (follow->n->post[i].input >= 0 && follow->n->post[i].input < follow->n_in) {
            follow->n_in = follow->n->post[i].input;
        }
    }
    for (int i = 0; i < follow->n->n_inputs; i++) {
        const hth_track *t =
            follow->n->inputs[i] >= 0 ? &follow->track[follow->n->inputs[i]] : NULL;
        if (t != NULL && t->kind == HTH_TRACK_MIXED) {
            for (int k = 0; k < follow->n->n_outputs; k++) {
                hth_follow_out(follow, k, t);
            }
            return;
        }
        samples = samples || (t != NULL && t->kind == HTH_TRACK_SAMPLES);
        count = count || (t != NULL && t->kind == HTH_TRACK_COUNT);
    }
    if (row->rule == NULL) {
        hth_follow_mixed(follow, "is an operator that the analysis of samples does not support",
                         -1);
    } else if (may_run(follow, row, samples, count)) {
        row->rule(follow);
        finish(follow, row, samples, count);
        follow_lost(follow, row);
        follow_post(follow);
    }
}

// ---- outputs

static void check_output(const hth_follow *follow, int value, hth_independence *out)
{
    const hth_track *t = &follow->track[value];
    const char *name = follow->g->values[value].name;
    if (t->kind == HTH_TRACK_MIXED || t->lost) {
        say(out, follow->g, &follow->reasons[t->reason]);
    } else if (t->kind != HTH_TRACK_SAMPLES) {
        snprintf(out->why, sizeof out->why, "output '%.120s' is the same for all samples", name);
    } else if (t->index || t->coords) {
        snprintf(out->why, sizeof out->why, "output '%.120s' has the positions of samples", name);
    } else if (t->axis != 0) {
        snprintf(out->why, sizeof out->why,
                 "output '%.120s' holds the samples along axis %d, not along its first one", name,
                 t->axis);
    } else if (t->dim[0] != hth_size_samples(follow->sizes)) {
        snprintf(out->why, sizeof out->why,
                 "the first dimension of output '%.120s' is not one row for each sample", name);
    }
}

static hth_err prove(hth_follow *follow, hth_independence *out)
{
    const hth_graph *g = follow->g;
    for (int i = 0; i < g->n_values; i++) {
        if (g->values[i].constant != NULL) {
            track_value(follow, i, false);
        }
    }
    for (int i = 0; i < g->n_inputs; i++) {
        track_value(follow, g->inputs[i], true);
    }
    for (int i = 0; i < g->n_nodes && !follow->failed; i++) {
        follow->node = i;
        follow->n = &g->nodes[i];
        if (!follow->n->deleted) {
            visit(follow);
        }
    }
    if (follow->failed || hth_sizes_failed(follow->sizes)) {
        return hth_no_memory("following the samples through a model");
    }
    for (int i = 0; i < g->n_outputs && out->why[0] == 0; i++) {
        check_output(follow, g->outputs[i], out);
    }
    out->proven = out->why[0] == 0;
    return HTH_OK;
}

bool hth_independence_covers(const hth_tensor *inputs, int n, int64_t samples)
{
    bool covers = samples > 0 && samples < 1 << HTH_SIZE_SAMPLES_BITS;
    for (int i = 0; i < n; i++) {
        int64_t elements = samples;
        for (int d = 1; d < inputs[i].shape.rank; d++) {
            int64_t dim = inputs[i].shape.dim[d];
            covers = covers && dim > 0 && !__builtin_mul_overflow(elements, dim, &elements);
        }
        covers = covers && elements <= INT32_MAX;
    }
    return covers;
}

hth_err hth_independence_prove(const hth_graph *graph, hth_independence *out)
{
    *out = (hth_independence){.node = -1};
    if (input_symbol(graph, out) < 0) {
        clean(out->why);
        return HTH_OK;
    }
    hth_follow f = {.g = graph, .sizes = hth_sizes_open()};
    f.track = hth_calloc((size_t)graph->n_values + 1, sizeof *f.track);
    hth_err err = f.sizes != NULL && f.track != NULL
                      ? prove(&f, out)
                      : hth_no_memory("following the samples through a model");
    for (int i = 0; f.track != NULL && i < graph->n_values; i++) {
        hth_free(f.track[i].element);
    }
    clean(out->why);
    hth_free(f.track);
    hth_free(f.reasons);
    hth_sizes_close(f.sizes);
    return err;
}
