// SPDX-License-Identifier: Apache-2.0
// Held-out data: what an evaluation says is what the published model's answers say, whatever the
// batch; what is held out is not trained on; an interrupted job repeats its evaluations.
#include "base/alloc.h"
#include "engine/serve/infer.h"
#include "engine/train/train_eval.h"
#include "tests/rig/trainer_rig.h"

// The element of `tensor` that may lie anywhere.
static double element(const hth_tensor *tensor, int64_t i)
{
    float f;
    int64_t n;
    memcpy(&f, (const char *)tensor->data + 4 * i, sizeof f);
    if (tensor->dtype == HTH_DT_F32) {
        return (double)f;
    }
    memcpy(&n, (const char *)tensor->data + 8 * i, sizeof n);
    return (double)n;
}

typedef struct score {
    double loss, right; // sums ..
    int64_t n;          // .. over so many labels or elements
} score;

// Adds the score of answers to the samples of `y` from `from` on.
static void score_add(const training *t, const hth_tensor *z, const hth_tensor *y, int64_t from,
                      score *s)
{
    int64_t inner = hth_shape_elements(&y->shape) / y->shape.dim[0], n = z->shape.dim[0] * inner;
    int ignored;
    bool bits;
    targets_of(t, &bits, &ignored);
    bool last = z->shape.rank > 2 && z->shape.dim[z->shape.rank - 1] == t->y_classes;
    for (int64_t i = 0; i < n; i++) {
        double want = element(y, from * inner + i), exps = 0, best = -1e9, at = 0, own = 0;
        if (bits) {
            double p = 1 / (1 + exp(-element(z, i)));
            s->loss -= want > 0 ? log(p) : log(1 - p);
            s->right += (p > 0.5) == (want > 0);
            continue;
        }
        if (t->y_classes == 0) {
            s->loss += pow(element(z, i) - want, 2);
            continue;
        }
        if (want < 0) {
            s->n--;
            continue;
        }
        for (int64_t k = 0; k < t->y_classes; k++) {
            double v = element(z, last ? i * t->y_classes + k
                                       : (i / inner * t->y_classes + k) * inner + i % inner);
            exps += exp(v);
            own = (double)k == want ? v : own;
            at = v > best ? (double)k : at;
            best = v > best ? v : best;
        }
        s->loss += log(exps) - own;
        s->right += at == want;
    }
    s->n += n;
}

// What model "result" answers to all samples, `batch` in a request (0: all of them).
static void serve(fixture *f, const training *t, const char *path, int64_t batch, double *loss,
                  double *accuracy)
{
    hth_dataset d;
    score s = {0, 0, 0};
    assert_ok(hth_dataset_open(path, &d));
    const hth_dataset_tensor *x = hth_dataset_find(&d, "x"), *y = hth_dataset_find(&d, "y");
    int64_t all = x->t.shape.dim[0];
    size_t one = x->t.bytes / (size_t)all;
    for (int64_t at = 0; at<all; at += batch> 0 ? batch : all) {
        hth_request_tensor in = {.t = x->t};
        in.t.shape.dim[0] = batch > 0 && batch < all - at ? batch : all - at;
        in.t.bytes = one * (size_t)in.t.shape.dim[0];
        in.t.data = malloc(in.t.bytes);
        memcpy(in.t.data, (const char *)x->t.data + (size_t)at * one, in.t.bytes);
        call c = {.r = {.model = "result", .inputs = &in, .n_inputs = 1}};
        assert_ok(call_run(f->engine, &c));
        score_add(t, &c.out[0], &y->t, at, &s);
        free(c.out[0].data);
        free(in.t.data);
    }
    *loss = s.loss / (double)s.n;
    *accuracy = s.right / (double)s.n;
    hth_dataset_close(&d);
}

