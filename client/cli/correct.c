// SPDX-License-Identifier: Apache-2.0
// Words of other programs come before spelling: `run` is nearer to a command that removes than to
// the one that is meant.
#include "client/cli/correct.h"

#include "base/spelling.h"
#include "client/cli/cmd.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define CORRECT_WORD 64
#define CORRECT_FAR  3 // letters that are another word
#define CORRECT_LONG 5 // letters of a word of the table that may be misspelt

#define SERVER  "the server is a separate program: hearthd --store DIR"
#define REMOVAL "`hearth help` lists them, the one that removes a model, too"

// A command, or what follows "there is no command 'WORD'; ".
static const hth_synonym correct_commands[] = {
    {"run", "infer"},
    {"predict", "infer"},
    {"prediction", "infer"},
    {"classify", "infer"},
    {"inference", "infer"},
    {"forward", "infer"},
    {"generate", "infer"},
    {"test", "did you mean 'infer' (--labels prints the accuracy)?"},
    {"eval", "did you mean 'infer' (--labels prints the accuracy)?"},
    {"evaluate", "did you mean 'infer' (--labels prints the accuracy)?"},
    {"validate", "did you mean 'infer' (--labels prints the accuracy)?"},
    {"list", "ls"},
    {"dir", "ls"},
    {"models", "ls"},
    {"model", "show"},
    {"info", "show"},
    {"inspect", "show"},
    {"describe", "show"},
    {"cat", "show"},
    {"get", "did you mean 'show' or 'export'?"},
    {"add", "import"},
    {"upload", "import"},
    {"create", "import"},
    {"put", "import"},
    {"register", "import"},
    {"install", "import"},
    {"convert", "import"},
    {"deploy", "import"},
    {"update", "did you mean 'import' (it makes a new version)?"},
    {"download", "export"},
    {"save", "export"},
    {"pull", "export"},
    {"dump", "export"},
    {"fit", "train"},
    {"learn", "train"},
    {"finetune", "train"},
    {"fine-tune", "train"},
    {"training", "train"},
    {"ps", "jobs"},
    {"queue", "jobs"},
    {"status", "did you mean 'jobs', 'stats' or 'top'?"},
    {"log", "did you mean 'job JOB --follow'?"},
    {"logs", "did you mean 'job JOB --follow'?"},
    {"follow", "did you mean 'job JOB --follow'?"},
    {"tail", "did you mean 'job JOB --follow'?"},
    {"kill", "cancel"},
    {"abort", "cancel"},
    {"stop", "did you mean 'pause' or 'cancel'?"},
    {"continue", "resume"},
    {"restart", "resume"},
    {"suspend", "pause"},
    {"benchmark", "bench"},
    {"perf", "bench"},
    {"time", "bench"},
    {"profile", "did you mean 'bench', or 'plan --write-profile'?"},
    {"watch", "top"},
    {"monitor", "top"},
    {"htop", "top"},
    {"gpus", "devices"},
    {"gpu", "devices"},
    {"memory", "stats"},
    {"metrics", "stats"},
    {"usage", "stats"},
    {"clean", "gc"},
    {"prune", "gc"},
    {"cleanup", "gc"},
    {"batch", "batching"},
    {"dtype", "precision"},
    {"login", "token"},
    {"version", "did you mean --version?"},
    {"config", "it is a setting of hearthd: `hearthd --help` lists them"},
    {"settings", "it is a setting of hearthd: `hearthd --help` lists them"},
    {"serve", SERVER},
    {"server", SERVER},
    {"start", SERVER},
    {"up", SERVER},
    {"daemon", SERVER},
    {"hearthd", SERVER},
    {"delete", REMOVAL},
    {"del", REMOVAL},
    {"remove", REMOVAL},
    {"erase", REMOVAL},
    {"unlink", REMOVAL},
    {NULL, NULL},
};

