// SPDX-License-Identifier: Apache-2.0
// The same bits whatever leaves the device or is computed again: plans of random modes, run as a
// job runs them, with the algorithms of the step that keeps everything, over a link of a set rate,
// too. Losses, parameters, optimizer state and running statistics are compared after several steps.
#include "base/log.h"
#include "planner/plan_decode.h"
#include "planner/plan_test.h"
#include "runtime/compile/compile.h"
#include "tests/rig/trainer_rig.h"

#define SAMPLES      6
#define BITS_STEPS   4
#define RANDOM_PLANS 12
#define LINKED       "cpu:mem=256MiB,threads=1,link=1GB/s"

typedef struct counted { // of all random plans of a model
    int offloads, prefetches, reruns, streamed;
} counted;

// Every Dropout drops half: its masks have to be the same in each run of the node.
static int drop_half(hth_graph *graph)
{
    const float half = 0.5F;
    int n = 0;
    for (int i = 0; i < graph->n_nodes; i++) {
        hth_const *c;
        int value;
        if (graph->nodes[i].op != HTH_OP_DROPOUT || graph->nodes[i].n_inputs < 2) {
            continue;
        }
        assert_ok(hth_const_new(HTH_DT_F32, &(hth_shape){.rank = 0}, &half, &c));
        assert_ok(hth_graph_add_const(graph, NULL, c, &value));
        graph->nodes[i].inputs[1] = value;
        n++;
    }
    return n;
}

static hth_program *program_of(rig *r)
{
    return r->t->shapes[0].apply.program;
}

// The step's problem with only the algorithms that its nodes have now.
static void forced(rig *r, hth_problem *out)
{
    const hth_program *p = program_of(r);
    int *only = calloc((size_t)p->problem.n_nodes, sizeof *only);
    assert_non_null(only);
    for (int i = 0; i < p->plan->n_instrs; i++) {
        if (p->plan->instrs[i].kind == HTH_INSTR_COMPUTE) {
            only[p->plan->instrs[i].node] = p->plan->instrs[i].alt;
        }
    }
    assert_ok(hth_problem_copy(&p->problem, only, out));
    out->budget = UINT64_MAX / 4;
    free(only);
}

// Modes: what the decoder cannot follow it keeps. Frozen weights stay: a job decides on them once.
static uint8_t *random_modes(const hth_step *step)
{
    uint8_t *mode = calloc((size_t)step->n_intervals + 1, 1);
    uint32_t keep = pt_random(4);
    assert_non_null(mode);
    for (int g = 0; g < step->n_intervals; g++) {
        bool weight = step->p->tensors[step->interval[g].tensor].cls == HTH_MEM_WEIGHT;
        mode[g] = weight || pt_random(4) < keep ? HTH_INTERVAL_KEEP
                                                : (uint8_t)pt_random(HTH_N_INTERVAL_MODES);
    }
    return mode;
}

static void count(const hth_plan *plan, int n_tensors, counted *c)
{
    for (int i = 0; i < plan->n_instrs; i++) {
        const hth_instr *in = &plan->instrs[i];
        c->offloads += in->kind == HTH_INSTR_OFFLOAD;
        c->prefetches += in->kind == HTH_INSTR_PREFETCH;
        c->reruns += in->kind == HTH_INSTR_COMPUTE && in->recompute;
    }
    for (int t = 0; t < n_tensors; t++) {
        c->streamed += plan->streamed != NULL && plan->streamed[t];
    }
}