static void check_evaluation(const training *t, int batch, const char *budget)
{
    fixture f;
    char data[200], more[400];
    double want[STEPS], loss, accuracy;
    hth_err err;
    fixture_open(&f, "cpu:mem=256MiB,threads=2");
    prepare(&f, t, data);
    snprintf(more, sizeof more, "{\"eval\": \"%s\", \"epochs\": 2, \"batch\": %d%s}", data, batch,
             budget);
    json_t *doc = train(&f, arguments_of(t, data, more, want), &err);
    if (doc == NULL) {
        fail_msg("%s: %s", t->model, hth_err_detail());
    }
    serve(&f, t, data, 0, &loss, &accuracy);
    const json_t *held = json_object_get(doc, "held_out"), *last = json_array_get(held, 1);
    assert_int_equal(json_array_size(held), 2);
    assert_int_equal(json_integer_value(json_object_get(last, "epoch")), 2);
    assert_string_equal(json_string_value(json_object_get(last, "set")), "eval");
    double got = json_number_value(json_object_get(last, "loss"));
    const json_t *perplexity = json_object_get(last, "perplexity");
    assert_int_equal(perplexity != NULL, t->y_classes > 0);
    if (t->y_classes > 0) { // of plain cross-entropy, for any training loss
        assert_true(fabs(log(json_number_value(perplexity)) - loss) <= 1e-5 * (1 + loss));
    }
    assert_int_equal(json_object_get(last, "top5") != NULL, t->y_classes > 5);
    got = t == &tokens ? loss : got; // .. with weights and label smoothing
    if (fabs(got - loss) > 1e-5 * (1 + loss)) {
        fail_msg("%s, batches of %d: %g, served %g", t->model, batch, got, loss);
    }
    assert_int_equal(json_object_get(last, "accuracy") != NULL, t->y_classes > 0 || t == &mlp_bce);
    if (t->y_classes > 0 || t == &mlp_bce) {
        got = json_number_value(json_object_get(last, "accuracy"));
        assert_true(fabs(got - accuracy) < 0.01);
    }
    json_decref(doc);
    fixture_close(&f);
}

static void evaluations_are_what_is_served(void **state)
{
    check_evaluation(&mlp, 4, "");
    check_evaluation(&mlp_inference, 7, "");
    check_evaluation(&encoder, 5, ", \"budget\": \"80%\"");
    check_evaluation(&image_net, 24, "");
    check_evaluation(&unet, 7, ", \"budget\": \"80%\"");
    check_evaluation(&mobile, 7, "");
    check_evaluation(&tokens, 7, "");
    check_evaluation(&mlp_bce, 5, "");
}

static const training joined = {"joined", {3, 12, 12}, 4, 0, {0}, 1, 4, 0};

// Of samples that depend on each other the batches are evaluated that are trained on.
static void joined_samples_are_evaluated_as_trained(void **state)
{
    static const char *const budget[] = {"", ", \"budget\": \"45%\""};
    fixture f;
    char data[200], more[400];
    double want[STEPS], loss, accuracy, together;
    hth_err err;
    fixture_open(&f, "cpu:mem=256MiB,threads=2");
    put(f.store, "joined", "tests/data/train/joined.onnx");
    prepare(&f, &image_net, data);
    for (int k = 0; k < 2; k++) {
        snprintf(more, sizeof more, "{\"model\": \"joined\", \"eval\": \"%s\", \"batch\": 5%s}",
                 data, budget[k]);
        json_t *doc = train(&f, arguments_of(&image_net, data, more, want), &err);
        if (doc == NULL) {
            fail_msg("%s", hth_err_detail());
        }
        serve(&f, &image_net, data, 5, &loss, &accuracy);
        serve(&f, &image_net, data, 0, &together, &accuracy);
        const json_t *held = json_array_get(json_object_get(doc, "held_out"), 0);
        assert_true(fabs(json_number_value(json_object_get(held, "loss")) - loss) < 1e-5);
        assert_true(fabs(together - loss) > 1e-3); // of 24 samples at once it is another one
        json_decref(doc);
    }
    fixture_close(&f);
}