// The first meaning that is an option of the command counts.
static const hth_synonym correct_options[] = {
    {"batch-size", "batch"},
    {"batchsize", "batch"},
    {"bs", "batch"},
    {"minibatch", "batch"},
    {"train-batch-size", "batch"},
    {"max-batch-size", "max-batch"},
    {"max-batch-size", "max"},
    {"max-batch", "max"},
    {"batch-max", "max-batch"},
    {"learning-rate", "lr"},
    {"learningrate", "lr"},
    {"rate", "lr"},
    {"alpha", "lr"},
    {"epoch", "epochs"},
    {"num-epochs", "epochs"},
    {"n-epochs", "epochs"},
    {"max-epochs", "epochs"},
    {"num-train-epochs", "epochs"},
    {"optim", "optimizer"},
    {"optimiser", "optimizer"},
    {"opt", "optimizer"},
    {"criterion", "loss"},
    {"loss-fn", "loss"},
    {"loss-function", "loss"},
    {"objective", "loss"},
    {"wd", "weight-decay"},
    {"decay", "weight-decay"},
    {"l2", "weight-decay"},
    {"scheduler", "schedule"},
    {"lr-schedule", "schedule"},
    {"lr-scheduler", "schedule"},
    {"lr-scheduler-type", "schedule"},
    {"warmup-steps", "warmup"},
    {"lr-warmup", "warmup"},
    {"clip-grad", "clip"},
    {"clip-norm", "clip"},
    {"grad-clip", "clip"},
    {"gradient-clip", "clip"},
    {"max-grad-norm", "clip"},
    {"accum", "accumulate"},
    {"grad-accum", "accumulate"},
    {"accumulation-steps", "accumulate"},
    {"gradient-accumulation", "accumulate"},
    {"gradient-accumulation-steps", "accumulate"},
    {"random-seed", "seed"},
    {"random-state", "seed"},
    {"dataset", "data"},
    {"train-data", "data"},
    {"training-data", "data"},
    {"data-path", "data"},
    {"train", "data"},
    {"validation-split", "hold-out"},
    {"val-split", "hold-out"},
    {"test-split", "hold-out"},
    {"holdout", "hold-out"},
    {"validation", "eval"},
    {"validation-data", "eval"},
    {"val-data", "eval"},
    {"test-data", "eval"},
    {"val", "eval"},
    {"shuffle", "no-shuffle"},
    {"hflip", "flip"},
    {"horizontal-flip", "flip"},
    {"random-crop", "crop"},
    {"padding", "crop"},
    {"checkpoint", "checkpoint-every"},
    {"checkpoint-interval", "checkpoint-every"},
    {"save-every", "checkpoint-every"},
    {"save-steps", "checkpoint-every"},
    {"restart", "resume"},
    {"continue", "resume"},
    {"name", "save-as"},
    {"out", "save-as"},
    {"output", "save-as"},
    {"save", "save-as"},
    {"out", "output-dir"},
    {"output", "output-dir"},
    {"outputs", "output-dir"},
    {"outdir", "output-dir"},
    {"out-dir", "output-dir"},
    {"output", "out"},
    {"output-dir", "out"},
    {"in", "input"},
    {"inputs", "input"},
    {"data", "input"},
    {"file", "input"},
    {"image", "input"},
    {"images", "input"},
    {"pictures", "input"},
    {"imgsz", "size"},
    {"image-size", "size"},
    {"resize", "size"},
    {"normalize", "scale"},
    {"class-names", "classes"},
    {"names", "classes"},
    {"class-file", "classes"},
    {"label", "labels"},
    {"targets", "labels"},
    {"y", "labels"},
    {"memory", "budget"},
    {"mem", "budget"},
    {"memory-limit", "budget"},
    {"mem-limit", "budget"},
    {"max-memory", "budget"},
    {"limit", "budget"},
    {"duration", "seconds"},
    {"time", "seconds"},
    {"iterations", "steps"},
    {"iters", "steps"},
    {"workers", "threads"},
    {"num-threads", "threads"},
    {"jobs", "threads"},
    {"dtype", "precision"},
    {"amp", "precision"},
    {"fp16", "precision"},
    {"bf16", "precision"},
    {"tf32", "precision"},
    {"gpu", "on"},
    {"gpus", "on"},
    {"watch", "follow"},
    {"tail", "follow"},
    {"force", "yes"},
    {"confirm", "yes"},
    {"no-confirm", "yes"},
    {"picture", "svg"},
    {"plot", "svg"},
    {"delay", "delay-us"},
    {"max-queue-delay", "delay-us"},
    {"max-queue-delay-microseconds", "delay-us"},
    {"preferred-batch-size", "preferred"},
    {"timeout", "timeout-us"},
    {"timeout-ms", "timeout"},
    {"queue-size", "queue"},
    {"iterations", "count"},
    {"every", "interval"},
    {"delay", "interval"},
    {"host", "server"},
    {"url", "server"},
    {"address", "server"},
    {"addr", "server"},
    {"endpoint", "server"},
    {"socket", "server"},
    {"connect", "server"},
    {"port", "server"},
    {"listen", "server"},
    {"token", "token-file"},
    {"api-key", "token-file"},
    {"auth", "token-file"},
    {"cacert", "ca"},
    {"ca-cert", "ca"},
    {"ca-file", "ca"},
    {"cafile", "ca"},
    {"cert", "ca"},
    {"certificate", "ca"},
    {"tls-ca", "ca"},
    {"repository", "store"},
    {"model-repository", "store"},
    {"model-store", "store"},
    {"db", "store"},
    {"dir", "store"},
    {"gpu", "device"},
    {"gpus", "device"},
    {"cpu", "device"},
    {"format", "json"},
    {"output-format", "json"},
    {"usage", "help"},
    {NULL, NULL},
};

