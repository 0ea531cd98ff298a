// SPDX-License-Identifier: Apache-2.0
// Plan files, format "hearth-plan-1": the problem and the plan in one object, so that a decision
// can be replayed and checked by a program that knows nothing of hearth. Reading takes a whole plan
// file or its "problem" alone; everything read is validated, unknown keys are ignored.
#include "planner/plan_json.h"
#include "planner/plan_impl.h"

#include "base/alloc.h"
#include "base/file.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

#define PLAN_FORMAT "hearth-plan-1"
// A plan of a million instructions; what is read takes some ten times as much memory.
#define PLAN_FILE_BYTES ((size_t)256 << 20)

static const char *const file_class[] = {"weight", "activation", "gradient",
                                         "state",  "input",      "output"};
static const char *const file_kind[] = {"compute", "alloc", "free", "offload", "prefetch"};
static const char *const file_lane[] = {"compute", "h2d", "d2h"};

// Writing. Functions return NULL when out of memory; json_pack passes that on.

// A list is either complete or NULL.
static json_t *file_whole(json_t *json, int n)
{
    if (json_array_size(json) == (size_t)n) {
        return json;
    }
    json_decref(json);
    return NULL;
}

static json_t *file_ints(const int *v, int n)
{
    json_t *a = json_array();
    for (int i = 0; i < n; i++) {
        json_array_append_new(a, json_integer(v[i]));
    }
    return file_whole(a, n);
}

// Gives *object one more key; *object is NULL where memory ran out.
static void file_set(json_t **object, const char *key, json_t *value)
{
    if (json_object_set_new(*object, key, value) != 0) { // takes NULL, and frees the value
        json_decref(*object);
        *object = NULL;
    }
}

static const char *file_text(const char *s)
{
    return s ? s : "";
}

static json_t *file_tensor(const hth_problem *problem, int t)
{
    const hth_plan_tensor *x = &problem->tensors[t];
    json_t *o =
        json_pack("{s:i, s:s, s:I, s:s, s:i}", "id", t, "name", file_text(x->name), "bytes",
                  (json_int_t)x->bytes, "class", file_class[x->cls], "producer", x->producer);
    if (x->external) {
        file_set(&o, "external", json_true());
    }
    if (x->replaces > 0) {
        file_set(&o, "replaces", json_integer(x->replaces - 1));
    }
    return o;
}

static json_t *file_node(const hth_problem *problem, int i)
{
    const hth_plan_node *n = &problem->nodes[i];
    json_t *inplace = json_array(), *alternatives = json_array();
    int n_pairs = n->n_inplace;
    for (int j = 0; j < n->n_inplace; j++) {
        json_array_append_new(inplace, json_pack("[i, i]", n->inplace[j][0], n->inplace[j][1]));
    }
    for (int j = 0; j < n->n_outputs; j++) { // updates are pairs too, for every reader
        int old = problem->tensors[n->outputs[j]].replaces - 1;
        if (old >= 0) {
            json_array_append_new(inplace, json_pack("[i, i]", old, n->outputs[j]));
            n_pairs++;
        }
    }
    for (int j = 0; j < n->n_alternatives; j++) {
        const hth_choice *c = &n->alternatives[j];
        json_array_append_new(alternatives, json_pack("{s:s, s:f, s:I, s:i, s:b, s:b}", "name",
                                                      c->name, "time_us", c->time_us, "workspace",
                                                      (json_int_t)c->workspace_bytes, "split",
                                                      c->split, "accumulates", c->accumulates,
                                                      "deterministic", c->deterministic));
    }
    return json_pack("{s:i, s:s, s:s, s:o, s:o, s:o, s:o, s:b}", "id", i, "name",
                     file_text(n->name), "op", file_text(n->op), "inputs",
                     file_ints(n->inputs, n->n_inputs), "outputs",
                     file_ints(n->outputs, n->n_outputs), "inplace", file_whole(inplace, n_pairs),
                     "alternatives", file_whole(alternatives, n->n_alternatives), "recomputable",
                     n->recomputable);
}