// Evaluates data in batches of `batch`, in the memory that the rig's steps have.
static hth_err evaluate(rig *r, const char *data, int64_t batch, double *loss)
{
    hth_train_spec spec = r->spec;
    hth_train_part part = {data, batch, 0, 0, false, &r->site, -1, NULL, NULL, NULL, NULL};
    hth_train_data d = {.n_inputs = 0};
    hth_request q = {.command = HTH_COMMAND_TRAIN};
    hth_evaluator *e;
    hth_model *m;
    bool done = false;
    json_t *found = NULL;
    spec.batch = batch;
    assert_ok(hth_model_find(&r->models, "net", &m));
    assert_ok(hth_train_data_open(&part, m, &d));
    HTH_TRY(hth_evaluator_open(&r->models, &spec, r->t, &d, &q, &e));
    while (!done) {
        assert_ok(hth_evaluator_slice(e, &done, &found));
    }
    *loss = json_number_value(json_object_get(found, "loss"));
    json_decref(found);
    hth_evaluator_close(e);
    return HTH_OK;
}

// In the memory of a step of one sample: more are evaluated in smaller batches, unless that would
// be another model's loss.
// With which budget a batch has no room depends on the CPU's algorithms: the next, smaller one, or
// no plan, which fails.
static void rig_squeeze(rig *r)
{
    static char budget[24];
    snprintf(budget, sizeof budget, "%llu", (unsigned long long)r->t->memory_bytes / 16 * 15);
    r->spec.budget = budget;
    assert_ok(hth_trainer_replan(r->t));
    rig_prepare(r);
}

static void joined_samples_are_never_halved(void **state)
{
    fixture f;
    char data[200];
    double whole, halved;
    fixture_open(&f, "cpu:mem=64MiB,threads=1");
    prepare(&f, &image_net, data);
    for (int k = 0; k < 2; k++) {
        rig r;
        rig_make(&r, k == 0 ? &image_net : &joined, 1, HTH_POLICY_HEARTH);
        r.spec.budget = "50%";
        rig_prepare(&r);
        assert_int_equal(hth_trainer_whole(r.t), k == 1);
        assert_ok(evaluate(&r, data, 2, &whole));
        if (k == 0) {
            assert_ok(evaluate(&r, data, 24, &halved));
            assert_true(fabs(whole - halved) < 1e-5);
        } else {
            while (evaluate(&r, data, 24, &halved) == HTH_OK) {
                rig_squeeze(&r);
            }
            assert_err(evaluate(&r, data, 24, &halved), HTH_ETOOBIG,
                       "held-out data: a batch of 24 samples, which depend on each other, is "
                       "evaluated as a whole like it is trained: ");
            assert_ok(evaluate(&r, data, 2, &halved)); // nothing is left behind
            assert_true(fabs(whole - halved) < 1e-5);  // in another plan, perhaps
        }
        rig_close(&r);
    }
    fixture_close(&f);
}

// The evaluator of `data` in batches of `batch`, beside the rig's steps. HTH_ETOOBIG: has no room.
static hth_err evaluator_open(rig *r, hth_train_spec *spec, const char *data, int64_t batch,
                              hth_request *request, hth_evaluator **out)
{
    hth_train_part part = {data, batch, 0, 0, false, &r->site, -1, NULL, NULL, NULL, NULL};
    hth_train_data d = {.n_inputs = 0};
    hth_model *m;
    *spec = r->spec;
    spec->batch = batch;
    assert_ok(hth_model_find(&r->models, "net", &m));
    assert_ok(hth_train_data_open(&part, m, &d));
    return hth_evaluator_open(&r->models, spec, r->t, &d, request, out);
}

// Evaluates; the loss. *turns: how many batches that took.
static double evaluator_run(hth_evaluator *evaluator, int *turns)
{
    json_t *found = NULL;
    bool done = false;
    for (*turns = 0; !done; ++*turns) {
        assert_ok(hth_evaluator_slice(evaluator, &done, &found));
    }
    double loss = json_number_value(json_object_get(found, "loss"));
    json_decref(found);
    return loss;
}