// ---- commands

int hth_correct_command(const hth_cli *cli, const char *name)
{
    const char *best = NULL, *means = hth_spelling_means(correct_commands, name, NULL, NULL);
    int distance = CORRECT_FAR;
    for (int i = 0; cli->commands[i] != NULL && means == NULL; i++) {
        if (!cli->commands[i]->destroys) {
            hth_spelling_closer(name, cli->commands[i]->name, &distance, &best);
        }
    }
    for (const hth_synonym *s = correct_commands; s->word != NULL && means == NULL; s++) {
        if (strlen(s->word) >= CORRECT_LONG) {
            hth_spelling_closer(name, s->word, &distance, &best);
        }
    }
    if (best != NULL) {
        means = hth_spelling_means(correct_commands, best, NULL, NULL);
    }
    if (means != NULL && strchr(means, ' ') != NULL) {
        return hth_cli_usage("there is no command '%s'; %s", name, means);
    }
    best = means != NULL ? means : best;
    return best != NULL ? hth_cli_usage("there is no command '%s'; did you mean '%s'?", name, best)
                        : hth_cli_usage("there is no command '%s'; `hearth help` lists them", name);
}

int hth_correct_action(const hth_cli *cli, const char *const *actions)
{
    const char *name = cli->command->name, *word = cli->args[0], *best = NULL;
    int distance = 3;
    char hint[60] = "";
    for (int i = 0; actions[i] != NULL; i++) {
        if (strcmp(word, actions[i]) == 0) {
            return hth_cli_usage("%s %s: these are not its arguments\nusage: hearth %s %s", name,
                                 word, name, cli->command->usage);
        }
        if (strcmp(actions[i], "rm") != 0) {
            hth_spelling_closer(word, actions[i], &distance, &best);
        }
    }
    if (best != NULL) {
        snprintf(hint, sizeof hint, "; did you mean '%s'?", best);
    }
    return hth_cli_usage("there is no command '%s %s'%s\nusage: hearth %s %s", name, word, hint,
                         name, cli->command->usage);
}

void hth_correct_model_file(const hth_cli *cli)
{
    const char *model = cli->n_args > 0 ? cli->args[0] : "";
    size_t n = strlen(model);
    bool plans = cli->command == &hth_cmd_plan || cli->command == &hth_cmd_curve;
    if (n <= 5 || strcmp(model + n - 5, ".onnx") != 0 || cli->command == &hth_cmd_import ||
        hth_cli_text(cli, "profile") != NULL) {
        return;
    }
    if (access(model, F_OK) == 0) {
        fprintf(stderr, "hearth: `hearth import NAME %s` makes a model of a file%s\n", model,
                plans ? "; to plan the file itself, give --profile FILE" : "");
    } else if (strchr(model, '/') != NULL) {
        fprintf(stderr, "hearth: there is no file '%s'\n", model);
    }
}

