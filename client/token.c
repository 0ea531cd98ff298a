// SPDX-License-Identifier: Apache-2.0
// A token is random, so that its plain SHA-256 is enough: there is nothing to guess that a slow
// hash would protect, and a request costs a microsecond.
#include "client/token.h"

#include "base/alloc.h"

#include <openssl/crypto.h>
#include <openssl/sha.h>

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#define TOKEN_PREFIX     "hth_"
#define TOKEN_RANDOM     20
#define TOKEN_FILE_BYTES (1 << 20)

static const struct {
    const char *word;
    unsigned roles;
} role_table[] = {{"infer", HTH_ROLE_INFER},
                  {"model", HTH_ROLE_MODEL},
                  {"job", HTH_ROLE_JOB},
                  {"admin", HTH_ROLE_ALL}};

hth_err hth_roles_parse(const char *text, unsigned *roles)
{
    *roles = 0;
    for (const char *p = text;; p++) {
        size_t n = strcspn(p, ","), i = 0, all = sizeof role_table / sizeof role_table[0];
        while (i < all && (strlen(role_table[i].word) != n || memcmp(role_table[i].word, p, n))) {
            i++;
        }
        if (i == all) {
            return hth_fail(HTH_EINVAL, "'%.*s' is not a role: infer, model, job, admin",
                            (int)(n < 40 ? n : 40), p);
        }
        *roles |= role_table[i].roles;
        p += n;
        if (*p == 0) {
            return HTH_OK;
        }
    }
}

static void token_hash(const char *token, uint8_t out[HTH_TOKEN_HASH])
{
    SHA256((const unsigned char *)token, strlen(token), out);
}

// ---- the file's text

