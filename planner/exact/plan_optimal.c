// SPDX-License-Identifier: Apache-2.0
// Runs COIN-OR CBC on the integer program and reads the solution back into the decoder, so that
// what it says is timed, emitted and verified like any plan.
//
// CBC aborts on some instances and loops on others; hence the command `cbc` in a child process with
// a time limit of its own and ours after it, never the library. When its time runs out early it
// says "infeasible"; so that counts as proven only if there was time left and no plan is known.
// Whatever goes wrong there is an error, and nothing stays behind.
#include "planner/exact/plan_optimal.h"

#include "base/alloc.h"
#include "base/clock.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define OPTIMAL_KNOWN   0.02 // of the time limit: for a first plan, whose time is the horizon
#define OPTIMAL_ALLOWED 1e-3 // interval that counts as none; the horizon is 1000
#define OPTIMAL_EARLY   0.5  // of the time limit: an answer in less was not cut short
#define OPTIMAL_GRACE   5.0  // seconds that cbc may take to stop

extern char **environ;

typedef struct optimal_files {
    char folder[40], model[64], solution[64], log[64];
} optimal_files;

static hth_err files_open(optimal_files *files)
{
    snprintf(files->folder, sizeof files->folder, "/tmp/hearth-optimal-XXXXXX");
    if (mkdtemp(files->folder) == NULL) {
        return hth_fail_errno(errno, "cannot make a folder in /tmp for the integer program");
    }
    snprintf(files->model, sizeof files->model, "%s/step.lp", files->folder);
    snprintf(files->solution, sizeof files->solution, "%s/solution", files->folder);
    snprintf(files->log, sizeof files->log, "%s/log", files->folder);
    return HTH_OK;
}

static void files_close(const optimal_files *files)
{
    unlink(files->model);
    unlink(files->solution);
    unlink(files->log);
    rmdir(files->folder);
}

// Waits until the child ends; kills it when its own limit is over and more, or at a cancel.
static hth_err child_wait(pid_t pid, double seconds, int *status)
{
    uint64_t deadline_ns = hth_now_ns() + (uint64_t)((seconds + OPTIMAL_GRACE) * 1e9);
    const struct timespec pause = {0, 5000000};
    const atomic_int *cancel = hth_plan_work_here.cancel;
    for (;;) {
        pid_t got = waitpid(pid, status, WNOHANG);
        if (got == pid) {
            return HTH_OK;
        }
        if (got < 0 && errno != EINTR) {
            return hth_fail_errno(errno, "cannot wait for cbc");
        }
        bool canceled = cancel != NULL && *cancel != 0;
        if (canceled || hth_now_ns() > deadline_ns) {
            kill(pid, SIGKILL);
            waitpid(pid, status, 0);
            return canceled
                       ? hth_fail(HTH_ETIMEDOUT, "cbc was stopped")
                       : hth_fail(HTH_ETIMEDOUT, "cbc did not stop after %.3g seconds", seconds);
        }
        nanosleep(&pause, NULL);
    }
}