// Puts a plan of random modes in the place of the trainer's.
static void take_random_plan(rig *r, counted *c)
{
    hth_problem p;
    hth_step m;
    hth_decoder d;
    hth_outcome o;
    hth_schedule s;
    hth_plan *plan;
    const hth_program *now = program_of(r);
    uint64_t most = now->plan->arena_bytes + now->plan->resident_bytes;
    forced(r, &p);
    assert_ok(hth_step_init(&m, &p));
    assert_ok(hth_decoder_init(&d, &m, most / 100 * (30 + pt_random(70))));
    uint8_t *mode = random_modes(&m);
    hth_decode(&d, mode, &o);
    assert_ok(hth_decode_schedule(&d, &o, &s));
    assert_ok(hth_plan_emit(&p, &s, true, &plan));
    assert_ok(hth_plan_verify(&p, plan));
    count(plan, p.n_tensors, c);
    free(mode);
    hth_schedule_fini(&s);
    hth_decoder_fini(&d);
    hth_step_fini(&m);
    if (hth_program_replan(&r->site, program_of(r), &p, &plan) != HTH_OK) {
        fail_msg("%s", hth_err_detail());
    }
    hth_trainer_place(r->t, &r->t->shapes[0]);
}

static void same_algorithms(rig *a, rig *b)
{
    hth_problem p, q;
    forced(a, &p);
    forced(b, &q);
    assert_int_equal(p.n_nodes, q.n_nodes);
    for (int i = 0; i < p.n_nodes; i++) {
        assert_string_equal(p.nodes[i].alternatives[0].name, q.nodes[i].alternatives[0].name);
    }
    hth_problem_fini(&p);
    hth_problem_fini(&q);
}

static void check_model(const training *t, bool drops)
{
    rig a, b;
    float want[BITS_STEPS];
    counted c = {0};
    uint64_t random = 0;
    rig_make(&a, t, SAMPLES, HTH_POLICY_KEEP);
    assert_true((drop_half(a.t->model) > 0) == drops);
    rig_prepare(&a);
    for (int i = 0; i < BITS_STEPS; i++) {
        want[i] = rig_step(&a);
    }
    assert_true(want[0] != want[BITS_STEPS - 1]);
    for (int k = 0; k < RANDOM_PLANS; k++) {
        bool linked = k % 2 == 1; // the plans before again, over a link
        random = linked ? random : pt_state;
        pt_state = random;
        rig_make_on(&b, linked ? LINKED : "cpu:mem=256MiB,threads=1", t, SAMPLES, HTH_POLICY_KEEP);
        b.spec.spill = k == 0 ? b.dir : NULL; // what leaves goes to a file
        drop_half(b.t->model);
        rig_prepare(&b);
        same_algorithms(&a, &b);
        for (int i = 0; i < BITS_STEPS; i++) {
            if (i % 2 == 0) { // another plan on the way
                take_random_plan(&b, &c);
            }
            float got = rig_step(&b);
            if (memcmp(&got, &want[i], sizeof got) != 0) {
                fail_msg("%s, plan %d: loss %d is %.9g, not %.9g", t->model, k, i, (double)got,
                         (double)want[i]);
            }
        }
        rig_same_state(&a, &b);
        rig_close(&b);
    }
    rig_close(&a);
    print_message("# %s: %d offloads, %d prefetches, %d nodes again, %d slots away\n", t->model,
                  c.offloads, c.prefetches, c.reruns, c.streamed);
    assert_true(c.offloads > 50 && c.prefetches > 50 && c.reruns > 50 && c.streamed > 20);
}

static void residual_network(void **state)
{
    check_model(&image_net, true);
}

static void transformer(void **state)
{
    check_model(&encoder, true);
}

static void others(void **state)
{
    check_model(&unet, false);
    check_model(&mobile, false);
}

// known_algorithms finds the list that was kept last.
static char *known_algorithms(void)
{
    for (int i = n_known - 1; i >= 0; i--) {
        if (strncmp(known[i].key, "algorithms", 10) == 0) {
            return known[i].value;
        }
    }
    return NULL;
}

// The number of node i, which stands after the budget and what was needed of it.
static char *choice_of(char *text, int i)
{
    for (i += 2; i > 0; i--) {
        text = strchr(text, ' ') + 1;
    }
    return text;
}

