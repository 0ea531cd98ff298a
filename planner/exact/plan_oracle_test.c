// SPDX-License-Identifier: Apache-2.0
// The search against proven optima. tests/data/oracle holds small steps with their best plans as
// CBC proved them, and optima.txt, for steps that are made here: their budget and optimum, and what
// tells whether they are still the same. How all are made stands in oracle_cases: run with
// ORACLE_WRITE=FOLDER (and ORACLE_MS, ORACLE_ONLY) to make them again.
#include "planner/bound/plan_bound.h"
#include "planner/exact/plan_optimal.h"
#include "planner/plan_train_gen.h"

#include "base/clock.h"

#include <jansson.h>
#include <math.h>
#include <unistd.h>

#define ORACLE_FOLDER "tests/data/oracle"
#define ORACLE_OPTIMA ORACLE_FOLDER "/optima.txt"
#define ORACLE_GAP    1.005 // of the optimum
#ifdef HTH_DEBUG
#define ORACLE_MS 2000 // sanitizers are slow
#else
#define ORACLE_MS 100
#endif

// What the networks are made of, a letter each: c conv 3x3, C the same with twice the channels, k
// conv 1x1, d depthwise conv, s strided conv, b batch norm, r relu, p pool, u upsampling, ( marks a
// value, + adds the marked one, & concatenates it.
static int oracle_layers(pg_net *net, int x, const char *what)
{
    int mark[8], n_marks = 0;
    for (; *what != '\0'; what++) {
        int c = net->value[x].c;
        switch (*what) {
        case 'c':
            x = pg_conv(net, x, c < 16 ? 64 : c, 3, 1, false);
            break;
        case 'C':
            x = pg_conv(net, x, 2 * c, 3, 1, false);
            break;
        case 'k':
            x = pg_conv(net, x, c, 1, 1, false);
            break;
        case 'd':
            x = pg_conv(net, x, c, 3, 1, true);
            break;
        case 's':
            x = pg_conv(net, x, c, 3, 2, false);
            break;
        case 'b':
            x = pg_same(net, PG_BN, x);
            break;
        case 'r':
            x = pg_same(net, PG_RELU, x);
            break;
        case 'p':
            x = pg_pool(net, x);
            break;
        case 'u':
            x = pg_up(net, x);
            break;
        case '(':
            mark[n_marks++] = x;
            break;
        default:
            x = pg_join(net, *what == '+' ? PG_ADD : PG_CONCAT, mark[--n_marks], x);
        }
    }
    return x;
}

static hth_problem oracle_network(const char *what, int batch, int channels, int size)
{
    pg_net *n = hth_calloc(1, sizeof *n);
    n->device = &pg_gpu;
    n->batch = batch;
    int x = pg_value_new(n, channels, size, size);
    hth_problem p = pg_step(n, oracle_layers(n, x, what));
    hth_free(n);
    return p;
}

// A recurrent cell unrolled: every step reads the same weights, whose gradient accumulates.
static hth_problem oracle_shared(int steps, uint64_t state_bytes, uint64_t weight_bytes)
{
    hth_problem p = pt_problem(8 * steps + 8, 6 * steps + 8);
    int weight = pt_tensor(&p, HTH_MEM_STATE, weight_bytes, -1), h[16], dh, dw = -1;
    h[0] = pt_tensor(&p, HTH_MEM_INPUT, state_bytes, -1);
    p.tensors[h[0]].external = true;
    p.latency_us = 10;
    for (int i = 0; i < steps; i++) {
        int in[2] = {h[i], weight};
        h[i + 1] = pt_node(&p, in, 2, HTH_MEM_ACTIVATION, state_bytes, false);
        pt_choice(&p, p.n_nodes - 1, 900 + 100 * i, 0);
        pt_choice(&p, p.n_nodes - 1, 500 + 60 * i, state_bytes / 2);
        p.nodes[p.n_nodes - 1].recomputable = true;
    }
    dh = pt_node(&p, &h[steps], 1, HTH_MEM_GRADIENT, state_bytes, false);
    pg_traffic(&p, p.n_nodes - 1, &pg_gpu, (double)state_bytes);
    for (int i = steps - 1; i >= 0; i--) {
        int in[3] = {h[i], h[i + 1], dh}, from[2] = {dh, weight};
        int part = pt_node(&p, in, 3, HTH_MEM_GRADIENT, weight_bytes, false);
        pt_choice(&p, p.n_nodes - 1, 1000, 0);
        pt_choice(&p, p.n_nodes - 1, 600, state_bytes);
        p.nodes[p.n_nodes - 1].recomputable = true;
        if (dw >= 0) {
            int sum[2] = {part, dw};
            part = pt_node(&p, sum, 2, HTH_MEM_GRADIENT, weight_bytes, true);
            pg_traffic(&p, p.n_nodes - 1, &pg_gpu, 3.0 * (double)weight_bytes);
        }
        dw = part;
        if (i > 0) {
            dh = pt_node(&p, from, 2, HTH_MEM_GRADIENT, state_bytes, false);
            pt_choice(&p, p.n_nodes - 1, 1000, 0);
            pt_choice(&p, p.n_nodes - 1, 550, state_bytes / 2);
            p.nodes[p.n_nodes - 1].recomputable = true;
        }
    }
    int update[2] = {weight, dw},
        fresh = pt_node(&p, update, 2, HTH_MEM_OUTPUT, weight_bytes, false);
    p.tensors[fresh].external = true;
    p.tensors[fresh].replaces = weight + 1;
    pg_traffic(&p, p.n_nodes - 1, &pg_gpu, 3.0 * (double)weight_bytes);
    p.nodes[p.n_nodes - 1].recomputable = false;
    return p;
}