static hth_err child_run(const optimal_files *files, double seconds)
{
    char limit[32], allowed[32];
    posix_spawn_file_actions_t to;
    pid_t pid;
    int status = 0;
    snprintf(limit, sizeof limit, "%.3f", seconds);
    snprintf(allowed, sizeof allowed, "%g", OPTIMAL_ALLOWED);
    char *const argv[] = {"cbc",
                          (char *)files->model,
                          "-timeMode",
                          "elapsed",
                          "-seconds",
                          limit,
                          "-allowableGap",
                          allowed,
                          "-ratioGap",
                          "0",
                          "-printingOptions",
                          "normal",
                          "-solve",
                          "-solution",
                          (char *)files->solution,
                          "-quit",
                          NULL};
    if (posix_spawn_file_actions_init(&to) != 0) {
        return hth_no_memory("starting cbc");
    }
    int rc = posix_spawn_file_actions_addopen(&to, 0, "/dev/null", O_RDONLY, 0);
    rc = rc ? rc
            : posix_spawn_file_actions_addopen(&to, 1, files->log, O_WRONLY | O_CREAT | O_TRUNC,
                                               0600);
    rc = rc ? rc : posix_spawn_file_actions_adddup2(&to, 1, 2);
    rc = rc ? rc : posix_spawnp(&pid, "cbc", &to, NULL, argv, environ);
    posix_spawn_file_actions_destroy(&to);
    if (rc == ENOENT) {
        return hth_fail(HTH_ENOTSUP,
                        "policy optimal needs the program cbc, which is not installed: "
                        "apt-get install coinor-cbc");
    }
    if (rc != 0) {
        return hth_fail_errno(rc, "cannot start cbc");
    }
    HTH_TRY(child_wait(pid, seconds, &status));
    if (WIFSIGNALED(status)) {
        return hth_fail(HTH_ENOTSUP,
                        "cbc gave up on this step (signal %d): try another budget or policy",
                        WTERMSIG(status));
    }
    if (WEXITSTATUS(status) == 127) {
        return hth_fail(HTH_ENOTSUP, "policy optimal needs the program cbc, which is not "
                                     "installed: apt-get install coinor-cbc");
    }
    if (WEXITSTATUS(status) != 0) {
        return hth_fail(HTH_ENOTSUP, "cbc gave up on this step (exit status %d)",
                        WEXITSTATUS(status));
    }
    return HTH_OK;
}

// The first line is the verdict, every other "index name value reduced-cost".
static hth_err solution_read(const hth_step *step, const optimal_files *files, double seconds,
                             hth_optimal *out)
{
    char line[256], name[64];
    double value;
    FILE *in = fopen(files->solution, "re");
    if (in == NULL || fgets(line, sizeof line, in) == NULL) {
        if (in != NULL) {
            fclose(in);
        }
        return hth_fail(HTH_ENOTSUP, "cbc gave up on this step and left no solution");
    }
    line[strcspn(line, "\n")] = '\0';
    out->feasible = strncmp(line, "Optimal", 7) == 0;
    bool none =
        strncmp(line, "Infeasible", 10) == 0 || strncmp(line, "Integer infeasible", 18) == 0;
    while (out->feasible && fgets(line, sizeof line, in) != NULL) {
        if (sscanf(line, "%*[* ]%*d %63s %lf", name, &value) == 2) {
            hth_optimal_value(step, name, value, &out->fixed);
            out->objective_us = strcmp(name, "T_0_0") == 0 ? value : out->objective_us;
        }
    }
    fclose(in);
    return out->feasible || none
               ? HTH_OK
               : hth_fail(HTH_ETIMEDOUT, "cbc proved nothing within %.3g seconds (%.60s)", seconds,
                          line);
}

static hth_err optimal_solve(const hth_step *step, uint64_t budget, double horizon_us,
                             double seconds, hth_optimal *out)
{
    optimal_files f;
    HTH_TRY(files_open(&f));
    FILE *file = fopen(f.model, "we");
    hth_err err = file != NULL ? hth_optimal_write(file, step, budget, horizon_us)
                               : hth_fail_errno(errno, "cannot write '%s'", f.model);
    if (file != NULL && (ferror(file) | fclose(file)) != 0 && err == HTH_OK) {
        err = hth_fail_errno(errno ? errno : EIO, "cannot write '%s'", f.model);
    }
    if (err != HTH_OK) {
        goto out;
    }
    HTH_GOTO(child_run(&f, seconds), out);
    err = solution_read(step, &f, seconds, out);
out:
    files_close(&f);
    return err;
}

static void optimal_fini(hth_optimal *optimal)
{
    hth_free(optimal->fixed.mode);
    hth_free(optimal->fixed.away);
    hth_free(optimal->fixed.back);
    hth_free(optimal->fixed.item);
}

static hth_err optimal_init(const hth_step *step, hth_optimal *optimal)
{
    size_t intervals = (size_t)step->n_intervals + 1, stages = (size_t)step->n_stages + 1;
    *optimal = (hth_optimal){.fixed = {hth_calloc(intervals, 1), hth_calloc(intervals, sizeof(int)),
                                       hth_calloc(intervals, sizeof(int)),
                                       hth_calloc(stages, sizeof(int))}};
    if (!optimal->fixed.mode || !optimal->fixed.away || !optimal->fixed.back ||
        !optimal->fixed.item) {
        optimal_fini(optimal);
        return hth_no_memory("a solution");
    }
    for (int g = 0; g < step->n_intervals; g++) {
        optimal->fixed.away[g] = step->interval[g].p + 1;
        optimal->fixed.back[g] = step->interval[g].q;
    }
    for (int s = 0; s < step->n_stages; s++) {
        optimal->fixed.item[s] = step->menu_end[s] - 1;
    }
    return HTH_OK;
}

