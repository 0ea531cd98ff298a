// SPDX-License-Identifier: Apache-2.0
// The planner on steps of well-known networks, for every policy and budget: simulated step times,
// certified bounds, planning times, addresses. Everything printed here is simulated but the
// planning times. Steps come from recorded problems (tests/data/plan/*.json.gz: costs measured on a
// CPU, scaled to the batch; files given instead) and from the generator (costs of a simple GPU
// model).
//
// Limit: the planner's default for the size of the step (100 ms for ResNet-50), or --ms, for all
// policies.
//
// usage, from the root: plan_bench [--ms MS] [--ratios 0.9,0.8,..|--gb 19.2,16.8,..] [--link GB/S]
//                           [--repeat N] [--only WORD] [--policies a,b,..]
//                           [--recorded|--generated] [--wall] [FILE.json[.gz] ..]
// Budgets are shares of the unconstrained peak, or, with --gb, so many 10^9 bytes. --link: another
// rate of the link, each way, in 10^9 bytes a second, whose copies take nothing from compute.
// Limits and planning times are processor time, as on a machine that does nothing else; --wall:
// time that passes.
#include "planner/plan_train_gen.h"

#include "base/clock.h"
#include "base/compare.h"
#include "planner/plan_curve.h"

#include <glob.h>
#include <math.h>
#include <time.h>
#include <unistd.h>

#define BENCH_RATIOS 16
#define BENCH_REPEAT 64

typedef struct bench {
    double ms, ratio[BENCH_RATIOS], link;
    int n_ratios, repeat;
    bool gb; // ratios are 10^9 bytes
    bool policy[HTH_N_POLICIES];
    const char *only;
    double worst_arena, worst_gap;
} bench;

static void check(hth_err err, const char *what)
{
    if (err != HTH_OK) {
        fprintf(stderr, "%s: %s\n", what, hth_err_detail());
        exit(1);
    }
}

static int bench_slower(const void *a, const void *b)
{
    const hth_plan *const *x = a, *const *y = b;
    double p = *x != NULL ? (*x)->predicted_us : INFINITY;
    double q = *y != NULL ? (*y)->predicted_us : INFINITY;
    return (p > q) - (p < q);
}

// The plan of median time under one policy, over n seeds; NULL: none. ms[]: how long planning took,
// ascending.
static hth_plan *bench_plan(const bench *b, const hth_problem *problem, hth_policy policy,
                            double *ms, int n)
{
    hth_plan *plan[BENCH_REPEAT] = {NULL};
    for (int i = 0; i < n; i++) {
        hth_plan_options o = {.policy = policy, .seed = (uint64_t)i, .limit_ms = b->ms};
        uint64_t start_ns = hth_now_ns();
        if (hth_plan_train(problem, &o, &plan[i]) != HTH_OK) {
            plan[i] = NULL;
        }
        ms[i] = (double)(hth_now_ns() - start_ns) / 1e6;
    }
    qsort(ms, (size_t)n, sizeof *ms, hth_compare_double);
    qsort(plan, (size_t)n, sizeof(hth_plan *), bench_slower);
    for (int i = 0; i < n; i++) {
        if (i != n / 2) {
            hth_plan_free(plan[i]);
        }
    }
    return plan[n / 2];
}

// How long it takes to plan again from `from`, for a hundredth less: the median of n.
static double bench_warm(const bench *b, const hth_problem *problem, const hth_plan *from, int n)
{
    double ms[BENCH_REPEAT] = {0};
    hth_problem less = *problem;
    less.budget = problem->budget / 100 * 99;
    for (int i = 0; i < n; i++) {
        hth_plan_options o = {.seed = (uint64_t)i, .limit_ms = b->ms / 3, .from = from};
        hth_plan *plan;
        uint64_t start_ns = hth_now_ns();
        (void)hth_plan_train(&less, &o, &plan);
        ms[i] = (double)(hth_now_ns() - start_ns) / 1e6;
        hth_plan_free(plan);
    }
    qsort(ms, (size_t)n, sizeof *ms, hth_compare_double);
    return ms[n / 2];
}

