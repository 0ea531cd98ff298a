// SPDX-License-Identifier: Apache-2.0
// Options are collected in a JSON object under their names, which for the engine's queries already
// is the request.
#include "client/cli/cli.h"

#include "client/cli/correct.h"
#include "client/cli/help.h"
#include "client/default_url.h"
#include "client/cli/table.h"
#include "client/terminal.h"
#include "client/token.h"

#include <errno.h>
#include <limits.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

const hth_option hth_cli_global[] = {
    {"server", HTH_OPTION_TEXT, "URL", "server address: ipc://PATH, tcp:// or tls+tcp://HOST:PORT"},
    {"token-file", HTH_OPTION_PATH, "FILE", "file with the token to authenticate with"},
    {"ca", HTH_OPTION_PATH, "FILE", "with tls+tcp: PEM file of trusted certificate authorities"},
    {"store", HTH_OPTION_PATH, "DIR", "no server: run an engine in this process on the store DIR"},
    {"device", HTH_OPTION_LIST, "SPEC",
     "with --store: the device, such as cpu:mem=2GiB,threads=2 or cuda:0,mem=80%; several serve "
     "together"},
    {"json", HTH_OPTION_FLAG, NULL, "print JSON"},
    {"help", HTH_OPTION_FLAG, NULL, "help for hearth, or for the command"},
    {"version", HTH_OPTION_FLAG, NULL, "print the version"},
    {NULL, HTH_OPTION_FLAG, NULL, NULL},
};

int hth_cli_usage(const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    fprintf(stderr, "hearth: ");
    vfprintf(stderr, fmt, ap);
    fprintf(stderr, "\n");
    va_end(ap);
    return HTH_CLI_USAGE;
}

int hth_cli_error(void)
{
    fprintf(stderr, "hearth: %s\n", hearth_error());
    return HTH_CLI_ERROR;
}

static const hth_command *cli_command(const hth_cli *cli, const char *name)
{
    if (cli->hidden != NULL && strcmp(cli->hidden->name, name) == 0) {
        return cli->hidden;
    }
    for (int i = 0; cli->commands[i] != NULL; i++) {
        if (strcmp(cli->commands[i]->name, name) == 0) {
            return cli->commands[i];
        }
    }
    return NULL;
}

// ---- reading the command line

static const hth_option *cli_find(const hth_option *option, const char *name, size_t n)
{
    for (; option != NULL && option->name != NULL; option++) {
        if (strlen(option->name) == n && strncmp(option->name, name, n) == 0) {
            return option;
        }
    }
    return NULL;
}

static json_t *cli_path(const char *path)
{
    char cwd[PATH_MAX];
    if (path[0] == '/' || getcwd(cwd, sizeof cwd) == NULL) {
        return json_string(path);
    }
    return json_sprintf("%s/%s", cwd, path);
}

static json_t *cli_value(const hth_option *option, const char *text)
{
    char *end;
    errno = 0;
    if (option->kind == HTH_OPTION_INT) {
        long long v = strtoll(text, &end, 10);
        return end != text && *end == 0 && errno == 0 ? json_integer(v) : NULL;
    }
    if (option->kind == HTH_OPTION_REAL) {
        double v = strtod(text, &end);
        return end != text && *end == 0 && errno == 0 ? json_real(v) : NULL;
    }
    return option->kind == HTH_OPTION_PATH ? cli_path(text) : json_string(text);
}

static int cli_set(hth_cli *cli, const hth_option *option, const char *text)
{
    json_t *v = option->kind == HTH_OPTION_FLAG ? json_true() : cli_value(option, text);
    if (v == NULL) {
        char *end;
        bool part =
            option->kind == HTH_OPTION_INT && (strtod(text, &end), end != text && *end == 0);
        return hth_cli_usage("--%s needs a %snumber, not '%s'", option->name, part ? "whole " : "",
                             text);
    }
    if (option->kind != HTH_OPTION_LIST) {
        json_object_set_new(cli->options, option->name, v);
        return HTH_CLI_OK;
    }
    json_t *list = json_object_get(cli->options, option->name);
    if (list == NULL) {
        list = json_array();
        json_object_set_new(cli->options, option->name, list);
    }
    json_array_append_new(list, v);
    return HTH_CLI_OK;
}

// cli_switch gives the value of a switch: what follows it, where that is one.
static const char *cli_switch(const char *given, const char *next, int *i)
{
    const char *text = given != NULL ? given : next;
    text = text != NULL ? text : "";
    bool on = strcmp(text, "on") == 0 || strcmp(text, "true") == 0;
    bool off = strcmp(text, "off") == 0 || strcmp(text, "false") == 0;
    *i += given == NULL && (on || off);
    if (off) {
        return "off";
    }
    return on || given == NULL ? "on" : given;
}