typedef struct oracle_case {
    const char *name, *layers; // layers NULL: the recurrent cell
    int batch, channels, size;
    double ratio;  // of the unconstrained peak
    double gbytes; // link, GB/s
    double interference, copy_us;
} oracle_case;

static const oracle_case oracle_cases[] = {
    {"chain-80", "crcrcrcr", 32, 64, 56, 0.8, 25, 0, 0},
    {"chain-50", "crcrcrcr", 32, 64, 56, 0.5, 25, 0, 0},
    {"chain-slow-60", "crcrcrcr", 32, 64, 56, 0.6, 5, 0, 0},
    {"chain-fast-40", "crcrcrcr", 32, 64, 56, 0.4, 100, 0, 0},
    {"vgg-70", "crcrpCrCrp", 32, 64, 56, 0.7, 25, 0, 0},
    {"vgg-slow-40", "crcrpCrCrp", 32, 64, 56, 0.4, 8, 0, 0},
    {"norm-60", "cbrcbrcbr", 32, 64, 56, 0.6, 25, 0, 0},
    {"norm-slow-50", "cbrcbrcbr", 32, 64, 56, 0.5, 5, 0, 0},
    {"residual-70", "(crc+r(crc+r", 32, 64, 56, 0.7, 25, 0, 0},
    {"residual-norm-60", "(cbrcb+r", 32, 64, 56, 0.6, 12, 0, 0},
    {"unet-60", "cr(pcru&cr", 16, 64, 56, 0.6, 25, 0, 0},
    {"unet-two-60", "c(pc(pcu&cu&c", 16, 64, 56, 0.6, 25, 0, 0},
    {"mobile-50", "kbrdbrkb", 32, 96, 56, 0.5, 12, 0, 0},
    {"weights-70", "krkrkrkr", 8, 4096, 2, 0.7, 25, 0, 0},
    {"vgg-50", "crcrpCrCrp", 32, 64, 56, 0.5, 25, 0, 0},
    {"residual-50", "(crc+r(crc+r", 32, 64, 56, 0.5, 12, 0, 0},
    {"unet-slow-50", "cr(pcrku&crcr", 16, 64, 56, 0.5, 5, 0, 0},
    {"unet-40", "cr(pcrku&crcr", 16, 64, 56, 0.4, 25, 0, 0},
    {"dense-60", "cr(cr&(cr&kr", 16, 64, 56, 0.6, 12, 0, 0},
    {"shared-70", NULL, 5, 40, 24, 0.7, 25, 0, 0},
    {"shared-slow-80", NULL, 5, 40, 24, 0.8, 6, 0, 0},
    {"busy-link-60", "crcrpCrCr", 32, 64, 56, 0.6, 12, 0.25, 0},
    // In optima.txt.
    {"chain-65", "crcrcrcr", 32, 64, 56, 0.65, 12, 0, 0},
    {"chain-slow-75", "crcrcrcr", 32, 64, 56, 0.75, 4, 0, 0},
    {"chain-short-55", "crcrcr", 16, 64, 56, 0.55, 25, 0, 0},
    {"chain-short-45", "crcrcr", 16, 64, 56, 0.45, 12, 0, 0},
    {"chain-wide-60", "CrCrcr", 16, 32, 56, 0.6, 12, 0, 0},
    {"chain-thin-60", "krkrcrcr", 32, 64, 56, 0.6, 12, 0, 0},
    {"stride-60", "crsrcrsr", 32, 64, 56, 0.6, 12, 0, 0},
    {"pools-60", "crpcrpcr", 32, 64, 56, 0.6, 12, 0, 0},
    {"norm-80", "cbrcbrcbr", 32, 64, 56, 0.8, 25, 0, 0},
    {"norm-two-60", "cbrkbr", 32, 64, 56, 0.6, 8, 0, 0},
    {"vgg-80", "crcrpCrCrp", 32, 64, 56, 0.8, 12, 0, 0},
    {"residual-60", "(crc+r(crc+r", 32, 64, 56, 0.6, 25, 0, 0},
    {"residual-slow-70", "(crc+r(crc+r", 32, 64, 56, 0.7, 5, 0, 0},
    {"residual-norm-70", "(cbrcb+r", 32, 64, 56, 0.7, 25, 0, 0},
    {"residual-norm-50", "(cbrcb+r", 32, 64, 56, 0.5, 5, 0, 0},
    {"unet-70", "cr(pcru&cr", 16, 64, 56, 0.7, 12, 0, 0},
    {"unet-50", "cr(pcru&cr", 16, 64, 56, 0.5, 25, 0, 0},
    {"unet-fast-40", "cr(pcru&cr", 16, 64, 56, 0.4, 100, 0, 0},
    {"mobile-60", "kbrdbrkb", 32, 96, 56, 0.6, 25, 0, 0},
    {"mobile-slow-70", "kbrdbrkb", 32, 96, 56, 0.7, 5, 0, 0},
    {"mobile-two-60", "krdrkrdr", 32, 96, 56, 0.6, 12, 0, 0},
    {"weights-80", "krkrkrkr", 8, 4096, 2, 0.8, 12, 0, 0},
    {"shared-80", NULL, 5, 40, 24, 0.8, 25, 0, 0},
    {"shared-four-60", NULL, 4, 40, 24, 0.6, 12, 0, 0},
    {"shared-large-70", NULL, 4, 24, 60, 0.7, 12, 0, 0},
    {"busy-chain-60", "crcrcrcr", 32, 64, 56, 0.6, 12, 0.5, 0},
    {"busy-norm-60", "cbrcbr", 32, 64, 56, 0.6, 12, 0.25, 0},
    {"busy-residual-70", "(crc+r", 32, 64, 56, 0.7, 12, 1, 0},
    {"norm-two-45", "cbrkbr", 32, 64, 56, 0.45, 25, 0, 0},
    {"norm-two-fast-60", "cbrkbr", 32, 64, 56, 0.6, 100, 0, 0},
    {"norm-thin-60", "kbrkbrkbr", 32, 64, 56, 0.6, 12, 0, 0},
    {"chain-short-slow-70", "crcrcr", 16, 64, 56, 0.7, 4, 0, 0},
    {"vgg-small-70", "crpCrpCr", 32, 64, 56, 0.7, 12, 0, 0},
    {"residual-norm-slow-80", "(cbrcb+r", 32, 64, 56, 0.8, 4, 0, 0},
    {"residual-norm-fast-45", "(cbrcb+r", 32, 64, 56, 0.45, 50, 0, 0},
    {"unet-slow-70", "cr(pcru&cr", 16, 64, 56, 0.7, 4, 0, 0},
    {"mobile-80", "kbrdbrkb", 32, 96, 56, 0.8, 12, 0, 0},
    {"shared-four-80", NULL, 4, 40, 24, 0.8, 8, 0, 0},
    {"busy-chain-80", "crcrcrcr", 32, 64, 56, 0.8, 12, 0.3, 0},
    {"busy-short-60", "crcrcr", 16, 64, 56, 0.6, 12, 0.5, 0},
    {"busy-unet-60", "cr(pcru&cr", 16, 64, 56, 0.6, 12, 0.25, 0},
    {"issued-fast-40", "crcrcrcr", 32, 64, 56, 0.4, 100, 0, 20},
    {"issued-unet-60", "cr(pcru&cr", 16, 64, 56, 0.6, 100, 0.25, 5},
};
#define ORACLE_CASES (sizeof oracle_cases / sizeof *oracle_cases)