static void bench_ratio(bench *b, hth_problem *problem, uint64_t peak, uint64_t floor, double ratio,
                        double unconstrained)
{
    double ms[BENCH_REPEAT] = {0};
    problem->budget = (uint64_t)((b->gb ? 1e9 : (double)peak) * ratio);
    if (b->gb) {
        printf("| %.1f GB, %.2f | ", ratio, (double)problem->budget / (double)peak);
    } else {
        printf("| %.2f | ", ratio);
    }
    printf("%.2f |", ((double)problem->budget - (double)floor) / ((double)peak - (double)floor));
    hth_plan *hearth = bench_plan(b, problem, HTH_POLICY_HEARTH, ms, b->repeat);
    for (int k = 0; k < HTH_N_POLICIES; k++) {
        double other[BENCH_REPEAT] = {0};
        hth_plan *plan = k == HTH_POLICY_HEARTH ? hearth : NULL;
        if (plan == NULL && b->policy[k]) {
            plan = bench_plan(b, problem, (hth_policy)k, other, b->repeat);
        }
        if (b->policy[k] && plan != NULL) {
            printf(" %.3f |", plan->predicted_us / unconstrained);
        } else if (b->policy[k]) {
            printf(" - |");
        }
        if (k != HTH_POLICY_HEARTH) {
            hth_plan_free(plan);
        }
    }
    if (hearth != NULL) {
        double gap = hearth->predicted_us / hearth->lower_bound_us - 1;
        double arena = (double)hearth->arena_bytes / fmax((double)hearth->live_peak_bytes, 1);
        printf(" %.3f | %.2f %% | %.4f | %.0f | %.0f | %.0f |\n",
               hearth->lower_bound_us / unconstrained, gap * 100, arena, ms[b->repeat / 2],
               ms[(int)((b->repeat - 1) * 0.95 + 0.5)], bench_warm(b, problem, hearth, b->repeat));
        b->worst_arena = fmax(b->worst_arena, arena);
        b->worst_gap = fmax(b->worst_gap, gap);
    } else {
        printf(" - | - | - | %.0f | %.0f | - |\n", ms[b->repeat / 2],
               ms[(int)((b->repeat - 1) * 0.95 + 0.5)]);
    }
    hth_plan_free(hearth);
    fflush(stdout);
}

static void bench_step(bench *b, const char *name, hth_problem *problem)
{
    uint64_t peak, floor;
    hth_plan *plan;
    hth_curve curve;
    if (b->only == NULL || strstr(name, b->only) != NULL) {
        if (b->link > 0) {
            problem->h2d_bytes_per_s = problem->d2h_bytes_per_s = b->link * 1e9;
            problem->copy_interference = 0;
        }
        check(hth_plan_train_peak(problem, &peak), name);
        check(hth_plan_train_floor(problem, &floor), name);
        hth_problem whole = *problem;
        whole.budget = peak;
        check(hth_plan_train(&whole, &(hth_plan_options){.policy = HTH_POLICY_KEEP}, &plan), name);
        printf("\n### %s: %d nodes, %d tensors; peak %.1f MiB, floor %.2f of it, %.1f ms a step\n",
               name, problem->n_nodes, problem->n_tensors, (double)peak / 1048576,
               (double)floor / (double)peak, plan->predicted_us / 1e3);
        printf("| ratio | above floor |");
        for (int k = 0; k < HTH_N_POLICIES; k++) {
            if (b->policy[k]) {
                printf(" %s |", hth_policy_name((hth_policy)k));
            }
        }
        printf(" bound | gap | arena / live | plan ms p50 | p95 | warm p50 |\n|---|---|");
        for (int k = 0; k < HTH_N_POLICIES; k++) {
            printf("%s", b->policy[k] ? "---|" : "");
        }
        printf("---|---|---|---|---|---|\n");
        for (int i = 0; i < b->n_ratios; i++) {
            bench_ratio(b, problem, peak, floor, b->ratio[i], plan->predicted_us);
        }
        uint64_t start_ns = hth_now_ns();
        problem->budget = peak;
        hth_err err = hth_plan_curve(problem, &(hth_plan_options){.limit_ms = b->ms}, &curve);
        double s = (double)(hth_now_ns() - start_ns) / 1e9;
        printf("\ncurve of %d points: %.1f s\n", err == HTH_OK ? curve.n : 0, s);
        hth_plan_free(plan);
    }
    hth_problem_fini(problem);
}

static void bench_file(bench *b, const char *path)
{
    char plain[] = "/tmp/plan-bench-XXXXXX";
    const char *base = strrchr(path, '/') ? strrchr(path, '/') + 1 : path;
    hth_problem p;
    close(mkstemp(plain));
    char *command = hth_asprintf("gzip -dcf -- '%s' >%s", path, plain);
    check(system(command) == 0 ? HTH_OK : hth_fail(HTH_EIO, "cannot unpack"), path);
    check(hth_problem_read(plain, &p), path);
    unlink(plain);
    hth_free(command);
    char *name = hth_asprintf("%.*s (recorded)", (int)strcspn(base, "."), base);
    bench_step(b, name, &p);
    hth_free(name);
}