// A step gets another budget while an evaluation is half done: it begins anew in batches that fit,
// and has the same loss; where none fits says so, and goes on when there is room again.
static void evaluations_fit_another_budget(void **state)
{
    fixture f;
    rig r;
    char data[200];
    hth_train_spec spec;
    hth_request q = {.command = HTH_COMMAND_TRAIN};
    hth_evaluator *e;
    json_t *found = NULL;
    int whole, smaller, again;
    bool done;
    fixture_open(&f, "cpu:mem=64MiB,threads=1");
    prepare(&f, &image_net, data);
    rig_make(&r, &image_net, 4, HTH_POLICY_HEARTH);
    rig_prepare(&r);
    assert_ok(evaluator_open(&r, &spec, data, 24, &q, &e));
    double loss = evaluator_run(e, &whole);
    while (whole == 1) { // it shall be half done
        rig_squeeze(&r);
        assert_ok(hth_evaluator_refit(e));
        loss = evaluator_run(e, &whole);
    }
    assert_ok(hth_evaluator_slice(e, &done, &found)); // of another one, a part
    assert_true(!done && found == NULL);
    double second = loss;
    smaller = whole;
    while (smaller <= whole) {
        rig_squeeze(&r);
        assert_ok(hth_evaluator_refit(e));
        second = evaluator_run(e, &smaller);
        print_message("# %d batches, then %d with %s bytes\n", whole, smaller, r.spec.budget);
        if (smaller <= whole) { // it went on where it was: half of the next one
            assert_ok(hth_evaluator_slice(e, &done, &found));
        }
    }
    assert_true(fabs(second - loss) < 1e-5);
    r.spec.budget = NULL; // what fits in less is kept
    assert_ok(hth_trainer_replan(r.t));
    rig_prepare(&r);
    assert_ok(hth_evaluator_refit(e));
    assert_true(evaluator_run(e, &again) == second && again == smaller);
    hth_evaluator_close(e);
    rig_close(&r);
    fixture_close(&f);
}

// `job --budget` while a job with held-out data works: its evaluations go on, the last one is what
// the published model's answers say, and a budget that is refused changes nothing.
static void evaluations_go_on_under_another_budget(void **state)
{
    static const training *const all[] = {&unet, &image_net};
    for (int i = 0; i < 2; i++) {
        fixture f;
        witness w;
        char data[200], more[400];
        double want[STEPS], loss, accuracy;
        hth_err err;
        fixture_open(&f, "cpu:mem=256MiB,threads=2");
        prepare(&f, all[i], data);
        snprintf(more, sizeof more, "{\"eval\": \"%s\", \"epochs\": 6, \"batch\": 12}", data);
        json_t *q = arguments_of(all[i], data, more, want);
        char *text = json_dumps(q, JSON_COMPACT);
        train_three_steps(&f, &w, text); // of 12: an epoch and a half
        assert_null(ask(&f, "job", "{\"job\": \"result\", \"budget\": \"4KiB\"}", &err));
        assert_non_null(strstr(hth_err_detail(), "continues with the budget that it had"));
        json_t *row = ask(&f, "job", "{\"job\": \"result\", \"budget\": \"60%\"}", &err);
        assert_ok(err);
        witness_let_go();
        assert_ok(call_wait(&w.c));
        json_t *doc = json_loads(w.c.r.json, 0, NULL);
        const json_t *held = json_object_get(doc, "held_out");
        assert_int_equal(json_array_size(held), 6);
        serve(&f, all[i], data, 0, &loss, &accuracy);
        double got = json_number_value(json_object_get(json_array_get(held, 5), "loss"));
        if (fabs(got - loss) > 1e-5 * (1 + loss)) {
            fail_msg("%s: %g, served %g", all[i]->model, got, loss);
        }
        json_decref(row);
        json_decref(q);
        json_decref(doc);
        free(text);
        hth_free(w.c.r.json);
        fixture_close(&f);
    }
}

