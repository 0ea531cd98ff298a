// SPDX-License-Identifier: Apache-2.0
// The format, as far as it is needed here (64 bits, little-endian):
//   page   u64 number | u16 pad | u16 flags | u16 lower, u16 upper, or u32 pages (overflow) | u16
//          offset of each node; lower is where these end, upper where the first node begins
//   node   u16 lo, u16 hi | u16 flags | u16 key bytes | key | data; in a leaf hi:lo is the size of
//   the
//          data, which a large one has on overflow pages, whose first number is the data then; in a
//          branch flags:hi:lo is the number of the child
//   meta   pages 0 and 1, after a page's header: u32 magic | u32 version | u64 address | u64 map
//   size
//          | tree of free pages | tree of tables | u64 last page | u64 transaction
//   tree   u32 pad (in the first: the size of a page) | u16 flags | u16 depth | u64 branch pages,
//   leaf
//          pages, overflow pages, entries, root (all ones: empty)
#include "modelstore/pages.h"

#include "base/alloc.h"

#include <errno.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PAGES_MAGIC     0xBEEFC0DEu
#define PAGES_VERSION   1
#define PAGES_HEAD      16u
#define PAGES_NODE      8u
#define PAGES_DEPTH     32 // LMDB's own limit
#define PAGES_KEY       511
#define PAGES_NONE      UINT64_MAX
#define PAGES_META      2 // pages
#define PAGES_UNWRITTEN ((uint64_t)1 << 24)

// A page has one of these, and no mark of a page that is being written: LMDB takes those off.
enum { FLAG_BRANCH = 1, FLAG_LEAF = 2, FLAG_OVERFLOW = 4 };
enum { NODE_BIG = 1, NODE_TABLE = 2 };
enum { TREE_INTEGER = 8, TREE_FILE = 0x4001 }; // keys are numbers; flags of the file, not the tree

typedef struct pages_tree {
    uint32_t pad;
    uint16_t flags, depth;
    uint64_t branches, leaves, overflows, entries, root;
} pages_tree;

typedef struct pages_meta {
    uint32_t magic, version;
    uint64_t address, map_bytes;
    pages_tree tree[2]; // free pages, tables
    uint64_t last_page, txn;
} pages_meta;

_Static_assert(sizeof(pages_tree) == 48 && sizeof(pages_meta) == 24 + 96 + 16, "as on the disk");

typedef struct pages_page {
    uint8_t *at;
    uint16_t flags, lower;
    uint32_t upper;
    int n; // nodes
} pages_page;

typedef struct pages_node {
    const uint8_t *at;
    uint16_t flags, key_bytes;
    uint32_t low; // hi:lo
    const uint8_t *key, *data;
    size_t bytes; // of the node
} pages_node;

typedef struct pages_job {
    int fd;
    uint32_t page_bytes;
    uint64_t last_page;
    uint8_t *used;   // a bit for each page
    bool free_pages; // the tree of free pages is looked at
    int depth;       // of the trees above: a table's tree is below the tables'
} pages_job;

static uint16_t u16(const uint8_t *p)
{
    uint16_t v;
    memcpy(&v, p, sizeof v);
    return v;
}

static uint64_t u64(const uint8_t *p)
{
    uint64_t v;
    memcpy(&v, p, sizeof v);
    return v;
}

static hth_err __attribute__((format(printf, 2, 3))) pages_bad(uint64_t page, const char *fmt, ...)
{
    char what[160];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(what, sizeof what, fmt, ap);
    va_end(ap);
    return hth_fail(HTH_ECORRUPT, "the store's index is damaged: page %llu %s",
                    (unsigned long long)page, what);
}

static hth_err pages_read(const pages_job *job, uint64_t page, void *out, size_t bytes)
{
    ssize_t n = pread(job->fd, out, bytes, (off_t)(page * job->page_bytes));
    if (n < 0 && errno != EIO) {
        return hth_fail_errno(errno, "reading the store's index");
    }
    if (n < 0) {
        return pages_bad(page, "cannot be read");
    }
    return n == (ssize_t)bytes ? HTH_OK : pages_bad(page, "lies beyond its end");
}

// pages_use notes that `n` pages from `page` on are in use, or free.
static hth_err pages_use(pages_job *job, uint64_t page, uint64_t n)
{
    if (page < PAGES_META || page > job->last_page || n > job->last_page - page + 1) {
        return pages_bad(page, "is referred to, and there are %llu",
                         (unsigned long long)job->last_page + 1);
    }
    for (uint64_t p = page; p < page + n; p++) {
        if ((job->used[p / 8] >> (p % 8) & 1) != 0) {
            return pages_bad(p, "is used twice, or in use and free");
        }
        job->used[p / 8] |= (uint8_t)(1u << (p % 8));
    }
    return HTH_OK;
}