// A time that the best plan does not exceed: that of a plan that the search finds, or of everything
// slowest, everything twice, and all copies one by one.
static double optimal_horizon(hth_search *search, hth_step *step, const hth_plan_options *options,
                              double ms, bool *known)
{
    hth_outcome out;
    hth_plan_options hearth = *options;
    hearth.policy = HTH_POLICY_HEARTH;
    hth_search_policy(search, step, &hearth,
                      hth_plan_work_now_ns() + (uint64_t)(ms * OPTIMAL_KNOWN * 1e6), false, &out);
    *known = out.excess == 0;
    if (*known) {
        return out.time_us * (1 + 1e-6);
    }
    double us = 0, copies = 0;
    for (int s = 0; s < step->n_stages; s++) {
        us += 2 * step->menu[step->menu_end[s] - 1].time_us;
    }
    for (int g = 0; g < step->n_intervals; g++) {
        int t = step->interval[g].tensor;
        copies += step->interval[g].can_offload
                      ? step->h2d_us[t] + step->d2h_us[t] + 2 * step->p->copy_us
                      : 0;
    }
    return (us + copies) * (1 + step->p->copy_interference) + 1;
}

hth_err hth_search_optimal(hth_search *search, hth_step *step, const hth_plan_options *options,
                           hth_outcome *out)
{
    hth_optimal best;
    double ms = options->limit_ms > 0 ? options->limit_ms : HTH_OPTIMAL_MS;
    if (step->n_stages > HTH_OPTIMAL_NODES || step->n_intervals > HTH_OPTIMAL_GAPS) {
        return hth_fail(HTH_ENOTSUP,
                        "policy optimal is for small steps: at most %d nodes and %d idle "
                        "intervals, this one has %d and %d",
                        HTH_OPTIMAL_NODES, HTH_OPTIMAL_GAPS, step->n_stages, step->n_intervals);
    }
    for (int i = 0; i < step->p->n_nodes; i++) {
        if (step->p->nodes[i].n_alternatives > HTH_OPTIMAL_MENU) {
            return hth_fail(HTH_ENOTSUP, "policy optimal takes at most %d alternatives of a node",
                            HTH_OPTIMAL_MENU);
        }
    }
    bool known;
    double horizon_us = optimal_horizon(search, step, options, ms, &known);
    search->n_elites = 0; // cbc's plan is laid out, not those of the search before it
    HTH_TRY(optimal_init(step, &best));
    uint64_t start_ns = hth_now_ns();
    hth_err err;
    HTH_GOTO(optimal_solve(step, search->d.budget, horizon_us, ms / 1e3, &best), done);
    if (!best.feasible) {
        bool early = (double)(hth_now_ns() - start_ns) < OPTIMAL_EARLY * ms * 1e6;
        err = known || !early
                  ? hth_fail(HTH_ETIMEDOUT, "cbc proved nothing within %.3g seconds", ms / 1e3)
                  : hth_plan_refuse(step->p, 0, hth_policy_name(options->policy));
        goto done;
    }
    hth_decode_fixed(&search->d, &best.fixed, out);
    double us = best.objective_us * horizon_us / 1e3;
    search->proven_us =
        search->proven_us > 0 ? search->proven_us : us - 2 * OPTIMAL_ALLOWED / 1e3 * horizon_us;
    if (out->excess > 0 || fabs(out->time_us - us) > 1e-4 * us + 1e-3) {
        err = hth_fail(HTH_ENOTSUP,
                       "cbc's solution does not hold when it is simulated: %.6g us for %.6g, "
                       "%.0f bytes too many",
                       out->time_us, us, out->excess);
    }
done:
    optimal_fini(&best);
    return err;
}