// The last batch of an epoch has one sample, so that more slots may stay on the device: evaluations
// have the memory that they were planned for all the same.
static void evaluations_have_the_memory_of_whole_batches(void **state)
{
    static const training *const all[] = {&image_net, &unet, &mobile};
    for (int k = 0; k < 3 * 6; k++) {
        rig r;
        void *at;
        uint64_t opened, after;
        char budget[8];
        const training *t = all[k / 6];
        rig_make(&r, t, 8, HTH_POLICY_HEARTH);
        hth_tensor x = rig_batch(1, t->x, t->x_rank, t->x_classes);
        hth_tensor y = rig_batch(1, t->y, t->y_rank, t->y_classes);
        snprintf(budget, sizeof budget, "%d%%", 35 + 5 * (k % 6));
        r.spec.budget = budget;
        hth_err err = hth_trainer_prepare(r.t, &r.input, &r.target);
        if (err == HTH_OK) {
            assert_ok(hth_trainer_prepare(r.t, &x, &y));
            rig_prepare(&r);
            assert_ok(hth_trainer_arena(r.t, &at, &opened));
            assert_ok(hth_trainer_prepare(r.t, &x, &y));
            assert_ok(hth_trainer_arena(r.t, &at, &after));
            if (after != opened) {
                fail_msg("%s, %s: %llu bytes, %llu when it began", t->model, budget,
                         (unsigned long long)after, (unsigned long long)opened);
            }
        } else {
            assert_int_equal(err, HTH_ETOOBIG);
        }
        free(x.data);
        free(y.data);
        rig_close(&r);
    }
}

// What programs of `site` take for their operators; *one: one of an evaluator's.
static uint64_t overhead_of(const hth_site *site, const hth_source *model, uint64_t *one)
{
    uint64_t sum = 0;
    for (const hth_program *p = site->programs; p != NULL; p = p->site_next) {
        sum += p->overhead_bytes;
        *one = p->source != NULL && p->source != model ? p->overhead_bytes : *one;
    }
    return sum;
}

// Others leave host memory for the operators of one of its programs only: that of the last, smaller
// batch takes the place of the other one, whose outputs have their memory all the same.
static void evaluations_have_room_for_every_batch(void **state)
{
    fixture f;
    rig r;
    char data[200];
    hth_train_spec spec;
    hth_request q = {.command = HTH_COMMAND_TRAIN};
    hth_evaluator *e;
    hth_model *m;
    hth_program *other;
    uint64_t one = 0;
    int turns;
    fixture_open(&f, "cpu:mem=64MiB,threads=1");
    prepare(&f, &image_net, data);
    rig_make(&r, &image_net, 24, HTH_POLICY_HEARTH); // whose memory holds any batch
    rig_prepare(&r);
    assert_ok(hth_model_find(&r.models, "net", &m));
    assert_ok(hth_infer_program(&r.models, &m->source, &r.input, false, NULL, &other));
    other->held++;
    assert_ok(evaluator_open(&r, &spec, data, 23, &q, &e)); // of 24
    uint64_t bytes = r.site.host_bytes[HTH_HOST_BATCHES];
    double loss = evaluator_run(e, &turns);
    overhead_of(&r.site, &m->source, &one);
    hth_evaluator_close(e);
    assert_true(one > 0);
    other->overhead_bytes += ((uint64_t)512 << 20) - one - overhead_of(&r.site, &m->source, &one);
    assert_ok(evaluator_open(&r, &spec, data, 23, &q, &e));
    assert_int_equal(r.site.host_bytes[HTH_HOST_BATCHES], bytes);
    assert_true(fabs(evaluator_run(e, &turns) - loss) < 1e-5);
    assert_int_equal(turns, 2);
    hth_evaluator_close(e);
    other->held--;
    rig_close(&r);
    fixture_close(&f);
}

