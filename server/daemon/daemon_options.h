// SPDX-License-Identifier: Apache-2.0
// server/daemon/daemon_options.h - what hearthd was asked to do: its flags, which are made from the
// table of settings, its configuration file, and what must hold beyond the table. Used by the
// program's main thread.
//
// The folder server/daemon/ is the program hearthd: options, log, signals and the service manager
// around one hth_server (server/server.h).
#ifndef HTH_SERVER_DAEMON_DAEMON_OPTIONS_H
#define HTH_SERVER_DAEMON_DAEMON_OPTIONS_H

#include "base/config.h"

#define HTH_DAEMON_MAX_LISTEN 16

typedef struct hth_daemon_options {
    hth_config config;
    char store[HTH_SETTING_TEXT], device[HTH_SETTING_TEXT], http[HTH_SETTING_TEXT],
        metrics[HTH_SETTING_TEXT];
    bool client_shm, child;
    char urls[HTH_SETTING_TEXT]; // what `listen` points into
    const char *listen[HTH_DAEMON_MAX_LISTEN];
    int n_listen;
} hth_daemon_options;

// hth_daemon_options_read reads the command line and the file that it names, prints what is wrong
// with them, sets all settings, and does --help, --version and --check-config. -1: start; else the
// exit code: 1: --check-config found a mistake, 2: the same without it. `runtime_dir`:
// $XDG_RUNTIME_DIR, or NULL. To be followed by hth_daemon_options_fini.
int hth_daemon_options_read(hth_daemon_options *options, int argc, char **argv,
                            const char *runtime_dir);
void hth_daemon_options_fini(hth_daemon_options *options);
// hth_daemon_check looks at what must hold beyond the table, devices and files included, and prints
// what does not. daemon_check.c
bool hth_daemon_check(const hth_daemon_options *options);

#endif