static int hex_digit(char c)
{
    if (c >= '0' && c <= '9') {
        return c - '0';
    }
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

static hth_err name_check(const char *name, size_t n)
{
    static const char allowed[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
                                  "_.@-";
    if (n == 0 || n >= HTH_TOKEN_NAME || strspn(name, allowed) < n) {
        return hth_fail(HTH_EINVAL,
                        "'%.*s' is not a token's name: at most %d letters, digits and _ . @ -",
                        (int)(n < 80 ? n : 80), name, HTH_TOKEN_NAME - 1);
    }
    return HTH_OK;
}

static hth_err line_hash(const char *p, size_t n, uint8_t *out)
{
    bool good = n == (size_t)2 * HTH_TOKEN_HASH;
    for (size_t i = 0; i < n && good; i++) {
        int digit = hex_digit(p[i]);
        good = digit >= 0;
        out[i / 2] = (uint8_t)(out[i / 2] << 4 | digit);
    }
    return good ? HTH_OK : hth_fail(HTH_EINVAL, "the SHA-256 is not %d hexadecimal digits", 64);
}

// line_word takes the next word off [*p, end); its length, 0: there is none.
static size_t line_word(const char **p, const char *end, const char **word)
{
    while (*p < end && (**p == ' ' || **p == '\t' || **p == '\r')) {
        (*p)++;
    }
    *word = *p;
    while (*p < end && **p != ' ' && **p != '\t' && **p != '\r') {
        (*p)++;
    }
    return (size_t)(*p - *word);
}

// line_parse reads a line; *token has no name when nothing stands in it.
static hth_err line_parse(const char *p, const char *end, hth_token *token)
{
    const char *name, *role, *hash, *more;
    char roles[64];
    memset(token, 0, sizeof *token);
    size_t n_name = line_word(&p, end, &name);
    if (n_name == 0 || name[0] == '#') {
        return HTH_OK;
    }
    size_t n_role = line_word(&p, end, &role), n_hash = line_word(&p, end, &hash);
    if (n_hash == 0 || line_word(&p, end, &more) > 0 || n_role >= sizeof roles) {
        return hth_fail(HTH_EINVAL, "a line is NAME ROLE[,ROLE] SHA256");
    }
    HTH_TRY(name_check(name, n_name));
    memcpy(roles, role, n_role);
    roles[n_role] = 0;
    HTH_TRY(hth_roles_parse(roles, &token->roles));
    HTH_TRY(line_hash(hash, n_hash, token->hash));
    memcpy(token->name, name, n_name);
    return HTH_OK;
}

static const hth_token *name_find(const hth_tokens *tokens, const char *name)
{
    for (int i = 0; i < tokens->n; i++) {
        if (strcmp(tokens->list[i].name, name) == 0) {
            return &tokens->list[i];
        }
    }
    return NULL;
}

static hth_err tokens_add(hth_tokens *out, int *cap, const char *p, const char *end)
{
    hth_token t;
    HTH_TRY(line_parse(p, end, &t));
    if (t.name[0] == 0) {
        return HTH_OK;
    }
    if (name_find(out, t.name) != NULL) {
        return hth_fail(HTH_EINVAL, "'%s' has two tokens", t.name);
    }
    if (HTH_GROW(out->list, out->n, *cap) != 0) {
        return hth_no_memory("tokens");
    }
    out->list[out->n++] = t;
    return HTH_OK;
}

hth_err hth_tokens_parse(const char *text, size_t bytes, hth_tokens *out)
{
    int cap = 0, line = 1;
    *out = (hth_tokens){NULL, 0};
    for (const char *p = text, *all = text + bytes; p < all; line++) {
        const char *end = memchr(p, '\n', (size_t)(all - p));
        end = end != NULL ? end : all;
        hth_err err = memchr(p, 0, (size_t)(end - p)) != NULL
                          ? hth_fail(HTH_EINVAL, "a zero byte is in it")
                          : tokens_add(out, &cap, p, end);
        if (err != HTH_OK) {
            hth_tokens_fini(out);
            return err == HTH_ENOMEM ? err : hth_err_prefix(err, "line %d", line);
        }
        p = end + 1;
    }
    return HTH_OK;
}

void hth_tokens_fini(hth_tokens *tokens)
{
    hth_free(tokens->list);
    *tokens = (hth_tokens){NULL, 0};
}

const hth_token *hth_tokens_find(const hth_tokens *tokens, const char *token)
{
    uint8_t hash[HTH_TOKEN_HASH];
    const hth_token *found = NULL;
    if (strlen(token) >= HTH_TOKEN_TEXT) {
        return NULL;
    }
    token_hash(token, hash);
    for (int i = 0; i < tokens->n; i++) { // all of them, always
        const hth_token *row = &tokens->list[i];
        found = CRYPTO_memcmp(row->hash, hash, sizeof hash) == 0 ? row : found;
    }
    return found;
}

// ---- files

static hth_err file_check(int fd)
{
    struct stat st;
    if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode)) {
        return hth_fail(HTH_EINVAL, "not a file");
    }
    if (st.st_size > TOKEN_FILE_BYTES) {
        return hth_fail(HTH_ETOOBIG, "larger than %d bytes", TOKEN_FILE_BYTES);
    }
    if (st.st_uid != 0 && st.st_uid != geteuid()) {
        return hth_fail(HTH_EDENIED, "it is owned by a user other than this program's or root");
    }
    return (st.st_mode & (S_IWGRP | S_IWOTH | S_IROTH)) == 0
               ? HTH_OK
               : hth_fail(HTH_EDENIED, "others may read or change it: chmod 600, or 640");
}

// file_read reads at most `cap` bytes of a checked file into fresh memory.
static hth_err file_read(int fd, char **out, size_t *n)
{
    HTH_TRY(file_check(fd));
    char *text = hth_alloc(TOKEN_FILE_BYTES);
    if (text == NULL) {
        return hth_no_memory("tokens");
    }
    *n = 0;
    for (ssize_t got = 1; got > 0 && *n < TOKEN_FILE_BYTES; *n += (size_t)got) {
        got = read(fd, text + *n, TOKEN_FILE_BYTES - *n);
        if (got < 0) {
            int e = errno;
            hth_free(text);
            return hth_fail_errno(e, "cannot be read");
        }
    }
    *out = text;
    return HTH_OK;
}