static json_t *file_problem(const hth_problem *problem)
{
    json_t *tensors = json_array(), *nodes = json_array();
    for (int t = 0; t < problem->n_tensors; t++) {
        json_array_append_new(tensors, file_tensor(problem, t));
    }
    for (int i = 0; i < problem->n_nodes; i++) {
        json_array_append_new(nodes, file_node(problem, i));
    }
    return json_pack("{s:I, s:s, s:{s:f, s:f, s:f, s:f, s:f}, s:o, s:o}", "budget",
                     (json_int_t)problem->budget, "device", problem->device, "link", "h2d",
                     problem->h2d_bytes_per_s, "d2h", problem->d2h_bytes_per_s, "latency_us",
                     problem->latency_us, "interference", problem->copy_interference, "copy_us",
                     problem->copy_us, "tensors", file_whole(tensors, problem->n_tensors), "nodes",
                     file_whole(nodes, problem->n_nodes));
}

static json_t *file_instr(const hth_instr *in, int i)
{
    json_t *o = json_pack("{s:i, s:s}", "i", i, "kind", file_kind[in->kind]);
    if (in->kind == HTH_INSTR_COMPUTE) {
        file_set(&o, "node", json_integer(in->node));
        file_set(&o, "alt", json_integer(in->alt));
        file_set(&o, "workspace_offset", json_integer((json_int_t)in->offset));
        file_set(&o, "recompute", json_boolean(in->recompute));
    } else {
        file_set(&o, "tensor", json_integer(in->tensor));
    }
    if (in->kind == HTH_INSTR_ALLOC || in->kind == HTH_INSTR_PREFETCH) {
        file_set(&o, "offset", json_integer((json_int_t)in->offset));
    } else if (in->kind == HTH_INSTR_OFFLOAD) {
        file_set(&o, "host_offset", json_integer((json_int_t)in->offset));
    }
    bool point = in->kind == HTH_INSTR_ALLOC || in->kind == HTH_INSTR_FREE;
    if (!point) {
        file_set(&o, "stream", json_string(file_lane[hth_instr_lane(in)]));
        file_set(&o, "start_us", json_real(in->start_us));
        file_set(&o, "end_us", json_real(in->end_us));
    }
    if (!point || in->n_waits > 0) {
        file_set(&o, "waits", file_ints(in->waits, in->n_waits));
    }
    return o;
}

hth_err hth_plan_json_save(json_t *root, const char *path)
{
    if (root == NULL) {
        return hth_no_memory("writing '%s'", path);
    }
    errno = 0;
    int rc = json_dump_file(root, path, JSON_COMPACT);
    int errnum = errno;
    json_decref(root);
    errnum = errnum ? errnum : EIO;
    return rc == 0 ? HTH_OK : hth_fail_errno(errnum, "cannot write '%s'", path);
}

json_t *hth_plan_json(const hth_problem *problem, const hth_plan *plan)
{
    json_t *instrs = json_array(), *streamed = json_array();
    int n_streamed = 0;
    for (int i = 0; i < plan->n_instrs; i++) {
        json_array_append_new(instrs, file_instr(&plan->instrs[i], i));
    }
    for (int t = 0; t < problem->n_tensors; t++) {
        if (plan->streamed[t]) {
            json_array_append_new(streamed, json_integer(t));
            n_streamed++;
        }
    }
    return json_pack(
        "{s:s, s:o, s:s, s:I, s:f, s:s, s:I, s:I, s:I, s:I, s:f, s:f, s:o, s:o}", "format",
        PLAN_FORMAT, "problem", file_problem(problem), "policy", plan->policy, "seed",
        (json_int_t)plan->seed, "plan_ms", plan->plan_ms, "ended_by",
        plan->stopped ? "clock" : "work", "arena_bytes", (json_int_t)plan->arena_bytes,
        "resident_bytes", (json_int_t)plan->resident_bytes, "live_peak_bytes",
        (json_int_t)plan->live_peak_bytes, "host_bytes", (json_int_t)plan->host_bytes,
        "predicted_us", plan->predicted_us, "lower_bound_us", plan->lower_bound_us, "streamed",
        file_whole(streamed, n_streamed), "instructions", file_whole(instrs, plan->n_instrs));
}

