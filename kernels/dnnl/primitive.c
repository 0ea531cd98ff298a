// SPDX-License-Identifier: Apache-2.0
// What oneDNN 2 and 3 have in common: engine, attributes, primitives with their arguments,
// reorders. A primitive asks its descriptor for the memory of every argument that exists
// (dnnl_query_exec_arg_md), so that no table of "which operation has which arguments" is kept here.
// Memory objects are made once and re-pointed only when an address changes.
#include "kernels/dnnl/entry.h"
#include "kernels/dnnl/native.h"

#include "base/alloc.h"

#include <pthread.h>
#include <stdio.h>

// Primitives that oneDNN keeps when nobody uses them any more. Its own 1,024 are all the candidates
// that were ever measured, with their code; equal layers share one anyhow while it is in use.
#define DN_CACHE 64

struct hth_dn_prim {
    dnnl_primitive_desc_t pd;
    dnnl_primitive_t primitive;
    dnnl_stream_t stream;
    int n_args;
    dnnl_exec_arg_t *args;
    const void **data; // what each argument points to now
    size_t scratchpad;
};

static dnnl_engine_t
    dn_engine; // one per process, never destroyed: oneDNN's caches outlive main too
static dnnl_status_t dn_engine_status;
static pthread_once_t dn_once = PTHREAD_ONCE_INIT;

// dn_limit limits oneDNN to vectors of `bytes`; it is heard before anything else is made only.
static dnnl_status_t dn_limit(int bytes)
{
    switch (bytes) {
    case 0:
        return dnnl_success;
    case 64:
        return dnnl_set_max_cpu_isa(dnnl_cpu_isa_avx512_core);
    case 32:
        return dnnl_set_max_cpu_isa(dnnl_cpu_isa_avx2);
    default:
        return dnnl_set_max_cpu_isa(dnnl_cpu_isa_sse41);
    }
}

static void dn_engine_init(void)
{
    if (dn_limit(hth_dnnl_host->vector_bytes()) != dnnl_success) {
        dn_engine_status = dnnl_unimplemented; // the program used oneDNN before us
        return;
    }
    dn_engine_status = dnnl_engine_create(&dn_engine, dnnl_cpu, 0);
    dnnl_set_primitive_cache_capacity(DN_CACHE); // where it cannot be set it stays as it is
}

static dnnl_status_t dn_engine_get(void)
{
    pthread_once(&dn_once, dn_engine_init);
    return dn_engine_status;
}

// dn_fail maps a status of oneDNN to a code and sets the sentence; success stays HTH_OK.
static hth_err dn_fail(dnnl_status_t st, const char *what)
{
    switch (st) {
    case dnnl_success:
        return HTH_OK;
    case dnnl_out_of_memory:
        return hth_fail(HTH_ENOMEM, "%s: oneDNN is out of memory", what);
    case dnnl_unimplemented:
    case dnnl_invalid_arguments:
        return hth_fail(HTH_ENOTSUP, "%s: oneDNN has no implementation", what);
    case HTH_DN_ENDS:
        return hth_fail(HTH_ENOENT, "%s: oneDNN has no further implementation", what);
    default:
        return hth_fail(HTH_EIO, "%s: oneDNN failed with status %d", what, (int)st);
    }
}

dnnl_data_type_t hth_dn_dtype(hth_dtype dt)
{
    switch (dt) {
    case HTH_DT_F32:
        return dnnl_f32;
    case HTH_DT_BF16:
        return dnnl_bf16;
    case HTH_DT_F16:
        return dnnl_f16;
    case HTH_DT_I32:
        return dnnl_s32;
    case HTH_DT_I8:
        return dnnl_s8;
    case HTH_DT_U8:
        return dnnl_u8;
    default:
        return dnnl_data_type_undef;
    }
}

dnnl_format_tag_t hth_dn_block_tag(const hth_dn_md *m)
{
    static const dnnl_format_tag_t tag[2][3] = {{dnnl_aBc8b, dnnl_aBcd8b, dnnl_aBcde8b},
                                                {dnnl_aBc16b, dnnl_aBcd16b, dnnl_aBcde16b}};
    if (m->ndims < 3 || m->ndims > 5) {
        return dnnl_format_tag_undef; // refused by oneDNN as an invalid argument
    }
    return tag[m->block == 16][m->ndims - 3];
}