static hth_err tokens_take(int fd, hth_tokens *out)
{
    char *text = NULL;
    size_t n = 0;
    HTH_TRY(file_read(fd, &text, &n));
    hth_err err = hth_tokens_parse(text, n, out);
    hth_free(text);
    return err;
}

hth_err hth_tokens_read(const char *path, hth_tokens *out)
{
    *out = (hth_tokens){NULL, 0};
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
    if (fd < 0) {
        return hth_fail_errno(errno, "cannot open %s", path);
    }
    hth_err err = tokens_take(fd, out);
    close(fd);
    return hth_err_prefix(err, "%s", path);
}

static void hex_write(const uint8_t *p, size_t n, char *out)
{
    for (size_t i = 0; i < n; i++) {
        snprintf(out + 2 * i, 3, "%02x", p[i]);
    }
}

static hth_err token_make(char out[HTH_TOKEN_TEXT])
{
    uint8_t random[TOKEN_RANDOM];
    if (getrandom(random, sizeof random, 0) != (ssize_t)sizeof random) {
        return hth_fail(HTH_EIO, "the system has no random bytes");
    }
    strcpy(out, TOKEN_PREFIX);
    hex_write(random, sizeof random, out + strlen(TOKEN_PREFIX));
    return HTH_OK;
}

// token_append writes the whole line at once, on a line of its own.
static hth_err token_append(int fd, const char *name, const char *roles, const char *token)
{
    char hex[2 * HTH_TOKEN_HASH + 1], line[300], last = '\n';
    uint8_t hash[HTH_TOKEN_HASH];
    struct stat st;
    token_hash(token, hash);
    hex_write(hash, sizeof hash, hex);
    if (fstat(fd, &st) == 0 && st.st_size > 0 && pread(fd, &last, 1, st.st_size - 1) != 1) {
        return hth_fail_errno(errno, "cannot be read");
    }
    int n = snprintf(line, sizeof line, "%s%s %s %s\n", last == '\n' ? "" : "\n", name, roles, hex);
    return write(fd, line, (size_t)n) == n && fsync(fd) == 0
               ? HTH_OK
               : hth_fail_errno(errno, "cannot be written");
}

static hth_err token_enter(int fd, const char *name, const char *roles, char out[HTH_TOKEN_TEXT])
{
    hth_tokens there;
    unsigned bits;
    HTH_TRY(name_check(name, strlen(name)));
    HTH_TRY(hth_roles_parse(roles, &bits));
    HTH_TRY(tokens_take(fd, &there));
    bool known = name_find(&there, name) != NULL;
    hth_tokens_fini(&there);
    if (known) {
        return hth_fail(HTH_EEXIST, "'%s' has a token; to make another, remove its line", name);
    }
    HTH_TRY(token_make(out));
    return token_append(fd, name, roles, out);
}

hth_err hth_token_new(const char *path, const char *name, const char *roles,
                      char out[HTH_TOKEN_TEXT])
{
    int fd = open(path, O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0) {
        return hth_fail_errno(errno, "cannot open %s", path);
    }
    hth_err err = token_enter(fd, name, roles, out);
    close(fd);
    return hth_err_prefix(err, "%s", path);
}

hth_err hth_token_load(const char *path, char out[HTH_TOKEN_TEXT])
{
    char text[HTH_TOKEN_TEXT + 1] = "";
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        return hth_fail_errno(errno, "cannot open %s", path);
    }
    size_t n = 0;
    for (ssize_t got = 1; got > 0 && n<sizeof text - 1; n += got> 0 ? (size_t)got : 0) {
        got = read(fd, text + n, sizeof text - 1 - n); // a pipe gives it in any pieces
    }
    close(fd);
    size_t word = strcspn(text, " \t\r\n");
    if (word == 0 || word >= HTH_TOKEN_TEXT || text[word + strspn(text + word, " \t\r\n")] != 0) {
        return hth_fail(HTH_EINVAL, "%s: the file must contain a token and nothing else", path);
    }
    memcpy(out, text, word);
    out[word] = 0;
    return HTH_OK;
}