hth_err hth_plan_write(const char *path, const hth_problem *problem, const hth_plan *plan)
{
    return hth_plan_json_save(hth_plan_json(problem, plan), path);
}

// Reading.

static hth_err file_number(const json_t *json, const char *key, double dflt, double *out)
{
    const json_t *v = json_object_get(json, key);
    if (v != NULL && !json_is_number(v)) {
        return hth_fail(HTH_EINVAL, "'%s' is not a number", key);
    }
    *out = v ? json_number_value(v) : dflt;
    return HTH_OK;
}

// A whole number in [min, max]; `must` be there, or else stays as it is.
static hth_err file_int(const json_t *json, const char *key, bool must, int64_t min, int64_t max,
                        int64_t *out)
{
    const json_t *v = json_object_get(json, key);
    if (v == NULL && !must) {
        return HTH_OK;
    }
    if (v == NULL) {
        return hth_fail(HTH_EINVAL, "'%s' is missing", key);
    }
    double d = json_number_value(v);
    bool whole =
        json_is_integer(v) || (json_is_real(v) && d > -9e15 && d < 9e15 && d == (double)(int64_t)d);
    int64_t i = json_is_integer(v) ? json_integer_value(v) : 0;
    if (whole && !json_is_integer(v)) {
        i = (int64_t)d;
    }
    if (!whole || i < min || i > max) {
        return hth_fail(HTH_EINVAL, "'%s' is not a whole number from %lld to %lld", key,
                        (long long)min, (long long)max);
    }
    *out = i;
    return HTH_OK;
}

static hth_err file_string(const json_t *json, const char *key, char **out)
{
    const char *s = json_string_value(json_object_get(json, key));
    *out = hth_strdup(s ? s : "");
    return *out ? HTH_OK : hth_no_memory("the problem's names");
}

static hth_err file_indices(const json_t *json, const char *key, int **out, int *n)
{
    const json_t *a = json_object_get(json, key), *v;
    size_t i;
    if (!json_is_array(a) || json_array_size(a) > INT_MAX / 8) {
        return hth_fail(HTH_EINVAL, "'%s' is not a list", key);
    }
    *out = hth_alloc(json_array_size(a) * sizeof **out);
    if (*out == NULL) {
        return hth_no_memory("the problem's lists");
    }
    json_array_foreach(a, i, v)
    {
        if (!json_is_integer(v) || json_integer_value(v) < 0 || json_integer_value(v) > INT_MAX) {
            return hth_fail(HTH_EINVAL, "'%s' contains a value that is not a tensor's id", key);
        }
        (*out)[i] = (int)json_integer_value(v);
        *n = (int)i + 1;
    }
    return HTH_OK;
}

static hth_err file_read_tensor(const json_t *json, hth_plan_tensor *tensor)
{
    int64_t bytes = 0, producer = -1, replaces = -1;
    const char *cls = json_string_value(json_object_get(json, "class"));
    HTH_TRY(file_string(json, "name", &tensor->name));
    HTH_TRY(file_int(json, "bytes", true, 0, (int64_t)1 << 60, &bytes));
    HTH_TRY(file_int(json, "producer", false, -1, INT_MAX, &producer));
    tensor->bytes = (uint64_t)bytes;
    tensor->producer = (int)producer;
    tensor->external = json_is_true(json_object_get(json, "external"));
    HTH_TRY(file_int(json, "replaces", false, -1, INT_MAX - 1, &replaces));
    tensor->replaces = (int)replaces + 1;
    for (int c = 0; cls != NULL && c <= HTH_MEM_OUTPUT; c++) {
        if (strcmp(cls, file_class[c]) == 0) {
            tensor->cls = (hth_mem_class)c;
            return HTH_OK;
        }
    }
    return hth_fail(HTH_EINVAL,
                    "class '%s' is not one of weight, activation, gradient, state, input, output",
                    file_text(cls));
}