static void write_choice(char *text, int i, int choice)
{
    char rest[sizeof known[0].value];
    char *at = choice_of(text, i);
    snprintf(rest, sizeof rest, "%s", strchr(at, ' '));
    snprintf(at, sizeof rest - (size_t)(at - text), "%d%s", choice, rest);
}

// Under a budget of what the kept plan needed and `more`, the step has its algorithms; other NULL:
// it may choose.
static void planned_within(const char *text, int more, int node, const char *other)
{
    rig b;
    char budget[32];
    unsigned long long need;
    assert_int_equal(sscanf(text, "%*u %llu", &need), 1);
    snprintf(budget, sizeof budget, "%llu", need + (unsigned long long)more);
    rig_make(&b, &image_net, SAMPLES, HTH_POLICY_HEARTH);
    b.spec.budget = budget;
    rig_prepare(&b);
    const hth_plan_node *n = &program_of(&b)->problem.nodes[node];
    assert_int_equal(n->n_alternatives == 1, other != NULL);
    if (other != NULL) {
        assert_string_equal(n->alternatives[0].name, other);
    }
    rig_close(&b);
}

// What a step is planned with, the same step gets again, whatever a search would find.
static void planned_again(void **state)
{
    rig a, b;
    char other[sizeof((hth_choice){0}).name];
    int node = 0;
    rig_make(&a, &image_net, SAMPLES, HTH_POLICY_HEARTH);
    n_known = 0;
    rig_prepare(&a);
    const hth_problem *p = &program_of(&a)->problem;
    while (node < p->n_nodes && p->nodes[node].n_alternatives < 2) {
        node++;
    }
    assert_true(node < p->n_nodes);
    char *text = known_algorithms();
    assert_non_null(text);
    long chosen = strtol(choice_of(text, node), NULL, 10), instead = chosen == 0;
    planned_within(text, 0, node, p->nodes[node].alternatives[chosen].name);
    snprintf(other, sizeof other, "%s", p->nodes[node].alternatives[instead].name);
    write_choice(text, node, (int)instead);
    rig_make(&b, &image_net, SAMPLES, HTH_POLICY_HEARTH);
    rig_prepare(&b);
    p = &program_of(&b)->problem;
    assert_string_equal(p->nodes[node].alternatives[0].name, other);
    for (int i = 0; i < p->n_nodes; i++) {
        assert_int_equal(p->nodes[i].n_alternatives, 1);
    }
    rig_close(&b);
    planned_within(text, -1, node, NULL);
    known_algorithms()[0] = 0; // no list: all is chosen anew
    rig_make(&b, &image_net, SAMPLES, HTH_POLICY_HEARTH);
    rig_prepare(&b);
    same_algorithms(&a, &b);
    rig_close(&b);
    write_choice(known_algorithms(), node, 99); // is no candidate: so, too
    rig_make(&b, &image_net, SAMPLES, HTH_POLICY_HEARTH);
    rig_prepare(&b);
    same_algorithms(&a, &b);
    rig_close(&b);
    rig_close(&a);
}

// planned_with_less plans the step within `percent` of its peak; the list that is kept of it, NULL:
// it does not fit.
static const char *planned_with_less(int percent)
{
    rig r;
    char budget[16];
    snprintf(budget, sizeof budget, "%d%%", percent);
    rig_make(&r, &image_net, SAMPLES, HTH_POLICY_HEARTH);
    r.spec.budget = budget;
    hth_err err = hth_trainer_prepare(r.t, &r.input, &r.target);
    rig_close(&r);
    assert_true(err == HTH_OK || err == HTH_ETOOBIG);
    return err == HTH_OK ? known_algorithms() : NULL;
}

static bool has_other_choice(const char *text)
{
    char *end;
    (void)strtoull(text, &end, 10);
    (void)strtoull(end, &end, 10);
    for (const char *at = end; *at == ' ' && at[1] != '\n' && at[1] != ';'; at = end) {
        if (strtol(at, &end, 10) > 0) {
            return true;
        }
    }
    return false;
}