static hth_problem oracle_problem(const oracle_case *c)
{
    hth_problem p = c->layers != NULL ? oracle_network(c->layers, c->batch, c->channels, c->size)
                                      : oracle_shared(c->batch, (uint64_t)c->channels << 20,
                                                      (uint64_t)c->size << 20);
    uint64_t peak;
    p.h2d_bytes_per_s = p.d2h_bytes_per_s = c->gbytes * 1e9;
    p.copy_interference = c->interference;
    p.copy_us = c->copy_us;
    assert_ok(hth_plan_train_peak(&p, &peak));
    p.budget = (uint64_t)((double)peak * c->ratio);
    return p;
}

static char *oracle_path(const char *folder, const oracle_case *c)
{
    return hth_asprintf("%s/%s.json", folder, c->name);
}

// All its bytes, and what its alternatives take: another step has others.
static double oracle_sum(const hth_problem *problem)
{
    double sum = problem->copy_interference + problem->copy_us;
    for (int t = 0; t < problem->n_tensors; t++) {
        sum += (double)problem->tensors[t].bytes;
    }
    for (int i = 0; i < problem->n_nodes; i++) {
        for (int a = 0; a < problem->nodes[i].n_alternatives; a++) {
            const hth_choice *c = &problem->nodes[i].alternatives[a];
            sum += (double)c->workspace_bytes + c->time_us;
        }
    }
    return sum;
}

