// SPDX-License-Identifier: Apache-2.0
// Each setting is a flag of its own name, --set takes any of them, and a file beneath both; the
// order on the command line decides nothing. What --check-config prints is a file that says the
// same.
#include "server/daemon/daemon_options.h"

#include "base/spelling.h"
#include "client/hearth.h"
#include "client/default_url.h"

#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { OPTION_SETTING = 256, OPTION_RENAMED = OPTION_SETTING + HTH_N_SETTINGS };
enum { OPTION_CONFIG = OPTION_RENAMED + HTH_N_RENAMED_SETTINGS };
enum { OPTION_CHECK = OPTION_CONFIG + 1, OPTION_SET, OPTION_HELP, OPTION_VERSION };

#define N_FLAGS     (HTH_N_SETTINGS + HTH_N_RENAMED_SETTINGS)
#define N_OPTIONS   (N_FLAGS + 6) // the settings, those above, and the end
#define OPTION_NAME 64

typedef struct daemon_flags {
    struct option options[N_OPTIONS];
    char name[N_FLAGS][OPTION_NAME];
    bool check;
} daemon_flags;

static const char *kind_value(hth_setting_kind kind)
{
    static const char *const names[] = {"N", "BYTES", "X", "TEXT", "WORD", "TEXT", "LEVEL"};
    return names[kind];
}

static const char *flag_value(hth_setting setting)
{
    return hth_setting_is_switch(setting) ? "[true|false]"
                                          : kind_value(hth_setting_get_info(setting)->kind);
}

static int options_help(void)
{
    printf("usage: hearthd --store DIR [options]\n"
           "\n"
           "  --config FILE            settings, one NAME = VALUE a line, # starts a comment\n"
           "  --check-config           print the effective settings and check them\n"
           "  --set NAME=VALUE         a setting by its name\n"
           "  --help, --version\n"
           "\n"
           "Each setting is a flag and a line of the file; flags override the file, and the file\n"
           "overrides the defaults. Settings with * can change while hearthd runs (SIGHUP).\n");
    for (int i = 0; i < HTH_N_SETTINGS; i++) {
        const hth_setting_info *s = hth_setting_get_info((hth_setting)i);
        char flag[OPTION_NAME], value[64];
        hth_setting_default((hth_setting)i, value, sizeof value);
        printf("  --%s %s%s\n", hth_config_flag_name((hth_setting)i, flag, sizeof flag),
               flag_value((hth_setting)i), s->kind == HTH_KIND_LIST ? " .." : "");
        printf("      %c %s: %s", s->change == HTH_CHANGE_LIVE ? '*' : ' ', s->name, s->help);
        if (value[0] != 0) {
            printf(" (%s)", value);
        }
        printf("\n");
    }
    return 0;
}

// options_default_url takes the first place that clients look in and whose folder can be written.
static hth_err options_default_url(const char *runtime_dir)
{
    char path[256], dir[256], url[300];
    for (int i = 0; hth_default_url_socket(i, runtime_dir, path, sizeof path) != NULL; i++) {
        strcpy(dir, path);
        *strrchr(dir, '/') = 0;
        if (access(dir, W_OK) == 0) {
            snprintf(url, sizeof url, "ipc://%s", path);
            return hth_setting_set("listen", url);
        }
    }
    return hth_fail(HTH_EINVAL, "no folder for a local socket is writable; use --listen URL");
}

// options_take copies what a server is opened with.
static hth_err options_take(hth_daemon_options *options, const char *runtime_dir)
{
    char *save, *url;
    hth_setting_text(HTH_SET_STORE, options->store);
    hth_setting_text(HTH_SET_DEVICE, options->device);
    hth_setting_text(HTH_SET_HTTP, options->http);
    hth_setting_text(HTH_SET_METRICS, options->metrics);
    char word[HTH_SETTING_TEXT];
    options->client_shm = strcmp(hth_setting_text(HTH_SET_ALLOW_CLIENT_SHM, word), "true") == 0;
    options->child = strcmp(hth_setting_text(HTH_SET_ENGINE_PROCESS, word), "child") == 0;
    if (hth_setting_text(HTH_SET_LISTEN, options->urls)[0] == 0) {
        HTH_TRY(options_default_url(runtime_dir));
        hth_setting_text(HTH_SET_LISTEN, options->urls);
    }
    for (url = strtok_r(options->urls, " ", &save); url != NULL; url = strtok_r(NULL, " ", &save)) {
        if (options->n_listen == HTH_DAEMON_MAX_LISTEN) {
            return hth_fail(HTH_EINVAL, "listen: more than %d urls", HTH_DAEMON_MAX_LISTEN);
        }
        options->listen[options->n_listen++] = url;
    }
    return HTH_OK;
}