static dnnl_status_t dn_attr_open(const hth_dn_op *op, dnnl_primitive_attr_t *out)
{
    dnnl_post_ops_t ops = NULL;
    dnnl_status_t st = dnnl_primitive_attr_create(out);
    if (st != dnnl_success) {
        return st;
    }
    st = dnnl_primitive_attr_set_scratchpad_mode(*out, dnnl_scratchpad_mode_user);
    if (st == dnnl_success && op != NULL && op->n_post > 0) {
        st = dnnl_post_ops_create(&ops);
        for (int i = 0; i < op->n_post && st == dnnl_success; i++) {
            st = hth_dn_native_post(ops, &op->post[i]);
        }
        if (st == dnnl_success) {
            st = dnnl_primitive_attr_set_post_ops(*out, ops);
        }
        if (ops != NULL) {
            dnnl_post_ops_destroy(ops);
        }
    }
    if (st != dnnl_success) {
        dnnl_primitive_attr_destroy(*out);
    }
    return st;
}

static hth_dn_native_md dn_arg_md(const hth_dn_prim *prim, int arg)
{
    return dnnl_primitive_desc_query_md(prim->pd, dnnl_query_exec_arg_md, arg);
}

static size_t dn_bytes(const hth_dn_prim *prim, int arg)
{
    hth_dn_native_md md = dn_arg_md(prim, arg);
    return md == NULL ? 0 : dnnl_memory_desc_get_size(md);
}

static hth_err dn_arg_add(hth_dn_prim *prim, int arg)
{
    if (dn_bytes(prim, arg) == 0) {
        return HTH_OK;
    }
    for (int i = 0; i < prim->n_args; i++) {
        if (prim->args[i].arg == arg) {
            return HTH_OK; // DNNL_ARG_SRC and DNNL_ARG_FROM are one number
        }
    }
    dnnl_memory_t m;
    HTH_TRY(dn_fail(dnnl_memory_create(&m, dn_arg_md(prim, arg), dn_engine, DNNL_MEMORY_NONE),
                    "memory object"));
    prim->args[prim->n_args++] = (dnnl_exec_arg_t){.arg = arg, .memory = m};
    return HTH_OK;
}

static hth_err dn_args_open(hth_dn_prim *prim, int n_srcs, const hth_dn_post *post, int n_post)
{
    static const int fixed[] = {
        DNNL_ARG_SRC,       DNNL_ARG_SRC_1,     DNNL_ARG_WEIGHTS,  DNNL_ARG_BIAS,
        DNNL_ARG_DST,       DNNL_ARG_DIFF_SRC,  DNNL_ARG_DIFF_DST, DNNL_ARG_DIFF_WEIGHTS,
        DNNL_ARG_DIFF_BIAS, DNNL_ARG_WORKSPACE,
    };
    int n_fixed = (int)(sizeof fixed / sizeof fixed[0]), cap = n_fixed + n_srcs + n_post + 1;
    prim->args = hth_calloc((size_t)cap, sizeof *prim->args);
    prim->data = hth_calloc((size_t)cap, sizeof *prim->data);
    if (prim->args == NULL || prim->data == NULL) {
        return hth_no_memory("a oneDNN primitive");
    }
    for (int i = 0; i < n_fixed; i++) {
        HTH_TRY(dn_arg_add(prim, fixed[i]));
    }
    for (int i = 0; i < n_srcs; i++) {
        HTH_TRY(dn_arg_add(prim, DNNL_ARG_MULTIPLE_SRC + i));
    }
    for (int i = 0; i < n_post; i++) {
        // Only of a binary post op: of any other, oneDNN 2.6 returns bytes that are no descriptor.
        if (post[i].kind == dnnl_binary) {
            HTH_TRY(dn_arg_add(prim, DNNL_ARG_ATTR_MULTIPLE_POST_OP(i) | DNNL_ARG_SRC_1));
        }
    }
    prim->scratchpad = dn_bytes(prim, DNNL_ARG_SCRATCHPAD);
    return dn_arg_add(prim, DNNL_ARG_SCRATCHPAD);
}

static void dn_close(hth_dn_prim *prim)
{
    if (prim == NULL) {
        return;
    }
    for (int i = 0; i < prim->n_args; i++) {
        dnnl_memory_destroy(prim->args[i].memory);
    }
    if (prim->stream != NULL) {
        dnnl_stream_destroy(prim->stream);
    }
    if (prim->primitive != NULL) {
        dnnl_primitive_destroy(prim->primitive);
    }
    dnnl_primitive_desc_destroy(prim->pd);
    hth_free(prim->args);
    hth_free(prim->data);
    hth_free(prim);
}

