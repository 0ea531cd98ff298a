// SPDX-License-Identifier: Apache-2.0
// The tokens are a table that a reload replaces as a whole, under a lock; a check holds it for one
// hash and a comparison with each row. Users and groups are looked up once, when the server starts:
// a connection costs no question to a directory service, and who joins a group later is known after
// a restart.
#include "server/net/auth.h"

#include "base/alloc.h"
#include "base/log.h"

#include <jansson.h>

#include <errno.h>
#include <grp.h>
#include <pthread.h>
#include <pwd.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define AUTH_MAX_LOCAL 4096 // users that auth.local comes to
#define AUTH_NAMES     (64 << 10)

struct hth_auth {
    char *file; // NULL: there are no tokens
    pthread_rwlock_t lock;
    hth_tokens tokens; // guarded by lock
    int n_users, n_groups;
    uid_t users[AUTH_MAX_LOCAL];
    gid_t groups[AUTH_MAX_LOCAL];
};

static hth_err auth_add_user(hth_auth *auth, uid_t uid)
{
    if (auth->n_users == AUTH_MAX_LOCAL) {
        return hth_fail(HTH_ETOOBIG, "auth.local: more than %d users", AUTH_MAX_LOCAL);
    }
    auth->users[auth->n_users++] = uid;
    return HTH_OK;
}

// auth_nobody: a name that is not known lets nobody in, and keeps nobody from starting.
static hth_err auth_nobody(const char *kind, const char *name)
{
    hth_log(WARN, SERVER, "auth", "auth.local: there is no %s '%s'", kind, name);
    return HTH_OK;
}

static hth_err auth_user(hth_auth *auth, const char *name)
{
    struct passwd space, *found = NULL;
    char text[AUTH_NAMES];
    if (getpwnam_r(name, &space, text, sizeof text, &found) != 0 || found == NULL) {
        return auth_nobody("user", name);
    }
    return auth_add_user(auth, found->pw_uid);
}

// auth_group takes the members that the group lists; a peer whose own group it is is found by that.
static hth_err auth_group(hth_auth *auth, const char *name)
{
    struct group space, *found = NULL;
    char text[AUTH_NAMES];
    if (getgrnam_r(name, &space, text, sizeof text, &found) != 0 || found == NULL) {
        return auth_nobody("group", name);
    }
    if (auth->n_groups == AUTH_MAX_LOCAL) {
        return hth_fail(HTH_ETOOBIG, "auth.local: more than %d groups", AUTH_MAX_LOCAL);
    }
    auth->groups[auth->n_groups++] = found->gr_gid;
    for (char **member = found->gr_mem; *member != NULL; member++) {
        HTH_TRY(auth_user(auth, *member));
    }
    return HTH_OK;
}

static hth_err auth_names(hth_auth *auth, const char *local)
{
    char name[128];
    for (const char *p = local; *p != 0;) {
        size_t n = strcspn(p, " ");
        if (n >= sizeof name) {
            return hth_fail(HTH_EINVAL, "auth.local: '%.80s' is too long for a name", p);
        }
        memcpy(name, p, n);
        name[n] = 0;
        if (n > 0) {
            HTH_TRY(name[0] == '@' ? auth_group(auth, name + 1) : auth_user(auth, name));
        }
        p += n + strspn(p + n, " ");
    }
    return HTH_OK;
}

hth_err hth_auth_open(const char *tokens_file, const char *local, hth_auth **out)
{
    *out = NULL;
    hth_auth *a = hth_calloc(1, sizeof *a);
    if (a == NULL) {
        return hth_no_memory("tokens");
    }
    pthread_rwlock_init(&a->lock, NULL);
    hth_err err = auth_names(a, local);
    if (err == HTH_OK && tokens_file[0] != 0) {
        a->file = hth_strdup(tokens_file);
        err = a->file == NULL ? hth_no_memory("tokens") : hth_tokens_read(a->file, &a->tokens);
    }
    if (err != HTH_OK) {
        hth_auth_close(a);
        return err;
    }
    *out = a;
    return HTH_OK;
}

void hth_auth_close(hth_auth *auth)
{
    if (auth != NULL) {
        hth_tokens_fini(&auth->tokens);
        pthread_rwlock_destroy(&auth->lock);
        hth_free(auth->file);
        hth_free(auth);
    }
}