// A case's file where there is one, else a line of optima.txt.
static void oracle_keep(const char *folder, const oracle_case *c, const hth_problem *problem,
                        const hth_plan *plan)
{
    char *path = oracle_path(folder, c), *there = oracle_path(ORACLE_FOLDER, c);
    if (access(there, F_OK) == 0) {
        assert_ok(hth_plan_write(path, problem, plan));
    } else {
        char *lines = hth_asprintf("%s/optima.txt", folder);
        FILE *f = fopen(lines, "ae");
        assert_non_null(f);
        fprintf(f, "%s %.17g %llu %.17g\n", c->name, oracle_sum(problem),
                (unsigned long long)problem->budget, plan->lower_bound_us);
        fclose(f);
        hth_free(lines);
    }
    hth_free(path);
    hth_free(there);
}

// The line of a case: its budget and optimum.
static void oracle_line(const oracle_case *c, hth_problem *problem, double *optimum)
{
    char name[40];
    double sum;
    unsigned long long budget;
    FILE *f = fopen(ORACLE_OPTIMA, "re");
    assert_non_null(f);
    *problem = oracle_problem(c);
    while (fscanf(f, "%39s %lf %llu %lf", name, &sum, &budget, optimum) == 4) {
        if (strcmp(name, c->name) == 0) {
            problem->budget = budget;
            if (fabs(sum - oracle_sum(problem)) > 1e-9 * sum) {
                fail_msg("%s is another step now: make " ORACLE_OPTIMA " again", name);
            }
            fclose(f);
            return;
        }
    }
    fail_msg("%s is not in " ORACLE_OPTIMA, c->name);
}

// Makes the files again.
static void oracle_write(const char *folder)
{
    const char *ms = getenv("ORACLE_MS"), *only = getenv("ORACLE_ONLY");
    for (size_t i = 0; i < ORACLE_CASES; i++) {
        const oracle_case *c = &oracle_cases[i];
        if (only != NULL && strcmp(c->name, only) != 0) {
            continue;
        }
        hth_problem p = oracle_problem(c);
        hth_plan *plan, *quick = NULL;
        hth_plan_options o = {.policy = HTH_POLICY_OPTIMAL, .limit_ms = ms ? atof(ms) : 600000};
        hth_err err = hth_plan_train(&p, &o, &plan);
        if (err != HTH_OK) {
            print_message("%s (%d nodes): %s\n", c->name, p.n_nodes, hth_err_detail());
        } else {
            assert_ok(hth_plan_verify(&p, plan));
            oracle_keep(folder, c, &p, plan);
            hth_plan_options h = {.limit_ms = ORACLE_MS};
            double us = hth_plan_train(&p, &h, &quick) == HTH_OK ? quick->predicted_us : NAN;
            double bound = quick ? quick->lower_bound_us : NAN;
            print_message("%s: %d nodes, optimum %.3f us (proven %.3f) in %.1f s, hearth %+.3f %%, "
                          "bound %+.3f %%\n",
                          c->name, p.n_nodes, plan->predicted_us, plan->lower_bound_us,
                          plan->plan_ms / 1e3, (us / plan->predicted_us - 1) * 100,
                          (bound / plan->predicted_us - 1) * 100);
            hth_plan_free(quick);
            hth_plan_free(plan);
        }
        hth_problem_fini(&p);
    }
}

