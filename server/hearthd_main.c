// SPDX-License-Identifier: Apache-2.0
// hearthd: reads its command line, opens a server, and waits in libevent's loop for signals.
// SIGTERM and SIGINT stop it gracefully (what was accepted is answered); a second one ends it at
// once. SIGHUP is logged and changes nothing.
#include "server/server.h"

#include "base/isa.h"
#include "base/log.h"
#include "base/settings.h"
#include "base/thread.h"
#include "client/hearth.h"
#include "client/local.h"

#include <event2/event.h>

#include <ctype.h>
#include <errno.h>
#include <getopt.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define DAEMON_MAX_LISTEN 16

typedef struct hearthd {
    hth_server_config config;
    const char *listen[DAEMON_MAX_LISTEN];
    char local[300]; // the default url
    struct event_base *base;
} hearthd;

static void daemon_log(void *ctx, const hth_log_record *r)
{
    fprintf(stderr, "%s %s %s %s\n", hth_log_level_name(r->level), hth_subsystem_name(r->subsystem),
            r->event, r->text);
}

static int daemon_fail(int code, const char *sentence)
{
    fprintf(stderr, "hearthd: %s\n", sentence);
    return code;
}

static int daemon_help(void)
{
    printf("usage: hearthd --store DIR [options]\n\n"
           "  --store DIR           the models; created if absent\n"
           "  --listen URL          where clients connect, may be repeated: ipc://PATH, "
           "tcp://HOST:PORT\n"
           "                        default: ipc:///run/hearth.sock, else in $XDG_RUNTIME_DIR, "
           "else in /tmp\n"
           "  --device SPEC         cpu:mem=2GiB,threads=2\n"
           "  --config FILE         settings, one NAME = VALUE a line, # starts a comment\n"
           "  --set NAME=VALUE      one setting\n"
           "  --log-level FILTER    info, or warn,store=debug\n"
           "  --help, --version\n\nSettings:\n");
    for (int i = 0; i < HTH_N_SETTINGS; i++) {
        const hth_setting_info *s = hth_setting_get_info((hth_setting)i);
        char value[64];
        printf("  %-22s %s (%s)\n", s->name, s->help,
               hth_setting_format(s->kind, s->dflt, value, sizeof value));
    }
    return 0;
}

// ---- configuration

static char *daemon_trim(char *s)
{
    while (isspace((unsigned char)*s)) {
        s++;
    }
    for (size_t n = strlen(s); n > 0 && isspace((unsigned char)s[n - 1]); n--) {
        s[n - 1] = 0;
    }
    return s;
}

// daemon_set sets "NAME=VALUE" (changed in place).
static hth_err daemon_set(char *text)
{
    char *equals = strchr(text, '=');
    if (equals == NULL) {
        return hth_fail(HTH_EINVAL, "'%s' is not NAME=VALUE", text);
    }
    *equals = 0;
    return hth_setting_set(daemon_trim(text), daemon_trim(equals + 1));
}

static hth_err daemon_read_config(const char *path)
{
    char line[1024];
    hth_err err = HTH_OK;
    FILE *f = fopen(path, "re");
    if (f == NULL) {
        return hth_fail_errno(errno, "cannot read %s", path);
    }
    for (int n = 1; err == HTH_OK && fgets(line, sizeof line, f) != NULL; n++) {
        line[strcspn(line, "#\n")] = 0;
        char *text = daemon_trim(line);
        err = text[0] != 0 ? daemon_set(text) : HTH_OK;
        if (err != HTH_OK) {
            hth_err_prefix(err, "%s:%d", path, n);
        }
    }
    fclose(f);
    return err;
}

// daemon_default_url takes the first place that clients look in and whose folder can be written.
static hth_err daemon_default_url(hearthd *d)
{
    char path[256], dir[256];
    for (int i = 0; hth_local_socket(i, getenv("XDG_RUNTIME_DIR"), path, sizeof path) != NULL;
         i++) {
        strcpy(dir, path);
        *strrchr(dir, '/') = 0;
        if (access(dir, W_OK) == 0) {
            snprintf(d->local, sizeof d->local, "ipc://%s", path);
            d->listen[d->config.n_listen++] = d->local;
            return HTH_OK;
        }
    }
    return hth_fail(HTH_EINVAL, "no folder for a local socket can be written; say --listen URL");
}