// A dataset of samples x = y = 0, 1, .. n - 1.
static void count_to(const char *path, int64_t n)
{
    writer w = {NULL, NULL, 0};
    float *v = malloc((size_t)n * 4);
    for (int64_t i = 0; i < n; i++) {
        v[i] = (float)i;
    }
    int64_t dim[2] = {n, 1};
    writer_add(&w, "x", "F32", dim, 2, v, (size_t)n * 4);
    writer_add(&w, "y", "F32", dim, 2, v, (size_t)n * 4);
    writer_close(&w, path);
    free(v);
}

// Counts the samples of one part in seen[]; returns a number that tells parts apart.
static int count_part(const hth_model *model, const hth_train_part *part, int *seen)
{
    int sum = 0;
    hth_train_data d = {.n_inputs = 0};
    hth_err err = hth_train_data_open(part, model, &d);
    if (err != HTH_OK) {
        fail_msg("%s", hth_err_detail());
    }
    assert_int_equal(d.n_samples, part->held ? 7 : 30);
    hth_train_data_order(&d, true, 9, 1);
    for (int64_t at = 0; at < d.n_samples; at += 8) {
        assert_int_equal(hth_train_data_batch(&d, at, 8), HTH_OK);
        for (int64_t i = 0; i < d.input[0].shape.dim[0]; i++) {
            int x = (int)((float *)d.input[0].data)[i];
            assert_int_equal(x, (int)((float *)d.target.data)[i]);
            seen[x]++;
            sum += x * x;
        }
    }
    assert_int_equal(hth_train_data_batch(&d, d.n_samples, 1), HTH_EINVAL);
    assert_int_equal(hth_train_data_batch(&d, d.n_samples + 5, 1), HTH_EINVAL);
    hth_train_data_close(&d);
    return sum;
}

// Both parts together are every sample once; a seed says which, other seeds others.
static void parts_are_disjoint(void **state)
{
    char path[] = "/tmp/hearth-part-XXXXXX";
    int before = -1, input = 0;
    close(mkstemp(path));
    count_to(path, 37);
    hth_value value = {.name = "x", .dtype = HTH_DT_F32, .shape = {2, {-1, 1}}, .is_input = true};
    hth_graph g = {.values = &value, .n_values = 1, .inputs = &input, .n_inputs = 1};
    hth_model m = {.name = "m", .max_batch = -1, .source = {.graph = &g, .batched = true}};
    hth_site site = {.device = NULL}; // nobody is served
    for (uint64_t seed = 0; seed < 3; seed++) {
        int seen[37] = {0};
        hth_train_part part = {path, 8, 0.2, seed, false, &site, -1, NULL, NULL, NULL, NULL};
        count_part(&m, &part, seen);
        part.held = true;
        int sum = count_part(&m, &part, seen);
        for (int i = 0; i < 37; i++) {
            assert_int_equal(seen[i], 1);
        }
        assert_int_not_equal(sum, before);
        before = sum;
    }
    hth_train_data d = {.n_inputs = 0};
    hth_train_part part = {path, 8, 0.99, 0, true, &site, -1, NULL, NULL, NULL, NULL};
    assert_int_equal(hth_train_data_open(&part, &m, &d), HTH_EINVAL);
    assert_non_null(strstr(hth_err_detail(), "none is left to train on"));
    hth_train_data_close(&d);
    unlink(path);
}