// Reads or makes a case.
static double oracle_read(const oracle_case *c, hth_problem *problem)
{
    char *path = oracle_path(ORACLE_FOLDER, c);
    double us;
    if (access(path, F_OK) != 0) {
        oracle_line(c, problem, &us);
        hth_free(path);
        return us;
    }
    assert_ok(hth_problem_read(path, problem));
    json_error_t where;
    json_t *root = json_load_file(path, 0, &where); // a plan by policy optimal
    assert_string_equal(json_string_value(json_object_get(root, "policy")), "optimal");
    us = json_number_value(json_object_get(root, "lower_bound_us"));
    assert_true(us > 0);
    json_decref(root);
    hth_free(path);
    return us;
}

// In 100 ms of a processor the search is within half a percent of every proven optimum, and the
// certificate under it.
static void search_reaches_proven_optima(void **state)
{
    int failed = 0;
    hth_clock_inject(pt_still_ns, NULL);
    assert_true(ORACLE_CASES >= 60);
    for (size_t i = 0; i < ORACLE_CASES; i += TEST_STRIDE) {
        hth_problem p;
        hth_plan *plan;
        double best = oracle_read(&oracle_cases[i], &p);
        hth_plan_options o = {.seed = 1, .limit_ms = ORACLE_MS};
        assert_ok(hth_plan_train(&p, &o, &plan));
        assert_ok(hth_plan_verify(&p, plan));
        bool slow = plan->predicted_us > best * ORACLE_GAP;
        if (slow || plan->predicted_us < best * (1 - 1e-4) ||
            plan->lower_bound_us > best * (1 + 1e-4)) {
            print_message("%s: %.3f us where %.3f is best (%+.2f %%), bound %.3f\n",
                          oracle_cases[i].name, plan->predicted_us, best,
                          (plan->predicted_us / best - 1) * 100, plan->lower_bound_us);
            failed++;
        }
        hth_plan_free(plan);
        hth_problem_fini(&p);
    }
    hth_clock_inject(NULL, NULL);
    assert_int_equal(failed, 0);
}

// Every mode of every interval of small random steps, as the decoder times them: the integer
// program's optimum is never above the best of them, and holds when it is emitted and simulated.
static void optimum_is_never_above_what_can_be_tried(void **state)
{
    int tried = 0;
    for (uint64_t seed = 0; seed < 400 && tried < 16; seed += TEST_STRIDE) {
        hth_problem p = pg_random(seed, 3);
        hth_step m;
        hth_decoder d;
        hth_outcome o;
        hth_plan *plan;
        uint64_t peak;
        uint8_t mode[16] = {0};
        double best = INFINITY;
        assert_ok(hth_plan_train_peak(&p, &peak));
        p.budget = peak / 100 * (50 + seed * 7 % 45);
        assert_ok(hth_step_init(&m, &p));
        assert_ok(hth_decoder_init(&d, &m, p.budget));
        int total = 1;
        for (int g = 0; g < m.n_intervals && total < 100000; g++) {
            total *= HTH_N_INTERVAL_MODES;
        }
        for (int k = 0; total <= 16384 && k < total; k++) {
            for (int g = 0, rest = k; g < m.n_intervals; g++, rest /= HTH_N_INTERVAL_MODES) {
                mode[g] = (uint8_t)(rest % HTH_N_INTERVAL_MODES);
            }
            hth_decode(&d, mode, &o);
            best = o.excess == 0 ? fmin(best, o.time_us) : best;
        }
        if (best < INFINITY && best > m.fastest_us * 1.001) {
            tried++;
            hth_plan_options optimal = {.policy = HTH_POLICY_OPTIMAL};
            hth_err err = hth_plan_train(&p, &optimal, &plan);
            if (err == HTH_ENOTSUP && strstr(hth_err_detail(), "not installed") != NULL) {
                skip();
            }
            assert_ok(err);
            assert_ok(hth_plan_verify(&p, plan));
            assert_true(plan->lower_bound_us <= best * (1 + 1e-5));
            assert_true(plan->lower_bound_us >= m.fastest_us);
            hth_plan_free(plan);
        }
        hth_decoder_fini(&d);
        hth_step_fini(&m);
        hth_problem_fini(&p);
    }
    assert_true(tried > 8 / TEST_STRIDE);
}