// ---- a page and its nodes

// pages_node_at reads node i, which lies in the page with all of itself.
static hth_err pages_node_at(const pages_job *job, const pages_page *p, uint64_t page, int i,
                             pages_node *out)
{
    uint32_t at = u16(p->at + PAGES_HEAD + 2 * (unsigned)i);
    if (at < p->upper || at % 2 != 0 || at + PAGES_NODE > job->page_bytes) {
        return pages_bad(page, "has a node outside of it");
    }
    const uint8_t *n = p->at + at;
    bool leaf = (p->flags & FLAG_LEAF) != 0;
    *out = (pages_node){.at = n,
                        .low = (uint32_t)u16(n) | (uint32_t)u16(n + 2) << 16,
                        .flags = u16(n + 4),
                        .key_bytes = u16(n + 6),
                        .key = n + PAGES_NODE};
    bool big = leaf && (out->flags & NODE_BIG) != 0;
    uint64_t own = big ? sizeof(uint64_t) : out->low;
    uint64_t data = leaf ? own : 0;
    uint64_t bytes = PAGES_NODE + (uint64_t)out->key_bytes + data;
    bytes += bytes % 2;
    if (bytes > job->page_bytes - at) {
        return pages_bad(page, "has a node that is longer than it");
    }
    out->data = out->key + out->key_bytes;
    out->bytes = (size_t)bytes;
    bool first = !leaf && i == 0; // the first key of a branch is none
    if (out->key_bytes > PAGES_KEY || (out->key_bytes == 0 && !first)) {
        return pages_bad(page, "has a key of %d bytes", out->key_bytes);
    }
    if (leaf && (out->flags & ~(NODE_BIG | NODE_TABLE)) != 0) {
        return pages_bad(page, "has a node of an unknown kind");
    }
    return HTH_OK;
}

static int pages_offsets(const void *a, const void *b)
{
    const uint32_t *x = a, *y = b;
    return (x[0] > y[0]) - (x[0] < y[0]);
}

// pages_packed: nodes fill the end of the page, one after the other.
static hth_err pages_packed(const pages_job *job, const pages_page *p, uint64_t page)
{
    uint32_t(*span)[2] = hth_alloc((size_t)p->n * sizeof *span);
    hth_err err = span != NULL ? HTH_OK : hth_no_memory("a page's nodes");
    for (int i = 0; i < p->n && err == HTH_OK; i++) {
        pages_node n;
        err = pages_node_at(job, p, page, i, &n);
        if (err == HTH_OK) {
            span[i][0] = (uint32_t)(n.at - p->at);
            span[i][1] = (uint32_t)n.bytes;
        }
    }
    uint32_t end = p->upper;
    if (err == HTH_OK) {
        qsort(span, (size_t)p->n, sizeof *span, pages_offsets);
    }
    for (int i = 0; i < p->n && err == HTH_OK; i++) {
        err = span[i][0] == end ? HTH_OK : pages_bad(page, "has nodes over each other");
        end += span[i][1];
    }
    hth_free(span);
    HTH_TRY(err);
    return end == job->page_bytes ? HTH_OK : pages_bad(page, "is not filled to its end");
}

// pages_ordered: each key is above the one before it.
static hth_err pages_ordered(const pages_job *job, const pages_page *p, uint64_t page)
{
    pages_node a, b;
    int first = (p->flags & FLAG_BRANCH) != 0 ? 1 : 0;
    for (int i = first; i + 1 < p->n; i++) {
        HTH_TRY(pages_node_at(job, p, page, i, &a));
        HTH_TRY(pages_node_at(job, p, page, i + 1, &b));
        size_t least = a.key_bytes < b.key_bytes ? a.key_bytes : b.key_bytes;
        int c = job->free_pages ? (u64(a.key) > u64(b.key)) - (u64(a.key) < u64(b.key))
                                : memcmp(a.key, b.key, least);
        if (c > 0 || (c == 0 && (job->free_pages || a.key_bytes >= b.key_bytes))) {
            return pages_bad(page, "has keys that are not in order");
        }
    }
    return HTH_OK;
}

static hth_err pages_numbers(const pages_job *job, const pages_page *p, uint64_t page)
{
    for (int i = (p->flags & FLAG_BRANCH) != 0 ? 1 : 0; i < p->n; i++) {
        pages_node n;
        HTH_TRY(pages_node_at(job, p, page, i, &n));
        if (n.key_bytes != sizeof(uint64_t)) {
            return pages_bad(page, "has a key of %d bytes among numbers", n.key_bytes);
        }
    }
    return HTH_OK;
}