// Nothing of what is trained changes when something is evaluated; a job that is cut goes on with
// the same evaluations.
static void evaluations_are_repeated(void **state)
{
    static const char base[] = "\"no-shuffle\": false, \"seed\": 7, \"batch\": 5, \"epochs\": 4";
    fixture f;
    char data[200], more[500];
    double want[STEPS];
    hth_err err;
    fixture_open(&f, "cpu:mem=256MiB,threads=2");
    prepare(&f, &mobile, data);
    snprintf(more, sizeof more, "{%s, \"eval\": \"%s\", \"save-as\": \"plain\"}", base, data);
    json_t *plain = train(&f, arguments_of(&mobile, data, more, want), &err);
    snprintf(more, sizeof more, "{%s}", base);
    json_t *alone = train(&f, arguments_of(&mobile, data, more, want), &err);
    same_losses(plain, alone, 20);
    same_tensors(&f, "plain", "result");
    snprintf(more, sizeof more, "{%s, \"eval\": \"%s\", \"hold-out\": 0.3, \"save-as\": \"whole\"}",
             base, data);
    json_t *whole = train(&f, arguments_of(&mobile, data, more, want), &err);
    assert_int_equal(json_array_size(json_object_get(whole, "held_out")), 8);
    snprintf(more, sizeof more,
             "{%s, \"eval\": \"%s\", \"hold-out\": 0.3, \"checkpoint-every\": 3}", base, data);
    train_and_leave(&f, arguments_of(&mobile, data, more, want), 10);
    json_t *rest = train(&f, json_pack("{s:s}", "job", "result"), &err);
    same_losses(whole, rest, 16); // batches of 17 samples
    assert_true(json_equal(json_object_get(whole, "held_out"), json_object_get(rest, "held_out")));
    json_t *job = ask(&f, "job", "{\"job\": \"result\"}", &err);
    assert_int_equal(json_array_size(json_object_get(job, "held_out")), 8);
    const json_t *shown = json_array_get(json_object_get(rest, "held_out"), 6);
    assert_string_equal(json_string_value(json_object_get(shown, "set")), "hold-out");
    assert_true(fabs(json_number_value(json_object_get(job, "accuracy")) -
                     json_number_value(json_object_get(shown, "accuracy"))) < 1e-8);
    expect(&f, &mobile, data, "{\"hold-out\": 1.5}", "hold-out is a number from 0 to 1");
    expect(&f, &mobile, data, "{\"eval\": \"/nowhere\"}", "/nowhere");
    json_decref(job);
    json_decref(plain);
    json_decref(alone);
    json_decref(whole);
    json_decref(rest);
    fixture_close(&f);
}

// Every seventh allocation of a job that evaluates and makes checkpoints fails once: it ends with
// an error, or does without, and the next one is as good as new.
static void allocations_fail_cleanly(void **state)
{
    static const char more[] = "{\"hold-out\": 0.2, \"checkpoint-every\": 2, \"epochs\": 2, "
                               "\"keep\": \"best\"}";
    fixture f;
    char data[200];
    double want[STEPS];
    hth_err err;
    int failed = 0;
    fixture_open(&f, "cpu:mem=256MiB,threads=2");
    prepare(&f, &mlp, data);
    json_t *whole = train(&f, arguments_of(&mlp, data, more, want), &err);
    assert_non_null(whole);
    for (uint64_t n = 1, last = hth_alloc_count(); n < last; n += 7) {
        uint64_t before = hth_alloc_count();
        json_t *q = arguments_of(&mlp, data, more, want);
        hth_fault_alloc(n);
        json_t *doc = train(&f, q, &err);
        hth_fault_alloc(0);
        last = n + 7 < hth_alloc_count() - before || doc == NULL ? UINT64_MAX : 0;
        failed += doc == NULL;
        assert_true(doc != NULL || err != HTH_OK);
        if (doc != NULL) {
            same_losses(whole, doc, 10);
        }
        json_decref(doc);
        json_decref(ask(&f, "cancel", "{\"job\": \"result\"}", &err));
    }
    assert_true(failed > 10);
    json_t *doc = train(&f, arguments_of(&mlp, data, more, want), &err);
    same_losses(whole, doc, 10);
    json_decref(doc);
    json_decref(whole);
    fixture_close(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(evaluations_are_what_is_served),
        cmocka_unit_test(joined_samples_are_evaluated_as_trained),
        cmocka_unit_test(joined_samples_are_never_halved),
        cmocka_unit_test(evaluations_fit_another_budget),
        cmocka_unit_test(evaluations_have_the_memory_of_whole_batches),
        cmocka_unit_test(evaluations_have_room_for_every_batch),
        cmocka_unit_test(evaluations_go_on_under_another_budget),
        cmocka_unit_test(parts_are_disjoint),
        cmocka_unit_test(evaluations_are_repeated),
        cmocka_unit_test(allocations_fail_cleanly),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