static void options_print(const hth_daemon_options *options)
{
    char value[HTH_SETTING_TEXT], origin[300], line[HTH_SETTING_TEXT + 64];
    char *save;
    for (int i = 0; i < HTH_N_SETTINGS; i++) {
        const hth_setting_info *t = hth_setting_get_info((hth_setting)i);
        hth_setting_get(t->name, value, sizeof value);
        hth_config_origin(&options->config, (hth_setting)i, origin, sizeof origin);
        char *item = t->kind == HTH_KIND_LIST ? strtok_r(value, " ", &save) : value;
        while (item != NULL) {
            snprintf(line, sizeof line, "%s = %s", t->name, item);
            printf("%-40s # %s\n", line, origin);
            item = t->kind == HTH_KIND_LIST ? strtok_r(NULL, " ", &save) : NULL;
        }
    }
}

// ---- the command line

static void flags_init(daemon_flags *flags)
{
    static const struct option own[] = {{"config", required_argument, NULL, OPTION_CONFIG},
                                        {"check-config", no_argument, NULL, OPTION_CHECK},
                                        {"set", required_argument, NULL, OPTION_SET},
                                        {"help", no_argument, NULL, OPTION_HELP},
                                        {"version", no_argument, NULL, OPTION_VERSION},
                                        {NULL, 0, NULL, 0}};
    for (int i = 0; i < HTH_N_SETTINGS; i++) {
        hth_config_flag_name((hth_setting)i, flags->name[i], OPTION_NAME);
        int value = hth_setting_is_switch((hth_setting)i) ? optional_argument : required_argument;
        flags->options[i] = (struct option){flags->name[i], value, NULL, OPTION_SETTING + i};
    }
    for (int i = 0; i < HTH_N_RENAMED_SETTINGS; i++) {
        const hth_setting_rename *r = hth_setting_get_rename(i);
        char *name = flags->name[HTH_N_SETTINGS + i];
        hth_config_flag_spelling(r->was, name, OPTION_NAME);
        flags->options[HTH_N_SETTINGS + i] = flags->options[r->setting];
        flags->options[HTH_N_SETTINGS + i].name = name;
        flags->options[HTH_N_SETTINGS + i].val = OPTION_RENAMED + i;
    }
    memcpy(flags->options + N_FLAGS, own, sizeof own);
}

// flag_set takes "NAME=VALUE".
static hth_err flag_set(hth_config *config, const char *text)
{
    char name[OPTION_NAME];
    const char *equals = strchr(text, '=');
    if (equals == NULL || equals - text >= OPTION_NAME) {
        return hth_fail(HTH_EINVAL, "'%.80s' is not NAME=VALUE", text);
    }
    snprintf(name, sizeof name, "%.*s", (int)(equals - text), text);
    return hth_config_flag(config, name, equals + 1);
}

// flag_setting takes a setting's value. A switch alone is on; getopt leaves its value, where there
// is one, to us.
static hth_err flag_setting(hth_config *config, const char *name, int argc, char **argv)
{
    const char *value = optarg;
    if (value == NULL) {
        const char *next = optind < argc ? argv[optind] : "";
        bool given = strcmp(next, "true") == 0 || strcmp(next, "false") == 0;
        value = given ? next : "true";
        optind += given;
    }
    return hth_config_flag(config, name, value);
}