static hth_err file_read_choice(const json_t *json, hth_choice *choice)
{
    int64_t workspace = 0, split = 1;
    *choice = (hth_choice){.error = -1, .front = true};
    snprintf(choice->name, sizeof choice->name, "%s",
             file_text(json_string_value(json_object_get(json, "name"))));
    HTH_TRY(file_number(json, "time_us", -1, &choice->time_us));
    HTH_TRY(file_int(json, "workspace", false, 0, (int64_t)1 << 60, &workspace));
    HTH_TRY(file_int(json, "split", false, 1, 1 << 20, &split));
    choice->workspace_bytes = (uint64_t)workspace;
    choice->split = (int)split;
    choice->accumulates = json_is_true(json_object_get(json, "accumulates"));
    choice->deterministic = !json_is_false(json_object_get(json, "deterministic"));
    return HTH_OK;
}

static hth_err file_read_pairs(const json_t *json, hth_plan_node *node)
{
    const json_t *list = json_object_get(json, "inplace"), *v;
    size_t i;
    if (list != NULL && !json_is_array(list)) {
        return hth_fail(HTH_EINVAL, "'inplace' is not a list of pairs of tensors");
    }
    if (json_array_size(list) == 0) {
        return HTH_OK;
    }
    node->inplace = hth_calloc(json_array_size(list), sizeof *node->inplace);
    if (node->inplace == NULL) {
        return hth_no_memory("the problem's in-place pairs");
    }
    json_array_foreach(list, i, v)
    {
        for (size_t k = 0; k < 2; k++) {
            const json_t *t = json_array_get(v, k);
            if (!json_is_integer(t) || json_integer_value(t) < 0 ||
                json_integer_value(t) > INT_MAX || json_array_size(v) != 2) {
                return hth_fail(HTH_EINVAL, "'inplace' is not a list of pairs of tensors");
            }
            node->inplace[i][k] = (int)json_integer_value(t);
        }
        node->n_inplace = (int)i + 1;
    }
    return HTH_OK;
}

static hth_err file_read_node(const json_t *json, hth_plan_node *node)
{
    const json_t *list = json_object_get(json, "alternatives"), *v;
    size_t i;
    node->recomputable = !json_is_false(json_object_get(json, "recomputable"));
    HTH_TRY(file_string(json, "name", &node->name));
    HTH_TRY(file_string(json, "op", &node->op));
    HTH_TRY(file_indices(json, "inputs", &node->inputs, &node->n_inputs));
    HTH_TRY(file_indices(json, "outputs", &node->outputs, &node->n_outputs));
    HTH_TRY(file_read_pairs(json, node));
    if (list == NULL || json_array_size(list) == 0) {
        return HTH_OK;
    }
    node->alternatives = hth_calloc(json_array_size(list), sizeof *node->alternatives);
    if (node->alternatives == NULL) {
        return hth_no_memory("the problem's alternatives");
    }
    json_array_foreach(list, i, v)
    {
        HTH_TRY(file_read_choice(v, &node->alternatives[i]));
        node->n_alternatives = (int)i + 1;
    }
    return HTH_OK;
}

// Calls fill for every element of list `key` at the place that its "id" names; ids are 0 .. n-1,
// each once.
static hth_err file_read_list(const json_t *root, const char *key, size_t size,
                              hth_err (*fill)(const json_t *json, void *item), void **out, int *n)
{
    const json_t *list = json_object_get(root, key), *o;
    size_t i, count = json_array_size(list);
    if (!json_is_array(list) || count > INT_MAX / 8) {
        return hth_fail(HTH_EINVAL, "'%s' is not a list", key);
    }
    *out = hth_calloc(count, size);
    bool *seen = hth_calloc(count, sizeof *seen);
    *n = *out ? (int)count : 0;
    hth_err err = *out && seen ? HTH_OK : hth_no_memory("%zu %s", count, key);
    for (i = 0; err == HTH_OK && i < count; i++) {
        int64_t id = 0;
        o = json_array_get(list, i);
        err = file_int(o, "id", true, 0, (int64_t)count - 1, &id);
        if (err == HTH_OK && seen[id]) {
            err = hth_fail(HTH_EINVAL, "id %lld is used twice", (long long)id);
        }
        if (err == HTH_OK) {
            seen[id] = true;
            err = fill(o, (char *)*out + (size_t)id * size);
        }
        if (err != HTH_OK) {
            hth_err_prefix(err, "%s[%zu]", key, i);
        }
    }
    hth_free(seen);
    return err;
}