hth_err hth_auth_reload(hth_auth *auth)
{
    hth_tokens fresh, old;
    if (auth->file == NULL) {
        return HTH_OK;
    }
    HTH_TRY(hth_tokens_read(auth->file, &fresh));
    pthread_rwlock_wrlock(&auth->lock);
    old = auth->tokens;
    auth->tokens = fresh;
    pthread_rwlock_unlock(&auth->lock);
    hth_tokens_fini(&old);
    hth_log(INFO, SERVER, "tokens", "file=%s n=%d", auth->file, fresh.n);
    return HTH_OK;
}

bool hth_auth_has_tokens(const hth_auth *auth)
{
    return auth->file != NULL;
}

hth_peer hth_auth_local(const hth_auth *auth, uint64_t uid, uint64_t gid)
{
    if (uid == 0 || uid == geteuid()) {
        return HTH_PEER_TRUSTED;
    }
    for (int i = 0; i < auth->n_users; i++) {
        if (auth->users[i] == uid) {
            return HTH_PEER_TRUSTED;
        }
    }
    for (int i = 0; i < auth->n_groups; i++) {
        if (auth->groups[i] == gid) {
            return HTH_PEER_TRUSTED;
        }
    }
    return HTH_PEER_LOCAL;
}

// ---- deciding

static const char *const need_role[] = {
    [HTH_NEED_NOTHING] = "",     [HTH_NEED_ANY] = "infer", [HTH_NEED_INFER] = "infer",
    [HTH_NEED_MODEL] = "model",  [HTH_NEED_JOB] = "job",   [HTH_NEED_ADMIN] = "admin",
    [HTH_NEED_CONTENT] = "model"};

static bool need_met(unsigned roles, hth_need need)
{
    static const unsigned bit[] = {[HTH_NEED_ANY] = HTH_ROLE_ALL,
                                   [HTH_NEED_INFER] = HTH_ROLE_INFER,
                                   [HTH_NEED_MODEL] = HTH_ROLE_MODEL,
                                   [HTH_NEED_JOB] = HTH_ROLE_JOB,
                                   [HTH_NEED_CONTENT] = HTH_ROLE_MODEL | HTH_ROLE_JOB,
                                   [HTH_NEED_ADMIN] = HTH_ROLE_ADMIN};
    return (roles & bit[need]) != 0;
}

static hth_err deny_without_tokens(hth_peer peer, hth_need need)
{
    if (peer == HTH_PEER_LOCAL) {
        return hth_fail(
            HTH_EDENIED,
            "this needs the role '%s'; over this socket, users other than the server's may only "
            "run inference: list those who may do more in auth.local, or use tokens (hearth token)",
            need_role[need]);
    }
    return hth_fail(HTH_EDENIED,
                    "this needs the role '%s', and is off over the network until the server has "
                    "tokens: hearth token new NAME --roles %s --file FILE, and hearthd "
                    "--auth-tokens-file FILE",
                    need_role[need], need_role[need]);
}

static hth_err check_token(const hth_auth *auth, const char *token, hth_need need, bool *unknown)
{
    if (token == NULL || token[0] == 0) {
        *unknown = true;
        return hth_fail(HTH_EDENIED,
                        "this needs a token with the role '%s': Authorization: Bearer TOKEN over "
                        "HTTP, $HEARTH_TOKEN or --token-file for hearth",
                        need_role[need]);
    }
    const hth_token *t = hth_tokens_find(&auth->tokens, token);
    if (t == NULL) {
        *unknown = true;
        return hth_fail(HTH_EDENIED, "the server does not know this token");
    }
    if (!need_met(t->roles, need)) {
        return hth_fail(HTH_EDENIED, "the token of '%s' lacks the role '%s'%s", t->name,
                        need_role[need], need == HTH_NEED_CONTENT ? " or 'job'" : "");
    }
    return HTH_OK;
}

static void tenant_copy(const char *name, char *out, size_t cap)
{
    size_t n = strnlen(name, cap - 1); // snprintf takes as long as decoding half of a request
    memcpy(out, name, n);
    out[n] = 0;
}

