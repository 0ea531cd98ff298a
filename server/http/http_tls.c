// SPDX-License-Identifier: Apache-2.0
// Bufferevents that speak TLS. evhttp closes the sockets of its connections itself, unless their
// bufferevents do, as these must: OpenSSL's state goes with them.
#include "server/http/http_call.h"

#include <event2/bufferevent.h>
#include <event2/bufferevent_ssl.h>
#include <openssl/err.h>

#include <stdlib.h>

bool hth_http_tls_is_up(const struct bufferevent *b)
{
    const SSL *ssl = bufferevent_openssl_get_ssl((struct bufferevent *)b);
    return ssl != NULL && SSL_is_init_finished(ssl);
}

void hth_http_tls_tell(struct bufferevent *b, const char *text, size_t n)
{
    SSL *ssl = bufferevent_openssl_get_ssl(b);
    if (ssl != NULL && SSL_is_init_finished(ssl) &&
        evbuffer_get_length(bufferevent_get_output(b)) == 0) { // nothing is half written
        if (SSL_write(ssl, text, (int)n) == (int)n) {
            SSL_shutdown(ssl);
        }
        ERR_clear_error();
    }
}

struct bufferevent *hth_http_tls_new(struct event_base *base, hth_tls *tls)
{
    SSL *ssl = hth_tls_session(tls);
    struct bufferevent *b =
        ssl != NULL ? bufferevent_openssl_socket_new(base, -1, ssl, BUFFEREVENT_SSL_ACCEPTING,
                                                     BEV_OPT_CLOSE_ON_FREE)
                    : NULL;
    if (b == NULL) {
        SSL_free(ssl);
        return NULL;
    }
    bufferevent_openssl_set_allow_dirty_shutdown(b, 1);
    return b;
}

struct bufferevent *hth_http_dead_new(struct event_base *base)
{
    struct bufferevent *pair[2] = {NULL, NULL};
    if (bufferevent_pair_new(base, 0, pair) != 0) {
        abort(); // there is not even memory for that
    }
    bufferevent_free(pair[1]);
    return pair[0];
}