// cli_option reads the option at argv[*i], and its value.
static int cli_option(hth_cli *cli, int argc, char **argv, int *i)
{
    const char *name = argv[*i] + 2, *value = NULL;
    size_t n = strcspn(name, "=");
    const hth_option *o = cli_find(cli->command != NULL ? cli->command->options : NULL, name, n);
    o = o != NULL ? o : cli_find(hth_cli_global, name, n);
    if (o == NULL) {
        return hth_correct_option(cli, name);
    }
    if (name[n] == '=') {
        value = name + n + 1;
    }
    if (o->kind == HTH_OPTION_SWITCH) {
        value = cli_switch(value, *i + 1 < argc ? argv[*i + 1] : NULL, i);
    } else if (value == NULL && o->kind != HTH_OPTION_FLAG && *i + 1 < argc) {
        value = argv[++*i];
    }
    if ((value != NULL) == (o->kind == HTH_OPTION_FLAG)) {
        return value != NULL ? hth_cli_usage("--%s takes no value", o->name)
                             : hth_cli_usage("--%s needs a value: %s", o->name, o->value);
    }
    return cli_set(cli, o, value);
}

static int cli_parse(hth_cli *cli, int argc, char **argv)
{
    bool options = true;
    for (int i = 1; i < argc; i++) {
        int rv = HTH_CLI_OK;
        if (options && strcmp(argv[i], "--") == 0) {
            options = false;
        } else if (options && strcmp(argv[i], "-h") == 0) {
            json_object_set_new(cli->options, "help", json_true());
        } else if (options && strncmp(argv[i], "--", 2) == 0) {
            rv = cli_option(cli, argc, argv, &i);
        } else if (options && argv[i][0] == '-' && argv[i][1] != 0) {
            rv = hth_correct_dash(cli, argv[i]);
        } else if (cli->command == NULL) {
            cli->command = cli_command(cli, argv[i]);
            rv = cli->command == NULL ? hth_correct_command(cli, argv[i]) : HTH_CLI_OK;
        } else if (cli->n_args == cli->command->most) {
            rv = hth_cli_usage("unexpected argument '%s'\n"
                               "usage: hearth %s%s%s",
                               argv[i], cli->command->name, cli->command->usage[0] != 0 ? " " : "",
                               cli->command->usage);
        } else {
            cli->args[cli->n_args++] = argv[i];
        }
        if (rv != HTH_CLI_OK) {
            return rv;
        }
    }
    return HTH_CLI_OK;
}

static int cli_dispatch(hth_cli *cli)
{
    if (json_is_true(json_object_get(cli->options, "version"))) {
        printf("hearth " HEARTH_VERSION "\n");
        return HTH_CLI_OK;
    }
    if (json_is_true(json_object_get(cli->options, "help"))) {
        return hth_help_print(cli, cli->command);
    }
    if (cli->command == NULL) {
        return hth_cli_usage("a command is missing; `hearth help` lists them");
    }
    if (cli->command->helps) {
        const hth_command *about = cli->n_args > 0 ? cli_command(cli, cli->args[0]) : NULL;
        return about == NULL && cli->n_args > 0 ? hth_correct_command(cli, cli->args[0])
                                                : hth_help_print(cli, about);
    }
    if (cli->n_args < cli->command->least) {
        return hth_cli_usage("%s needs more arguments\nusage: hearth %s %s", cli->command->name,
                             cli->command->name, cli->command->usage);
    }
    int rv = cli->command->run(cli);
    if (rv == HTH_CLI_ERROR) {
        hth_correct_model_file(cli);
    }
    return rv;
}

// cli_flush writes what is still in a buffer, and says it if the output is not whole: once, however
// many commands' writes failed. Who reads no more, as `head`, has what it wanted.
static int cli_flush(int rv)
{
    (void)fflush(stdout);
    int lost = hth_terminal_lost();
    if (lost == 0 || lost == EPIPE) {
        return rv;
    }
    fprintf(stderr, "hearth: cannot write the output: %s\n", strerror(lost));
    return rv == HTH_CLI_OK ? HTH_CLI_ERROR : rv;
}

int hth_cli_run(hth_cli *cli, int argc, char **argv)
{
    cli->options = json_object();
    int rv = cli->options == NULL ? HTH_CLI_ERROR : cli_parse(cli, argc, argv);
    if (rv == HTH_CLI_OK && hth_cli_json(cli)) {
        hth_terminal_json();
    }
    if (rv == HTH_CLI_OK) {
        rv = cli_dispatch(cli);
    }
    rv = cli_flush(rv);
    hearth_close(cli->h);
    json_decref(cli->options);
    return rv;
}

// ---- for the commands

bool hth_cli_json(const hth_cli *cli)
{
    return json_is_true(json_object_get(cli->options, "json"));
}

const char *hth_cli_text(const hth_cli *cli, const char *name)
{
    return json_string_value(json_object_get(cli->options, name));
}