// A plan for less memory leaves its nodes other algorithms than the fastest, and is found again
// all the same: it is looked up by what there was to choose from.
static void planned_again_with_less(void **state)
{
    const char *text = NULL;
    int percent = 90;
    (void)state;
    n_known = 0;
    while (percent > 0 && (text = planned_with_less(percent)) != NULL && !has_other_choice(text)) {
        percent -= 10;
        n_known = 0;
    }
    if (text == NULL) { // the times of a busy machine: nowhere is the fastest algorithm the larger
        skip();
    }
    assert_string_equal(strchr(text, '\n'), "\n");
    text = planned_with_less(percent);
    assert_string_equal(strchr(text, '\n'), "\n"); // nothing was chosen anew
}

// ---- what an earlier search had found

typedef struct searched {
    double us[8]; // of each round
    int n;
} searched;

static void note_round(void *ctx, const hth_log_record *record)
{
    searched *s = ctx;
    if (strcmp(record->event, "plan-round") == 0 && s->n < 8) {
        assert_int_equal(sscanf(record->text, "us=%lf", &s->us[s->n++]), 1);
    }
}

static bool planned_rounds(int percent, searched *out)
{
    out->n = 0;
    return planned_with_less(percent) != NULL && out->n > 0;
}

// The kernels that a plan chose need no other plan: the search for one, with these algorithms
// alone, may find worse. Nor does the same step the next time, which has no more than the plan's
// decisions.
static void planned_no_worse(void **state)
{
    searched s;
    int rounds = 0, again = 0;
    hth_log_sink(note_round, &s);
    assert_ok(hth_log_filter("debug"));
    for (int percent = 91; percent > 0; percent -= 2) {
        n_known = 0;
        if (!planned_rounds(percent, &s)) {
            break;
        }
        for (int i = 1; i < s.n; i++, rounds++) {
            assert_true(s.us[i] <= s.us[i - 1] * (1 + 1e-6));
        }
        double us = s.us[s.n - 1];
        if (percent % 10 != 1) {
            continue;
        }
        assert_true(planned_rounds(percent, &s));
        again += s.us[0] <= us * (1 + 1e-6);
        assert_true(s.us[0] <= us * 1.1);
        char *text = known_algorithms(), *modes = strchr(text, ';'); // damaged: as if it had none
        assert_non_null(modes);
        modes[strlen(modes) - 2] = 'z';
        assert_true(planned_rounds(percent, &s));
    }
    hth_log_sink(NULL, NULL);
    assert_ok(hth_log_filter("info"));
    assert_true(again > 0);
    if (rounds == 0) { // the times of a busy machine: nowhere is the fastest algorithm the larger
        skip();
    }
}

typedef struct written {
    int n;
    int k[200];
} written;

static void note_written(void *ctx, int k, const float *content)
{
    written *w = ctx;
    assert_true(w->n < 200 && content != NULL);
    w->k[w->n++] = k;
}

static void nothing(void *ctx)
{
    (void)ctx;
}

// Who sums over a network begins with the first slot while the pass goes on with the others.
static void check_written_in_order(const training *t)
{
    written w = {0};
    const hth_trainer_watch watch = {.ready = note_written, .between = nothing, .ctx = &w};
    hth_trainer_sums sums;
    float loss;
    rig r;
    rig_make(&r, t, SAMPLES, HTH_POLICY_HEARTH);
    r.spec.group = r.t->group = true;
    rig_prepare(&r);
    assert_ok(hth_trainer_sums_open(r.t, &sums));
    assert_ok(hth_trainer_pass(r.t, 0, &r.input, &r.target, &sums, &watch, &loss));
    assert_int_equal(w.n, sums.n);
    for (int k = 0; k < w.n; k++) {
        assert_int_equal(w.k[k], k);
    }
    hth_trainer_sums_close(&sums);
    rig_close(&r);
}