// flags_fail says what is wrong with an option that getopt did not take.
static hth_err flags_fail(const daemon_flags *flags, const char *arg, bool no_value)
{
    const char *name = arg + strspn(arg, "-"), *best = NULL;
    int distance = 4, n = (int)strcspn(name, "="), starts = 0;
    char word[OPTION_NAME];
    if (no_value) {
        return hth_fail(HTH_EINVAL, "%s needs a value", arg);
    }
    snprintf(word, sizeof word, "%.*s", n < OPTION_NAME ? n : 0, name);
    for (const struct option *o = flags->options; o->name != NULL; o++) {
        if (o->val >= OPTION_RENAMED && o->val < OPTION_CONFIG) {
            continue; // a name that nobody should learn
        }
        starts += n > 0 && strncmp(o->name, name, (size_t)n) == 0;
        hth_spelling_closer(word, o->name, &distance, &best);
    }
    const char *means = hth_setting_means(word);
    if (means != NULL) {
        best = flags->name[hth_setting_find(means)];
    } else if (starts > 1) {
        return hth_fail(HTH_EINVAL, "--%s begins %d options; hearthd --help lists them", word,
                        starts);
    }
    if (best == NULL) {
        return hth_fail(HTH_EINVAL, "there is no option %.80s; hearthd --help lists them", arg);
    }
    return hth_fail(HTH_EINVAL,
                    "there is no option %.80s, did you mean --%s; hearthd --help lists them", arg,
                    best);
}

static hth_err flags_read(daemon_flags *flags, hth_config *config, int argc, char **argv, int *code)
{
    hth_err err = HTH_OK;
    opterr = 0;
    for (int v; err == HTH_OK && (v = getopt_long(argc, argv, ":h", flags->options, NULL)) != -1;) {
        if (v >= OPTION_SETTING && v < OPTION_RENAMED) {
            const char *name = hth_setting_get_info((hth_setting)(v - OPTION_SETTING))->name;
            err = flag_setting(config, name, argc, argv);
        } else if (v >= OPTION_RENAMED && v < OPTION_CONFIG) {
            err = flag_setting(config, hth_setting_get_rename(v - OPTION_RENAMED)->was, argc, argv);
        } else if (v == OPTION_CONFIG) {
            config->path = optarg;
        } else if (v == OPTION_CHECK) {
            flags->check = true;
        } else if (v == OPTION_SET) {
            err = flag_set(config, optarg);
        } else if (v == OPTION_HELP || v == 'h') {
            *code = options_help();
            return HTH_OK;
        } else if (v == OPTION_VERSION) {
            printf("hearthd " HEARTH_VERSION "\n");
            *code = 0;
            return HTH_OK;
        } else {
            err = flags_fail(flags, argv[optind - 1], v == ':');
        }
    }
    if (err == HTH_OK && optind < argc) {
        err =
            hth_fail(HTH_EINVAL,
                     "'%.80s' is not an option: the model store is given with --store DIR; hearthd "
                     "--help lists the options",
                     argv[optind]);
    }
    return err;
}

static void options_say(void *ctx, const char *sentence)
{
    fprintf(stderr, "hearthd: %s\n", sentence);
}

// options_settle makes the settings those of the configuration.
static hth_err options_settle(hth_daemon_options *options, const char *runtime_dir)
{
    HTH_TRY(hth_config_apply(&options->config));
    return options_take(options, runtime_dir);
}

int hth_daemon_options_read(hth_daemon_options *options, int argc, char **argv,
                            const char *runtime_dir)
{
    const hth_config_report report = {options_say, NULL};
    daemon_flags flags = {.check = false};
    int code = -1;
    memset(options, 0, sizeof *options);
    flags_init(&flags);
    hth_err err = flags_read(&flags, &options->config, argc, argv, &code);
    if (code >= 0) {
        return code;
    }
    if (err == HTH_OK && options->config.path != NULL &&
        hth_config_read(&options->config, &report) != HTH_OK) {
        return flags.check ? 1 : 2;
    }
    if (err == HTH_OK) {
        err = options_settle(options, runtime_dir);
    }
    if (err != HTH_OK) {
        options_say(NULL, hth_err_detail());
    }
    bool good = err == HTH_OK && hth_daemon_check(options);
    if (good && flags.check) {
        hth_config_renamed(&options->config, &report);
        options_print(options);
        return 0;
    }
    if (good) {
        return -1;
    }
    return flags.check ? 1 : 2;
}

void hth_daemon_options_fini(hth_daemon_options *options)
{
    hth_config_fini(&options->config);
}
