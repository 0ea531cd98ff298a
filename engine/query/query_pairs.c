// SPDX-License-Identifier: Apache-2.0
// What overlaps with what: the answer to "convsel" with "pairs".
#include "engine/query/query_impl.h"

#include "convsel/pairs.h"
#include "device/cpu/team.h"

typedef struct pairs_answer {
    hth_site *site;
    hth_request *r; // may be NULL
    bool again;
    json_t *doc;
} pairs_answer;

// Lets others pass.
static bool pairs_go_on(void *ctx)
{
    const pairs_answer *answer = ctx;
    hth_team_set(answer->site->device->props.n_threads);
    (void)hth_work_point(answer->site->queue);
    return answer->r == NULL || !*hth_request_canceled(answer->r);
}

static hth_err pairs_of(void *ctx, const hth_program *program)
{
    pairs_answer *answer = ctx;
    hth_pairs pairs;
    HTH_TRY(hth_pairs_measure(answer->site->device, program->graph, answer->site->timings,
                              answer->again, &(hth_pairs_watch){pairs_go_on, ctx}, &pairs));
    json_t *classes = json_array(), *rows = json_array();
    for (int a = 0; a < HTH_PAIR_CLASSES; a++) {
        const char *name = hth_pair_class_name((hth_pair_class)a);
        const char *node = pairs.node[a] < 0 ? "" : program->graph->nodes[pairs.node[a]].name;
        if (pairs.there[a]) {
            json_array_append_new(classes, json_pack("{s:s, s:s, s:f}", "class", name, "node", node,
                                                     "alone_us", pairs.alone_us[a]));
        }
        for (int b = a; b < HTH_PAIR_CLASSES && pairs.there[a]; b++) {
            if (pairs.there[b]) {
                json_array_append_new(
                    rows, json_pack("{s:s, s:s, s:f, s:f}", "first", name, "second",
                                    hth_pair_class_name((hth_pair_class)b), "together_us",
                                    pairs.together_us[a][b], "oef",
                                    hth_pairs_oef(&pairs, (hth_pair_class)a, (hth_pair_class)b)));
            }
        }
    }
    answer->doc = json_pack("{s:b, s:o, s:o}", "disturbed", pairs.disturbed, "classes", classes,
                            "pairs", rows);
    return HTH_OK;
}

hth_err query_pairs(query *call, json_t **out)
{
    pairs_answer a = {.site = call->ms->site,
                      .r = call->r,
                      .again = json_is_true(json_object_get(call->args, "again"))};
    hth_err err;
    if (json_is_true(json_object_get(call->args, "train"))) {
        hth_train_spec spec;
        HTH_GOTO(query_spec(call, call->args, &spec), done);
        err = hth_train_visit(call->ms, &spec, call->r, pairs_of, &a);
    } else {
        query_subject s = {.model = NULL};
        err = query_program(call, &s);
        if (err == HTH_OK) {
            err = pairs_of(&a, s.program);
        }
        query_program_done(call, &s);
    }
done:
    if (err != HTH_OK) {
        json_decref(a.doc);
        return err;
    }
    *out = a.doc;
    return HTH_OK;
}
