// SPDX-License-Identifier: Apache-2.0
// The programs as people use them: `hearth` on a store of its own and against hearthd, with the
// digits model of tests/data, whose answers are checked against the labels.
#include "base/sanitized.h"
#include "base/test.h"
#include "client/cli/cmd.h"
#include "client/hearth.h"
#include "client/npy.h"

#include <jansson.h>

#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define DIGITS_DIR "tests/data/digits/"
#define DIGITS     "tests/data/digits/digits.onnx"
#define IMAGES     "tests/data/digits/images.npy"

static char dir[] = "/tmp/hearth-cli-XXXXXX", build[200];
static char output[65536], errors[65536]; // of the last run

// run starts build/COMMAND with a shell and returns its exit code. The streams stay apart: a
// sanitizer's warning is not part of the JSON.
static int run(const char *fmt, ...)
{
    char command[2048], path[64];
    snprintf(path, sizeof path, "%s/errors", dir);
    va_list ap;
    size_t n = (size_t)snprintf(command, sizeof command,
                                "exec 2>'%s'; unset HEARTH_SERVER; XDG_RUNTIME_DIR='%s' %s/", path,
                                dir, build);
    va_start(ap, fmt);
    vsnprintf(command + n, sizeof command - n, fmt, ap);
    va_end(ap);
    FILE *p = popen(command, "r");
    assert_non_null(p);
    n = fread(output, 1, sizeof output - 1, p);
    output[n] = 0;
    int status = pclose(p);
    FILE *e = fopen(path, "r");
    assert_non_null(e);
    n = fread(errors, 1, sizeof errors - 1, e);
    errors[n] = 0;
    fclose(e);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static void said(const char *text)
{
    if (strstr(output, text) == NULL && strstr(errors, text) == NULL) {
        fail_msg("'%s' is not in: %s%s", text, output, errors);
    }
}

static void not_said(const char *text)
{
    if (strstr(output, text) != NULL || strstr(errors, text) != NULL) {
        fail_msg("'%s' is in: %s%s", text, output, errors);
    }
}

static json_int_t number(const char *key)
{
    json_t *doc = json_loads(output, 0, NULL);
    assert_non_null(doc);
    json_int_t v = json_integer_value(json_object_get(doc, key));
    json_decref(doc);
    return v;
}

// right counts the images that the logits classify as the labels do.
static int right(const char *logits, int *n)
{
    hearth_tensor y, label;
    int hits = 0;
    assert_int_equal(hth_npy_read(logits, &y), 0);
    assert_int_equal(hth_npy_read("tests/data/digits/labels.npy", &label), 0);
    assert_int_equal(label.dtype, HEARTH_I64);
    assert_int_equal(y.shape[0], label.shape[0]);
    *n = (int)y.shape[0];
    for (int i = 0; i < *n; i++) {
        const float *row = (const float *)y.data + 10 * i;
        int best = 0;
        for (int k = 1; k < 10; k++) {
            best = row[k] > row[best] ? k : best;
        }
        hits += best == ((const int64_t *)label.data)[i];
    }
    hth_free(y.data);
    hth_free(label.data);
    return hits;
}

static void test_command_line(void **state)
{
    assert_int_equal(run("hearth"), 2);
    said("`hearth help`");
    assert_int_equal(run("hearth help"), 0);
    said("convsel");
    assert_int_equal(run("hearth bench --help"), 0);
    said("--seconds S");
    assert_int_equal(run("hearth imprt a b"), 2);
    said("did you mean 'import'?");
    assert_int_equal(run("hearth bench m --bacth 4"), 2);
    said("did you mean --batch?");
    assert_int_equal(run("hearth bench m --batch four"), 2);
    said("--batch needs a number, not 'four'");
    assert_int_equal(run("hearth bench m --batch"), 2);
    assert_int_equal(run("hearth --store /nowhere import m f --max-batch -2"), 2);
    said("--max-batch is a number from 0 to 2147483647");
    assert_int_equal(run("hearth --store /nowhere import m f --max-batch 2147483648"), 2);
    assert_int_equal(run("hearth --json=1 ls"), 2);
    assert_int_equal(run("hearth import m"), 2);
    said("usage: hearth import");
    assert_int_equal(run("hearth ls extra"), 2);
    assert_int_equal(run("hearth --server ipc:///nowhere --store /tmp/x ls"), 2);
    assert_int_equal(run("hearth --server ipc:///nowhere ls"), 1);
    said("no server at ipc:///nowhere");
    assert_int_equal(run("hearth top --interval 0"), 2);
    said("from 0.1 to 3600");
    assert_int_equal(run("hearth top --count 0"), 2);
    assert_int_equal(run("hearthd"), 2);
    said("--store DIR is missing");
    assert_int_equal(run("hearthd --store /tmp/x --set limits.rank=99"), 2);
    assert_int_equal(run("hearthd --help"), 0);
    said("limits.message_bytes");
}

// What other programs call it, and what is nearly right, is led to what it is called here; to what
// removes, nothing is.
static void test_corrections(void **state)
{
    static const struct {
        const char *words, *says;
    } cases[] = {
        {"hearth run m", "did you mean 'infer'?"},
        {"hearth predict m", "did you mean 'infer'?"},
        {"hearth predcit m", "did you mean 'infer'?"},
        {"hearth list", "did you mean 'ls'?"},
        {"hearth upload m f", "did you mean 'import'?"},
        {"hearth serve", "hearthd --store DIR"},
        {"hearth version", "did you mean --version?"},
        {"hearth bench m --batch-size 4",
         "bench has no option --batch-size; did you mean --batch?"},
        {"hearth train m --learning-rate 1", "did you mean --lr?"},
        {"hearth train m --learning_rate=1", "did you mean --lr?"},
        {"hearth train m --leaning-rate 1", "did you mean --lr?"},
        {"hearth train m --epoch 3", "did you mean --epochs?"},
        {"hearth train m --num_epochs 3", "did you mean --epochs?"},
        {"hearth train m --save_as=x", "did you mean --save-as?"},
        {"hearth train m --output x", "did you mean --save-as?"},
        {"hearth infer m --output x", "did you mean --output-dir?"},
        {"hearth infer m --epochs 3", "infer has no option --epochs, train has"},
        {"hearth --epochs 3 train m", "comes after one"},
        {"hearth --host x ls", "did you mean --server?"},
        {"hearth bench m -batch 4", "did you mean --batch?"},
        {"hearth bench m -b 4", "options are words with two dashes"},
        {"hearth bench m --batch 3.5", "--batch needs a whole number, not '3.5'"},
        {"hearth --server ipc:///nowhere --device cpu ls",
         "choose one of a server's devices, use --on"},
        {"hearth import README.md m", "the name comes first"},
        {"hearthd --port 80", "did you mean --http"},
        {"hearthd --model-repository x", "did you mean --store"},
        {"hearthd --set log_level=info", "did you mean log.level?"},
        {"hearthd --set batchmax=3", "did you mean batch.max?"},
        {"hearthd start", "the model store is given with --store DIR"},
    };
    static const char *const removal[] = {"delete", "remove", "rmm", "rn", "rum", "mr", "em"};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_int_equal(run("%s", cases[i].words), 2);
        said(cases[i].says);
    }
    assert_int_equal(run("hearth foo"), 2);
    not_said("did you mean"); // nothing is near
    for (size_t i = 0; i < sizeof removal / sizeof *removal; i++) {
        assert_int_equal(run("hearth %s m", removal[i]), 2);
        said("`hearth help` lists them");
        not_said("'rm'");
    }
}