static void bench_generated(bench *b)
{
    static const int blocks50[] = {3, 4, 6, 3}, blocks152[] = {3, 8, 36, 3},
                     deep[] = {6, 12, 48, 8};
    const struct {
        const char *name;
        hth_problem p;
    } all[] = {{"VGG19, batch 144, 227x227 (generated)", pg_vgg19(144, 227)},
               {"UNet, batch 120, 256x256 (generated)", pg_unet(120, 256, 256)},
               {"UNet, batch 11, 416x608 (generated)", pg_unet(11, 416, 608)},
               {"UNet, batch 32, 416x608 (generated)", pg_unet(32, 416, 608)},
               {"VGG16, batch 256, 224x224 (generated)", pg_vgg16(256, 224)},
               {"MobileNet, batch 512 (generated)", pg_mobilenet(512)},
               {"ResNet for CIFAR, batch 1, Cortex-M4 (generated)", pg_resnet_cifar(&pg_m4, 1)},
               {"ResNet for CIFAR, batch 1, Cortex-A72 (generated)", pg_resnet_cifar(&pg_a72, 1)},
               {"ResNet-50, batch 184 (generated)", pg_resnet(184, blocks50)},
               {"ResNet-152, batch 64 (generated)", pg_resnet(64, blocks152)},
               {"ResNet of 2,000 nodes, batch 32 (generated)", pg_resnet(32, deep)}};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        hth_problem p = all[i].p;
        bench_step(b, all[i].name, &p);
    }
}

static void bench_recorded(bench *b)
{
    glob_t g;
    if (glob("tests/data/plan/*.json.gz", 0, NULL, &g) == 0) {
        for (size_t i = 0; i < g.gl_pathc; i++) {
            bench_file(b, g.gl_pathv[i]);
        }
    }
    globfree(&g);
}

static void bench_ratios(bench *b, char *list, bool gb)
{
    b->n_ratios = 0;
    b->gb = gb;
    for (char *at = strtok(list, ","); at && b->n_ratios < BENCH_RATIOS; at = strtok(NULL, ",")) {
        b->ratio[b->n_ratios++] = atof(at);
    }
}

static void bench_policies(bench *b, char *list)
{
    hth_policy policy;
    memset(b->policy, 0, sizeof b->policy);
    for (char *at = strtok(list, ","); at != NULL; at = strtok(NULL, ",")) {
        check(hth_policy_find(at, &policy), "--policies");
        b->policy[policy] = true;
    }
}

// This process's processor time.
static uint64_t cpu_ns(void *ctx)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

int main(int argc, char **argv)
{
    static const double ratios[] = {0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3};
    bench b = {.n_ratios = 7, .repeat = 5};
    bool recorded = true, generated = true;
    const char *limit = "the planner's default for the size";
    int files = 0;
    memcpy(b.ratio, ratios, sizeof ratios);
    memset(b.policy, 1, HTH_POLICY_OPTIMAL); // all but the one for small steps
    hth_clock_inject(cpu_ns, NULL); // what others do on the machine takes no time from a plan
    for (int i = 1; i < argc; i++) {
        bool more = i + 1 < argc;
        if (strcmp(argv[i], "--ms") == 0 && more) {
            b.ms = atof(argv[++i]);
            limit = "the given ms";
        } else if (strcmp(argv[i], "--repeat") == 0 && more) {
            b.repeat = atoi(argv[++i]);
            b.repeat = b.repeat < 1 ? 1 : b.repeat;
            b.repeat = b.repeat > BENCH_REPEAT ? BENCH_REPEAT : b.repeat;
        } else if (strcmp(argv[i], "--only") == 0 && more) {
            b.only = argv[++i];
        } else if (strcmp(argv[i], "--policies") == 0 && more) {
            bench_policies(&b, argv[++i]);
        } else if ((strcmp(argv[i], "--ratios") == 0 || strcmp(argv[i], "--gb") == 0) && more) {
            bool gb = argv[i][2] == 'g';
            bench_ratios(&b, argv[++i], gb);
        } else if (strcmp(argv[i], "--link") == 0 && more) {
            b.link = atof(argv[++i]);
        } else if (strcmp(argv[i], "--recorded") == 0) {
            generated = false;
        } else if (strcmp(argv[i], "--generated") == 0) {
            recorded = false;
        } else if (strcmp(argv[i], "--wall") == 0) {
            hth_clock_inject(NULL, NULL);
        } else if (argv[i][0] == '-') {
            fprintf(stderr,
                    "usage: %s [--ms MS] [--ratios 0.9,0.8,..|--gb 19.2,16.8,..] [--link GB/S]\n"
                    "    [--repeat N] [--only WORD] [--policies a,b,..] [--recorded|--generated]\n"
                    "    [--wall] [FILE.json[.gz] ..]\n",
                    argv[0]);
            return 2;
        } else {
            files++;
            bench_file(&b, argv[i]);
        }
    }
    printf(
        "%sStep times are simulated, relative to the unconstrained step, medians over %d seeds;\n"
        "planning times are measured, cold and (for 1 %% less memory) warm, at a limit of %s.\n",
        files ? "\n" : "", b.repeat, limit);
    if (files == 0) {
        if (recorded) {
            bench_recorded(&b);
        }
        if (generated) {
            bench_generated(&b);
        }
    }
    printf("\nworst certified gap %.2f %%, worst arena / live peak %.4f\n", b.worst_gap * 100,
           b.worst_arena);
    return 0;
}
