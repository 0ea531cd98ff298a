// SPDX-License-Identifier: Apache-2.0
// runtime/compile/compile_impl.h - the inside of compiling: menus of candidates, and the planning
// problem. Shared by compile*.c only.
#ifndef HTH_RUNTIME_COMPILE_COMPILE_IMPL_H
#define HTH_RUNTIME_COMPILE_COMPILE_IMPL_H

#include "runtime/compile/compile.h"

typedef struct hth_menu { // the candidates of one node; the first one's kernel is prepared
    int n;
    hth_choice *list;
    int n_every; // what it was at first
    hth_choice *every;
    bool prepared; // by hth_compile_like
} hth_menu;

// ---- compile_like.c: one set of forms of weights for all programs of a model

// hth_compile_hold names the programs of `source` whose forms of weights program, which has its
// key, is to share, and holds them until hth_compile_release; without any, program leads when it is
// measured. hth_compile_like prepares the algorithms that read those forms, and leaves them alone
// in the menus, or others where program is to lead: then hth_compile_lead makes the others of its
// source follow.
void hth_compile_hold(hth_program *program, hth_source *source);
void hth_compile_release(hth_program *program);
hth_err hth_compile_like(hth_site *site, hth_program *program, hth_menu *menus);
void hth_compile_lead(hth_site *site, const hth_program *program);

// Whether q has this content in device memory, or would have it, in this form.
typedef enum hth_like { HTH_LIKE_UNKNOWN, HTH_LIKE_OTHER, HTH_LIKE_SAME } hth_like;
hth_like hth_compile_has(const hth_program *program, const hth_id *content, const char *form);

// ---- compile_problem.c: what is planned

// hth_compile_form is the form of constant input `input` that kernel wants; hth_compile_in_place
// says that the store's mapping of a constant has that form.
const char *hth_compile_form(const hth_kernel *kernel, int input);
bool hth_compile_in_place(const hth_site *site, const hth_const *constant, const char *form);

// hth_compile_problem makes program->problem, weights and tables from the graph, the prepared
// kernels and the menus.
hth_err hth_compile_problem(hth_site *site, hth_program *program, const hth_menu *menus);

// ---- compile_menu.c: candidates

// hth_compile_kernels asks for every node's candidates (menus: one per node, zeroed; the caller
// frees the lists) and prepares the first of each.
hth_err hth_compile_kernels(hth_site *site, hth_program *program, bool tune, hth_request *progress,
                            hth_menu *menus);
// hth_compile_kernel prepares node i with this algorithm, in the place of the prepared one.
hth_err hth_compile_kernel(hth_site *site, hth_program *program, int i, const char *algorithm);
// hth_compile_choose reads the plan's choices into the menus and prepares them; *changed: some node
// was given another one than the prepared one.
hth_err hth_compile_choose(hth_site *site, hth_program *program, hth_menu *menus, bool *changed);
// hth_compile_lighter leaves each node the candidate that is cheapest at `us_per_byte` of weights
// in its form and of a part of its workspace; 0: all candidates again. *changed: the prepared
// kernels or the candidates did.
hth_err hth_compile_lighter(hth_site *site, hth_program *program, hth_menu *menus,
                            double us_per_byte, bool *changed);

// hth_compile_fix leaves node i the k-th of its candidates, prepared.
hth_err hth_compile_fix(hth_site *site, hth_program *program, int i, hth_menu *menu, int k);

// ---- compile_repeat.c, compile_run.c

#define HTH_REPEAT_KEY 96

// hth_compile_repeat fixes the algorithms of a training step whose problem, program->problem, was
// planned before on this store, within program->budget or a larger one that it did not need whole;
// else *known is false. *before gets what of that plan a search can go on from: mode, which the
// caller frees, n_modes (0: it was not kept), hurries and predicted_us. hth_compile_record keeps
// what program->plan chose of that problem: `key` names it as it was before a plan left each node
// one candidate.
hth_err hth_compile_repeat(hth_site *site, hth_program *program, hth_menu *menus,
                           char key[HTH_REPEAT_KEY], hth_plan *before, bool *known);
void hth_compile_record(hth_site *site, const hth_program *program, const hth_menu *menus,
                        const char *key);

// hth_compile_run makes program->run for problem, plan and kernels.
hth_err hth_compile_run(hth_site *site, hth_program *program);

#endif