static void slots_are_written_in_order(void **state)
{
    (void)state;
    check_written_in_order(&image_net);
    check_written_in_order(&clipped);
    check_written_in_order(&unet);
    check_written_in_order(&encoder);
    check_written_in_order(&mobile);
    check_written_in_order(&mlp);
}

// Prepares for the first n of the rig's samples; returns the pass.
static const hth_program *pass_of(rig *r, int64_t n)
{
    hth_tensor input = r->input, target = r->target;
    input.bytes = input.bytes / (size_t)input.shape.dim[0] * (size_t)n;
    target.bytes = target.bytes / (size_t)target.shape.dim[0] * (size_t)n;
    input.shape.dim[0] = target.shape.dim[0] = n;
    assert_ok(hth_trainer_prepare(r->t, &input, &target));
    return hth_trainer_current(r->t)->add.program;
}

static int nodes_measured(void)
{
    int n = 0;
    for (int k = 0; k < n_known; k++) {
        n += strncmp(known[k].key, "convsel", 7) == 0;
    }
    return n;
}

// Each node of a group's shard of `other` samples costs what the first shard's does, in proportion,
// or the same where it is of parameters.
static void check_scaled(int first, int other)
{
    rig r;
    int scaled = 0;
    rig_make(&r, &image_net, first, HTH_POLICY_HEARTH);
    r.spec.group = r.t->group = true;
    rig_prepare(&r);
    int measured = nodes_measured();
    const hth_program *p = hth_trainer_current(r.t)->add.program, *q = pass_of(&r, other);
    assert_int_equal(nodes_measured(), measured);
    assert_int_equal(q->graph->n_nodes, p->graph->n_nodes);
    for (int i = 0; i < q->graph->n_nodes; i++) {
        const hth_choice *a = p->problem.nodes[i].alternatives;
        const hth_choice *b = q->problem.nodes[i].alternatives;
        double us = a->time_us * other / first;
        assert_true(fabs(b->time_us - us) <= 1e-9 * us || b->time_us == a->time_us);
        scaled += b->time_us < a->time_us;
    }
    assert_true(scaled > q->graph->n_nodes / 2);
    rig_close(&r);
}

// Batches of other samples go by what the first one's nodes take, also where they were measured
// meanwhile: a job has the same algorithms whatever others do. Not so a group's shards of many
// times as many, or as few: theirs may be others.
static void other_samples_are_not_measured(void **state)
{
    enum { FIRST = 12, OTHER = 10, FEW = 2, ONE = 1 };
    rig r;
    check_scaled(FIRST, OTHER);
    rig_make(&r, &image_net, OTHER, HTH_POLICY_HEARTH);
    r.spec.group = r.t->group = true;
    rig_prepare(&r);
    int measured = nodes_measured();
    (void)pass_of(&r, FEW);
    assert_true(nodes_measured() > measured);
    rig_close(&r);
    check_scaled(FIRST, OTHER);
    rig_make(&r, &image_net, FIRST, HTH_POLICY_HEARTH); // not in a group: an epoch's last batch
    rig_prepare(&r);
    measured = nodes_measured();
    (void)pass_of(&r, ONE);
    assert_int_equal(nodes_measured(), measured);
    rig_close(&r);
}

static void check_zeros(const float *content, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        assert_true(content[i] == 0);
    }
}

static void zeros_written(void *ctx, int k, const float *content)
{
    const hth_trainer_sums *sums = ctx;
    check_zeros(content, sums->statistic[k] ? 0 : sums->floats[k]);
}

// Another shard has the same samples.
static hth_err sum_of_two(void *ctx, int share, double *values)
{
    const hth_trainer_sums *sums = ctx;
    for (size_t i = 0; i < sums->shares[share]; i++) {
        values[i] *= 2;
    }
    return HTH_OK;
}