void hth_auth_tenant(hth_auth *auth, const char *token, const char *without, char *out, size_t cap)
{
    const hth_token *t = NULL;
    if (auth->file != NULL && token != NULL && token[0] != 0) {
        pthread_rwlock_rdlock(&auth->lock);
        t = hth_tokens_find(&auth->tokens, token);
        tenant_copy(t != NULL ? t->name : without, out, cap);
        pthread_rwlock_unlock(&auth->lock);
    } else {
        tenant_copy(without, out, cap);
    }
}

static hth_err auth_decide(hth_auth *auth, hth_peer peer, const char *token, hth_need need,
                           bool *unknown)
{
    *unknown = false;
    if (need == HTH_NEED_NOTHING || peer == HTH_PEER_TRUSTED) {
        return HTH_OK;
    }
    if (auth->file == NULL) {
        unsigned roles = peer == HTH_PEER_LOOPBACK
                             ? HTH_ROLE_INFER | HTH_ROLE_MODEL | HTH_ROLE_ADMIN
                             : HTH_ROLE_INFER;
        return need_met(roles, need) ? HTH_OK : deny_without_tokens(peer, need);
    }
    pthread_rwlock_rdlock(&auth->lock);
    hth_err err = check_token(auth, token, need, unknown);
    pthread_rwlock_unlock(&auth->lock);
    return err;
}

hth_err hth_auth_check(hth_auth *auth, hth_peer peer, const char *token, hth_need need,
                       bool *unknown)
{
    bool nobody;
    hth_err err = auth_decide(auth, peer, token, need, unknown != NULL ? unknown : &nobody);
    if (err != HTH_OK) {
        hth_log(INFO, SERVER, "denied", "need=%s: %s", need_role[need], hth_err_detail());
    }
    return err;
}

bool hth_auth_allows(hth_auth *auth, hth_peer peer, const char *token, hth_need need)
{
    bool unknown;
    return auth_decide(auth, peer, token, need, &unknown) == HTH_OK;
}

// ---- what the requests of hearth's own clients need: of a command its row says it

// command_changes tells of the command "job" that it gives the job another budget.
static bool command_changes(const char *arguments)
{
    json_t *args = json_loads(arguments, 0, NULL); // as the engine reads them
    bool changes = json_object_get(args, "budget") != NULL;
    json_decref(args);
    return changes;
}

static hth_need command_need(hth_command_id command, const char *arguments)
{
    bool changes = command == HTH_COMMAND_JOB && command_changes(arguments);
    return changes ? HTH_NEED_JOB : hth_command_get(command)->need;
}

hth_need hth_auth_need(const Hearth__Request *request, hth_command_id command)
{
    switch (request->body_case) {
    case HEARTH__REQUEST__BODY_INFER:
    case HEARTH__REQUEST__BODY_MAP:
    case HEARTH__REQUEST__BODY_ATTACH:
        return HTH_NEED_INFER;
    case HEARTH__REQUEST__BODY_QUERY:
        return command_need(command, request->query->arguments);
    case HEARTH__REQUEST__BODY_CANCEL: // of the connection's own requests
    case HEARTH__REQUEST__BODY_PROGRESS:
    case HEARTH__REQUEST__BODY_UNMAP:
    case HEARTH__REQUEST__BODY_FETCH:
        return HTH_NEED_NOTHING;
    case HEARTH__REQUEST__BODY_IMPORT_MODEL:
    case HEARTH__REQUEST__BODY_EXPORT_MODEL:
    case HEARTH__REQUEST__BODY_REMOVE:
    case HEARTH__REQUEST__BODY_GC:
    case HEARTH__REQUEST__BODY_MANIFEST:
    case HEARTH__REQUEST__BODY_GET:
        return HTH_NEED_MODEL;
    case HEARTH__REQUEST__BODY_HAVE:
    case HEARTH__REQUEST__BODY_PUT:
    case HEARTH__REQUEST__BODY_DISCARD:
        return HTH_NEED_CONTENT;
    case HEARTH__REQUEST__BODY_COMMIT:
        return strcmp(request->commit->kind, "dataset") == 0 ? HTH_NEED_JOB : HTH_NEED_MODEL;
    default:
        return HTH_NEED_ADMIN;
    }
}