// A switch needs no value, may have one, and takes no other word for one.
static void test_switches(void **state)
{
    assert_int_equal(run("hearthd --allow-client-shm --check-config --store %s/x", dir), 0);
    said("allow_client_shm = true");
    assert_int_equal(run("hearthd --allow-client-shm false --check-config --store %s/x", dir), 0);
    said("allow_client_shm = false");
    assert_int_equal(run("hearthd --store %s/x --check-config --kernels-onednn=false", dir), 0);
    said("kernels.onednn = false");
    assert_int_equal(run("hearthd --allow-client-shm=maybe --store %s/x", dir), 2);
    said("'maybe' is not one of: false true");
    assert_int_equal(run("hearth --server ipc:///nowhere train m --replan --data x"), 1);
    said("no server at");
    assert_int_equal(run("hearth --server ipc:///nowhere train m --replan off --data x"), 1);
    said("no server at");
    assert_int_equal(run("hearth train m --replan --data"), 2);
    said("--data needs a value");
}

// Every command says what is wrong where no server answers, and ends.
static void test_no_server(void **state)
{
    int asked = 0;
    for (int i = 0; hth_commands[i] != NULL; i++) {
        const hth_command *c = hth_commands[i];
        char words[64] = "";
        for (int k = 0; k < c->least; k++) {
            strcat(words, " cpu:0");
        }
        int rc = run("hearth --server ipc:///nowhere %s%s", c->name, words);
        if (rc > HTH_CLI_USAGE || (rc != HTH_CLI_OK && strncmp(errors, "hearth: ", 8) != 0)) {
            fail_msg("hearth %s%s: exit status %d, %s", c->name, words, rc, errors);
        }
        asked += strstr(errors, "no server at ipc:///nowhere") != NULL;
    }
    assert_true(asked >= 25);
}

