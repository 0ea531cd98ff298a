// SPDX-License-Identifier: Apache-2.0
// The most used program without measured algorithms is measured a node at a time, then made again
// with what was found and put in the other's place; so is one that is stale, and, when the machine
// is quiet, one whose timings other programs had disturbed.
#include "engine/serve/tune.h"

#include "base/clock.h"
#include "base/settings.h"
#include "engine/serve/infer.h"
#include "engine/serve/microbatch.h"
#include "runtime/compile/compile.h"

// Runs after which a program is worth measuring for.
#define TUNE_RUNS 3

// A program whose timings were disturbed is looked at once in a while, when there is nothing else.
static bool tune_again_due(const hth_site *site, const hth_program *program)
{
    if (!program->disturbed || !program->tuned || !program->sliced || program->stale) {
        return false;
    }
    uint64_t now_ns = hth_now_ns(), wait_ns;
    wait_ns = (uint64_t)(hth_setting_real(HTH_SET_CONVSEL_REMEASURE) * 1e9);
    return now_ns >= site->again_ns && now_ns - site->disturbed_ns >= wait_ns;
}

static hth_program *tune_candidate(const hth_models *ms)
{
    hth_program *best = NULL, *again = NULL;
    for (hth_model *m = ms->list; m != NULL; m = m->next) {
        for (hth_program *p = m->source.programs; p != NULL; p = p->next) {
            again = again == NULL && tune_again_due(ms->site, p) ? p : again;
            bool wants = p->stale || (!(p->tuned && p->sliced) && p->rest.graph == NULL &&
                                      p->value_inputs == 0 && p->runs >= TUNE_RUNS);
            bool first =
                best == NULL || (p->stale != best->stale ? p->stale : p->runs > best->runs);
            best = wants && first ? p : best;
        }
    }
    return best != NULL ? best : again;
}

// tune_swap makes what takes program's place. What a pinned one was planned for may have been less,
// or more, than there is now, and nobody else plans it again.
static void tune_swap(hth_models *ms, hth_program *program, bool tune, hth_program **tuned)
{
    uint64_t budget = program->pinned ? hth_program_instead(ms->site, program) : program->budget;
    if (hth_program_compile(ms->site, program->source, program->key, budget, tune, NULL, tuned) !=
        HTH_OK) {
        *tuned = NULL;
    }
}

// tune_quiet says that the machine has little else to do; where it has, all waits once more.
static bool tune_quiet(hth_site *site)
{
    uint64_t now_ns = hth_now_ns();
    hth_quiet_is is = hth_quiet_look(&site->quiet, hth_setting_real(HTH_SET_CONVSEL_QUIET), now_ns);
    site->again_ns = is == HTH_QUIET_YES ? 0 : now_ns + HTH_QUIET_LOOK_NS;
    site->disturbed_ns = is == HTH_QUIET_NO ? now_ns : site->disturbed_ns;
    return is == HTH_QUIET_YES;
}

// tune_again takes one disturbed timing of program again, or, after the last of them, makes the
// program that uses what came of them. false: not now.
static bool tune_again(hth_models *ms, hth_program *program, hth_program **tuned)
{
    hth_site *site = ms->site;
    if (!tune_quiet(site)) {
        return false;
    }
    for (int i = program->again_node; i < program->graph->n_nodes; i++) {
        const hth_node *n = &program->graph->nodes[i];
        if (hth_convsel_lists(site->device, n->op) &&
            hth_convsel_disturbed(site->device, program->graph, n, NULL, site->timings)) {
            program->again_node = i + 1;
            program->again = true;
            (void)hth_convsel_again(site->device, program->graph, n, NULL, site->timings);
            return true;
        }
    }
    program->disturbed = false; // what is made now knows better
    program->again_node = 0;
    site->disturbed_ns = hth_now_ns();
    if (program->again) {
        program->again = false;
        tune_swap(ms, program, true, tuned);
    }
    return true;
}

// tune_step measures one node of program, or, where all are measured, makes the program that uses
// that. Other requests may be served meanwhile.
static bool tune_step(hth_models *ms, hth_program *program, hth_program **tuned)
{
    hth_site *site = ms->site;
    if (program->stale) {
        tune_swap(ms, program, false, tuned);
        return true;
    }
    if (program->tuned && program->sliced) {
        return tune_again(ms, program, tuned);
    }
    if (program->tuned) {
        (void)hth_microbatch_choose(ms, program, NULL);
        return true;
    }
    for (int i = 0; i < program->graph->n_nodes; i++) {
        if (!hth_program_measured(site, program->graph, i)) {
            hth_choice list[HTH_MAX_CHOICES];
            int n;
            hth_err err =
                hth_convsel_measure(site->device, program->graph, &program->graph->nodes[i], NULL,
                                    site->timings, list, HTH_MAX_CHOICES, &n);
            // not tried again; nor is what could not be kept, for want of memory to measure all
            program->tuned = err != HTH_OK || !hth_program_measured(site, program->graph, i);
            return err == HTH_OK;
        }
    }
    program->tuned = true;
    tune_swap(ms, program, true, tuned);
    return true;
}

// tune_replace has `tuned` take program's place, on the device, too; NULL: program, which is stale,
// goes, and the next request for it makes it; but where it is pinned it stays, also while there is
// no room for `tuned`.
static void tune_replace(hth_models *ms, hth_program *program, hth_program *tuned)
{
    bool active = program->active && !program->pinned;
    if (program->pinned &&
        (tuned == NULL || hth_program_pin_move(ms->site, program, tuned) != HTH_OK)) {
        program->stale = false;
        hth_program_free(ms->site, tuned);
        return;
    }
    if (tuned != NULL) {
        tuned->runs = program->runs;
        tuned->tuned |= program->tuned;
    }
    hth_program_free(ms->site, program);
    if (active && tuned != NULL) {
        (void)hth_program_activate(ms->site, tuned); // else the next request does
    }
}

bool hth_tune_pending(const hth_models *ms)
{
    return tune_candidate(ms) != NULL;
}

bool hth_tune_step(hth_models *ms)
{
    hth_program *best = tune_candidate(ms), *tuned = NULL;
    if (best == NULL) {
        return false;
    }
    best->held++;
    bool again = best->stale, some = tune_step(ms, best, &tuned);
    best->held--;
    if (tuned != NULL || (again && best->stale)) {
        tune_replace(ms, best, tuned);
    }
    return some;
}