// pages_load reads a page that has to be a leaf or a branch, and looks at all its nodes.
static hth_err pages_load(const pages_job *job, uint64_t page, bool leaf, uint8_t *buffer,
                          pages_page *out)
{
    HTH_TRY(pages_read(job, page, buffer, job->page_bytes));
    *out = (pages_page){.at = buffer,
                        .flags = u16(buffer + 10),
                        .lower = u16(buffer + 12),
                        .upper = u16(buffer + 14)};
    if (u64(buffer) != page) {
        return pages_bad(page, "has the number of another one");
    }
    if (out->flags != (leaf ? FLAG_LEAF : FLAG_BRANCH)) {
        return pages_bad(page, "is not of the kind that belongs there");
    }
    out->upper =
        out->upper == 0 && job->page_bytes == 65536 ? 65536 : out->upper; // has 16 bits there
    if (out->lower < PAGES_HEAD || out->lower % 2 != 0 || out->lower > out->upper ||
        out->upper > job->page_bytes) {
        return pages_bad(page, "has impossible bounds");
    }
    out->n = (int)(out->lower - PAGES_HEAD) / 2;
    if (out->n < (leaf || job->free_pages ? 1 : 2)) {
        return pages_bad(page, "is empty");
    }
    HTH_TRY(pages_packed(job, out, page));
    HTH_TRY(job->free_pages ? pages_numbers(job, out, page) : HTH_OK);
    return pages_ordered(job, out, page);
}

// ---- trees

static hth_err pages_tree_check(pages_job *job, const pages_tree *tree);

// pages_free looks at a list of free pages: how many, and their numbers, largest first.
static hth_err pages_free(pages_job *job, uint64_t page, const uint8_t *data, uint64_t bytes)
{
    uint64_t n = bytes >= sizeof n ? u64(data) : 0, before = UINT64_MAX;
    if (bytes < sizeof n || n > bytes / sizeof n - 1) {
        return pages_bad(page, "has a list of free pages that is longer than it");
    }
    for (uint64_t i = 1; i <= n; i++) {
        uint64_t p = u64(data + i * sizeof n);
        if (p >= before) {
            return pages_bad(page, "has a list of free pages that is not in order");
        }
        HTH_TRY(pages_use(job, p, 1));
        before = p;
    }
    return HTH_OK;
}

static hth_err pages_free_big(pages_job *job, uint64_t page, uint64_t first, uint64_t bytes)
{
    uint8_t *all = hth_alloc(bytes);
    if (all == NULL) {
        return hth_no_memory("a list of free pages");
    }
    ssize_t got = pread(job->fd, all, bytes, (off_t)(first * job->page_bytes + PAGES_HEAD));
    hth_err err = got == (ssize_t)bytes ? pages_free(job, page, all, bytes)
                                        : pages_bad(first, "cannot be read");
    hth_free(all);
    return err;
}

static hth_err pages_big(pages_job *job, uint64_t page, const pages_node *node)
{
    uint8_t head[PAGES_HEAD];
    uint32_t said;
    uint64_t first = u64(node->data);
    uint64_t pages = (PAGES_HEAD - 1 + (uint64_t)node->low) / job->page_bytes + 1;
    HTH_TRY(pages_use(job, first, 1));
    HTH_TRY(pages_read(job, first, head, sizeof head));
    memcpy(&said, head + 12, sizeof said); // more where a larger value was before
    if (u64(head) != first || u16(head + 10) != FLAG_OVERFLOW || said < pages) {
        return pages_bad(first, "is not the large value that belongs there");
    }
    HTH_TRY(said > 1 ? pages_use(job, first + 1, said - 1) : HTH_OK);
    uint8_t last; // the file has them all
    HTH_TRY(pages_read(job, first + pages - 1, &last, 1));
    return job->free_pages ? pages_free_big(job, page, first, node->low) : HTH_OK;
}