// Of address space; who reserves terabytes, as sanitizers do, cannot be limited.
#define LITTLE_MEMORY (HTH_SANITIZED ? ":" : "ulimit -v 1000000")

// A problem is planned without server and store, in little memory: no device is opened.
static void test_problem(void **state)
{
    static const char problem[] = "tests/data/oracle/residual-norm-60.json";
    assert_int_equal(run("hearth --version; %s; %s/hearth --json plan --problem %s "
                         "--policy hearth --budget 60%%",
                         LITTLE_MEMORY, build, problem),
                     0);
    assert_non_null(strstr(output, "\"policy\":\"hearth\""));
    assert_int_equal(run("hearth plan --problem %s --budget 101%%", problem), 1);
    said("'101%' is more than 100%");
    assert_int_equal(run("hearth plan m --problem %s", problem), 2);
    assert_int_equal(run("hearth plan --problem %s --policy hearth --plan-ms 600001", problem), 1);
    said("plan-ms is a number from 0 to 600000");
    assert_int_equal(run("hearth plan --problem %s --policy hearth --seed -1", problem), 1);
    said("seed is a number from 0 to 4294967295");
    // The whole of the problem's budget, and more than any machine has.
    assert_int_equal(run("hearth --json plan --problem %s --train --budget 100%%", problem), 0);
    json_int_t whole = number("budget_bytes");
    assert_in_range(number("floor_bytes"), 1, whole);
    assert_int_equal(run("hearth --json plan --problem %s --budget 2000TiB", problem), 0);
    assert_int_equal(number("budget_bytes"), 2000LL << 40);
    assert_int_equal(run("hearth plan --problem %s --train --budget 5%%", problem), 1);
    said("needs at least");
    said("; a plan was found for ");
    assert_int_equal(run("hearth --version; sed 's/\"budget\":[0-9]*/\"budget\":0/' %s >%s/p0; "
                         "%s/hearth plan --problem %s/p0 --budget 60%%",
                         problem, dir, build, dir),
                     1);
    said("'60%': the problem has no budget of its own");
}

// curve_end reads a number of the last curve's last point, the one with all memory.
static double curve_end(const char *key)
{
    json_t *points = json_loads(output, 0, NULL);
    size_t n = json_array_size(points);
    assert_true(n > 4);
    double v = json_number_value(json_object_get(json_array_get(points, n - 1), key));
    json_decref(points);
    return v;
}

