// SPDX-License-Identifier: Apache-2.0
// The page: one static document with its style and its script in it, from server/page. Its policy
// lets the browser run and apply exactly these two, which it knows by their SHA-256, and ask nobody
// but this server.
#include "server/http/http_call.h"

#include "base/id.h"
#include "page.inc"

#include <stdio.h>
#include <string.h>

#define PAGE_DIGEST 64 // a SHA-256 in base64, and how it is called

// page_digest writes what a policy calls `data`: 'sha256-' and base64 (RFC 4648).
static const char *page_digest(const void *data, size_t bytes, char out[PAGE_DIGEST])
{
    static const char digit[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    hth_id id = hth_id_of(&(hth_chunk){data, bytes}, 1);
    char *p = out + sprintf(out, "'sha256-");
    for (size_t i = 0; i < sizeof id.byte; i += 3) {
        bool last = i + 3 > sizeof id.byte; // two bytes are left: 32 is 3 * 10 + 2
        unsigned bits = (unsigned)id.byte[i] << 16 | (unsigned)id.byte[i + 1] << 8;
        bits |= last ? 0 : id.byte[i + 2];
        *p++ = digit[bits >> 18];
        *p++ = digit[bits >> 12 & 63];
        *p++ = digit[bits >> 6 & 63];
        *p++ = last ? '=' : digit[bits & 63];
    }
    strcpy(p, "'");
    return out;
}

// page_fill adds `html`, with `css` and `js` in the place of the marks.
static bool page_fill(struct evbuffer *out)
{
    static const struct {
        const char *mark;
        const void *text;
        size_t bytes;
    } part[] = {{"@STYLE@", page_css, sizeof page_css}, {"@SCRIPT@", page_js, sizeof page_js}};
    const char *p = (const char *)page_html, *end = p + sizeof page_html;
    bool all = true;
    for (size_t i = 0; i < sizeof part / sizeof part[0]; i++) {
        const char *mark = memmem(p, (size_t)(end - p), part[i].mark, strlen(part[i].mark));
        all = all && mark != NULL && evbuffer_add(out, p, (size_t)(mark - p)) == 0 &&
              evbuffer_add_reference(out, part[i].text, part[i].bytes, NULL, NULL) == 0;
        p = mark != NULL ? mark + strlen(part[i].mark) : p;
    }
    return all && evbuffer_add(out, p, (size_t)(end - p)) == 0;
}

hth_err hth_http_dashboard_page_open(hth_http *http)
{
    char css[PAGE_DIGEST], js[PAGE_DIGEST];
    snprintf(http->page_policy, sizeof http->page_policy,
             "default-src 'none'; style-src %s; script-src %s; connect-src 'self'; img-src data:; "
             "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
             "require-trusted-types-for 'script'",
             page_digest(page_css, sizeof page_css, css), page_digest(page_js, sizeof page_js, js));
    http->page = evbuffer_new();
    return http->page != NULL && page_fill(http->page) ? HTH_OK : hth_no_memory("the page");
}

void hth_http_dashboard_page_close(hth_http *http)
{
    if (http->page != NULL) {
        evbuffer_free(http->page);
        http->page = NULL;
    }
}

void hth_http_dashboard_page(hth_http *http, hth_http_req *req, const hth_http_args *args)
{
    struct evbuffer *body = evbuffer_new();
    if (body == NULL || evbuffer_add_buffer_reference(body, http->page) != 0) {
        hth_http_fail(http, req, 503, "out of memory for the page");
    } else {
        hth_http_add(req, "Content-Security-Policy", http->page_policy);
        hth_http_add(req, "X-Content-Type-Options", "nosniff");
        hth_http_add(req, "Referrer-Policy", "no-referrer");
        hth_http_add(req, "Cache-Control", "no-cache");
        hth_http_deflate(req, body);
        hth_http_send(http, req, 200, "text/html; charset=utf-8", body);
    }
    if (body != NULL) {
        evbuffer_free(body);
    }
}