// daemon_options reads the command line; -1: go on, else the exit code.
static int daemon_options(hearthd *d, int argc, char **argv)
{
    enum { STORE = 256, LISTEN, DEVICE, CONFIG, SET, LOG, HELP, VERSION };
    static const struct option options[] = {{"store", required_argument, NULL, STORE},
                                            {"listen", required_argument, NULL, LISTEN},
                                            {"device", required_argument, NULL, DEVICE},
                                            {"config", required_argument, NULL, CONFIG},
                                            {"set", required_argument, NULL, SET},
                                            {"log-level", required_argument, NULL, LOG},
                                            {"help", no_argument, NULL, HELP},
                                            {"version", no_argument, NULL, VERSION},
                                            {NULL, 0, NULL, 0}};
    hth_err err = HTH_OK;
    for (int o; err == HTH_OK && (o = getopt_long(argc, argv, "h", options, NULL)) != -1;) {
        switch (o) {
        case STORE:
            d->config.store = optarg;
            break;
        case LISTEN:
            if (d->config.n_listen == DAEMON_MAX_LISTEN) {
                err = hth_fail(HTH_EINVAL, "more than %d --listen", DAEMON_MAX_LISTEN);
                break;
            }
            d->listen[d->config.n_listen++] = optarg;
            break;
        case DEVICE:
            d->config.device = optarg;
            break;
        case CONFIG:
            err = daemon_read_config(optarg);
            break;
        case SET:
            err = daemon_set(optarg);
            break;
        case LOG:
            err = hth_log_filter(optarg);
            break;
        case 'h':
        case HELP:
            return daemon_help();
        case VERSION:
            printf("hearthd " HEARTH_VERSION "\n");
            return 0;
        default:
            return 2; // getopt has said what is wrong
        }
    }
    if (err == HTH_OK && optind < argc) {
        err = hth_fail(HTH_EINVAL, "'%s' is no option; hearthd --help lists them", argv[optind]);
    } else if (err == HTH_OK && d->config.store == NULL) {
        err = hth_fail(HTH_EINVAL, "--store DIR is missing");
    }
    if (err == HTH_OK && d->config.n_listen == 0) {
        err = daemon_default_url(d);
    }
    return err == HTH_OK ? -1 : daemon_fail(2, hth_err_detail());
}

// ---- running

static void daemon_signal(evutil_socket_t number, short what, void *arg)
{
    hearthd *d = arg;
    if (number == SIGHUP) {
        hth_log(INFO, SERVER, "hangup", "nothing to reload");
    } else {
        event_base_loopbreak(d->base);
    }
}

static int daemon_loop(hearthd *d)
{
    static const int numbers[] = {SIGTERM, SIGINT, SIGHUP};
    struct event *event[3] = {NULL};
    d->base = event_base_new();
    bool ready = d->base != NULL;
    for (int i = 0; i < 3 && ready; i++) {
        event[i] = evsignal_new(d->base, numbers[i], daemon_signal, d);
        ready = event[i] != NULL && event_add(event[i], NULL) == 0;
    }
    if (ready) {
        printf("hearthd " HEARTH_VERSION " ready:");
        for (int i = 0; i < d->config.n_listen; i++) {
            printf(" %s", d->listen[i]);
        }
        printf("\n");
        fflush(stdout);
        event_base_dispatch(d->base);
    }
    for (int i = 0; i < 3; i++) {
        if (event[i] != NULL) {
            event_free(event[i]); // gives the signal its default action back
        }
    }
    if (d->base != NULL) {
        event_base_free(d->base);
    }
    return ready ? 0 : daemon_fail(1, "cannot wait for signals");
}

int main(int argc, char **argv)
{
    hearthd d = {.config = {.resume = true}};
    hth_server *server;
    d.config.listen = d.listen;
    signal(SIGPIPE, SIG_IGN);
    hth_thread_stacks(HTH_THREAD_STACK);
    hth_log_filter("warn");
    if (hth_isa_limit(getenv("HEARTH_ISA")) != HTH_OK) {
        return daemon_fail(2, hth_err_detail());
    }
    int rv = daemon_options(&d, argc, argv);
    if (rv >= 0) {
        return rv;
    }
    hth_log_sink(daemon_log, NULL);
    if (hth_server_open(&d.config, &server) != HTH_OK) {
        return daemon_fail(1, hth_err_detail());
    }
    rv = daemon_loop(&d);
    hth_server_close(server);
    return rv;
}