// A curve is made of data, too, in little memory, up to the step's whole peak.
static void test_curve_problem(void **state)
{
    static const char problem[] = "tests/data/oracle/residual-norm-60.json";
    assert_int_equal(run("hearth --version >/dev/null; %s; env -u HEARTH_SERVER %s/hearth --json "
                         "curve --problem %s --plan-ms 5 --csv %s/c.csv",
                         LITTLE_MEMORY, build, problem, dir),
                     0);
    assert_float_equal(curve_end("share"), 1, 1e-9);
    assert_float_equal(curve_end("slowdown"), 1, 1e-9);
    double bytes = curve_end("budget_bytes");
    assert_int_equal(
        run("hearth --json plan --problem %s --train --policy keep --budget %.0f", problem, bytes),
        0);
    assert_float_equal(number("budget_bytes"), bytes, 0.5);
    assert_int_equal(run("hearth --version; head -1 %s/c.csv", dir), 0);
    said("share,accumulate,budget_bytes");
    // Tensors that no machine could hold: ten thousand times as large.
    assert_int_equal(run("hearth --version >/dev/null; sed -E 's/\"bytes\":[0-9]+/&0000/g' %s "
                         ">%s/large; %s/hearth --json curve --problem %s/large --plan-ms 5 "
                         "--csv %s/c.csv",
                         problem, dir, build, dir, dir),
                     0);
    bytes = curve_end("budget_bytes");
    assert_true(bytes > 1e12);
    assert_int_equal(run("hearth --version; tail -1 %s/c.csv | grep ',%.0f,'", dir, bytes), 0);
    // Nodes without times: nothing is slower than another, in the picture neither.
    assert_int_equal(run("hearth --version >/dev/null; sed -E 's/\"time_us\":[^,]*,//g' %s "
                         ">%s/timeless; %s/hearth --json curve --problem %s/timeless --plan-ms 5 "
                         "--svg %s/c.svg",
                         problem, dir, build, dir, dir),
                     0);
    assert_float_equal(curve_end("slowdown"), 1, 0);
    assert_int_equal(run("hearth --version >/dev/null; grep -E 'nan|inf' %s/c.svg", dir), 1);
    assert_int_equal(run("hearth curve --problem %s --policy none", problem), 1);
    said("none");
    assert_int_equal(run("hearth curve --problem %s --accumulate 2", problem), 1);
    said("a planning problem's batch cannot be split");
    assert_int_equal(run("hearth curve m --problem %s", problem), 2);
    said("give neither");
    assert_int_equal(run("hearth curve"), 2);
    said("a model or --problem FILE is missing");
}

// A batch that would take this machine minutes and more memory than it has, by a model file and by
// a server that allows an operator a second.
static void profile_large(void)
{
    static const char step[] = "--train --batch 1048576 --budget 60% --json";
    assert_int_equal(run("hearth --store %s/p1 --json plan m --train --batch 48 --write-profile "
                         "%s/c48.json",
                         dir, dir),
                     0);
    assert_int_equal(
        run("hearth --version; sed 's/\\[48,/[1048576,/g; s/shape=48,/shape=1048576,/g' "
            "%s/c48.json >%s/large.json",
            dir, dir),
        0);
    assert_int_equal(
        run("hearth plan tests/data/digits/untrained.onnx %s --profile %s/large.json", step, dir),
        0);
    assert_true(number("budget_bytes") > 10LL << 30);
    assert_int_equal(run("hearth --json curve tests/data/digits/untrained.onnx --batch 1048576 "
                         "--plan-ms 5 --profile %s/large.json",
                         dir),
                     0);
    assert_true(curve_end("budget_bytes") > 10 * 0x1p30);
    assert_int_equal(
        run("hearth --version >/dev/null; mkfifo %s/ready; %s/hearthd --store %s/p2 --listen "
            "ipc://%s/plan.sock --device cpu:mem=64MiB,threads=1 --limits-operator-seconds 1 "
            ">%s/ready 2>/dev/null & read line <%s/ready; %s/hearth --server ipc://%s/plan.sock "
            "plan m %s --profile %s/large.json; rc=$?; kill $!; wait $!; exit $rc",
            dir, build, dir, dir, dir, dir, build, dir, step, dir),
        0);
    assert_true(number("budget_bytes") > 10LL << 30);
}

// A model file and a profile need no store, device or server, and this machine bounds nothing: not
// the memory that the profile's device had, nor what a node would take to compute here.
static void profile_alone(const char *step, json_int_t budget)
{
    static const char model[] = "tests/data/digits/untrained.onnx";
    assert_int_equal(run("hearth --version >/dev/null; %s; env -u HEARTH_SERVER "
                         "%s/hearth --json plan %s --profile %s/costs.json",
                         LITTLE_MEMORY, build, step, dir),
                     0);
    assert_int_equal(number("budget_bytes"), budget);
    assert_int_equal(run("hearth --version; sed 's/\"memory_bytes\":[0-9]*/\"memory_bytes\":4096/' "
                         "%s/costs.json >%s/small.json",
                         dir, dir),
                     0);
    assert_int_equal(run("hearth --json plan %s --train --batch 64 --budget 100%% --profile "
                         "%s/small.json",
                         model, dir),
                     0);
    assert_true(number("budget_bytes") > budget);
    assert_int_equal(run("hearth --store %s/p2 --json plan m --train --batch 64 --budget 100TiB "
                         "--profile %s/small.json",
                         dir, dir),
                     0);
    assert_int_equal(number("budget_bytes"), 100LL << 40);
    profile_large();
    assert_int_equal(run("hearth plan %s --batch 64 --profile %s/costs.json", model, dir), 1);
    said("--train");
    assert_int_equal(run("hearth plan %s/none.onnx --train --profile %s/costs.json", dir, dir), 1);
    said("none.onnx");
    assert_int_equal(run("hearth plan %s --train --on cpu:0 --profile %s/costs.json", model, dir),
                     2);
    assert_int_equal(
        run("hearth plan %s --train --profile %s/costs.json --write-profile %s/w", model, dir, dir),
        1);
    said("read or written");
    assert_int_equal(run("hearth curve %s --accumulate 2 --profile %s/costs.json", model, dir), 1);
    said("cannot be split");
    assert_int_equal(run("hearth curve %s --batch 48 --profile %s/costs.json", model, dir), 1);
    said("has no node");
}

