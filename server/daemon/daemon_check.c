// SPDX-License-Identifier: Apache-2.0
// What must hold of the settings that a server is opened with beyond what their table says.
#include "server/daemon/daemon_options.h"

#include "client/token.h"
#include "device/device.h"
#include "server/net/address.h"
#include "server/http/http.h"
#include "engine/router/router.h"
#include "runtime/tenants/tenant_rules.h"
#include "server/net/tls.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define URL_PATH_BYTES 107 // of a socket's address

// check_wrong says who set `setting` to something that cannot be.
static bool check_wrong(const hth_daemon_options *options, hth_setting setting,
                        const char *sentence)
{
    char origin[300];
    hth_config_origin(&options->config, setting, origin, sizeof origin);
    const char *name = hth_setting_get_info(setting)->name;
    if (hth_config_text(&options->config, setting) == NULL) {
        fprintf(stderr, "hearthd: %s: %s\n", name, sentence);
    } else if (origin[0] == '-') { // a flag, which is the name already
        fprintf(stderr, "hearthd: %s: %s\n", origin, sentence);
    } else {
        fprintf(stderr, "hearthd: %s: %s: %s\n", origin, name, sentence);
    }
    return false;
}

static bool check_url(const hth_daemon_options *options, const char *url)
{
    char sentence[300];
    const char *port = strrchr(url, ':');
    size_t plain = strncmp(url, "tls+", 4) == 0 ? 4 : 0;
    bool ipc = strncmp(url, "ipc://", 6) == 0, tcp = strncmp(url + plain, "tcp://", 6) == 0;
    if (ipc && url[6] == '/' && strlen(url + 6) <= URL_PATH_BYTES) {
        return true;
    }
    if (tcp && port > url + plain + 6 && strspn(port + 1, "0123456789") == strlen(port + 1) &&
        atol(port + 1) > 0 && atol(port + 1) < 65535) {
        return true;
    }
    const char *wrong = "is not ipc://PATH, tcp://HOST:PORT or tls+tcp://HOST:PORT";
    if (ipc) {
        wrong = "has no absolute path of at most 107 bytes";
    } else if (tcp) {
        wrong = "has no port from 1 to 65534 after the host";
    }
    snprintf(sentence, sizeof sentence, "'%.150s' %s", url, wrong);
    return check_wrong(options, HTH_SET_LISTEN, sentence);
}

// check_prefix: a path is compared as it is sent, so only what is never percent-encoded.
static bool check_prefix(const hth_daemon_options *options)
{
    static const char allowed[] = "/abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
                                  "-._~";
    char prefix[HTH_SETTING_TEXT];
    size_t n = strlen(hth_setting_text(HTH_SET_HTTP_PREFIX, prefix));
    return n == 0 || (prefix[0] == '/' && prefix[n - 1] != '/' && strspn(prefix, allowed) == n &&
                      strstr(prefix, "//") == NULL)
               ? true
               : check_wrong(options, HTH_SET_HTTP_PREFIX, "is not a path such as /base/path");
}

// check_http looks at the addresses of HTTP.
static bool check_http(const hth_daemon_options *options)
{
    if (options->http[0] != 0 && hth_http_check(options->http) != HTH_OK) {
        return check_wrong(options, HTH_SET_HTTP, hth_err_detail());
    }
    if (options->metrics[0] != 0 && options->http[0] == 0) {
        return check_wrong(options, HTH_SET_METRICS, "it needs --http, too");
    }
    return options->metrics[0] == 0 || hth_http_check(options->metrics) == HTH_OK
               ? true
               : check_wrong(options, HTH_SET_METRICS, hth_err_detail());
}