static void any_written(void *ctx, int k, const float *content)
{
    (void)ctx;
    (void)k;
    (void)content;
}

// What a kernel sums has the length that the group has room for, or there is no step.
static void sums_of_another_length(void **state)
{
    (void)state;
    hth_trainer_sums sums;
    const hth_trainer_watch watch = {any_written, nothing, sum_of_two, &sums};
    float loss;
    rig r;
    rig_make(&r, &image_net, SAMPLES, HTH_POLICY_HEARTH);
    r.spec.sync_bn = r.spec.group = r.t->group = true;
    rig_prepare(&r);
    assert_ok(hth_trainer_sums_open(r.t, &sums));
    sums.shares[0]--;
    assert_err(hth_trainer_pass(r.t, 0, &r.input, &r.target, &sums, &watch, &loss), HTH_ECORRUPT,
               "sum 0 of the shards has no ");
    hth_trainer_sums_close(&sums);
    rig_close(&r);
}

// A whole batch of labels that weigh nothing counts no samples, though label smoothing has a part
// of the other classes' weights: not for the only member that is left, nor with sync-bn.
static void check_weightless(bool sync_bn, bool alone)
{
    hth_trainer_sums sums;
    const hth_trainer_watch watch = {zeros_written, nothing, sum_of_two, &sums};
    float loss;
    rig r;
    rig_make(&r, &image_net, SAMPLES, HTH_POLICY_HEARTH);
    r.spec.options.label_smoothing = 0.25F;
    r.spec.sync_bn = sync_bn;
    r.spec.group = r.t->group = true;
    r.t->n_weights = 4;
    r.t->weights = hth_calloc(4, sizeof *r.t->weights);
    assert_non_null(r.t->weights);
    r.t->weights[0] = r.t->weights[3] = 1;
    for (int64_t i = 0; i < SAMPLES; i++) {
        ((int64_t *)r.target.data)[i] = 1 + i % 2;
    }
    rig_prepare(&r);
    assert_ok(hth_trainer_sums_open(r.t, &sums));
    assert_int_equal(sums.n_shares > 0, sync_bn);
    assert_ok(hth_trainer_pass(r.t, 0, &r.input, &r.target, &sums, alone ? NULL : &watch, &loss));
    assert_true(loss == 0);
    const void **view = calloc((size_t)r.t->slots.n + 1, sizeof *view);
    assert_non_null(view);
    assert_ok(hth_trainer_slots_view(&r.t->slots, view));
    for (int k = 0; k < sums.n; k++) {
        check_zeros(view[sums.slot[k]], sums.statistic[k] ? 0 : sums.floats[k]);
    }
    hth_trainer_slots_unview(&r.t->slots);
    free((void *)view);
    hth_trainer_sums_close(&sums);
    rig_close(&r);
}

static void labels_that_weigh_nothing(void **state)
{
    (void)state;
    check_weightless(false, true);
    check_weightless(true, true);
    check_weightless(true, false);
}

// A group's member that cannot take as many samples as it is given goes on with what it could: it
// may have to give its state away at once.
static void of_too_many_none(void **state)
{
    rig r;
    float *whole;
    hth_err err = HTH_OK;
    (void)state;
    rig_make(&r, &mlp, SAMPLES, HTH_POLICY_HEARTH);
    r.spec.group = r.t->group = true;
    rig_prepare(&r);
    int64_t n = SAMPLES;
    for (int i = 1; i < HTH_TRAINER_SHAPES; i++) {
        hth_tensor input = rig_batch(n + i, mlp.x, mlp.x_rank, mlp.x_classes);
        hth_tensor target = rig_batch(n + i, mlp.y, mlp.y_rank, mlp.y_classes);
        assert_ok(hth_trainer_prepare(r.t, &input, &target));
        free(input.data);
        free(target.data);
    }
    assert_int_equal(r.t->n_shapes, HTH_TRAINER_SHAPES);
    while (err == HTH_OK) {
        n *= 8;
        hth_tensor input = rig_batch(n, mlp.x, mlp.x_rank, mlp.x_classes);
        hth_tensor target = rig_batch(n, mlp.y, mlp.y_rank, mlp.y_classes);
        err = hth_trainer_prepare(r.t, &input, &target);
        free(input.data);
        free(target.data);
    }
    assert_true(err == HTH_ETOOBIG || err == HTH_ENODEVMEM);
    assert_true(r.t->current >= 0);
    whole = malloc(hth_trainer_whole_bytes(r.t));
    assert_non_null(whole);
    assert_ok(hth_trainer_write(r.t, whole));
    free(whole);
    rig_close(&r);
}