// What a step costs here, written to a file, plans the same step elsewhere: in a store that knows
// no measurements.
static void test_profile(void **state)
{
    static const char step[] = "m --train --batch 64 --budget 60%";
    assert_int_equal(run("hearth --store %s/p1 import m tests/data/digits/untrained.onnx", dir), 0);
    assert_int_equal(run("hearth --store %s/p2 import m tests/data/digits/untrained.onnx", dir), 0);
    assert_int_equal(
        run("hearth --store %s/p1 --json plan %s --write-profile %s/costs.json", dir, step, dir),
        0);
    json_int_t budget = number("budget_bytes");
    assert_int_equal(
        run("hearth --store %s/p2 --json plan %s --profile %s/costs.json", dir, step, dir), 0);
    assert_int_equal(number("budget_bytes"), budget);
    profile_alone("tests/data/digits/untrained.onnx --train --batch 64 --budget 60%", budget);
    assert_int_equal(
        run("hearth --store %s/p2 --json curve m --batch 64 --profile %s/costs.json", dir, dir), 0);
    assert_int_equal(run("hearth --store %s/p2 train m --data tests/data/digits/train.safetensors "
                         "--loss softmax-xent --lr 0.1 --batch 64 --profile %s/costs.json",
                         dir, dir),
                     0);
    assert_int_equal(
        run("hearth --store %s/p2 plan m --train --batch 48 --profile %s/costs.json", dir, dir), 1);
    said("has no node");
    assert_int_equal(run("hearth --store %s/p2 plan %s --profile %s/nothing", dir, step, dir), 1);
    said("cannot open");
    assert_int_equal(
        run("hearth --store %s/p2 plan %s --profile tests/data/digits/labels.npy", dir, step), 1);
    said("line 1");
    assert_int_equal(run("hearth --store %s/p2 plan m --profile %s/costs.json", dir, dir), 1);
    said("--train");
}

// The exact planner, on a step whose plan is known.
static void test_optimal(void **state)
{
    int status = run("hearth --store %s/p --json plan --problem "
                     "tests/data/oracle/residual-norm-60.json --policy optimal",
                     dir);
    if (status != 0) {
        said("coinor-cbc");
        skip();
    }
    json_t *doc = json_loads(output, 0, NULL);
    double us = json_real_value(json_object_get(doc, "predicted_us"));
    assert_float_equal(us, 1332.639, 0.1);
    assert_float_equal(json_real_value(json_object_get(doc, "lower_bound_us")), us, 0.1);
    json_decref(doc);
}