static hth_err pages_leaf(pages_job *job, uint64_t page, const pages_page *p, bool tables)
{
    for (int i = 0; i < p->n; i++) {
        pages_node n;
        pages_tree t;
        HTH_TRY(pages_node_at(job, p, page, i, &n));
        bool table = (n.flags & NODE_TABLE) != 0;
        if (table != tables || (table && n.low != sizeof t)) {
            return pages_bad(page, "has a table, or none, where it is the other way round");
        }
        if ((n.flags & NODE_BIG) != 0) {
            HTH_TRY(pages_big(job, page, &n));
        } else if (job->free_pages) {
            HTH_TRY(pages_free(job, page, n.data, n.low));
        }
        if (table) {
            memcpy(&t, n.data, sizeof t);
            job->depth++;
            HTH_TRY(t.flags == 0 ? pages_tree_check(job, &t)
                                 : pages_bad(page, "has a table of an unknown kind"));
            job->depth--;
        }
    }
    return HTH_OK;
}

// pages_below looks at a page and all below it. `level` counts down to 1, the leaves.
static hth_err pages_below(pages_job *job, uint64_t page, int level, bool tables)
{
    pages_page p;
    uint8_t *buffer = hth_alloc(job->page_bytes);
    if (buffer == NULL) {
        return hth_no_memory("a page");
    }
    hth_err err;
    HTH_GOTO(pages_use(job, page, 1), done);
    HTH_GOTO(pages_load(job, page, level == 1, buffer, &p), done);
    if (level == 1) {
        err = pages_leaf(job, page, &p, tables);
        goto done;
    }
    for (int i = 0; i < p.n; i++) {
        pages_node n;
        HTH_GOTO(pages_node_at(job, &p, page, i, &n), done);
        HTH_GOTO(pages_below(job, (uint64_t)n.low | (uint64_t)n.flags << 32, level - 1, tables),
                 done);
    }
done:
    hth_free(buffer);
    return err;
}

static hth_err pages_tree_check(pages_job *job, const pages_tree *tree)
{
    if (tree->root == PAGES_NONE) {
        return tree->depth == 0 ? HTH_OK : pages_bad(0, "has an empty table that is not");
    }
    if (tree->depth == 0 || tree->depth > PAGES_DEPTH) {
        return pages_bad(tree->root, "begins a table of depth %d", tree->depth);
    }
    return pages_below(job, tree->root, tree->depth, !job->free_pages && job->depth == 0);
}

// ---- the file

// pages_meta_of finds the meta page of a transaction.
static hth_err pages_meta_of(pages_job *job, uint64_t txn, pages_meta *out)
{
    for (uint64_t i = 0; i < PAGES_META; i++) {
        uint8_t head[PAGES_HEAD + sizeof *out];
        HTH_TRY(pages_read(job, i, head, sizeof head));
        memcpy(out, head + PAGES_HEAD, sizeof *out);
        if (out->txn == txn && out->magic == PAGES_MAGIC) {
            return HTH_OK;
        }
    }
    return hth_fail(HTH_EBUSY, "the store's index is being written");
}

static hth_err pages_run(pages_job *job, const pages_meta *meta)
{
    job->last_page = meta->last_page;
    if (meta->tree[0].pad != job->page_bytes ||
        (meta->tree[0].flags & ~TREE_FILE) != TREE_INTEGER || meta->tree[1].flags != 0 ||
        meta->last_page > UINT64_MAX / job->page_bytes - 1) {
        return pages_bad(meta->txn & 1, "says impossible things");
    }
    // those at the end that were free before anybody wrote them are not in the file
    off_t end = lseek(job->fd, 0, SEEK_END);
    uint64_t there = end > 0 ? (uint64_t)end / job->page_bytes : 0;
    if (meta->last_page > there + PAGES_UNWRITTEN) {
        return pages_bad(meta->txn & 1, "says that there are %llu pages",
                         (unsigned long long)meta->last_page + 1);
    }
    job->used = hth_calloc(meta->last_page / 8 + 1, 1);
    if (job->used == NULL) {
        return hth_no_memory("a list of pages");
    }
    HTH_TRY(pages_tree_check(job, &meta->tree[1]));
    job->free_pages = true;
    return pages_tree_check(job, &meta->tree[0]);
}

hth_err hth_pages_check(MDB_env *env, MDB_txn *txn)
{
    pages_job j = {.fd = -1};
    pages_meta meta = {.magic = 0};
    MDB_stat stat;
    int rc = mdb_env_get_fd(env, &j.fd);
    rc = rc == 0 ? mdb_env_stat(env, &stat) : rc;
    if (rc != 0) {
        return hth_fail(HTH_EIO, "reading the store's index: %s", mdb_strerror(rc));
    }
    j.page_bytes = stat.ms_psize;
    HTH_TRY(pages_meta_of(&j, mdb_txn_id(txn), &meta));
    hth_err err = meta.version == PAGES_VERSION ? pages_run(&j, &meta) : HTH_OK;
    hth_free(j.used);
    return err;
}