static hth_err file_fill_tensor(const json_t *json, void *item)
{
    return file_read_tensor(json, item);
}

static hth_err file_fill_node(const json_t *json, void *item)
{
    return file_read_node(json, item);
}

// A pair whose input is a weight or state that is there before the run is an update of it: its
// output is the same buffer, for good.
static void file_updates(hth_problem *problem, hth_plan_node *node)
{
    int kept = 0;
    for (int j = 0; j < node->n_inplace; j++) {
        int in = node->inplace[j][0], out = node->inplace[j][1];
        bool known = in < problem->n_tensors && out < problem->n_tensors;
        const hth_plan_tensor *x = known ? &problem->tensors[in] : NULL;
        if (known && x->producer < 0 && (x->cls == HTH_MEM_WEIGHT || x->cls == HTH_MEM_STATE)) {
            problem->tensors[out].replaces = in + 1;
            problem->tensors[out].external = true;
            node->recomputable = node->recomputable && node->n_outputs > node->n_inplace;
        } else {
            memmove(node->inplace[kept++], node->inplace[j], sizeof node->inplace[j]);
        }
    }
    node->n_inplace = kept;
}

static hth_err file_read_problem(const json_t *json, hth_problem *problem)
{
    const json_t *link = json_object_get(json, "link");
    int64_t budget = 0;
    HTH_TRY(file_int(json, "budget", true, 0, INT64_MAX, &budget));
    problem->budget = (uint64_t)budget;
    snprintf(problem->device, sizeof problem->device, "%s",
             file_text(json_string_value(json_object_get(json, "device"))));
    HTH_TRY(file_number(link, "h2d", 0, &problem->h2d_bytes_per_s));
    HTH_TRY(file_number(link, "d2h", 0, &problem->d2h_bytes_per_s));
    HTH_TRY(file_number(link, "latency_us", 0, &problem->latency_us));
    HTH_TRY(file_number(link, "interference", 0, &problem->copy_interference));
    HTH_TRY(file_number(link, "copy_us", 0, &problem->copy_us));
    HTH_TRY(file_read_list(json, "tensors", sizeof *problem->tensors, file_fill_tensor,
                           (void **)&problem->tensors, &problem->n_tensors));
    HTH_TRY(file_read_list(json, "nodes", sizeof *problem->nodes, file_fill_node,
                           (void **)&problem->nodes, &problem->n_nodes));
    for (int i = 0; i < problem->n_nodes; i++) {
        file_updates(problem, &problem->nodes[i]);
    }
    return hth_problem_check(problem);
}

hth_err hth_problem_from_json(const json_t *root, hth_problem *out)
{
    const json_t *format = json_object_get(root, "format"),
                 *problem = json_object_get(root, "problem");
    memset(out, 0, sizeof *out);
    if (format != NULL && strcmp(file_text(json_string_value(format)), PLAN_FORMAT) != 0) {
        return hth_fail(HTH_ENOTSUP, "format is not \"" PLAN_FORMAT "\"");
    }
    hth_err err = file_read_problem(problem ? problem : root, out);
    if (err != HTH_OK) {
        hth_problem_fini(out);
    }
    return err;
}

hth_err hth_problem_read(const char *path, hth_problem *out)
{
    json_error_t where;
    void *text;
    size_t bytes;
    memset(out, 0, sizeof *out);
    HTH_TRY(hth_file_load(path, PLAN_FILE_BYTES, &text, &bytes));
    json_t *root = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, &where);
    hth_free(text);
    if (root == NULL) {
        return hth_fail(HTH_EINVAL, "'%s' line %d: %s", path, where.line, hth_err_json(where.text));
    }
    hth_err err = hth_problem_from_json(root, out);
    json_decref(root);
    return hth_err_prefix(err, "'%s'", path);
}