// check_twice looks for two addresses on which only one thing can listen.
static bool check_twice(const hth_daemon_options *options)
{
    struct {
        hth_setting setting;
        const char *text;
        char host[HTH_ADDRESS_HOST];
        int port;
    } at[HTH_DAEMON_MAX_LISTEN + 2];
    int n = 0;
    for (int i = 0; i < options->n_listen + 2; i++) {
        if (i < options->n_listen) {
            at[n].setting = HTH_SET_LISTEN;
            at[n].text = options->listen[i];
        } else {
            bool http = i == options->n_listen;
            at[n].setting = http ? HTH_SET_HTTP : HTH_SET_METRICS;
            at[n].text = http ? options->http : options->metrics;
        }
        n += strncmp(at[n].text, "ipc://", 6) != 0 &&
             hth_address_split(at[n].text, at[n].host, &at[n].port) == HTH_OK && at[n].port > 0;
    }
    for (int i = 1; i < n; i++) {
        for (int k = 0; k < i; k++) {
            if (at[i].port == at[k].port && hth_address_meet(at[i].host, at[k].host)) {
                char sentence[400];
                snprintf(sentence, sizeof sentence, "'%.120s' is taken by %s '%.120s'", at[i].text,
                         hth_setting_get_info(at[k].setting)->name, at[k].text);
                return check_wrong(options, at[i].setting, sentence);
            }
        }
    }
    return true;
}

// check_store: what is not there yet is made, as a folder.
static bool check_store(const hth_daemon_options *options)
{
    struct stat st;
    char sentence[HTH_SETTING_TEXT + 40];
    if (options->store[0] == 0) {
        return check_wrong(options, HTH_SET_STORE, "--store DIR is missing");
    }
    if (strcmp(options->store, ":memory:") == 0 && stat(options->store, &st) != 0) {
        return check_wrong(options, HTH_SET_STORE,
                           "a store in memory is for programs (hearth.h, Python): name a folder");
    }
    if (stat(options->store, &st) == 0 && !S_ISDIR(st.st_mode)) {
        snprintf(sentence, sizeof sentence, "'%s' is not a folder", options->store);
        return check_wrong(options, HTH_SET_STORE, sentence);
    }
    return true;
}

// check_tls reads the certificate where something needs one, and the tokens.
static bool check_tls(const hth_daemon_options *options)
{
    bool needed =
        strncmp(options->http, "https://", 8) == 0 || strncmp(options->metrics, "https://", 8) == 0;
    char file[HTH_SETTING_TEXT];
    hth_tokens tokens;
    hth_tls *tls;
    for (int i = 0; i < options->n_listen; i++) {
        needed = needed || strncmp(options->listen[i], "tls+tcp://", 10) == 0;
    }
    if (needed && hth_tls_open(&tls) != HTH_OK) {
        return check_wrong(options, HTH_SET_TLS_CERT, hth_err_detail());
    }
    hth_tls_close(needed ? tls : NULL);
    if (hth_setting_text(HTH_SET_AUTH_TOKENS_FILE, file)[0] != 0) {
        if (hth_tokens_read(file, &tokens) != HTH_OK) {
            return check_wrong(options, HTH_SET_AUTH_TOKENS_FILE, hth_err_detail());
        }
        hth_tokens_fini(&tokens);
    }
    return true;
}

// check_devices opens each device, one after the other.
static bool check_devices(const hth_daemon_options *options)
{
    char list[HTH_SETTING_TEXT], why[1200];
    char *save;
    hth_device *device;
    if (hth_router_check(options->device) != HTH_OK) {
        return check_wrong(options, HTH_SET_DEVICE, hth_err_detail());
    }
    bool several = hth_router_several(options->device);
    snprintf(list, sizeof list, "%s", options->device);
    for (char *spec = strtok_r(list, " ", &save); spec != NULL; spec = strtok_r(NULL, " ", &save)) {
        if (hth_device_open(spec, &device) != HTH_OK) {
            snprintf(why, sizeof why, "%.100s: %s", spec, hth_err_detail());
            return check_wrong(options, HTH_SET_DEVICE, several ? why : hth_err_detail());
        }
        hth_device_close(device);
    }
    return true;
}

static bool check_tenants(const hth_daemon_options *options)
{
    char file[HTH_SETTING_TEXT];
    hth_tenant_rules rules;
    if (hth_tenant_rules_read(hth_setting_text(HTH_SET_TENANT_FILE, file), &rules) != HTH_OK) {
        return check_wrong(options, HTH_SET_TENANT_FILE, hth_err_detail());
    }
    hth_tenant_rules_fini(&rules);
    return true;
}

bool hth_daemon_check(const hth_daemon_options *options)
{
    bool good = check_store(options);
    for (int i = 0; i < options->n_listen; i++) {
        good = check_url(options, options->listen[i]) && good;
    }
    good = check_http(options) && good;
    good = good && check_twice(options);
    good = check_prefix(options) && check_tls(options) && check_tenants(options) && good;
    return check_devices(options) && good;
}
