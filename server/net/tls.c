// SPDX-License-Identifier: Apache-2.0
#include "server/net/tls.h"

#include "base/alloc.h"
#include "base/file.h"
#include "base/log.h"
#include "base/settings.h"

#include <openssl/err.h>
#include <openssl/x509.h>

#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#define TLS_FILE_BYTES (1 << 20)

struct hth_tls {
    char cert[HTH_SETTING_TEXT], key[HTH_SETTING_TEXT];
    bool only_13;
    pthread_mutex_t lock;
    SSL_CTX *context; // guarded by lock
};

// tls_fail: `what` is a sentence about `file`, to which OpenSSL's own reason is added.
static hth_err tls_fail(const char *setting, const char *file, const char *what)
{
    const char *reason = ERR_reason_error_string(ERR_peek_last_error());
    ERR_clear_error();
    return hth_fail(HTH_EINVAL, "%s: %s %s (%s)", setting, file, what,
                    reason != NULL ? reason : "no reason is given");
}

// tls_readable says why a file cannot be read, which OpenSSL says in numbers.
static hth_err tls_readable(const char *setting, const char *file)
{
    char why[400];
    void *text = NULL;
    size_t n = 0;
    hth_err err = hth_file_load(file, TLS_FILE_BYTES, &text, &n);
    if (err == HTH_OK) {
        OPENSSL_cleanse(text, n);
        hth_free(text);
        return HTH_OK;
    }
    snprintf(why, sizeof why, "%s", hth_err_detail());
    return hth_fail(HTH_EINVAL, "%s: %s", setting, why);
}

static hth_err context_fill(const hth_tls *tls, SSL_CTX *CTX)
{
    int oldest = tls->only_13 ? TLS1_3_VERSION : TLS1_2_VERSION;
    SSL_CTX_set_options(CTX, SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION |
                                 SSL_OP_CIPHER_SERVER_PREFERENCE);
    SSL_CTX_set_mode(CTX, SSL_MODE_RELEASE_BUFFERS);
    if (SSL_CTX_set_min_proto_version(CTX, oldest) != 1) {
        return tls_fail("tls.min_version", "the oldest version", "is not spoken here");
    }
    HTH_TRY(tls_readable("tls.cert", tls->cert));
    HTH_TRY(tls_readable("tls.key", tls->key));
    if (SSL_CTX_use_certificate_chain_file(CTX, tls->cert) != 1) {
        return tls_fail("tls.cert", tls->cert, "is not a PEM certificate");
    }
    if (SSL_CTX_use_PrivateKey_file(CTX, tls->key, SSL_FILETYPE_PEM) != 1) {
        return tls_fail("tls.key", tls->key, "is not a PEM key that belongs to tls.cert");
    }
    return SSL_CTX_check_private_key(CTX) == 1
               ? HTH_OK
               : tls_fail("tls.key", tls->key, "does not belong to tls.cert");
}

// tls_warn says what a server can start with, although its clients or its key suffer from it.
static void tls_warn(const hth_tls *tls, const SSL_CTX *CTX)
{
    struct stat key;
    const X509 *x = SSL_CTX_get0_certificate(CTX);
    if (X509_cmp_current_time(X509_get0_notAfter(x)) < 0) {
        hth_log(WARN, SERVER, "certificate", "tls.cert: %s has expired: clients will refuse it",
                tls->cert);
    } else if (X509_cmp_current_time(X509_get0_notBefore(x)) > 0) {
        hth_log(WARN, SERVER, "certificate",
                "tls.cert: %s is not valid yet: clients will refuse it", tls->cert);
    }
    if (stat(tls->key, &key) == 0 && (key.st_mode & S_IROTH) != 0) {
        hth_log(WARN, SERVER, "certificate",
                "tls.key: %s can be read by every user of this machine: chmod 600, or 640",
                tls->key);
    }
}

hth_err hth_tls_reload(hth_tls *tls)
{
    SSL_CTX *fresh = SSL_CTX_new(TLS_server_method());
    hth_err err = fresh == NULL ? hth_no_memory("TLS") : context_fill(tls, fresh);
    if (err != HTH_OK) {
        SSL_CTX_free(fresh);
        return err;
    }
    tls_warn(tls, fresh);
    pthread_mutex_lock(&tls->lock);
    SSL_CTX *old = tls->context;
    tls->context = fresh;
    pthread_mutex_unlock(&tls->lock);
    SSL_CTX_free(old);
    return HTH_OK;
}

hth_err hth_tls_open(hth_tls **out)
{
    char version[HTH_SETTING_TEXT];
    *out = NULL;
    hth_tls *t = hth_calloc(1, sizeof *t);
    if (t == NULL) {
        return hth_no_memory("TLS");
    }
    pthread_mutex_init(&t->lock, NULL);
    hth_setting_text(HTH_SET_TLS_CERT, t->cert);
    hth_setting_text(HTH_SET_TLS_KEY, t->key);
    t->only_13 = strcmp(hth_setting_text(HTH_SET_TLS_MIN_VERSION, version), "1.3") == 0;
    hth_err err = t->cert[0] == 0 || t->key[0] == 0
                      ? hth_fail(HTH_EINVAL, "https:// and tls+tcp:// need tls.cert and tls.key")
                      : hth_tls_reload(t);
    if (err != HTH_OK) {
        hth_tls_close(t);
        return err;
    }
    *out = t;
    return HTH_OK;
}

void hth_tls_close(hth_tls *tls)
{
    if (tls != NULL) {
        SSL_CTX_free(tls->context);
        pthread_mutex_destroy(&tls->lock);
        hth_free(tls);
    }
}

// tls_budget bounds what OpenSSL reads in one go: by itself it goes on for as long as records come
// that have nothing for us, such as new keys and attempts to begin a new handshake.
static long tls_budget(BIO *b, int what, const char *p, size_t n, int i, long l, int rv,
                       size_t *did)
{
    int *reads = (int *)(void *)BIO_get_callback_arg(b);
    if (what == BIO_CB_READ && (*reads)-- <= 0) {
        BIO_clear_retry_flags(b);
        BIO_set_retry_read(b);
        return -1;
    }
    return rv;
}

SSL *hth_tls_session(hth_tls *tls, int fd, int *reads)
{
    pthread_mutex_lock(&tls->lock);
    SSL *s = SSL_new(tls->context); // holds the context
    pthread_mutex_unlock(&tls->lock);
    if (s == NULL || SSL_set_fd(s, fd) != 1) {
        SSL_free(s);
        ERR_clear_error();
        return NULL;
    }
    *reads = HTH_TLS_READS;
    BIO_set_callback_arg(SSL_get_rbio(s), (char *)reads);
    BIO_set_callback_ex(SSL_get_rbio(s), tls_budget);
    SSL_set_mode(s, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
    SSL_set_accept_state(s);
    return s;
}