// A tenth of a second passes at each look.
static uint64_t slow_ns(void *ctx)
{
    uint64_t *now_ns = ctx;
    return *now_ns += 100000000u;
}

// What is laid out is cbc's, and nothing of the search that gave it a horizon; and cbc has its
// minute, which is not the search's limit.
static void optimal_is_what_cbc_says(void **state)
{
    hth_problem p = pg_random(0, 3);
    hth_plan_options o = {.policy = HTH_POLICY_OPTIMAL};
    hth_step m;
    hth_search search;
    hth_outcome out;
    hth_plan *plan;
    uint64_t peak, now_ns = 0;
    assert_ok(hth_plan_train_peak(&p, &peak));
    p.budget = peak / 10 * 9;
    assert_ok(hth_step_init(&m, &p));
    assert_ok(hth_search_open(&search, &m, p.budget, &o));
    hth_err err = hth_search_optimal(&search, &m, &o, &out);
    if (err == HTH_ENOTSUP && strstr(hth_err_detail(), "not installed") != NULL) {
        skip();
    }
    assert_ok(err);
    assert_int_equal(search.n_elites, 0);
    hth_search_close(&search);
    hth_step_fini(&m);
    hth_clock_inject(slow_ns, &now_ns);
    assert_ok(hth_plan_train(&p, &o, &plan));
    hth_clock_inject(NULL, NULL);
    assert_true(now_ns > 2000000000u && !plan->stopped);
    hth_plan_free(plan);
    hth_problem_fini(&p);
}

static void optimal_says_what_it_cannot(void **state)
{
    static const int blocks[] = {3, 4, 6, 3};
    hth_plan_options o = {.policy = HTH_POLICY_OPTIMAL, .limit_ms = 20};
    hth_plan *plan;
    hth_problem p = pg_resnet(8, blocks);
    assert_err(hth_plan_train(&p, &o, &plan), HTH_ENOTSUP, "is for small steps");
    hth_problem_fini(&p);
    p = oracle_problem(&oracle_cases[0]);
    for (int i = 0; i <= HTH_OPTIMAL_MENU; i++) {
        pt_choice(&p, 0, 1000 + i, (uint64_t)(HTH_OPTIMAL_MENU - i) * HTH_PLAN_ALIGN);
    }
    assert_err(hth_plan_train(&p, &o, &plan), HTH_ENOTSUP, "alternatives of a node");
    hth_problem_fini(&p);
    p = oracle_problem(&oracle_cases[0]);
    char *path = hth_strdup(getenv("PATH"));
    setenv("PATH", "/nonexistent", 1);
    assert_err(hth_plan_train(&p, &o, &plan), HTH_ENOTSUP, "coinor-cbc");
    setenv("PATH", path, 1);
    hth_free(path);
    hth_err err = hth_plan_train(&p, &o, &plan);
    assert_true(err == HTH_ETIMEDOUT || err == HTH_ENOTSUP);
    o.limit_ms = 10000;
    p.budget = p.tensors[2].bytes; // less than a stage
    err = hth_plan_train(&p, &o, &plan);
    assert_true(err == HTH_ETOOBIG || err == HTH_ENOTSUP);
    hth_problem_fini(&p);
}

static void allocations_fail_cleanly(void **state)
{
    hth_problem p = pg_random(3, 4);
    hth_step m;
    assert_ok(hth_step_init(&m, &p));
    FILE *f = fopen("/dev/null", "we");
    FAULT_LOOP(hth_optimal_write(f, &m, 1 << 20, 1e6));
    fclose(f);
    hth_step_fini(&m);
    hth_problem_fini(&p);
    // Addresses that have to be squeezed.
    hth_plan *plan = NULL;
    assert_ok(hth_problem_read(ORACLE_FOLDER "/chain-50.json", &p));
    hth_plan_options o = {.limit_ms = 1e6, .limit_decodes = 100};
    FAULT_LOOP(hth_plan_train(&p, &o, &plan));
    hth_plan_free(plan);
    hth_problem_fini(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(optimum_is_never_above_what_can_be_tried),
        cmocka_unit_test(optimal_is_what_cbc_says),
        cmocka_unit_test(optimal_says_what_it_cannot),
        cmocka_unit_test(allocations_fail_cleanly),
        cmocka_unit_test(search_reaches_proven_optima),
    };
    if (getenv("ORACLE_WRITE") != NULL) {
        oracle_write(getenv("ORACLE_WRITE"));
        return 0;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
