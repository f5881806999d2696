// SPDX-License-Identifier: Apache-2.0
//
// Diagnosis without a ctx (lien/info.h): options and candidates. No state; the calling thread alone, which may block.

#include <stdlib.h>
#include <string.h>

#include "core/ctx.h"

const char *lien_path_name(lien_path path)
{
    switch (path) {
    case LIEN_PATH_NONE:
        return "none";
    case LIEN_PATH_RDMA:
        return "rdma";
    case LIEN_PATH_KERNEL:
        return "kernel";
    case LIEN_PATH_INLINE:
        return "inline";
    case LIEN_PATH_SIM:
        return "sim";
    }
    return "unknown";
}

// Options as a ctx would have them, and a log to complain into.
struct look {
    struct lieni_options options;
    struct lieni_log *log;
};

// The log has to be closed if this returns 0.
static int load(const lien_ctx_opts *in, struct look *look)
{
    lien_ctx_opts opts;
    lien_ctx_opts_init(&opts);
    int rc = in ? lieni_opts_copy(&opts, sizeof(opts), in, in->size) : 0;
    if (rc == 0)
        rc = lieni_log_open(opts.log, opts.log_arg, LIEN_LOG_WARN, &look->log);
    if (rc != 0)
        return rc;
    rc = lieni_options_load(&look->options, opts.settings, NULL, look->log);
    if (rc != 0)
        lieni_log_close(look->log);
    return rc;
}

int lien_options_each(const lien_ctx_opts *opts, lien_option_fn *fn, void *arg)
{
    struct look look;
    if (!fn)
        return LIEN_EINVAL;
    int rc = load(opts, &look);
    if (rc != 0)
        return rc;
    lieni_options_tell(&look.options, fn, arg);
    lieni_log_close(look.log);
    return 0;
}

static void tell(const struct lieni_verdict *v, lien_candidate_fn *fn, void *arg)
{
    lien_candidate_info info = {.size = sizeof(info),
                                .provider = v->provider,
                                .nic = v->c.nic,
                                .interface = v->c.interface,
                                .address = v->c.address,
                                .prefix = v->c.prefix,
                                .state = v->c.state,
                                .usable = v->usable,
                                .chosen = v->chosen,
                                .why = v->why,
                                .soft = v->c.soft};
    if (v->ops) {
        const struct lieni_traits *t = v->ops->traits;
        info.path = t->path;
        info.ep_end_proves = t->ep_end_proves;
        info.domain_end_proves = t->domain_end_proves;
        info.only_if_asked = t->only_if_asked;
        info.read_piece_max = t->read_piece_max;
        info.read_bytes_max = t->read_bytes_max;
        info.reads_max = t->reads_max;
        info.posts_max = t->posts_max;
    }
    fn(&info, arg);
}

// Without a peer none is chosen: what can be used is found.
static int tell_all(const struct lieni_select *s, const struct lieni_target *target,
                    lien_candidate_fn *fn, void *arg)
{
    struct lieni_verdict *list = NULL;
    size_t n = 0;
    bool found = false;
    int rc = lieni_select_all(s, NULL, target, &list, &n);
    if (rc != 0)
        return rc;
    for (size_t i = 0; i < n; i++) {
        found = found || (target ? list[i].chosen : list[i].usable);
        tell(&list[i], fn, arg);
    }
    free(list);
    return found ? 0 : LIEN_ENOPROVIDER;
}

static int candidates(const struct look *look, const char *peer, lien_candidate_fn *fn, void *arg)
{
    struct lieni_select select;
    char remote[96], local[96];
    const struct lieni_target target = {.address = remote, .local = local, .local_reaches = true};
    int rc = lieni_select_open(&select, &look->options, lieni_platform_real(), look->log);
    if (rc != 0)
        return rc;
    if (!peer)
        return tell_all(&select, NULL, fn, arg);
    const char *why = lieni_route(peer, remote, local);
    if (why) {
        lieni_log_say(look->log, LIEN_LOG_ERROR, NULL, LIEN_EADDR, "no way to '%s': %s", peer, why);
        return LIEN_EADDR;
    }
    return tell_all(&select, &target, fn, arg);
}

int lien_candidates_each(const lien_ctx_opts *opts, const char *peer, lien_candidate_fn *fn,
                         void *arg)
{
    struct look look;
    if (!fn)
        return LIEN_EINVAL;
    int rc = load(opts, &look);
    if (rc != 0)
        return rc;
    rc = candidates(&look, peer, fn, arg);
    lieni_log_close(look.log);
    return rc;
}