// Makes the primitive of a descriptor, which it takes over also on error.
static hth_err dn_prim_from(dnnl_primitive_desc_t pd, int n_srcs, const hth_dn_post *post,
                            int n_post, hth_dn_prim **out)
{
    hth_err err;
    hth_dn_prim *p = hth_calloc(1, sizeof *p);
    if (p == NULL) {
        dnnl_primitive_desc_destroy(pd);
        return hth_no_memory("a oneDNN primitive");
    }
    p->pd = pd;
    HTH_GOTO(dn_fail(dnnl_primitive_create(&p->primitive, pd), "primitive"), fail);
    HTH_GOTO(
        dn_fail(dnnl_stream_create(&p->stream, dn_engine, dnnl_stream_default_flags), "stream"),
        fail);
    HTH_GOTO(dn_args_open(p, n_srcs, post, n_post), fail);
    *out = p;
    return HTH_OK;
fail:
    dn_close(p);
    return err;
}

static hth_err dn_pd_open(const hth_dn_op *op, int nth, dnnl_primitive_desc_t *out)
{
    dnnl_primitive_attr_t attr;
    *out = NULL;
    HTH_TRY(dn_fail(dn_engine_get(), "engine"));
    HTH_TRY(dn_fail(dn_attr_open(op, &attr), "attributes"));
    dnnl_status_t st = hth_dn_native_pd(dn_engine, op, attr, nth, out);
    dnnl_primitive_attr_destroy(attr);
    return dn_fail(st, "primitive descriptor");
}

static const char *dn_pd_impl(dnnl_primitive_desc_t pd)
{
    const char *name = NULL;
    dnnl_primitive_desc_query(pd, dnnl_query_impl_info_str, 0, &name);
    return name == NULL ? "?" : name;
}

static hth_err dn_open(const hth_dn_op *op, int nth, hth_dn_prim **out)
{
    dnnl_primitive_desc_t pd;
    *out = NULL;
    HTH_TRY(dn_pd_open(op, nth, &pd));
    return dn_prim_from(pd, op->n_srcs, op->post, op->n_post, out);
}

static hth_err dn_probe(const hth_dn_op *op, int nth, char name[HTH_DN_NAME], size_t *scratchpad)
{
    dnnl_primitive_desc_t pd;
    HTH_TRY(dn_pd_open(op, nth, &pd));
    snprintf(name, HTH_DN_NAME, "%s", dn_pd_impl(pd));
    hth_dn_native_md md = dnnl_primitive_desc_query_md(pd, dnnl_query_scratchpad_md, 0);
    *scratchpad = md == NULL ? 0 : dnnl_memory_desc_get_size(md);
    dnnl_primitive_desc_destroy(pd);
    return HTH_OK;
}

static const char *dn_impl(const hth_dn_prim *prim)
{
    return dn_pd_impl(prim->pd);
}

static size_t dn_scratchpad(const hth_dn_prim *prim)
{
    return prim->scratchpad;
}

static hth_err dn_reorder(const hth_dn_prim *prim, int arg, const hth_dn_md *md, bool back,
                          hth_dn_prim **out)
{
    *out = NULL;
    dnnl_primitive_attr_t attr;
    dnnl_primitive_desc_t pd = NULL;
    HTH_TRY(dn_fail(dn_attr_open(NULL, &attr), "attributes"));
    dnnl_status_t st = hth_dn_native_reorder(dn_engine, md, dn_arg_md(prim, arg), back, attr, &pd);
    dnnl_primitive_attr_destroy(attr);
    HTH_TRY(dn_fail(st, "reorder"));
    return dn_prim_from(pd, 0, NULL, 0, out);
}

static hth_err dn_set(hth_dn_prim *prim, int arg, const void *data)
{
    for (int i = 0; i < prim->n_args; i++) {
        if (prim->args[i].arg == arg && prim->data[i] != data) {
            prim->data[i] = data;
            return dn_fail(
                dnnl_memory_set_data_handle(prim->args[i].memory, (void *)(uintptr_t)data),
                "memory object");
        }
    }
    return HTH_OK;
}

static hth_err dn_run(hth_dn_prim *prim)
{
    return dn_fail(dnnl_primitive_execute(prim->primitive, prim->stream, prim->n_args, prim->args),
                   "execution");
}

static size_t dn_image(const hth_dn_prim *prim, int arg, uint8_t *out, size_t cap)
{
    return hth_dn_native_image(dn_arg_md(prim, arg), out, cap);
}

const hth_dn_calls hth_dnnl_calls = {dn_open,  dn_probe, dn_close,   dn_impl, dn_scratchpad,
                                     dn_bytes, dn_image, dn_reorder, dn_set,  dn_run};