int64_t hth_cli_int(const hth_cli *cli, const char *name, int64_t dflt)
{
    const json_t *v = json_object_get(cli->options, name);
    return v != NULL ? (int64_t)json_integer_value(v) : dflt;
}

// cli_device joins the devices' specifications and adds the command's threads and budget to the
// only one. false: there is not room for them, or no telling which is meant.
static bool cli_device(const hth_cli *cli, char *out, size_t cap)
{
    const char *budget = hth_cli_text(cli, "budget");
    const json_t *list = json_object_get(cli->options, "device");
    const json_t *threads = json_object_get(cli->options, "threads");
    size_t n = 0, count = json_array_size(list);
    for (size_t i = 0; i < count && n < cap; i++) {
        n += (size_t)snprintf(out + n, cap - n, "%s%s", i > 0 ? " " : "",
                              json_string_value(json_array_get(list, i)));
    }
    n += count == 0 ? (size_t)snprintf(out, cap, "cpu") : 0;
    if (threads != NULL && n < cap) {
        n += (size_t)snprintf(out + n, cap - n, "%cthreads=%lld",
                              strchr(out, ':') != NULL ? ',' : ':',
                              (long long)json_integer_value(threads));
    }
    bool trains = cli->command->own_budget || json_is_true(json_object_get(cli->options, "train"));
    if (budget != NULL && !trains && n < cap) {
        n += (size_t)snprintf(out + n, cap - n, "%cmem=%s", strchr(out, ':') != NULL ? ',' : ':',
                              budget);
    }
    return n < cap && (count < 2 || (threads == NULL && (budget == NULL || trains)));
}

static hearth_options cli_options(const hth_cli *cli)
{
    return (hearth_options){.timeout_ms = cli->command->timeout_ms,
                            .token = cli->token,
                            .ca_file = hth_cli_text(cli, "ca")};
}

static int cli_open(hth_cli *cli, const char *url, const hearth_options *options)
{
    return hearth_open(url, options, &cli->h) == HEARTH_OK ? HTH_CLI_OK : hth_cli_error();
}

// cli_memory tells whether a store's path, made absolute, ends in ":memory:".
static bool cli_memory(const char *store)
{
    const char *name = strrchr(store, '/');
    return strcmp(name != NULL ? name + 1 : store, ":memory:") == 0 && access(store, F_OK) != 0;
}

int hth_cli_connect(hth_cli *cli)
{
    const char *store = hth_cli_text(cli, "store"), *server = hth_cli_text(cli, "server");
    char device[1024], url[300], token[HTH_TOKEN_TEXT];
    hearth_options o = cli_options(cli);
    if (cli->h != NULL) {
        return HTH_CLI_OK;
    }
    if (hth_cli_text(cli, "token-file") != NULL) {
        if (hth_token_load(hth_cli_text(cli, "token-file"), token) != HTH_OK) {
            return hth_cli_error();
        }
        o.token = token;
    }
    if (store != NULL && server != NULL) {
        return hth_cli_usage("--server and --store cannot be combined");
    }
    if (store != NULL) {
        if (cli_memory(store)) {
            return hth_cli_usage("a store in memory ends with its command: --store needs a folder; "
                                 ":memory: is for programs (hearth.h, Python)");
        }
        if (access(store, F_OK) != 0 && errno == ENOENT && !cli->command->makes_store) {
            fprintf(stderr, "hearth: there is no store %s; `import` creates one\n", store);
            return HTH_CLI_ERROR;
        }
        if (!cli_device(cli, device, sizeof device)) {
            return hth_cli_usage("with several devices, give memory and threads in each --device: "
                                 "--device cpu:mem=1GiB,threads=1");
        }
        o.store = store;
        o.device = device;
        return cli_open(cli, "inproc://", &o);
    }
    if (json_object_get(cli->options, "device") != NULL) {
        return hth_cli_usage("--device needs --store; to choose one of a server's devices, use "
                             "--on (`hearth devices` lists them)");
    }
    server = server != NULL ? server : cli->environment;
    if (server != NULL) {
        return cli_open(cli, server, &o);
    }
    if (hth_default_url_find(cli->runtime_dir, url, sizeof url) == HTH_OK) {
        return cli_open(cli, url, &o);
    }
    fprintf(stderr,
            "hearth: %s: start one with `hearthd --store DIR`, name one with --server URL, or "
            "work without one with --store DIR\n",
            hth_err_detail());
    return HTH_CLI_ERROR;
}

int hth_cli_print(const hth_cli *cli, const char *json)
{
    json_t *doc = hth_cli_json(cli) ? NULL : json_loads(json, JSON_DECODE_ANY, NULL);
    if (doc == NULL) {
        printf("%s\n", json);
    } else if (json_is_array(doc) && json_array_size(doc) == 0) {
        printf("there are none\n");
    } else {
        hth_table_print(stdout, doc);
    }
    json_decref(doc);
    return fflush(stdout) == 0 ? HTH_CLI_OK : HTH_CLI_ERROR;
}