static void test_embedded(void **state)
{
    char path[300];
    int n;
    assert_int_equal(run("hearth --store %s/s --json import m " DIGITS, dir), 0);
    assert_int_equal(number("version"), 1);
    assert_int_equal(number("tensors_shared"), 0);
    json_int_t tensors = number("tensors_new"), bytes = number("bytes_new");
    assert_true(tensors > 0 && bytes > 0);
    assert_int_equal(run("hearth import n --store=%s/s " DIGITS " --json", dir), 0);
    assert_int_equal(number("tensors_new"), 0);
    assert_int_equal(number("tensors_shared"), tensors);
    assert_int_equal(number("bytes_shared"), bytes);
    assert_int_equal(run("hearth --store %s/s import m " DIGITS, dir), 0);
    said("unchanged");
    assert_int_equal(run("hearth --store %s/s ls", dir), 0);
    said("own_bytes");
    assert_int_equal(run("hearth --store %s/s bench m --threads -1", dir), 1);
    said("threads=-1: expected a number of at most 1024");
    assert_int_equal(
        run("hearth --store %s/s infer m --input image=" IMAGES " --output-dir %s/o", dir, dir), 0);
    said("logits  FP32  [360,10]\n  top of the first row   6: ");
    snprintf(path, sizeof path, "%s/o/logits.npy", dir);
    int hits = right(path, &n);
    assert_true(n == 360 && hits > 342); // better than 95 %
    assert_int_equal(run("hearth --store %s/s export m %s/m.safetensors", dir, dir), 0);
    struct stat st;
    snprintf(path, sizeof path, "%s/m.safetensors", dir);
    assert_int_equal(stat(path, &st), 0);
    assert_true(st.st_size > bytes);
    assert_int_equal(run("hearth --store %s/s export m %s/m.ONNX", dir, dir), 0);
    assert_int_equal(run("hearth --store %s/s import m %s/m.ONNX", dir, dir), 0);
    said("unchanged");
    assert_int_equal(run("hearth --store %s/s export m %s/m.pt", dir, dir), 1);
    said("ends in .onnx or .safetensors");
    snprintf(path, sizeof path, "%s/m.pt", dir);
    assert_int_equal(access(path, F_OK), -1);
    static const char *const on[] = {"load", "bench", "convsel", "plan"};
    for (size_t i = 0; i < sizeof on / sizeof *on; i++) {
        assert_int_equal(run("hearth --store %s/s %s m --on cuda:0", dir, on[i]), 1);
        said("no device 'cuda:0' (there is: cpu:0)");
    }
    assert_int_equal(run("hearth --store %s/s load m --on cpu:0", dir), 0);
    assert_int_equal(run("hearth --store %s/s rm n", dir), 0);
    assert_int_equal(run("hearth --store %s/s --json gc", dir), 0);
    assert_int_equal(number("files"), 0); // m has them still
    assert_int_equal(run("hearth --store %s/s infer n --input " IMAGES, dir), 1);
    said("hearth: ");
    assert_int_equal(run("hearth --store %s/s import bad README.md", dir), 1);
    assert_int_equal(run("hearth --store %s/s infer m --input /nowhere.npy", dir), 1);
    said("/nowhere.npy");
}

// A model whose author has the terminal obey: the name of its output is the start of a command.
static void test_escapes(void **state)
{
    static const char is[] = "logits", evil[] = "l\033[7ms";
    char path[300], *bytes;
    FILE *f = fopen(DIGITS, "r");
    assert_non_null(f);
    assert_non_null(bytes = malloc(1 << 20));
    size_t n = fread(bytes, 1, 1 << 20, f);
    fclose(f);
    for (char *at = bytes; (at = memmem(at, n - (size_t)(at - bytes), is, 6)) != NULL;) {
        memcpy(at, evil, 6);
    }
    snprintf(path, sizeof path, "%s/escapes.onnx", dir);
    assert_non_null(f = fopen(path, "w"));
    assert_int_equal(fwrite(bytes, 1, n, f), n);
    fclose(f);
    free(bytes);
    assert_int_equal(run("hearth --store %s/e import e %s", dir, path), 0);
    static const char *const words[] = {"show e", "infer e --input " IMAGES,
                                        "infer e --input " IMAGES " --labels " IMAGES};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        assert_int_equal(run("hearth --store %s/e %s", dir, words[i]), i < 2 ? 0 : 2);
        said("l?[7ms");
        not_said("\033");
    }
    assert_int_equal(run("hearth --store %s/e infer \"$(printf 'x\\033c')\" --input " IMAGES, dir),
                     1);
    not_said("\033");
}

static pid_t start_daemon(const char *url)
{
    char store[300], program[300], line[400];
    int fd[2];
    snprintf(store, sizeof store, "%s/d", dir);
    snprintf(program, sizeof program, "%s/hearthd", build);
    assert_int_equal(pipe(fd), 0);
    pid_t p = fork();
    if (p == 0) {
        dup2(fd[1], 1);
        execl(program, "hearthd", "--store", store, "--listen", url, (char *)NULL);
        _exit(127);
    }
    close(fd[1]);
    FILE *f = fdopen(fd[0], "r");
    assert_non_null(fgets(line, sizeof line, f));
    assert_non_null(strstr(line, " ready: "));
    assert_non_null(strstr(line, url));
    fclose(f);
    return p;
}