// say_slow has every measured product take a second.
static int say_slow(void)
{
    int n = 0;
    for (int i = 0; i < n_known; i++) {
        char text[sizeof known[0].value] = "", name[48], *rest;
        size_t at = 0;
        unsigned long long workspace, resident;
        int used;
        if (strstr(known[i].key, "Gemm FP32[") == NULL) {
            continue;
        }
        for (char *line = strtok_r(known[i].value, "\n", &rest); line != NULL;
             line = strtok_r(NULL, "\n", &rest)) {
            if (sscanf(line, "%47s %llu %llu %*f%n", name, &workspace, &resident, &used) == 3) {
                at += (size_t)snprintf(text + at, sizeof text - at, "%s %llu %llu 1e6%s\n", name,
                                       workspace, resident, line + used);
                n++;
            }
        }
        strcpy(known[i].value, text);
    }
    return n;
}

// The reference, which nobody measures, is never thought to be faster than what was measured: a
// product of many multiply-adds takes far longer than its bytes.
static void reference_is_slow(void **state)
{
    rig a, b, c;
    int with_reference = 0, node = 0, reference = 0;
    n_known = 0;
    rig_make(&a, &image_net, SAMPLES, HTH_POLICY_HEARTH);
    rig_prepare(&a);
    rig_close(&a);
    assert_true(say_slow() > 0);
    known_algorithms()[0] = 0;
    rig_make(&b, &image_net, SAMPLES, HTH_POLICY_HEARTH);
    rig_prepare(&b);
    const hth_program *p = program_of(&b);
    for (int i = 0; i < p->problem.n_nodes; i++) {
        const hth_plan_node *n = &p->problem.nodes[i];
        for (int k = 1; k < n->n_alternatives; k++) {
            if (strcmp(n->alternatives[k].name, "ref") == 0) {
                assert_true(n->alternatives[k].time_us > n->alternatives[0].time_us);
                with_reference++;
                node = i;
                reference = k;
            }
        }
        assert_string_not_equal(p->kernels[i]->implementation, "ref");
    }
    assert_true(with_reference > 0);
    write_choice(known_algorithms(), node, reference); // as if no memory were left for another
    rig_make(&c, &image_net, SAMPLES, HTH_POLICY_HEARTH);
    rig_prepare(&c);
    const hth_choice *only = program_of(&c)->problem.nodes[node].alternatives;
    assert_string_equal(only->name, "ref");
    assert_true(only->time_us > 1e6);
    rig_close(&c);
    rig_close(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(residual_network),
        cmocka_unit_test(transformer),
        cmocka_unit_test(others),
        cmocka_unit_test(other_samples_are_not_measured),
        cmocka_unit_test(slots_are_written_in_order),
        cmocka_unit_test(of_too_many_none),
        cmocka_unit_test(sums_of_another_length),
        cmocka_unit_test(labels_that_weigh_nothing),
        cmocka_unit_test(planned_again), // last, with the next: they forget measurements
        cmocka_unit_test(planned_again_with_less),
        cmocka_unit_test(planned_no_worse),
        cmocka_unit_test(reference_is_slow),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