// ---- options

static const hth_option *correct_in(const hth_option *option, const char *name)
{
    while (option->name != NULL && !hth_spelling_same(option->name, name)) {
        option++;
    }
    return option->name != NULL ? option : NULL;
}

// correct_find is the option of the command, or of all, that is called so but for '_' and case.
static const hth_option *correct_find(const hth_cli *cli, const char *name)
{
    const hth_option *o = cli->command != NULL ? correct_in(cli->command->options, name) : NULL;
    return o != NULL ? o : correct_in(hth_cli_global, name);
}

static bool correct_known(const void *ctx, const char *name)
{
    return correct_find(ctx, name) != NULL;
}

static const char *correct_spelling(const hth_cli *cli, const char *name)
{
    const char *best = NULL;
    int distance = CORRECT_FAR;
    for (const hth_option *o = hth_cli_global; o->name != NULL; o++) {
        hth_spelling_closer(name, o->name, &distance, &best);
    }
    for (const hth_option *o = cli->command != NULL ? cli->command->options : hth_cli_global;
         o->name != NULL; o++) {
        hth_spelling_closer(name, o->name, &distance, &best);
    }
    for (const hth_synonym *s = correct_options; s->word != NULL; s++) {
        if (strlen(s->word) >= CORRECT_LONG && correct_known(cli, s->means)) {
            hth_spelling_closer(name, s->word, &distance, &best);
        }
    }
    const char *means =
        best != NULL ? hth_spelling_means(correct_options, best, correct_known, cli) : NULL;
    return best != NULL && correct_find(cli, best) == NULL ? means : best;
}

// correct_owner is the first command that has the option; NULL: none.
static const char *correct_owner(const hth_cli *cli, const char *name)
{
    int i = 0;
    while (cli->commands[i] != NULL && correct_in(cli->commands[i]->options, name) == NULL) {
        i++;
    }
    return cli->commands[i] != NULL ? cli->commands[i]->name : NULL;
}

// correct_word is `name` up to its value.
static const char *correct_word(const char *name, char out[CORRECT_WORD])
{
    snprintf(out, CORRECT_WORD, "%.*s", (int)strcspn(name, "="), name);
    return out;
}

int hth_correct_option(const hth_cli *cli, const char *name)
{
    char word[CORRECT_WORD];
    const char *where = cli->command != NULL ? cli->command->name : "hearth", *best, *owner;
    const hth_option *same = correct_find(cli, correct_word(name, word));
    owner = correct_owner(cli, word);
    best =
        same != NULL ? same->name : hth_spelling_means(correct_options, word, correct_known, cli);
    if (best == NULL && owner == NULL) {
        best = correct_spelling(cli, word);
    }
    if (best != NULL) {
        return hth_cli_usage("%s has no option --%s; did you mean --%s?", where, word, best);
    }
    if (owner != NULL && cli->command == NULL) {
        return hth_cli_usage("--%s is an option of commands, %s among them, and comes after one",
                             word, owner);
    }
    if (owner != NULL) {
        return hth_cli_usage("%s has no option --%s, %s has; `hearth help %s` lists them", where,
                             word, owner, where);
    }
    if (cli->command != NULL) {
        return hth_cli_usage("%s has no option --%s; `hearth help %s` lists them", where, word,
                             where);
    }
    return hth_cli_usage("%s has no option --%s; `hearth help` lists them", where, word);
}

int hth_correct_dash(const hth_cli *cli, const char *text)
{
    char word[CORRECT_WORD];
    const char *name = correct_word(text + 1, word);
    const hth_option *o = correct_find(cli, name);
    const char *best =
        o != NULL ? o->name : hth_spelling_means(correct_options, name, correct_known, cli);
    if (best != NULL) {
        return hth_cli_usage("there is no option %s; did you mean --%s?", text, best);
    }
    char about[CORRECT_WORD] = "";
    if (cli->command != NULL) {
        snprintf(about, sizeof about, " %s", cli->command->name);
    }
    return hth_cli_usage(
        "there is no option %s: options are words with two dashes; `hearth help%s` lists them",
        text, about);
}