static void test_daemon(void **state)
{
    char url[300];
    int n, status;
    snprintf(url, sizeof url, "ipc://%s/hearth.sock",
             dir); // where XDG_RUNTIME_DIR points: found without --server
    pid_t p = start_daemon(url);
    assert_int_equal(run("hearth --server %s import m " DIGITS, url), 0);
    assert_int_equal(
        run("hearth --server %s infer m --input " IMAGES " --output-dir %s/o2", url, dir), 0);
    char path[300];
    snprintf(path, sizeof path, "%s/o2/logits.npy", dir);
    assert_true(right(path, &n) > 342);
    if (access("/run/hearth.sock", F_OK) != 0) {
        assert_int_equal(run("hearth ls"), 0);
        said("m ");
    }
    assert_int_equal(run("hearth --server %s ls", url), 0);
    said("loaded");
    assert_int_equal(run("hearth --server %s load m --pin", url), 0);
    assert_int_equal(run("hearth --server %s ls", url), 0);
    said("pinned");
    assert_int_equal(run("hearth --server %s stats", url), 0);
    said("uid:");
    assert_int_equal(run("hearth --server %s top --count 2 --interval 0.1", url), 0);
    said("P private");
    said("per_second");
    said("uid:");
    not_said("\033"); // no escape codes
    assert_int_equal(run("hearth --server %s --json top --count 1", url), 0);
    assert_true(number("monotonic_ns") > 0);
    assert_int_equal(run("hearth --server %s --json unload m", url), 0);
    assert_true(number("freed_bytes") > 100000);
    assert_int_equal(run("hearth --server %s --json load m", url), 0);
    assert_true(number("moved_bytes") > 100000);
    assert_int_equal(run("hearth --server %s load m --pin --unpin", url), 2);
    assert_int_equal(run("hearth --server %s load m --on cpu:1", url), 1);
    said("no device 'cpu:1' (there is: cpu:0)");
    assert_int_equal(run("hearth --server %s train m --data " DIGITS_DIR
                         "train.safetensors --loss softmax-xent --on cuda:0",
                         url),
                     1);
    said("no device 'cuda:0' (there is: cpu:0)");
    assert_int_equal(run("hearth --server %s load m --on cpu:0", url), 0);
    assert_int_equal(run("hearth --server %s load nobody", url), 1);
    assert_int_equal(run("hearth --server %s unload nobody", url), 1);
    said("no model 'nobody'");
    assert_int_equal(run("hearth --server %s devices", url), 0);
    assert_int_equal(run("hearthd --store %s/other --listen %s", dir, url), 1);
    said("another hearthd already listens on ipc://");
    kill(p, SIGHUP);
    assert_int_equal(run("hearth --server %s ls", url), 0);
    kill(p, SIGKILL);
    assert_int_equal(waitpid(p, &status, 0), p);
    p = start_daemon(url); // over the socket that the dead one left
    assert_int_equal(run("hearth --server %s --json ls", url), 0);
    said("\"name\":\"m\"");
    kill(p, SIGTERM);
    assert_int_equal(waitpid(p, &status, 0), p);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    assert_int_equal(access(url + 6, F_OK), -1);
}

static void wait_for_job(const char *url, const char *state)
{
    char text[40];
    snprintf(text, sizeof text, "\"state\":\"%s\"", state);
    for (int i = 0; i < 12000; i++) {
        run("hearth --server %s --json job t", url);
        if (strstr(output, text) != NULL) {
            return;
        }
        usleep(10000);
    }
    fail_msg("the job is not %s: %s", state, output);
}

// A job is paused, outlives its client and two daemons, goes on under another budget, is watched,
// and ends; then it is listed.
static void test_jobs(void **state)
{
    char url[300];
    int status;
    snprintf(url, sizeof url, "ipc://%s/jobs.sock", dir);
    pid_t p = start_daemon(url);
    assert_int_equal(run("hearth --server %s import u " DIGITS_DIR "untrained.onnx", url), 0);
    run("hearth --server %s train u --data " DIGITS_DIR "train.safetensors --loss softmax-xent "
        "--optimizer adam --batch 64 --epochs 20000 --hold-out 0.1 --save-as t >/dev/null 2>&1 &",
        url);
    wait_for_job(url, "running");
    assert_int_equal(run("hearth --server %s pause t", url), 0);
    said("paused");
    assert_int_equal(run("hearth --server %s pause t", url), 1);
    said("job 't' is paused");
    assert_int_equal(run("hearth --server %s ls", url), 0);
    not_said("t.checkpoint");
    assert_int_equal(run("hearth --server %s ls --all", url), 0);
    said("t.checkpoint");
    kill(p, SIGKILL);
    assert_int_equal(waitpid(p, &status, 0), p);
    p = start_daemon(url);
    wait_for_job(url, "paused");
    assert_int_equal(run("hearth --server %s job t --budget 60%%", url), 1);
    said("hearth resume t --budget 60%");
    assert_int_equal(run("hearth --server %s resume t --budget 80%%", url), 0);
    wait_for_job(url, "running");
    assert_int_equal(run("hearth --server %s job t --budget 4KiB", url), 1);
    said("the job continues with the budget that it had");
    assert_int_equal(run("hearth --server %s job t --budget 70%%", url), 0);
    run("hearth --server %s --json job t --follow >%s/follow & n=0; "
        "while ! grep -q stall_ms %s/follow && [ $n -lt 3000 ]; do sleep 0.1; n=$((n+1)); done; "
        "%s/hearth --server %s cancel t; wait; cat %s/follow",
        url, dir, dir, build, url, dir);
    said("\"stall_ms\":");
    said("\"state\":\"canceled\"");
    assert_int_equal(run("hearth --server %s jobs", url), 0);
    said("canceled");
    assert_int_equal(run("hearth --server %s job t --svg %s/loss.svg", url, dir), 0);
    said("held_out");
    assert_int_equal(run("hearth --server %s resume t", url), 0); // it was canceled by mistake
    wait_for_job(url, "running");
    assert_int_equal(run("hearth --server %s cancel t", url), 0);
    assert_int_equal(run("hearth --server %s rm t.checkpoint --yes", url), 0);
    assert_int_equal(run("hearth --server %s resume t", url), 1);
    said("has ended already");
    kill(p, SIGTERM);
    assert_int_equal(waitpid(p, &status, 0), p);
}

// A step takes of the device what was planned, to the byte, by the device's ledger, and the process
// has as many pages more, what is offloaded included; a first run has measured the nodes.
static void test_peak(void **state)
{
    static const char *const how[] = {"--policy keep", "--budget 60%",
                                      "--budget 65% --policy vdnn"};
    const int batch = HTH_SANITIZED_THREAD ? 256 : 4096; // else a minute per step
    assert_int_equal(run("hearth --store %s/peak import u tests/data/train/unet_adam.onnx", dir),
                     0);
    for (int i = -1; i < 3; i++) {
        assert_int_equal(run("hearth --store %s/peak --json bench u --train --batch %d "
                             "--steps 1 %s",
                             dir, batch, how[i < 0 ? 0 : i]),
                         0);
        json_int_t planned = number("peak_bytes");
        json_int_t host = number("host_bytes") + number("away_bytes");
        assert_true(planned > 12800 * batch && (i < 1 || planned <= number("budget_bytes")));
        assert_int_equal(number("ledger_bytes"), planned);
        json_int_t off = number("rss_bytes") - planned - host;
        print_message("# planned %lld MiB, offloaded %lld, resident %+.1f\n",
                      (long long)planned >> 20, (long long)host >> 20, (double)off / (1 << 20));
        if (i >= 0 && !HTH_SANITIZED && (off < -(4 << 20) || off > 16 << 20)) {
            fail_msg("planned %lld and %lld bytes, resident are %lld more", (long long)planned,
                     (long long)host, (long long)off);
        }
    }
    assert_int_equal(run("hearth --store %s/peak bench u --train --steps 9", dir), 1);
    said("steps is a whole number from 1 to 5");
}

static int setup(void **state)
{
    const char *b = getenv("HEARTH_BUILD");
    snprintf(build, sizeof build, "%s", b != NULL ? b : "build");
    return mkdtemp(dir) != NULL ? 0 : -1;
}

static int teardown(void **state)
{
    return test_remove(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_command_line), cmocka_unit_test(test_corrections),
        cmocka_unit_test(test_no_server),    cmocka_unit_test(test_switches),
        cmocka_unit_test(test_problem),      cmocka_unit_test(test_curve_problem),
        cmocka_unit_test(test_embedded),     cmocka_unit_test(test_escapes),
        cmocka_unit_test(test_profile),      cmocka_unit_test(test_optimal),
        cmocka_unit_test(test_daemon),       cmocka_unit_test(test_jobs),
        cmocka_unit_test(test_peak),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
